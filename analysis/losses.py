"""Rule 4: runs of one seed share weights and batches, and so begin at one loss. Rule 5: they stay
near one another.

If both hold, final losses are compared by seed: the difference of a pair shows far less than what
another seed does.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd

from analysis.runs import MIN_STEPS, Run, last_tenth
from analysis.speed import estimate, runs_needed

LEVEL = 0.90  # of the interval that decides: two one-sided tests at 5 % each
MIN_SEEDS = 3  # pairs of runs below which nothing is said of equality
# The margin, as a share of the reference's final loss. DeepSeek-V3 (arXiv 2412.19437, section 3.3)
# reports FP8 within 0.25 % of bf16, and takes that for well within what is random in training.
TOLERANCE = 0.0025
# The share of compute that makes up for it in a model of 8.05 B parameters, trained
# compute-optimally, by the scaling law of Hoffmann et al. 2022 (arXiv 2203.15556), equation 10.
EQUIVALENT_COMPUTE = 0.092
STRANGE = 0.5  # of the distance of strangers' first losses: partners are nearer to one another
FAR = 0.10  # of a loss: rounding moves none so far
OFTEN = 0.02  # of a run's steps: a bad batch takes fewer
COPIED = 0.10  # of the steps in FP8 with the other's loss to the last bit: chance gives fewer
TOO_GOOD = 8  # margins, 2 % of the loss: rounding takes nothing off

VERDICTS = SAME, LOWER, HIGHER, CANNOT_TELL = "the same", "lower", "higher", "cannot tell"


@dataclass(frozen=True)
class Verdict:
    """How far a recipe ends from its reference's loss.

    Args:
        word: `SAME`, `LOWER`, `HIGHER`, `CANNOT_TELL`, or how many of `MIN_SEEDS` there are.
        by_seed: differences in nats a token; low, high: the interval of their mean.
        level: of that interval; with several recipes it is wider.
        margin: differences within it are the same.
        step: the last that all pairs have.
    """

    word: str = f"0 of {MIN_SEEDS} seeds"
    by_seed: tuple[float, ...] = ()
    low: float = math.nan
    high: float = math.nan
    level: float = LEVEL
    margin: float = math.nan
    step: int = 0

    @property
    def difference(self) -> float:
        return float(np.mean(self.by_seed)) if self.by_seed else math.nan

    @property
    def runs_needed(self) -> int | None:
        """How many runs of each recipe would tell if it is the same, lower or higher."""
        distance = abs(abs(self.difference) - self.margin)
        half_width = (self.high - self.low) / 2
        return runs_needed(len(self.by_seed), half_width, distance, 1, self.level)


def by_seed(runs: list[Run], what: str = "loss") -> pd.DataFrame:
    """The losses of some runs, or another column: a row a step, a column a seed."""
    return pd.DataFrame({run.seed: run.steps[what] for run in runs})


def apart(own: list[Run], others: list[Run]) -> pd.DataFrame:
    """How far each seed's loss is from the other recipe's: a row a step of all pairs, a column a
    pair of runs that share enough steps."""
    pairs = by_seed(own) - by_seed(others)
    return pairs.dropna(axis="columns", thresh=MIN_STEPS).dropna()


def verdict(own: list[Run], others: list[Run], tries: int = 1) -> Verdict:
    """Test equivalence: the loss is the same if the interval of the mean difference lies within the
    margin, which is two one-sided t-tests (Schuirmann 1987)."""
    ends = last_tenth(apart(own, others))
    if ends.empty:
        return Verdict()
    mean, beside = ends.mean(), by_seed(others).loc[ends.index, ends.columns].mean()
    margin = TOLERANCE * beside.mean()
    level = 1 - (1 - LEVEL) / tries
    _, low, high = estimate(mean, level)
    words = {
        f"{len(mean)} of {MIN_SEEDS} seeds": len(mean) < MIN_SEEDS,
        SAME: max(-low, high) < margin,
        HIGHER: low > margin or (mean > FAR * beside).all(),  # however much they vary
        LOWER: high < -margin,
        CANNOT_TELL: True,
    }
    word = next(word for word, holds in words.items() if holds)
    return Verdict(word, tuple(mean), low, high, level, margin, ends.index[-1])


def differences(own: list[Run], others: list[Run]) -> pd.DataFrame:
    """Smooth the difference of the loss: by step its mean over seeds, and the interval of that.

    A value is the mean over a tenth of the steps, up to its own.
    """
    pairs = apart(own, others)
    smooth = pairs.rolling(len(last_tenth(pairs))).mean().dropna()
    lines = estimate(smooth.T, LEVEL)
    return pd.DataFrame(lines.T, smooth.index, ["difference", "low", "high"])


# ---- rule 4 ----


def no_pairs(own: list[Run], others: list[Run]) -> Iterator[str]:
    """Say if runs of one seed do not begin at one loss, or runs of two seeds do.

    The first losses of partners, which share weights and batches, differ by rounding alone: by far
    less than strangers' losses.
    """
    mine, theirs = by_seed(own).head(1).mean(), by_seed(others).head(1).mean()
    if any(firsts.dropna().duplicated().any() for firsts in (mine, theirs)):
        yield "seeds of a recipe begin with the same loss, so they are no other runs"
    partners, strangers = (mine - theirs).abs().median(), theirs.diff().abs().median()
    if partners > STRANGE * strangers:
        yield (
            f"it begins {partners:.2g} from its partners of the same seed, and seeds begin "
            f"{strangers:.2g} apart: runs of a seed do not share weights and batches, or log "
            "different losses"
        )


# ---- rule 5 ----


def far_above(run: Run, others: list[Run]) -> pd.Series:
    """Find the steps in which a run's loss is not finite, or far above the other recipe's: the run
    of its seed, or the mean of all where there is none."""
    theirs = by_seed(others).reindex(run.steps.index).ffill()
    beside = theirs.get(run.seed, theirs.mean(axis="columns"))
    return run.steps["loss"].isna() | (run.steps["loss"] > (1 + FAR) * beside)


def diverged(own: list[Run], others: list[Run], unpaired: bool) -> int:
    """Count the runs whose loss was not finite, or is far above the other recipe's in most of their
    last tenth, whether or not they were completed.

    Args:
        unpaired: losses of the recipes do not compare: only those count that were not finite.
    """
    beside = [run for run in others if run.completed and not unpaired]
    ends = {run: last_tenth(far_above(run, beside)) for run in own if run.length >= MIN_STEPS}
    far = {run for run, end in ends.items() if end.mean() > 0.5}
    return len(far | {run for run in own if run.ending == "diverged"})


def odd(own: list[Run], others: list[Run], judged: Verdict) -> Iterator[str]:
    """Say what losses show besides their ends."""
    for runs, beside in (own, others), (others, own):
        for run in runs:
            far = far_above(run, beside).mean()
            if far > OFTEN:
                yield f"{run.name} is {FAR:.0%} above the other's loss in {far:.0%} of its steps"
    copied = apart(own, others).where(by_seed(own, "in_fp8")).eq(0).mean().max()
    if copied > COPIED:
        yield f"in {copied:.0%} of a run's steps it has the other's loss to the last bit"
    if judged.difference < -TOO_GOOD * judged.margin:
        yield f"its loss is {-judged.difference:.3g} lower, which FP8 does not explain"
