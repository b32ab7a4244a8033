"""Rates and break-even of runs with planted truths."""

import numpy as np
import pandas as pd
import pytest

from analysis import rates
from analysis.rates import rate_of, speed_up, steady_rate
from tests.make_frames import TOKENS, correlated, run, study
from tests.runs import PUBLISHED_LOGS, needs_published_logs

# Rates


def test_a_planted_rate_is_found():
    rate = steady_rate([np.array([0.5, 0.4, 0.25, 0.2, 0.1])], 100)
    assert (rate.median, rate.q1, rate.q3) == pytest.approx((400, 250, 500))
    assert (rate.steps, rate.runs) == (5, 1)


def test_the_same_steps_give_the_same_interval():
    seconds = [np.random.default_rng(0).uniform(1, 2, 50)]
    first, second = steady_rate(seconds, 100), steady_rate(seconds, 100)
    assert (first.low, first.high) == (second.low, second.high) and first.low < first.median < first.high


def test_a_rate_without_steady_steps_is_unknown():
    rate = steady_rate([np.array([])], 100)
    assert np.isnan(rate.median) and np.isnan(rate.low) and rate.steps == 0
    assert np.isnan(speed_up(rate, steady_rate([np.ones(9)], 100)).high)


@pytest.mark.parametrize("correlation", [0.0, 0.5])
def test_the_interval_of_the_rate_covers_the_truth(correlation):
    noise = correlated(np.random.default_rng(0), correlation, (200, 200))
    rates = [steady_rate([np.exp(0.02 * run)], 1) for run in noise]
    assert 0.90 <= np.mean([rate.low <= 1 <= rate.high for rate in rates]) <= 0.99


def test_runs_that_differ_widen_the_interval():
    noise = 0.01 * np.random.default_rng(0).normal(size=(3, 100))
    alike, unlike = (steady_rate(list(1 + shift + noise), 100) for shift in (0, np.array([[-0.1], [0], [0.1]])))
    assert unlike.high - unlike.low > 3 * (alike.high - alike.low)


def test_the_intervals_cover_what_differs_between_processes():
    """Studies of two equal recipes, three runs of each: each run has a speed of its own, and its steps vary as much."""
    random = np.random.default_rng(0)
    own = np.exp(0.01 * random.normal(size=(100, 2, 3, 1)) + 0.01 * random.normal(size=(100, 2, 3, 60)))
    rates = [[steady_rate(list(runs), 1) for runs in both] for both in own]
    assert np.mean([rate.low <= 1 <= rate.high for both in rates for rate in both]) >= 0.93
    assert np.mean([speed_up(*both).unclear for both in rates]) >= 0.93


def test_a_ratio_of_single_runs_says_so():
    one, two = ([np.random.default_rng(k).uniform(1, 2, 50) for k in range(n)] for n in (1, 2))
    single, both = (
        speed_up(steady_rate(one, 1), steady_rate(two, 1)),
        speed_up(steady_rate(two, 1), steady_rate(two, 1)),
    )
    assert "of single runs" in single.interval() and "single" not in both.interval()


def test_a_planted_speed_up_is_found_whatever_the_interval():
    noise = 1 + 0.02 * correlated(np.random.default_rng(1), 0.5, (2, 80, 100))
    found = [speed_up(steady_rate([0.8 * a], 100), steady_rate([b], 100)) for a, b in zip(*noise, strict=True)]
    assert np.median([up.ratio for up in found]) == pytest.approx(1.25, rel=0.002)
    assert 0.90 <= np.mean([up.low <= 1.25 <= up.high for up in found]) <= 0.99


def test_both_rates_of_a_speed_up_are_resampled():
    rate = steady_rate([np.random.default_rng(0).uniform(1, 2, 200)], 100)
    itself = speed_up(rate, rate)
    assert itself.ratio == 1 and itself.high - itself.low > 1.2 * (rate.high - rate.low) / rate.median


def test_only_completed_runs_of_the_recipe_count():
    completed = [run("a", 0, seconds=0.1), run("a", 1, seconds=0.2, steps=150)]
    others = [run("b", 0, seconds=9.0), *[run("a", 2, seconds=7.0, status=status) for status in ("failed", "running")]]
    runs, _, steps = study(*completed, *others)
    rate = rate_of(runs, steps, "a")
    assert rate.runs == 2 and rate.steps == 90 + 140
    assert rate.median == pytest.approx(TOKENS / 0.2) and rate.q3 == pytest.approx(TOKENS / 0.1)


# Break-even


def break_even(runs, windows, steps, a, b):
    gain = speed_up(rate_of(runs, steps, a), rate_of(runs, steps, b))
    return rates.break_even(runs, windows, steps, a, b, gain)


def test_break_even_within_the_runs():
    frames = study(run("a", warm_up=15.05, seconds=0.3), run("b", warm_up=5, seconds=0.5))
    found = break_even(*frames, "a", "b")  # 10.05 s behind, 0.2 s a step gained from step 2 on
    assert (found.outcome, found.step, found.tokens) == ("reached", 52, 52 * TOKENS)
    assert found.device_hours == pytest.approx(2 * (15.05 + 50.25 * 0.3) / 3600)
    assert "at step 52" in found.sentence() and "reached" in found.sentence()
    assert break_even(*frames, "b", "a").outcome == "never"


def test_break_even_beyond_the_runs():
    frames = study(run("a", warm_up=105.1, seconds=0.3), run("b", warm_up=5, seconds=0.5))
    found = break_even(*frames, "a", "b")
    assert (found.outcome, found.step) == ("extrapolated", 502)
    assert found.device_hours == pytest.approx(2 * (105.1 + 500.5 * 0.3) / 3600)


