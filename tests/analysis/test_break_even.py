"""The break-even step, from wall times with a known crossing."""

import math

import numpy as np
import pytest

from analysis.agreement import speed_up
from analysis.break_even import When, break_even
from tests.analysis.formulas import run, runs


def found(own, others):
    return break_even(own, others, speed_up(own, others))


@pytest.mark.parametrize(
    ("own", "other", "steps", "expected"),
    [
        # 3.05 s late, 0.1 s a step gained: level at step 31.5
        ((0.1, 8.05), (0.2, 5.0), 100, (When.FROM, 32, False)),
        ((0.1, 8.05), (0.2, 5.0), 30, (When.CANNOT_TELL, math.nan, False)),  # too short for a rate
        ((0.1, 25.05), (0.2, 5.0), 100, (When.FROM, 202, True)),
        ((0.1, 4.0), (0.2, 5.0), 100, (When.START, math.nan, False)),
        ((0.2, 5.0), (0.1, 8.05), 100, (When.UNTIL, 31, False)),
        ((0.2, 8.0), (0.1, 5.0), 100, (When.NEVER, math.nan, False)),
    ],
)
def test_where_two_lines_cross(own, other, steps, expected):
    a, b = ([run(seconds=seconds, first=first, steps=steps)] for seconds, first in (own, other))
    if steps == 30:
        a[0].steps["steady"] = b[0].steps["steady"] = False
    got = found(a, b)
    assert (got.when, got.beyond) == (expected[0], expected[2])
    assert got.step == pytest.approx(expected[1], nan_ok=True)
    assert math.isnan(got.low) and math.isnan(got.high)  # single runs have no interval


def test_the_interval_holds_the_steps_of_all_likely_first_steps():
    """First steps vary by 1 s, 3.05 s above the other recipe's; 0.1 s a step is gained."""
    own = runs(seconds=0.1, first=[7.05, 8.05, 9.05], steps=200)
    got = found(own, runs("b", seconds=0.2, first=[4.99, 5.0, 5.01], steps=200))
    half = 4.303 * 1 / math.sqrt(3)  # Student's, two degrees of freedom
    assert got.step == 32
    assert [got.low, got.high] == pytest.approx([max(0, 32 - 10 * half), 32 + 10 * half], abs=1.5)


def test_a_recipe_that_kept_to_a_machine_of_its_own_has_no_interval():
    got = found(runs(first=8.05), runs("b", seconds=0.2, place="there"))
    assert got.step == 32 and math.isnan(got.low) and math.isnan(got.high)


def test_runs_that_cannot_tell_which_is_faster_are_not_drawn_out():
    noisy = [0.1, 0.2, 0.3]
    got = found(runs(seconds=noisy, first=50.0), runs("b", seconds=noisy[::-1], first=5.0))
    assert got.when == When.CANNOT_TELL


def test_first_steps_with_and_without_compilation_do_not_compare():
    own, others = runs(first=8.0), runs("b", seconds=0.2)
    own[0].facts["compile_cache"] = "warm"
    assert found(own, others).when == When.NOT_COMPARED


def test_a_lead_that_is_lost_again():
    seconds = np.where(np.arange(100) < 50, 0.1, 0.4)
    got = found([run(seconds=seconds)], [run(seconds=0.2)])
    assert (got.when, got.step) == (When.UNTIL, 74)
