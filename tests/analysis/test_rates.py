"""Rates, their ratio and break-even of runs with planted truths."""

import math

import numpy as np
import pandas as pd
import pytest

from analysis import rates
from analysis.rates import (
    AHEAD,
    FROM,
    NEVER,
    NO_COMMON_STEP,
    UNCLEAR,
    UNKNOWN,
    UNTIL,
    Rate,
    rate_of,
    speed_up,
)
from tests.make_frames import TOKENS, run, study
from tests.runs import PUBLISHED_LOGS, needs_published_logs

# Rates


def rate(*tokens_per_s) -> Rate:
    """Of runs with these rates."""
    frames = study(
        *(run("a", seed, seconds=TOKENS / each) for seed, each in enumerate(tokens_per_s))
    )
    return rate_of(frames[0], frames[2], "a")


def test_a_rate_is_by_the_mean_step_and_keeps_the_median():
    seconds = np.where(
        np.arange(100) % 10 == 5, 0.5, 0.1
    )  # every tenth is five times as slow: 0.14 on average
    runs, _, steps = study(run("a", seconds=seconds))
    found = rate_of(runs, steps, "a")
    assert (found.mean, found.median) == pytest.approx(
        (TOKENS / 0.14, TOKENS / 0.1)
    ) and found.runs == 1


def test_one_run_has_no_interval_and_several_have_students():
    assert math.isnan(rate(500).low) and rate(500).mean == pytest.approx(500)
    several = rate(490, 500, 510)
    logs = np.log([490, 500, 510])
    half = 4.303 * logs.std(ddof=1) / math.sqrt(3)
    assert np.log([several.low, several.high]) == pytest.approx(
        logs.mean() + half * np.array([-1, 1]), rel=1e-4
    )


def test_only_completed_runs_of_the_recipe_with_enough_steady_steps_count():
    others = [
        run("b", seconds=9.0),
        run("a", 2, seconds=7.0, status="failed"),
        run("a", 3, seconds=5.0, steps=29),
    ]
    runs, _, steps = study(run("a", 0, seconds=0.1), run("a", 1, seconds=0.1, steps=30), *others)
    assert rate_of(runs, steps, "a").runs == 2 and rate_of(runs, steps, "a").mean == pytest.approx(
        TOKENS / 0.1
    )
    short = study(run("a", steps=29), run("b"))
    unknown = rate_of(short[0], short[2], "a")
    assert math.isnan(unknown.mean) and math.isnan(
        speed_up(unknown, rate_of(short[0], short[2], "b")).ratio
    )


def test_a_ratio_of_single_runs_has_no_interval_and_tells_nothing():
    for a, b in (
        (rate(125), rate(100)),
        (rate(125), rate(100, 101, 102)),
        (rate(125, 126, 127), rate(100)),
    ):
        gain = speed_up(a, b)
        assert (
            gain.ratio == pytest.approx(1.25, rel=0.02)
            and math.isnan(gain.low)
            and gain.unclear
            and gain.runs == 1
        )


def test_intervals_cover_what_differs_between_processes():
    """Studies of two equal recipes whose processes differ by 1 %: a difference is told in about 5 %
    of them."""
    random = np.random.default_rng(0)
    logs = 0.01 * random.normal(size=(1000, 2, 3))
    series = [[Rate(1, 1, 1, 1, pd.Series(np.exp(runs))) for runs in both] for both in logs]
    assert 0.93 <= np.mean([speed_up(*both).unclear for both in series]) <= 0.98


def test_what_it_takes_to_tell_a_ratio():
    """Processes that differ by 1 %, a ratio of 1.01: a two-sample t-test at 5 % has a power of 80 %
    with 17 each."""
    gain = speed_up(rate(99, 100, 101), rate(98, 99, 100))
    assert gain.unclear and gain.needed == pytest.approx(17, abs=1)
    assert speed_up(rate(125, 126), rate(100, 101)).needed is None  # these tell
    assert speed_up(rate(99, 100, 101), rate(99, 100, 101)).needed is None  # nothing to tell


# Break-even


def break_even(runs, windows, steps, a="a", b="b"):
    return rates.break_even(
        runs, windows, a, b, {recipe: rate_of(runs, steps, recipe) for recipe in (a, b)}
    )


