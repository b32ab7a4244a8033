"""Rates, their ratio and break-even of runs with planted truths."""

import math

import numpy as np
import pytest

from analysis.comparison import compare
from analysis.rates import (
    AHEAD,
    FROM,
    NEVER,
    NO_COMMON_STEP,
    UNCLEAR,
    UNKNOWN,
    UNTIL,
    break_even,
    speed_up,
)
from tests.make_frames import TOKENS, run, study
from tests.runs import PUBLISHED_LOGS, needs_published_logs

# ---- rates ----


def rate(*tokens_per_s):
    """The rate of runs with these."""
    return recipe(*tokens_per_s).rate


def recipe(*tokens_per_s):
    """Runs with these tokens/s."""
    runs = [run("a", seed, seconds=TOKENS / each) for seed, each in enumerate(tokens_per_s)]
    return study(*runs)["a"]


def test_a_rate_is_by_the_mean_step():
    seconds = np.where(np.arange(100) % 10 == 5, 0.5, 0.1)  # 0.14 on average
    assert study(run("a", seconds=seconds))["a"].rate.mean == pytest.approx(TOKENS / 0.14)


def test_one_run_has_no_interval_and_several_have_students():
    assert math.isnan(rate(500).low)
    found, half = rate(100 / math.e, 100, 100 * math.e), 4.303 / math.sqrt(3)
    assert found.mean == pytest.approx(100)
    assert math.log(found.high / 100) == pytest.approx(half, rel=1e-4)
    assert math.log(100 / found.low) == pytest.approx(half, rel=1e-4)


def test_only_completed_runs_of_the_recipe_with_enough_steady_steps_count():
    own = [run("a", 0), run("a", 1, steps=30), run("a", 3, seconds=5.0, steps=29)]
    found = study(*own, run("b", seconds=9.0), run("a", 2, seconds=7.0, status="failed"))
    assert found["a"].rate.runs == 2 and found["a"].rate.mean == pytest.approx(TOKENS / 0.1)
    short = study(run("a", steps=29))["a"].rate
    assert short.runs == 0 and math.isnan(short.mean)
    assert math.isnan(speed_up(study(run("a", steps=29))["a"], found["b"]).ratio)


def test_how_wide_the_interval_of_more_runs_would_be():
    """Processes that differ by 1 %: Student's t of 4, 8 and 18 degrees of freedom."""
    gain = speed_up(recipe(99, 100, 101), recipe(98, 99, 100))
    widths = {3: 2.776 / 3**0.5, 5: 2.306 / 5**0.5, 10: 2.101 / 10**0.5}
    expected = {runs: 0.01 * 2**0.5 * width for runs, width in widths.items()}
    assert gain.unclear and gain.half_widths == pytest.approx(expected, rel=0.01)
    assert speed_up(recipe(125, 126), recipe(100, 101)).half_widths == {}


# ---- break-even ----

B = {"warm_up": 5, "seconds": 0.5}
SLOW_START = B | {"warm_up": 9}
# 10.05 s behind at step 1, 0.2 s a step gained from step 2 on
FASTER = {"warm_up": 15.05, "seconds": 0.3}
FAR = {"warm_up": 105.1, "seconds": 0.3}
MEAN = {"warm_up": 105.1, "seconds": np.where(np.arange(100) % 10 == 0, 1.2, 0.2)}  # 0.3
# after it had taken the lead
PAUSED = {"warm_up": 10, "seconds": np.where(np.arange(100) == 50, 20.0, 0.1)}
SLOWER = {"warm_up": 9, "seconds": 0.4}
SHORT = {"steps": 4}


