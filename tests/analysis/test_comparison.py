"""The outcome of a ratio and its interval, which needs no study."""

import pytest

from analysis.comparison import judge_speed
from analysis.speed import Ratio, SpeedUp


@pytest.mark.parametrize(
    ("ratio", "outcome"),
    [
        (Ratio(1.030, 1.020, 1.040), "yes"),
        (Ratio(0.970, 0.960, 0.980), "slower"),
        (Ratio(1.000, 0.995, 1.005), "no_gain"),
        (Ratio(1.030, 0.990, 1.060), "cannot_tell"),
        (Ratio(0.993, 0.988, 0.998), "cannot_tell"),  # slower, by less than two GPUs differ
        (Ratio(1.007, 1.002, 1.012), "cannot_tell"),
    ],
)
def test_a_clear_difference_of_more_than_one_percent_is_an_answer(ratio, outcome):
    assert judge_speed(SpeedUp(ratio, runs=3)) == outcome
    contradicted = judge_speed(SpeedUp(ratio, runs=3, caveats=["the clock"]))
    assert contradicted in ("no_plain_yes", "no_verdict")