def test_extrapolation_uses_what_a_step_costs_on_average():
    seconds = np.where(np.arange(100) % 10 == 0, 1.2, 0.2)  # median 0.2, mean 0.3
    frames = study(run("a", warm_up=105.1, seconds=seconds), run("b", warm_up=5, seconds=0.5))
    assert break_even(*frames, "a", "b").step == pytest.approx(502, abs=5)


def test_a_stall_is_not_extrapolated():
    """B is faster but for one step of 30 s: by the mean a catches up with it, by the median never."""
    seconds = np.full(100, 0.2)
    seconds[50] = 30.0
    frames = study(run("a", warm_up=105, seconds=0.4), run("b", warm_up=5, seconds=seconds))
    found = break_even(*frames, "a", "b")
    assert (found.outcome, found.step) == ("unclear", None)
    assert (
        found.sentence().startswith("a may or may not break even with b")
        and "which is faster per step cannot be told" in found.sentence()
    )
    ahead = break_even(*frames, "b", "a")
    assert (ahead.outcome, ahead.lost_at) == ("ahead from the start", None)


def test_no_break_even_for_what_is_behind_and_slower():
    found = break_even(*study(run("a", warm_up=9, seconds=0.5), run("b", warm_up=5, seconds=0.4)), "a", "b")
    assert (found.outcome, found.step, found.tokens) == ("never", None, None) and "never" in found.sentence()


def test_ahead_from_the_start_says_whether_it_lasts():
    a, c = run("a", warm_up=1, seconds=0.5), run("c", warm_up=9, seconds=0.5)
    frames = study(a, run("b", warm_up=81, seconds=0.4), c)
    found = break_even(*frames, "a", "b")
    assert (found.outcome, found.step, found.tokens, found.lost_at) == ("ahead from the start", 0, 0, 801)
    assert "801" in found.sentence()
    assert break_even(*frames, "a", "c").lost_at is None


def test_break_even_is_for_good():
    seconds = np.full(100, 0.1)
    seconds[50] = 20.0  # a pause after it had taken the lead
    found = break_even(*study(run("a", warm_up=10, seconds=seconds), run("b", warm_up=5, seconds=0.5)), "a", "b")
    assert (found.outcome, found.step) == ("reached", 64)


def test_single_steady_steps_of_several_runs_are_no_rate():
    assert np.isnan(steady_rate([np.array([0.1]), np.array([0.2]), np.array([0.3])], 100).median)


@pytest.mark.parametrize("steps", [4, 11])
def test_break_even_of_runs_with_fewer_than_two_steady_steps_is_unknown(steps):
    frames = study(run("a", warm_up=9, seconds=0.1, steps=steps), run("b", warm_up=5, seconds=0.2, steps=steps))
    assert break_even(*frames, "a", "b").outcome == "unknown"
    assert break_even(*frames, "b", "a").outcome == "ahead from the start"


def test_break_even_takes_the_mean_over_completed_runs():
    frames = study(run("a", 0, 10, 0.3), run("a", 1, 20.1, 0.3), run("a", 2, 500, 9.0, status="failed"),
                   run("b", 0, 5, 0.5))  # fmt: skip
    assert break_even(*frames, "a", "b").step == 52


def test_the_cost_is_that_of_cold_caches_and_the_speed_that_of_all_runs():
    """Of a the cold run pays 15.05 s, and steps of 0.3 s are the mean of both; of b there is a warm run alone."""
    frames = study(run("a", 0, 15.05, 0.3), run("a", 1, 1, 0.3, cache="warm"), run("b", 0, 5, 0.5, cache="warm"))
    found = break_even(*frames, "a", "b")
    assert (found.step, found.warm) == (52, ("b",)) and "b with a warm compile cache" in found.sentence()
    ahead = break_even(*study(run("a", 0, 1, 0.3, cache="warm"), run("b", 0, 5, 0.5)), "a", "b")
    assert ahead.sentence() == "a is ahead of b from the start (a with a warm compile cache)."
    other = study(run("a", 0, 105.1, 0.3), run("a", 1, 1, 0.5, cache="warm"), run("b", 0, 5, 0.5))
    assert break_even(*other, "a", "b").outcome == "unclear"  # its two runs disagree on whether a is faster


@needs_published_logs
@pytest.mark.parametrize(
    ("a", "b", "outcome", "step"),
    [
        ("tensorwise_fp8_compiled", "baseline_compiled", "reached", 725),
        ("tensorwise_fp8_compiled", "baseline", "reached", 794),
        ("rowwise_fp8_compiled", "baseline_compiled", "extrapolated", 3800),
        ("rowwise_fp8_compiled", "baseline", "extrapolated", 2120),
    ],
)
def test_break_even_of_the_published_runs(a, b, outcome, step):
    frames = []
    for recipe in (a, b):
        log = pd.read_json(PUBLISHED_LOGS / f"{recipe}.jsonl", lines=True)
        name = {"run": recipe, "recipe": recipe, "seed": np.nan}
        window = pd.DataFrame(name | {"step": log.step, "elapsed_s": log.time_delta.cumsum(), "loss": log.loss})
        count = log.step.diff().fillna(1)
        steps = pd.DataFrame(name | {"step": log.step, "seconds": log.time_delta / count, "steady": log.step > 10})
        row = name | {"status": "completed", "tokens_per_step": 4096, "world_size": 1, "compile_cache": None}
        frames.append((pd.DataFrame([row]), window, steps.loc[steps.index.repeat(count)]))
    found = break_even(*study(*frames), a, b)
    assert (found.outcome, found.step) == (outcome, pytest.approx(step, rel=0.02))
    assert found.tokens == found.step * 4096
