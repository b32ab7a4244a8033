"""Verdicts on losses with planted differences. That runs of a seed begin at one loss and stay near
one another, the studies of planted.yaml hold."""

import math

import numpy as np
import pytest
from scipy import stats

from analysis import losses
from analysis.losses import CANNOT_TELL, HIGHER, LOWER, SAME, TOO_FEW, TOO_SHORT
from tests.analysis.planted import compared

BASE = np.array([3.0, 3.1, 3.2])
MARGIN = 0.0025 * 3.1


def finding(folder, shares, first_seed=0, steps=100, learned=20, lr_warmup=10):
    """Compare runs that end above those of `BASE` by so many margins.

    Their losses fall in the first `learned` steps, and the learning rate grows in `lr_warmup`.
    """
    runs, reference_runs = [], []
    for number, (base, share) in enumerate(zip(BASE, shares, strict=False)):
        end = {"to": base, "steps": [learned, steps]}
        log = {"lr_warmup": lr_warmup}
        runs.append({"losses": end | {"to": base + MARGIN * share}, "seed": first_seed + number})
        reference_runs.append({"losses": end})
        runs[-1]["log"] = reference_runs[-1]["log"] = log
    return compared(folder, runs, reference_runs, steps=steps)


def verdict(folder, shares, **words):
    return finding(folder, shares, **words).loss


@pytest.mark.parametrize(
    ("shares", "word"),
    [
        ((0.1, 0.2, 0.3), SAME),
        ((2.0, 2.1, 2.2), HIGHER),
        ((-2.0, -2.1, -2.2), LOWER),
        ((-3.0, 0.0, 3.0), CANNOT_TELL),
        ((50.0, 500.0, 5000.0), HIGHER),  # all are far above, however much they vary
        ((0.1, 0.2), TOO_FEW),
    ],
)
def test_the_verdict_follows_the_interval(tmp_path, shares, word):
    found = verdict(tmp_path, shares)
    assert found.word == word and found.step == 100
    assert found.difference == pytest.approx(np.mean(shares) * MARGIN, rel=0.05)


@pytest.mark.parametrize("words", [{"learned": 1}, {"lr_warmup": 1000}])
def test_losses_are_not_the_same_before_anything_is_learned(tmp_path, words):
    """The loss does not fall, or the learning rate still grows."""
    assert verdict(tmp_path, (0.1, 0.2, 0.3), **words).word == CANNOT_TELL


@pytest.mark.parametrize(
    ("shares", "outcome"),
    [
        ((-6.0, -6.1, -6.2), "no_plain_yes"),  # rounding lowers no loss as far
        ((-6.0, -6.1), "no_plain_yes"),
        ((6.0, 6.1), "no_plain_yes"),
        ((20.0, 0.1, 0.2), "no_plain_yes"),  # one run of three is harmed
        ((0.1, 5.0, -5.0), "yes_for_speed"),
    ],
)
def test_losses_far_apart_forbid_a_plain_yes(tmp_path, shares, outcome):
    assert finding(tmp_path, shares).outcome == outcome


def test_so_many_runs_would_give_a_verdict(tmp_path):
    """With differences of this spread the interval of as many runs lies within the margin, and that
    of one fewer does not."""
    needed = verdict(tmp_path, (-1, 0, 1)).runs_needed
    reach = [stats.t.ppf(0.95, n - 1) / math.sqrt(n) for n in (needed - 1, needed)]
    assert reach[0] > 1 > reach[1]


def test_the_interval_is_students(tmp_path):
    half = 2.920 * MARGIN / math.sqrt(3)  # two degrees of freedom
    found = verdict(tmp_path, (-1, 0, 1))
    assert [found.low, found.high] == pytest.approx([-half, half], rel=1e-3)


def test_pairs_need_the_same_seed_and_steps(tmp_path):
    unpaired = verdict(tmp_path / "seeds", (0, 0, 0), first_seed=3)
    short = verdict(tmp_path / "steps", (0, 0, 0), steps=20)
    assert unpaired.difference_by_seed == short.difference_by_seed == ()
    assert (unpaired.word, short.word) == (TOO_FEW, TOO_SHORT)


def test_what_the_margin_is_worth_follows_from_the_scaling_law():
    """The loss is e + a / N^alpha + b / D^beta. At the optimum the data's term is alpha / beta of
    the size's, and both fall with compute as C^-(alpha beta / (alpha + beta))."""
    e, a, alpha, beta = 1.69, 406.4, 0.34, 0.28
    above = a / 8.05e9**alpha * (1 + alpha / beta)
    left = 1 - losses.MARGIN_SHARE * (e + above) / above
    more = left ** (-(alpha + beta) / (alpha * beta)) - 1
    assert pytest.approx(more, abs=0.001) == losses.EQUIVALENT_COMPUTE


@pytest.mark.parametrize(
    ("changes", "doubt"),
    [
        ({}, None),
        ({"first_weights": "other"}, "weights"),
        ({"first_batch": "other"}, "batch"),
        ({"hardware": {"cpu_instruction_sets": ["avx2"]}, "first_weights": "other"}, None),
    ],
)
def test_digests_tell_if_runs_begin_alike(tmp_path, changes, doubt):
    """From another instruction set they tell nothing: one seed then draws other weights."""
    usual = {"hardware": {"cpu_instruction_sets": ["avx512"]}, "first_batch": "batch"}
    runs, reference_runs = [], []
    for seed in range(3):
        beginning = usual | {"first_weights": f"of seed {seed}"}
        reference_runs.append(beginning)
        runs.append(beginning | changes)
    result = compared(tmp_path, runs, reference_runs, steps=100)
    begins = [reason for reason in result.reasons if "did not begin with the same" in reason]
    assert bool(begins) == bool(doubt) and all(doubt in reason for reason in begins)


def test_two_seeds_that_begin_alike_may_be_one_run(tmp_path):
    beginning = {"first_weights": "weights", "first_batch": "batch"}
    result = compared(tmp_path, [beginning] * 3, [beginning] * 3, steps=100)
    assert any("may be one run" in reason for reason in result.reasons)
