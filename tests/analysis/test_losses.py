"""Verdicts on losses with planted differences. That runs of a seed begin at one loss and stay near
one another, the studies of planted.yaml hold."""

import math

import numpy as np
import pytest

from analysis import losses
from analysis.losses import CANNOT_TELL, HIGHER, LOWER, SAME
from tests.analysis.planted import compared

BASE = np.array([3.0, 3.1, 3.2])
MARGIN = 0.0025 * 3.1


def verdict(folder, shares, steps=100, **own):
    """Judge runs that end above those of `BASE` by so many margins."""
    seeds = len(shares)
    above = (BASE[:seeds] + MARGIN * np.array(shares)).tolist()
    other = {"losses": BASE.tolist()}
    return compared(folder, {"losses": above} | own, other, seeds, steps=steps).loss


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
def test_the_verdict_follows_the_interval(tmp_path, shares, word):
    found = verdict(tmp_path, shares)
    assert found.word == word and found.step == 100
    assert found.difference == pytest.approx(np.mean(shares) * MARGIN, rel=0.05)


def test_the_interval_is_students(tmp_path):
    half = 2.920 * MARGIN / math.sqrt(3)  # two degrees of freedom
    found = verdict(tmp_path, (-1, 0, 1))
    assert [found.low, found.high] == pytest.approx([-half, half], rel=1e-3)


def test_pairs_need_the_same_seed_and_steps(tmp_path):
    assert verdict(tmp_path / "seeds", (0, 0, 0), seed=[3, 4, 5]).by_seed == ()
    assert verdict(tmp_path / "steps", (0, 0, 0), steps=20).by_seed == ()


def test_a_margin_at_8_b_is_worth_a_tenth_of_the_compute():
    assert losses.equivalent_compute(8.05e9)[1] == pytest.approx(0.09, abs=0.01)
    assert losses.equivalent_compute(5e6)[0] == losses.PUBLISHED_PARAMETERS  # outside of the law
