"""Loss differences and verdicts on runs with planted truths."""

import numpy as np
import pytest

from analysis.losses import (
    CANNOT_TELL,
    DIFFERENT,
    NOT_ENOUGH,
    SAME,
    judge,
    loss_difference,
    margin_from,
    spread_over_seeds,
    verdict,
)
from tests.make_frames import correlated, run, study


def seeds(recipe, losses, status="completed"):
    """Runs of a recipe, one a row of `losses` (seeds, steps)."""
    return [run(recipe, seed, losses=row, steps=losses.shape[1], status=status) for seed, row in enumerate(losses)]


def levels(count, steps=60, noise=0.05, seed=0):
    """Losses (count, steps) of a baseline: falling, with batch noise, and a level of its own for each seed."""
    random = np.random.default_rng(seed)
    curve = 3 + np.exp(-np.arange(steps) / 20)
    return curve + noise * random.normal(size=(count, 1)) + 0.1 * random.normal(size=(count, steps))


def test_a_planted_shift_is_the_difference_at_each_step():
    base = levels(3)
    shift = np.linspace(0, 0.6, 60)
    runs, _, steps = study(*seeds("base", base), *seeds("a", base + shift))
    found = loss_difference(runs, steps, "a", "base")
    assert found["step"].tolist() == list(range(6, 61))  # a tenth of 60 steps
    assert found["difference"].to_numpy() == pytest.approx(np.convolve(shift, np.full(6, 1 / 6), "valid"))
    assert found["low"].to_numpy() == pytest.approx(found["high"])  # every seed has the same shift: no doubt


def test_the_band_over_seeds_is_students():
    base = levels(3)
    runs, _, steps = study(*seeds("base", base), *seeds("a", base + np.array([[0.1], [0.2], [0.3]])))
    last = loss_difference(runs, steps, "a", "base").iloc[-1]
    assert last["difference"] == pytest.approx(0.2)
    assert last["high"] - 0.2 == pytest.approx(4.303 * 0.1 / np.sqrt(3), rel=1e-3)


@pytest.mark.parametrize("steps", [100, 1000])
@pytest.mark.parametrize("correlation", [0.0, 0.5])
def test_the_band_of_one_seed_covers_the_truth(correlation, steps):
    noise = correlated(np.random.default_rng(2), correlation, (150, steps))
    base, last = seeds("base", np.full((1, steps), 3.0)), []
    for row in noise:
        runs, _, by_step = study(*base, *seeds("a", 3.0 + row[None]))
        last.append(loss_difference(runs, by_step, "a", "base").iloc[-1])
    assert 0.89 <= np.mean([ends["low"] <= 0 <= ends["high"] for ends in last]) <= 0.99


def test_pairs_need_the_same_seed_and_a_completed_run():
    base = levels(3)
    wild = run("a", 2, losses=base[2] + 50, steps=60, status="diverged")
    runs, _, steps = study(*seeds("base", base), *seeds("a", base[:2] + 0.5), wild)
    assert loss_difference(runs, steps, "a", "base")["difference"].to_numpy() == pytest.approx(0.5)
    assert verdict(runs, steps, "a", "base").seeds == 2
    assert loss_difference(runs, steps, "nothing", "base").empty


def test_runs_that_log_at_other_steps_are_paired_step_by_step():
    """One log has every step, the other every fifth, as the published ones do: those that both have are compared."""
    base = levels(3)
    runs, _, steps = study(*seeds("base", base), *seeds("a", base + 0.2))
    steps.loc[(steps["recipe"] == "a") & (steps["step"] % 5 > 0), "loss"] = np.nan
    found = loss_difference(runs, steps, "a", "base")
    assert found["difference"].to_numpy() == pytest.approx(0.2) and set(found["step"] % 5) == {0}
    assert verdict(runs, steps, "a", "base").difference == pytest.approx(0.2)


# Verdict


@pytest.mark.parametrize("count", [3, 5])
@pytest.mark.parametrize("pairing", [0.001, 0.02, 0.1, 0.3, 1.0, 3.0])
@pytest.mark.parametrize("difference", [1.0, 1.2])
def test_a_difference_of_a_margin_or_more_is_rarely_called_the_same(count, pairing, difference):
    """Seed-to-seed spread is 1, that of paired differences `pairing`: 1,000 studies, at most 5 % wrong."""
    random = np.random.default_rng(0)
    baselines = random.normal(size=(1000, count))
    differences = difference + pairing * random.normal(size=(1000, count))
    assert np.mean(judge(differences, spread_over_seeds(baselines)) == SAME) <= 0.05


@pytest.mark.parametrize("pairing", [0.02, 0.1, 0.2])
def test_identical_recipes_are_mostly_called_the_same(pairing):
    random = np.random.default_rng(0)
    outcomes = judge(pairing * random.normal(size=(1000, 5)), spread_over_seeds(random.normal(size=(1000, 5))))
    assert np.mean(outcomes == SAME) >= 0.9 and np.mean(outcomes == DIFFERENT) <= 0.02


def test_no_difference_is_rarely_called_different_and_a_large_one_always():
    random = np.random.default_rng(0)
    margins = spread_over_seeds(random.normal(size=(1000, 5)))
    assert np.mean(judge(random.normal(size=(1000, 5)), margins) == DIFFERENT) <= 0.06
    assert np.mean(judge(5 + 0.1 * random.normal(size=(1000, 5)), margins) == DIFFERENT) >= 0.99