@pytest.mark.parametrize(
    ("a", "b", "outcome", "step", "beyond"),
    [
        (FASTER, B, FROM, 52, False),
        (FAR, B, FROM, 502, True),
        (MEAN, B, FROM, pytest.approx(502, abs=5), True),
        (PAUSED, B, FROM, 64, False),
        (B, SLOW_START, AHEAD, 0, False),
        (B, SLOWER | {"warm_up": 9.1}, UNTIL, pytest.approx(42, abs=1), False),
        (B, SLOWER | {"warm_up": 85}, UNTIL, pytest.approx(801, abs=1), True),
        (SLOW_START, SLOWER | {"warm_up": 5}, NEVER, None, False),
        (FASTER | SHORT, B | SHORT, UNKNOWN, None, False),
        (B | SHORT, FASTER | SHORT, AHEAD, 0, False),
    ],
)
def test_break_even(a, b, outcome, step, beyond):
    found = break_even(*study(run("a", **a), run("b", **b)).values())
    assert (found.outcome, found.step, found.beyond) == (outcome, step, beyond)
    assert found.low is None  # no interval from single runs
    if a is FAR:
        seconds = 105.1 + 501 * 0.3
        assert found.device_hours == pytest.approx(2 * seconds / 3600)
    assert "a" in found.sentence() and ("beyond the end" in found.sentence()) == beyond


def test_several_runs_that_do_not_tell_the_faster_one_are_not_extrapolated():
    b = [run("b", seed, 5, 0.5) for seed in (0, 1)]
    found = break_even(*study(run("a", 0, 105, 0.3), run("a", 1, 105, 0.6), *b).values())
    assert (found.outcome, found.step) == (UNCLEAR, None)


def test_the_interval_of_several_runs_covers_the_break_even_step():
    """Truth: 10 s behind and 0.2 s a step faster, so step 51 to 52; processes differ in warm-up and
    speed."""
    random, inside = np.random.default_rng(0), []
    for _ in range(20):
        runs = []
        for recipe, warm_up, seconds in ("a", 15.05, 0.3), ("b", 5, 0.5):
            for seed, (late, slow) in enumerate(random.normal(size=(3, 2))):
                pace = seconds * (1 + 0.02 * slow)
                runs.append(run(recipe, seed, warm_up + late, pace, steps=60))
        found = break_even(*study(*runs).values())
        inside.append(found.low <= 52 <= found.high)
    assert np.mean(inside) >= 0.9 and "95 % interval: step" in found.sentence()


def test_break_even_is_paired_where_runs_of_a_seed_share_a_host():
    """Nodes differ by a third, and each FP8 run is ahead from step 52 on."""
    runs = []
    for seed, slow in enumerate([1, 1.3, 1.6]):
        for recipe, facts in ("a", FASTER), ("b", B):
            pace = {"warm_up": slow * facts["warm_up"], "seconds": slow * facts["seconds"]}
            row, windows, steps = run(recipe, seed, **pace)
            runs.append((row.assign(host=f"node{seed}"), windows, steps))
    found = break_even(*study(*runs).values())
    assert (found.low, found.step, found.high) == (52, 52, 52)


def test_logs_without_a_common_step_are_not_compared():
    a, b = study(run("a"), run("b")).values()
    a = a._replace(windows=a.windows[a.windows["step"] <= 50])
    b = b._replace(windows=b.windows[b.windows["step"] > 50])
    assert break_even(a, b).outcome == NO_COMMON_STEP


@needs_published_logs
def test_break_even_of_the_published_runs():
    found = compare(PUBLISHED_LOGS).break_evens
    steps = {pair: paid.step for pair, paid in found.items()}
    assert steps == {
        ("tensorwise_fp8_compiled", "baseline_compiled"): 728,
        ("tensorwise_fp8_compiled", "baseline"): 795,
        ("rowwise_fp8_compiled", "baseline_compiled"): pytest.approx(3851, rel=0.01),
        ("rowwise_fp8_compiled", "baseline"): pytest.approx(2121, rel=0.01),
    }
    for paid in found.values():
        assert paid.outcome == FROM and paid.beyond == (paid.step > 1000)
        assert paid.tokens == 4096 * paid.step
