"""Loss differences and verdicts on runs with planted truths."""

import numpy as np
import pytest

from analysis.losses import (
    CANNOT_TELL,
    DIFFERENT,
    NOT_ENOUGH,
    SAME,
    TOO_SHORT,
    chance_of_telling,
    compute_for_margin,
    judge,
    loss_difference,
    seeds_needed,
    verdict,
)
from tests.make_frames import run, study


def seeds(recipe, losses, status="completed"):
    """Runs of a recipe, one a row of `losses` (seeds, steps)."""
    return [
        run(recipe, seed, losses=row, steps=losses.shape[1], status=status)
        for seed, row in enumerate(losses)
    ]


def levels(count, steps=60, noise=0.05, seed=0):
    """Losses (count, steps) of a baseline: falling, with batch noise, and a level of its own for
    each seed."""
    random = np.random.default_rng(seed)
    curve = 3 + np.exp(-np.arange(steps) / 20)
    return curve + noise * random.normal(size=(count, 1)) + 0.1 * random.normal(size=(count, steps))


def test_a_planted_shift_is_the_difference_at_each_step():
    base = levels(3)
    shift = np.linspace(0, 0.6, 60)
    runs, _, steps = study(
        *seeds("base", base), *seeds("a", base + shift + np.array([[-0.1], [0], [0.1]]))
    )
    found, judged = loss_difference(runs, steps, "a", "base"), verdict(runs, steps, "a", "base")
    assert found["step"].tolist() == list(range(6, 61))  # a tenth of 60 steps
    assert found["difference"].to_numpy() == pytest.approx(
        np.convolve(shift, np.full(6, 1 / 6), "valid")
    )
    assert (found["high"] - found["difference"]).to_numpy() == pytest.approx(
        2.920 * 0.1 / np.sqrt(3), rel=1e-3
    )
    last = found.iloc[-1]  # the band is Student's at the level of the verdict
    assert (last["difference"], last["low"], last["high"]) == pytest.approx(
        (judged.difference, judged.low, judged.high)
    )


def test_pairs_need_the_same_seed_and_a_completed_run():
    base = levels(4)
    wild = [
        run(name, 3, losses=base[3] + 50, steps=60, status="diverged") for name in ("a", "base")
    ]
    frames = study(*seeds("base", base[:3]), *seeds("a", base[:2] + 0.5), *wild)
    assert loss_difference(*frames[::2], "a", "base")["difference"].to_numpy() == pytest.approx(0.5)
    assert verdict(*frames[::2], "a", "base").seeds == 2
    nothing = verdict(*frames[::2], "nothing", "base")
    assert loss_difference(*frames[::2], "nothing", "base").empty and nothing.seeds == 0
    assert "no seed was completed with both" in nothing.sentence()


@pytest.mark.parametrize("every", [1, 5])
def test_steps_that_only_one_run_logged_are_left_out_and_do_not_move_the_end(every):
    """One log has every step, the other every fifth, as the published ones do; the difference rises
    in the last 20 steps of 200, above the margin of 0.0075. Over the last ten logged ones it would
    be below."""
    base = levels(3, steps=200)
    runs, _, steps = study(
        *seeds("base", base), *seeds("a", base + 0.012 * (np.arange(200) >= 180))
    )
    steps.loc[(steps["recipe"] == "a") & (steps["step"] % every > 0), "loss"] = np.nan
    assert set(loss_difference(runs, steps, "a", "base")["step"] % every) == {0}
    assert verdict(runs, steps, "a", "base").outcome == DIFFERENT


# Verdict


@pytest.mark.parametrize("count", [3, 5])
@pytest.mark.parametrize("spread", [0.001, 0.1, 0.3, 1.0])
@pytest.mark.parametrize("difference", [1.0, 1.2])
def test_a_difference_of_a_margin_or_more_is_rarely_called_the_same(count, spread, difference):
    """And one of at most a margin rarely different: 1,000 studies, at most 5 % wrong."""
    noise = spread * np.random.default_rng(0).normal(size=(count, 1000))
    assert np.mean(judge(difference + noise, 1.0) == SAME) <= 0.06
    assert np.mean(judge(1 / difference + noise, 1.0) == DIFFERENT) <= 0.06


