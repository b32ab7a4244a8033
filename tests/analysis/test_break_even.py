"""The break-even step, from wall times with a known crossing."""

import math

import numpy as np
import pytest

from analysis.break_even import When
from tests.analysis.planted import compared

SOON = {"seconds": {"to": 0.2}, "warm_up": 5.0}
LATER = {"seconds": {"to": 0.1}, "warm_up": 8.05}  # level with SOON at step 31.5
LOST = {"seconds": {"to": np.where(np.arange(100) < 50, 0.1, 0.4)}, "warm_up": 5.0}
SLOW, USUAL, QUICK = (SOON | {"seconds": {"to": seconds}} for seconds in (0.3, 0.2, 0.1))
COLD, WARM = (LATER | {"timing": {"compile_cache": cache}} for cache in ("cold", "warm"))


@pytest.mark.parametrize(
    ("own", "other", "steps", "when", "step", "beyond"),
    [
        ([LATER], [SOON], 100, When.FROM, 32, False),
        ([LATER | {"warm_up": 25.05}], [SOON], 100, When.FROM, 202, True),
        ([LATER | {"warm_up": 4.0}], [SOON], 100, When.START, math.nan, False),
        ([SOON], [LATER], 100, When.UNTIL, 31, False),
        ([LOST], [SOON], 100, When.UNTIL, 74, False),
        ([SOON], [LATER | {"warm_up": 4.0}], 100, When.NEVER, math.nan, False),
        # too short for a rate; runs that cannot tell which is faster
        ([LATER], [SOON], 25, When.NOT_YET, math.nan, False),
        ([LATER], [SOON], 5, When.NOT_YET, math.nan, False),
        ([QUICK, USUAL, SLOW], [SLOW, USUAL, QUICK], 100, When.NOT_YET, math.nan, False),
        # first steps with and without compilation
        ([WARM, COLD, COLD], [SOON] * 3, 100, When.NOT_COMPARED, math.nan, False),
    ],
)
def test_where_two_lines_cross(tmp_path, own, other, steps, when, step, beyond):
    """None of these has an interval, single runs for one."""
    found = compared(tmp_path, own, other, steps=steps).break_even
    assert (found.when, found.is_beyond) == (when, beyond)
    assert [found.step, found.low, found.high] == pytest.approx(
        [step, math.nan, math.nan], nan_ok=True
    )


def test_the_interval_holds_the_steps_of_all_likely_first_steps(tmp_path):
    """First steps vary by 1 s, and 0.1 s a step is gained."""
    own = [LATER | {"warm_up": warm_up} for warm_up in (7.05, 8.05, 9.05)]
    other = [SOON | {"warm_up": warm_up} for warm_up in (4.99, 5.0, 5.01)]
    found = compared(tmp_path, own, other, steps=200).break_even
    half = 10 * 4.303 * 1 / math.sqrt(3)  # Student's, two degrees of freedom
    expected = [32, 32 - half, 32 + half]
    assert [found.step, found.low, found.high] == pytest.approx(expected, abs=1.5)
