"""The break-even step, from wall times with a known crossing."""

import math

import numpy as np
import pytest

from analysis.break_even import When
from tests.analysis.planted import compared

SOON = {"seconds": 0.2, "warm_up": 5.0}
LATER = {"seconds": 0.1, "warm_up": 8.05}  # level with SOON at step 31.5
NOISY = {"seconds": [0.1, 0.2, 0.3], "warm_up": 50.0}
ONE_WARM = {"timing": [{"compile_cache": cache} for cache in ("warm", "cold", "cold")]}
LOST = {"seconds": np.where(np.arange(100) < 50, 0.1, 0.4), "warm_up": 5.0}


@pytest.mark.parametrize(
    ("own", "other", "words", "when", "step", "beyond"),
    [
        (LATER, SOON, {"seeds": 1}, When.FROM, 32, False),
        (LATER | {"warm_up": 25.05}, SOON, {"seeds": 1}, When.FROM, 202, True),
        (LATER | {"warm_up": 4.0}, SOON, {"seeds": 1}, When.START, math.nan, False),
        (SOON, LATER, {"seeds": 1}, When.UNTIL, 31, False),
        (LOST, SOON, {"seeds": 1}, When.UNTIL, 74, False),
        (SOON, LATER | {"warm_up": 4.0}, {"seeds": 1}, When.NEVER, math.nan, False),
        # too short for a rate; runs that cannot tell which is faster
        (LATER, SOON, {"seeds": 1, "steps": 25}, When.CANNOT_TELL, math.nan, False),
        (NOISY, SOON | {"seconds": [0.3, 0.2, 0.1]}, {}, When.CANNOT_TELL, math.nan, False),
        # first steps with and without compilation; a machine of its own
        (LATER | ONE_WARM, SOON, {}, When.NOT_COMPARED, math.nan, False),
        (LATER, SOON | {"host": "there"}, {}, When.FROM, 32, False),
    ],
)
def test_where_two_lines_cross(tmp_path, own, other, words, when, step, beyond):
    """None of these has an interval, single runs for one."""
    found = compared(tmp_path, own, other, **{"steps": 100} | words).break_even
    assert (found.when, found.beyond) == (when, beyond)
    assert [found.step, found.low, found.high] == pytest.approx(
        [step, math.nan, math.nan], nan_ok=True
    )


def test_the_interval_holds_the_steps_of_all_likely_first_steps(tmp_path):
    """First steps vary by 1 s, and 0.1 s a step is gained."""
    own = LATER | {"warm_up": [7.05, 8.05, 9.05]}
    found = compared(tmp_path, own, SOON | {"warm_up": [4.99, 5.0, 5.01]}, steps=200).break_even
    half = 10 * 4.303 * 1 / math.sqrt(3)  # Student's, two degrees of freedom
    expected = [32, 32 - half, 32 + half]
    assert [found.step, found.low, found.high] == pytest.approx(expected, abs=1.5)