@pytest.mark.parametrize(("count", "share"), [(3, 0.12), (5, 0.29), (10, 0.79)])
def test_the_chance_to_tell_is_that_of_simulated_studies(count, share):
    differences = np.random.default_rng(0).normal(size=(count, 20_000))
    simulated = np.mean(judge(differences, 1.0) != CANNOT_TELL)
    assert (
        chance_of_telling(count, 0.0, 1.0)
        == pytest.approx(simulated, abs=0.01)
        == pytest.approx(share, abs=0.02)
    )
    assert chance_of_telling(count, 2.0, 0.5) == pytest.approx(
        np.mean(judge(2 + differences / 2, 1.0) != CANNOT_TELL), abs=0.02
    )


def test_seeds_that_it_takes():
    assert (
        seeds_needed(0.0, 1.0, more_than=3) == 11 and seeds_needed(0.0, 20.0, more_than=3) is None
    )


@pytest.mark.parametrize(
    ("shift", "noise", "outcome", "words"),
    [
        (0.0, 0.0001, SAME, "a ends at the same loss as base after 60 steps: 5 seeds, difference"),
        (0.5, 0.001, DIFFERENT, "a ends at a higher loss than base after 60 steps"),
        (-0.5, 0.001, DIFFERENT, "a ends at a lower loss than base after 60 steps"),
        (
            0.0,
            0.02,
            CANNOT_TELL,
            "These runs cannot tell whether a ends at the same loss as base after 60 steps",
        ),
    ],
)
def test_verdicts(shift, noise, outcome, words):
    base = levels(5)
    own = shift + noise * np.random.default_rng(1).normal(size=(5, 1))
    found = verdict(*study(*seeds("base", base), *seeds("a", base + own))[::2], "a", "base")
    assert (found.outcome, found.seeds, found.step) == (
        outcome,
        5,
        60,
    ) and words in found.sentence()
    assert found.low < found.difference < found.high and found.difference == pytest.approx(
        own.mean()
    )
    assert found.margin == pytest.approx(0.0025 * base[:, -6:].mean(), rel=1e-9)
    assert (
        (found.needed is not None)
        == ("seeds for the loss of a" in found.remedy())
        == (outcome == CANNOT_TELL)
    )


@pytest.mark.parametrize(
    ("count", "steps", "outcome", "words"),
    [
        (
            1,
            60,
            NOT_ENOUGH,
            "It takes 3 seeds or more to say whether a ends at the same loss as base after 60",
        ),
        (2, 60, NOT_ENOUGH, "It takes 3 seeds or more"),
        (
            3,
            29,
            TOO_SHORT,
            "Too short (it takes 30 steps) to say whether a ends at the same loss as base after 29",
        ),
        (3, 1, TOO_SHORT, "Too short (it takes 30 steps)"),
    ],
)
def test_few_seeds_or_steps_give_a_difference_and_no_verdict(count, steps, outcome, words):
    base = levels(5, steps=steps)
    found = verdict(*study(*seeds("base", base), *seeds("a", base[:count] + 0.2))[::2], "a", "base")
    assert (found.outcome, found.seeds, np.isnan(found.low)) == (outcome, count, count == 1)
    assert found.difference == pytest.approx(0.2) and words in found.sentence()


def test_a_seed_that_jumps_is_named():
    base = levels(3)
    losses = base + np.array([[0], [8], [0]]) * (np.arange(60) > 40)
    runs, _, steps = study(*seeds("base", base), *seeds("a", losses), *seeds("all", base + 8))
    ((seed, (loss, highest)),) = verdict(runs, steps, "a", "base").left.items()
    assert (
        seed == 1 and loss == pytest.approx(11, abs=0.3) and highest == pytest.approx(3.1, abs=0.3)
    )
    assert (
        verdict(runs, steps, "all", "base").left == {}
    )  # that is a higher loss, not a seed that left


def test_what_the_margin_is_worth():
    """For 8.05 B parameters, from equation 10 of Hoffmann et al. with the best D, by trying."""
    n, more = compute_for_margin(None)

    def best(compute):
        sizes = np.geomspace(1e8, 1e12, 200_001)
        return (1.69 + 406.4 / sizes**0.34 + 410.7 / (compute / 6 / sizes) ** 0.28).min()

    data = np.geomspace(1e9, 1e15, 200_001)
    compute = 6 * n * data[np.argmin([abs(0.34 * 406.4 / n**0.34 - 0.28 * 410.7 / data**0.28)])]
    assert n == 8.05e9 and best(compute * (1 + more)) == pytest.approx(
        (1 - 0.0025) * best(compute), rel=1e-5
    )
    assert more == pytest.approx(0.092, abs=0.001)
    assert compute_for_margin(5e6)[0] == 8.05e9 and compute_for_margin(1e9)[0] == 1e9