@pytest.mark.parametrize(("margin", "outcome"), [(2.0, SAME), (1.0, CANNOT_TELL), (0.5, DIFFERENT)])
def test_a_proven_difference_is_judged_by_the_margin(margin, outcome):
    differences = np.array([0.5, 0.9, 1.0, 0.8, 1.1])  # mean 0.86, 90 % interval 0.64 to 1.08
    assert judge(differences, np.array(margin)) == outcome


def test_the_margin_is_seldom_wider_than_the_true_spread_and_never_than_the_tolerance():
    losses = np.random.default_rng(0).normal(1000, 1, size=(20_000, 3))
    assert np.mean(margin_from(losses) > 1) == pytest.approx(0.025, abs=0.004)
    assert margin_from(losses - 900).max() == pytest.approx(0.25, rel=0.03)  # 0.25 % of about 100


@pytest.mark.parametrize(
    ("shift", "noise", "outcome", "words"),
    [
        (0.0, 0.0001, SAME, "a ends at the same loss as base: 5 seeds"),
        (-0.004, 0.0001, SAME, "a ends at the same loss as base to within the margin, and slightly lower: 5 seeds"),
        (0.5, 0.001, DIFFERENT, "a ends at a higher loss than base"),
        (-0.5, 0.001, DIFFERENT, "a ends at a lower loss than base"),
        (0.0, 0.5, CANNOT_TELL, "Cannot tell whether a ends at the same loss as base"),
    ],
)
def test_verdicts(shift, noise, outcome, words):
    base = levels(5)
    own = shift + noise * np.random.default_rng(1).normal(size=(5, 1))
    found = verdict(*study(*seeds("base", base), *seeds("a", base + own))[::2], "a", "base")
    assert found.outcome == outcome and words in found.sentence()
    assert (found.seeds, found.baseline_seeds) == (5, 5)
    assert found.low < found.difference < found.high and found.difference == pytest.approx(own.mean())
    assert found.margin == pytest.approx(0.0025 * base[:, -6:].mean(), rel=1e-9)
    assert "0.25 % of the baseline's loss" in found.sentence()


def test_the_margin_is_the_spread_over_seeds_where_that_is_smaller():
    base = 3 + 0.002 * np.arange(3)[:, None] + np.zeros((3, 60))
    found = verdict(*study(*seeds("base", base), *seeds("a", base))[::2], "a", "base")
    assert found.margin == pytest.approx(0.002 * np.sqrt(2 / 7.378), rel=1e-3)
    assert "from the baseline's spread over seeds" in found.sentence()


def test_the_verdict_does_not_depend_on_how_often_a_run_logs():
    """Four of five losses missing, as where only each window's last one is logged: the same steps are the end.

    In the last 20 steps of 200 it is above the margin of 0.0075; over the last ten logged ones it would be below.
    """
    base = levels(3, steps=200)
    runs, _, steps = study(*seeds("base", base), *seeds("a", base + 0.012 * (np.arange(200) >= 180)))
    whole = verdict(runs, steps, "a", "base")
    steps.loc[steps["step"] % 5 > 0, "loss"] = np.nan
    assert (whole.outcome, verdict(runs, steps, "a", "base").outcome) == (DIFFERENT, DIFFERENT)


def test_two_seeds_are_not_enough():
    base = levels(5)
    found = verdict(*study(*seeds("base", base), *seeds("a", base[:2]))[::2], "a", "base")
    assert (found.outcome, found.seeds, found.baseline_seeds) == (NOT_ENOUGH, 2, 5)
    assert "2 seeds (at least 3 are needed)" in found.sentence()


def test_one_seed_gives_a_difference_with_an_interval_and_no_verdict():
    base = levels(1)
    noise = 0.01 * correlated(np.random.default_rng(0), 0.3, (1, 60))
    found = verdict(*study(*seeds("base", base), *seeds("a", base + 0.2 + noise))[::2], "a", "base")
    assert (found.outcome, found.seeds) == (NOT_ENOUGH, 1) and np.isnan(found.margin)
    assert found.low < 0.2 < found.high and found.high - found.low < 0.05
    assert "1 seed (" in found.sentence() and "+0.2" in found.sentence()


def test_short_runs_have_a_difference_and_no_interval():
    base = levels(1, steps=4)
    found = verdict(*study(*seeds("base", base), *seeds("a", base + 0.2))[::2], "a", "base")
    assert found.difference == pytest.approx(0.2) and np.isnan(found.low)
    assert "interval" not in found.sentence()


def test_failed_runs_do_not_enter_a_verdict():
    base = levels(4)
    good = [*seeds("base", base[:3]), *seeds("a", base[:3])]
    bad = [run(name, 3, losses=base[3] + shift, steps=60, status="failed") for name, shift in [("base", 9), ("a", 0)]]
    assert verdict(*study(*good, *bad)[::2], "a", "base") == verdict(*study(*good)[::2], "a", "base")


def test_nothing_completed_is_said():
    frames = study(*seeds("base", levels(3)), *seeds("a", levels(3), status="failed"))
    assert "no seed was completed with both" in verdict(*frames[::2], "a", "base").sentence()
