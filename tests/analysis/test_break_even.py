"""The break-even step, from wall times with a known crossing."""

import math

import numpy as np
import pytest

from analysis.break_even import When
from tests.analysis.planted import compared

SOON = {"seconds": 0.2, "first_step": 5.0}
LATER = {"seconds": 0.1, "first_step": 8.05}  # level with SOON at step 31.5


def found(folder, own, other, seeds=1, steps=100):
    return compared(folder, own, other, seeds, steps=steps).break_even


@pytest.mark.parametrize(
    ("own", "other", "steps", "when", "step", "beyond"),
    [
        (LATER, SOON, 100, When.FROM, 32, False),
        (LATER, SOON, 25, When.CANNOT_TELL, math.nan, False),  # too short for a rate
        (LATER | {"first_step": 25.05}, SOON, 100, When.FROM, 202, True),
        (LATER | {"first_step": 4.0}, SOON, 100, When.START, math.nan, False),
        (SOON, LATER, 100, When.UNTIL, 31, False),
        (SOON | {"first_step": 8.0}, LATER | {"first_step": 5.0}, 100, When.NEVER, math.nan, False),
    ],
)
def test_where_two_lines_cross(tmp_path, own, other, steps, when, step, beyond):
    got = found(tmp_path, own, other, steps=steps)
    assert (got.when, got.beyond) == (when, beyond)
    assert got.step == pytest.approx(step, nan_ok=True)
    assert math.isnan(got.low) and math.isnan(got.high)  # single runs have no interval


def test_the_interval_holds_the_steps_of_all_likely_first_steps(tmp_path):
    """First steps vary by 1 s, and 0.1 s a step is gained."""
    own = LATER | {"first_step": [7.05, 8.05, 9.05]}
    other = SOON | {"first_step": [4.99, 5.0, 5.01]}
    got = found(tmp_path, own, other, seeds=3, steps=200)
    half = 4.303 * 1 / math.sqrt(3)  # Student's, two degrees of freedom
    assert got.step == 32
    assert [got.low, got.high] == pytest.approx([max(0, 32 - 10 * half), 32 + 10 * half], abs=1.5)


def test_a_recipe_that_kept_to_a_machine_of_its_own_has_no_interval(tmp_path):
    got = found(tmp_path, LATER, SOON | {"host": "there"}, seeds=3)
    assert got.step == 32 and math.isnan(got.low) and math.isnan(got.high)


def test_runs_that_cannot_tell_which_is_faster_are_not_drawn_out(tmp_path):
    own = {"seconds": [0.1, 0.2, 0.3], "first_step": 50.0}
    got = found(tmp_path, own, SOON | {"seconds": [0.3, 0.2, 0.1]}, seeds=3)
    assert got.when == When.CANNOT_TELL


def test_first_steps_with_and_without_compilation_do_not_compare(tmp_path):
    own = LATER | {"timing": [{"compile_cache": cache} for cache in ("warm", "cold", "cold")]}
    assert found(tmp_path, own, SOON, seeds=3).when == When.NOT_COMPARED


def test_a_lead_that_is_lost_again(tmp_path):
    own = SOON | {"seconds": np.where(np.arange(100) < 50, 0.1, 0.4)}
    got = found(tmp_path, own, SOON)
    assert (got.when, got.step) == (When.UNTIL, 74)
