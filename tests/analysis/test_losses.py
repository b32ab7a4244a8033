"""Verdicts on losses with planted differences."""

import math

import numpy as np
import pytest
from scipy import stats

from analysis import losses
from analysis.losses import CANNOT_TELL, HIGHER, LOWER, SAME, verdict
from tests.analysis.formulas import run, runs

BASE = [3.0, 3.1, 3.2]
MARGIN = 0.0025 * 3.1


def shifted(*shares):
    """Losses above those of `BASE` by so many margins."""
    return [loss + share * MARGIN for loss, share in zip(BASE, shares, strict=False)]


@pytest.mark.parametrize(
    ("shares", "word"),
    [
        ((0.1, 0.2, 0.3), SAME),
        ((2.0, 2.1, 2.2), HIGHER),
        ((-2.0, -2.1, -2.2), LOWER),
        ((-3.0, 0.0, 3.0), CANNOT_TELL),
        ((50.0, 500.0, 5000.0), HIGHER),  # all are far above, however much they vary
        ((0.1, 0.2), "2 of 3 seeds"),
    ],
)
def test_the_verdict_follows_the_interval(shares, word):
    seeds = len(shares)
    found = verdict(runs(losses=shifted(*shares), seeds=seeds), runs("b", losses=BASE, seeds=seeds))
    assert found.word == word and found.step == 100
    assert found.difference == pytest.approx(np.mean(shares) * MARGIN, rel=0.05)


def test_the_interval_is_students_and_wider_for_several_recipes():
    own, others = runs(losses=shifted(-1, 0, 1)), runs("b", losses=BASE)
    half = 2.920 * MARGIN / math.sqrt(3)
    assert verdict(own, others).high == pytest.approx(half, rel=1e-3)
    assert verdict(own, others, tries=3).high > 1.5 * half


def test_so_many_runs_would_give_a_verdict():
    """With differences of this spread the interval of as many runs lies within the margin, and that
    of one fewer does not."""
    needed = verdict(runs(losses=shifted(-1, 0, 1)), runs("b", losses=BASE)).runs_needed
    reach = [stats.t.ppf(0.95, n - 1) / math.sqrt(n) for n in (needed - 1, needed)]
    assert reach[0] > 1 > reach[1]


def test_pairs_need_the_same_seed_and_steps():
    assert verdict([run(seed=1)], [run("b", seed=2)]).by_seed == ()
    assert verdict([run(steps=20)], [run("b", steps=20)]).by_seed == ()


def test_partners_are_told_from_strangers():
    """First losses of 3.0, 3.1 and 3.2 by seed."""
    others = runs("b", losses=BASE)
    near, swapped = runs(losses=shifted(1, 2, 1)), runs(losses=[3.1, 3.2, 3.0])
    assert list(losses.no_pairs(near, others)) == []
    assert len(list(losses.no_pairs(swapped, others))) == 1
    assert any(losses.no_pairs(runs(losses=3.0), others))  # seeds that did nothing


def test_what_the_margin_is_worth_follows_from_the_scaling_law():
    """The loss is e + a / N^alpha + b / D^beta. At the optimum the data's term is alpha / beta of
    the size's, and both fall with compute as C^-(alpha beta / (alpha + beta))."""
    e, a, alpha, beta = 1.69, 406.4, 0.34, 0.28
    above = a / 8.05e9**alpha * (1 + alpha / beta)
    left = 1 - losses.TOLERANCE * (e + above) / above
    more = left ** (-(alpha + beta) / (alpha * beta)) - 1
    assert pytest.approx(more, abs=0.001) == losses.EQUIVALENT_COMPUTE
