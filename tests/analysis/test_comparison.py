"""The outcome of a ratio and its interval, and how many runs would tell."""

import numpy as np
import pytest
from scipy import stats

from analysis.comparison import judge_speed
from analysis.speed import Ratio, SpeedUp
from tests.analysis.planted import compared


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


@pytest.mark.parametrize("paired", [True, False])
def test_so_many_runs_would_tell_if_their_speeds_vary_as_much(tmp_path, paired):
    """With pairs on the same GPUs one by one, or with each recipe's runs on other GPUs."""
    slow = [0.95, 1.0, 1.06]
    runs, reference_runs = [], []
    for number, factor in enumerate(slow):
        gpu = {"hardware": {"uuid": f"GPU-{number}"}}
        other_gpu = {"hardware": {"uuid": f"GPU-{number if paired else 2 - number}"}}
        runs.append({"seconds": {"by": factor - 1}} | gpu)
        reference_runs.append({"seconds": {"by": 0.02 * number}} | other_gpu)
    speed = compared(tmp_path, runs, reference_runs, steps=60, sd=0.0).speed
    width = speed.ratio.high - speed.ratio.low
    lead = abs(speed.ratio.mean - 1)
    samples = 1 if paired else 2

    def width_of(count: int) -> float:
        return stats.t.ppf(0.975, samples * (count - 1)) / np.sqrt(count)

    sufficient = 2 * max(lead, 0.01 - lead)
    enough = [n for n in range(2, 1001) if width * width_of(n) / width_of(3) <= sufficient]
    assert speed.runs_needed == enough[0]