B = {"warm_up": 5, "seconds": 0.5}
FASTER = {
    "warm_up": 15.05,
    "seconds": 0.3,
}  # 10.05 s behind at step 1, 0.2 s a step gained from step 2 on
FAR = {"warm_up": 105.1, "seconds": 0.3}
MEAN = {
    "warm_up": 105.1,
    "seconds": np.where(np.arange(100) % 10 == 0, 1.2, 0.2),
}  # median 0.2, mean 0.3
PAUSED = {
    "warm_up": 10,
    "seconds": np.where(np.arange(100) == 50, 20.0, 0.1),
}  # after it had taken the lead
LOSES = "a is ahead of b until step"
NEVER_SAID = "a never breaks even with b: it is behind at the end, and is no faster per step."


@pytest.mark.parametrize(
    ("a", "b", "outcome", "step", "beyond", "words"),
    [
        (FASTER, B, FROM, 52, False, "a breaks even with b at step 52 ("),
        (FAR, B, FROM, 502, True, "beyond the end of these runs"),
        (MEAN, B, FROM, pytest.approx(502, abs=5), True, "beyond the end of these runs"),
        (PAUSED, B, FROM, 64, False, "at step 64"),
        (
            {"warm_up": 1, "seconds": 0.5},
            B | {"warm_up": 9},
            AHEAD,
            0,
            False,
            "ahead of b from the start",
        ),
        (B, {"warm_up": 9.1, "seconds": 0.4}, UNTIL, pytest.approx(42, abs=1), False, LOSES),
        (B, {"warm_up": 85, "seconds": 0.4}, UNTIL, pytest.approx(801, abs=1), True, LOSES),
        ({"warm_up": 9, "seconds": 0.5}, B | {"seconds": 0.4}, NEVER, None, False, NEVER_SAID),
        (FASTER | {"steps": 4}, B | {"steps": 4}, UNKNOWN, None, False, "takes 30 steps"),
        (B | {"steps": 29}, FASTER | {"steps": 29}, AHEAD, 0, False, "ahead of b from the start"),
    ],
)
def test_break_even(a, b, outcome, step, beyond, words):
    found = break_even(*study(run("a", **a), run("b", **b)))
    assert (found.outcome, found.step, found.beyond) == (
        outcome,
        step,
        beyond,
    ) and words in found.sentence()
    assert found.low is None  # no interval from single runs


def test_what_it_costs_until_break_even():
    found = break_even(*study(run("a", **FAR), run("b", **B)))
    assert found.tokens == 502 * TOKENS
    assert found.device_hours == pytest.approx(2 * (105.1 + 501 * 0.3) / 3600)


def test_several_runs_that_do_not_tell_the_faster_one_are_not_extrapolated():
    b = [run("b", seed, 5, 0.5) for seed in (0, 1)]
    found = break_even(*study(run("a", 0, 105, 0.3), run("a", 1, 105, 0.6), *b))
    assert (found.outcome, found.step) == (
        UNCLEAR,
        None,
    ) and "cannot tell which is faster" in found.sentence()


def test_the_interval_of_several_runs_covers_the_break_even_step():
    """Truth: 10 s behind and 0.2 s a step faster, so step 51 to 52; processes differ in warm-up and
    speed."""
    random, inside = np.random.default_rng(0), []
    for _ in range(40):
        a = [
            run("a", k, 15.05 + random.normal(), 0.3 * (1 + 0.02 * random.normal()), steps=60)
            for k in range(3)
        ]
        b = [
            run("b", k, 5 + random.normal(), 0.5 * (1 + 0.02 * random.normal()), steps=60)
            for k in range(3)
        ]
        found = break_even(*study(*a, *b))
        inside.append(found.low <= 52 <= found.high)
    assert np.mean(inside) >= 0.9 and "95 % interval: step" in found.sentence()


def test_logs_without_a_common_step_are_not_compared():
    runs, windows, steps = study(run("a"), run("b"))
    windows = windows[(windows["recipe"] == "a") == (windows["step"] <= 50)]
    found = break_even(runs, windows, steps)
    assert found.outcome == NO_COMMON_STEP and "no timed step in common" in found.sentence()


@needs_published_logs
@pytest.mark.parametrize(
    ("a", "b", "beyond", "step"),
    [
        ("tensorwise_fp8_compiled", "baseline_compiled", False, 725),
        ("tensorwise_fp8_compiled", "baseline", False, 794),
        ("rowwise_fp8_compiled", "baseline_compiled", True, 3800),
        ("rowwise_fp8_compiled", "baseline", True, 2120),
    ],
)
def test_break_even_of_the_published_runs(a, b, beyond, step):
    from analysis.comparison import compare

    found = compare(PUBLISHED_LOGS).break_evens[a, b]
    assert (found.outcome, found.step, found.beyond) == (
        FROM,
        pytest.approx(step, rel=0.02),
        beyond,
    )
    assert found.tokens == found.step * 4096
