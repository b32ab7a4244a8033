"""Check rules 4 and 5: runs of one seed begin at one loss, and stay near one another.

They begin at one loss because they share weights and batches. Final losses are compared by seed.
Two seeds differ far more than two recipes do, and the difference of a pair leaves the seed out.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import pandas as pd
from scipy.spatial.distance import pdist

from analysis.runs import MIN_STEPS, Run, last_tenth
from analysis.speed import estimate, runs_needed

LEVEL = 0.90  # confidence of the interval: two one-sided tests at 5 % each
MIN_SEEDS = 3  # pairs of runs that a verdict takes
# The margin, as a share of the reference's final loss. DeepSeek-V3 (arXiv 2412.19437, section 3.3)
# reports FP8 within 0.25 % of bf16, and takes that for well within what is random in training.
TOLERANCE = 0.0025
# The share of compute that makes up for the margin in a compute-optimal model of 8.05 B parameters,
# by the scaling law of Hoffmann et al. 2022 (arXiv 2203.15556), equation 10.
EQUIVALENT_COMPUTE = 0.092
STRANGE = 0.5  # of the distance of two seeds' first losses: runs of one seed are nearer
FAR = 0.10  # above a loss: rounding moves no loss as far
OFTEN = 0.02  # of a run's steps: a bad batch takes fewer
COPIED = 0.10  # of the steps in FP8 with the other run's loss to the last bit: chance gives fewer
TOO_GOOD = 8  # margins (2 % of the loss) below the reference: rounding lowers no loss as much

SAME, LOWER, HIGHER, CANNOT_TELL = "the same", "lower", "higher", "cannot tell"
TOO_FEW = f"it takes {MIN_SEEDS} seeds to tell"
TOO_SHORT = f"it takes {MIN_STEPS} steps to tell"


@dataclass(frozen=True)
class Verdict:
    """How far a recipe's final loss is from its reference's.

    Args:
        word: `SAME`, `LOWER`, `HIGHER`, `CANNOT_TELL`, `TOO_FEW` or `TOO_SHORT`.
        by_seed: the difference of each pair of runs, in nats per token.
        difference, low, high, level: their mean, its interval, and the confidence.
        margin: losses are the same within this difference.
        step: the last step of all pairs.
        runs_needed: how many runs of each recipe would tell whether it is the same, lower or
            higher; None if unknown.
    """

    word: str = TOO_FEW
    by_seed: tuple[float, ...] = ()
    difference: float = math.nan
    low: float = math.nan
    high: float = math.nan
    level: float = LEVEL
    margin: float = math.nan
    step: int = 0
    runs_needed: int | None = None


def by_seed(runs: list[Run], what: str = "loss") -> pd.DataFrame:
    """Put the losses of some runs, or another column, side by side: a row a step, a column a
    seed."""
    return pd.DataFrame({run.seed: run.steps[what] for run in runs})


def apart(own: list[Run], others: list[Run]) -> pd.DataFrame:
    """Subtract the losses of runs of one seed: a row a step of all pairs, a column a pair with
    enough steps."""
    pairs = by_seed(own) - by_seed(others)
    return pairs.dropna(axis="columns", thresh=MIN_STEPS).dropna()


def verdict(own: list[Run], others: list[Run], tries: int = 1) -> Verdict:
    """Test equivalence by two one-sided t-tests (Schuirmann 1987): losses are the same if the
    interval of their mean difference lies within the margin."""
    ends = last_tenth(apart(own, others))
    if ends.empty:
        pairs = {run.seed for run in own} & {run.seed for run in others}
        return Verdict(TOO_SHORT) if pairs else Verdict()
    mean = ends.mean()
    beside = by_seed(others).loc[ends.index, ends.columns].mean()
    margin = TOLERANCE * beside.mean()
    level = 1 - (1 - LEVEL) / tries
    difference, low, high = estimate(mean, level)
    needed = runs_needed(len(mean), high - low, abs(abs(difference) - margin), 1, level)
    words = {
        TOO_FEW: len(mean) < MIN_SEEDS,
        SAME: max(-low, high) < margin,
        HIGHER: low > margin or (mean > FAR * beside).all(),  # far above, however much they vary
        LOWER: high < -margin,
        CANNOT_TELL: True,
    }
    word = next(word for word, holds in words.items() if holds)
    return Verdict(word, tuple(mean), difference, low, high, level, margin, ends.index[-1], needed)


# ---- rule 4 ----


def no_pairs(own: list[Run], others: list[Run]) -> Iterator[str]:
    """Say if runs of one seed do not begin at one loss, or runs of two seeds do.

    The first losses of runs of one seed (partners) differ by rounding alone, those of two seeds
    (strangers) by far more.
    """
    mine = by_seed(own).head(1).mean()
    theirs = by_seed(others).head(1).mean()
    if any(firsts.dropna().duplicated().any() for firsts in (mine, theirs)):
        yield "two seeds of a recipe begin with the same loss, so they may be one run"
    partners = (mine - theirs).abs().median()
    strangers = pd.Series(pdist(theirs.to_frame())).median()
    if partners > STRANGE * strangers:
        yield (
            f"runs of one seed begin {partners:.2g} apart, and two seeds {strangers:.2g}: the "
            "recipes do not share weights and batches, or log different losses"
        )


# ---- rule 5 ----


def far_above(run: Run, others: list[Run]) -> pd.Series:
    """Mark a run's steps with a loss not finite, or far above the other recipe's run of its seed.

    Without a run of its seed, the other recipe's mean over all seeds takes its place.
    """
    theirs = by_seed(others).reindex(run.steps.index).ffill()
    beside = theirs.get(run.seed, theirs.mean(axis="columns"))
    return run.steps["loss"].isna() | (run.steps["loss"] > (1 + FAR) * beside)


def diverged(own: list[Run], others: list[Run]) -> int:
    """Count the runs, completed or not, whose loss was not finite, or is far above the completed
    runs of the other recipe in most of their last tenth."""
    beside = [run for run in others if run.completed]
    count = 0
    for run in own:
        far = run.length >= MIN_STEPS and last_tenth(far_above(run, beside)).mean() > 0.5
        count += run.ending == "diverged" or far
    return count


def odd(own: list[Run], others: list[Run], judged: Verdict) -> Iterator[str]:
    """Say what is odd about losses before their end."""
    for runs, beside in (own, others), (others, own):
        for run in runs:
            far = far_above(run, beside).mean()
            if far > OFTEN:
                yield f"{run.name} is {FAR:.0%} above its partner's loss in {far:.0%} of its steps"
    copied = apart(own, others).where(by_seed(own, "in_fp8")).eq(0).mean().max()
    if copied > COPIED:
        yield f"in {copied:.0%} of a run's steps both recipes have one loss, to the last bit"
    if judged.difference < -TOO_GOOD * judged.margin:
        yield f"its loss is {-judged.difference:.3g} lower, and FP8 explains no such gain"
