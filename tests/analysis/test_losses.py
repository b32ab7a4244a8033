"""Loss differences and verdicts on runs with planted truths."""

import math

import numpy as np
import pytest

from analysis.losses import (
    CANNOT_TELL,
    DIFFERENT,
    NOT_ENOUGH,
    SAME,
    TOO_SHORT,
    compute_for_margin,
    judge,
    loss_difference,
    verdict,
)
from tests.make_frames import run, study


def seeds(recipe, losses, status="completed"):
    """Runs of a recipe, one a row of `losses` (seeds, steps)."""
    facts = {"steps": losses.shape[1], "status": status}
    return [run(recipe, seed, losses=row, **facts) for seed, row in enumerate(losses)]


def levels(count, steps=60, noise=0.05):
    """Losses (count, steps) of a baseline: falling, with batch noise, and a level of its own for
    each seed."""
    random = np.random.default_rng(0)
    curve = 3 + np.exp(-np.arange(steps) / 20)
    return curve + noise * random.normal(size=(count, 1)) + 0.1 * random.normal(size=(count, steps))


def both(base, losses):
    """The completed runs of a recipe, and of its baseline."""
    found = study(*seeds("a", losses), *seeds("base", base))
    return found["a"], found["base"]


def test_a_planted_shift_is_the_difference_at_each_step():
    base, shift = levels(3), np.linspace(0, 0.6, 60)
    pair = both(base, base + shift + np.array([[-0.1], [0], [0.1]]))
    found, judged = loss_difference(*pair), verdict(*pair)
    assert found["step"].tolist() == list(range(6, 61))  # a tenth of 60 steps
    smooth = np.convolve(shift, np.full(6, 1 / 6), "valid")
    assert found["difference"].to_numpy() == pytest.approx(smooth)
    half = 2.920 * 0.1 / math.sqrt(3)
    assert (found["high"] - found["difference"]).to_numpy() == pytest.approx(half, rel=1e-3)
    ends = judged.difference, judged.low, judged.high
    assert found.loc[54, ["difference", "low", "high"]].tolist() == pytest.approx(ends)


def test_pairs_need_the_same_seed_and_a_completed_run():
    base = levels(4)
    wild = run("a", 3, losses=base[3] + 50, steps=60, status="diverged")
    found = study(*seeds("base", base), *seeds("a", base[:2] + 0.5), wild, run("b", 9, steps=60))
    pair = found["a"], found["base"]
    assert loss_difference(*pair)["difference"].to_numpy() == pytest.approx(0.5)
    assert verdict(*pair).seeds == 2
    nothing = verdict(found["b"], found["base"])
    assert loss_difference(found["b"], found["base"]).empty and nothing.seeds == 0
    assert "no seed was completed with both" in nothing.sentence()


@pytest.mark.parametrize("every", [1, 5])
def test_steps_that_only_one_run_logged_are_left_out_and_do_not_move_the_end(every):
    """One log has every step, the other every fifth, as the published ones do; the difference rises
    in the last 20 steps of 200, above the margin of 0.0075. Over the last ten logged ones it would
    be below."""
    base = levels(3, steps=200)
    late, baseline = both(base, base + 0.012 * (np.arange(200) >= 180))
    late.steps.loc[late.steps["step"] % every > 0, "loss"] = np.nan
    assert set(loss_difference(late, baseline)["step"] % every) == {0}
    assert verdict(late, baseline).outcome == DIFFERENT


# ---- verdict ----


@pytest.mark.parametrize("count", [3, 5])
@pytest.mark.parametrize("spread", [0.001, 0.1, 0.3, 1.0])
@pytest.mark.parametrize("difference", [1.0, 1.2])
def test_a_difference_of_a_margin_or_more_is_rarely_called_the_same(count, spread, difference):
    """And one of at most a margin rarely different: 1,000 studies, at most 5 % wrong."""
    noise = spread * np.random.default_rng(0).normal(size=(count, 1000))
    assert np.mean(judge(difference + noise, 1.0) == SAME) <= 0.06
    assert np.mean(judge(1 / difference + noise, 1.0) == DIFFERENT) <= 0.06


def test_of_three_recipes_at_the_margin_any_is_rarely_called_the_same():
    noise = 0.1 * np.random.default_rng(0).normal(size=(3, 3, 1000))
    assert np.mean((judge(1.0 + noise, 1.0, tries=3) == SAME).any(axis=0)) <= 0.06


@pytest.mark.parametrize(
    ("count", "steps", "shift", "noise", "outcome", "words"),
    [
        (5, 60, 0.0, 0.0001, SAME, "ends at the same loss"),
        (5, 60, 0.5, 0.001, DIFFERENT, "ends at a higher loss"),
        (5, 60, -0.5, 0.001, DIFFERENT, "ends at a lower loss"),
        (5, 60, 0.0, 0.02, CANNOT_TELL, "cannot tell"),
        (1, 60, 0.2, 0.001, NOT_ENOUGH, "It takes 3 seeds or more"),
        (2, 60, 0.2, 0.001, NOT_ENOUGH, "It takes 3 seeds or more"),
        (3, 29, 0.2, 0.001, TOO_SHORT, "Too short (it takes 30 steps)"),
    ],
)
def test_verdicts(count, steps, shift, noise, outcome, words):
    base = levels(count, steps=steps)
    own = shift + noise * np.random.default_rng(1).normal(size=(count, 1))
    found = verdict(*both(base, base + own))
    assert (found.outcome, found.seeds, found.step) == (outcome, count, steps)
    assert found.low < found.difference < found.high or (count == 1 and math.isnan(found.low))
    assert found.difference == pytest.approx(own.mean())
    assert found.margin == pytest.approx(0.0025 * base[:, -(steps // 10) :].mean(), rel=1e-9)
    assert bool(found.half_widths) == (outcome == CANNOT_TELL)
    assert words in found.sentence() and f"after {steps} steps: {count} seed" in found.sentence()


def test_what_the_margin_is_worth():
    """By equation 10 of Hoffmann et al. with the best D; found by trying sizes and tokens."""
    assert compute_for_margin(math.nan) == (8.05e9, pytest.approx(0.0922, abs=0.0001))
    assert compute_for_margin(5e6)[0] == 8.05e9
    assert compute_for_margin(1e9)[0] == 1e9
