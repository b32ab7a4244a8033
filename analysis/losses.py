"""Check rules 4 and 5: runs of one seed begin at one loss, and stay near one another.

They begin at one loss because they share weights and batches. Final losses are compared by seed.
Two seeds differ far more than two recipes do, and the difference of a pair leaves the seed out.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import pandas as pd
from scipy.spatial.distance import pdist

from analysis.runs import DIVERGED, MIN_SEEDS, MIN_STEPS, Run, first_tenth, last_tenth
from analysis.speed import estimate, runs_needed

LEVEL = 0.90  # confidence of the interval: two one-sided tests at 5 % each
# The margin, as a share of the reference's final loss. DeepSeek-V3 (arXiv 2412.19437, section 3.3)
# reports FP8 within 0.25 % of bf16, and takes that for well within what is random in training.
TOLERANCE = 0.0025
# The share of compute that makes up for the margin in a compute-optimal model of 8.05 B parameters,
# by the scaling law of Hoffmann et al. 2022 (arXiv 2203.15556), equation 10.
EQUIVALENT_COMPUTE = 0.092
STRANGE = 0.5  # of the distance of two seeds: runs of one seed are nearer
PARTS = 5  # of the steps, in each of which partners are nearer than strangers
LEARNED = 4  # margins (1 % of the loss) that a loss falls by before two of them can be the same
FAR = 0.10  # above a loss: rounding moves no loss as far
OFTEN = 0.02  # of a run's steps: a bad batch takes fewer
COPIED = 0.10  # of the steps in FP8 with the other run's loss to the last bit: chance gives fewer
HARMED = 8  # margins (2 % of the loss) above its partner: a run that FP8 harmed
TOO_GOOD = 16  # margins below its partner: more than chance, and rounding lowers no loss

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


def verdict(runs: list[Run], reference_runs: list[Run], recipes_judged: int = 1) -> Verdict:
    """Test equivalence by two one-sided t-tests (Schuirmann 1987): losses are the same if the
    interval of their mean difference lies within the margin.

    It cannot be told of runs that have not begun to learn.

    Args:
        recipes_judged: how many recipes are judged together: the interval is wider (Bonferroni).
    """
    gaps = last_tenth(apart(runs, reference_runs))  # a row a step, a column a seed
    if gaps.empty:
        pairs = {run.seed for run in runs} & {run.seed for run in reference_runs}
        return Verdict(TOO_SHORT) if pairs else Verdict()
    gap_by_seed = gaps.mean()
    reference_by_seed = by_seed(reference_runs).loc[gaps.index, gaps.columns].mean()
    margin = TOLERANCE * reference_by_seed.mean()
    confidence = 1 - (1 - LEVEL) / recipes_judged
    gap, low, high = estimate(gap_by_seed, confidence)
    if len(gap_by_seed) < MIN_SEEDS:
        word = TOO_FEW
    elif (gap_by_seed > FAR * reference_by_seed).all():
        word = HIGHER  # far above in each seed, however much the seeds vary
    elif not has_learned(runs + reference_runs, reference_runs, margin):
        word = CANNOT_TELL
    elif low > margin:
        word = HIGHER
    elif high < -margin:
        word = LOWER
    elif -margin < low and high < margin:
        word = SAME
    else:
        word = CANNOT_TELL
    needed = runs_needed(len(gap_by_seed), high - low, abs(abs(gap) - margin), 1, confidence)
    return Verdict(
        word, tuple(gap_by_seed), gap, low, high, confidence, margin, gaps.index[-1], needed
    )


def has_learned(runs: list[Run], reference_runs: list[Run], margin: float) -> bool:
    """Tell if runs have begun to learn: the learning rate grows no more, and the reference's loss
    has fallen by a few margins."""
    for run in runs:
        rates = run.steps["lr"].dropna().tail(2)
        if rates.is_monotonic_increasing and rates.nunique() > 1:
            return False
    falls = [first_tenth(run.steps["loss"]).mean() - run.final_loss for run in reference_runs]
    return np.mean(falls) > LEARNED * margin


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


def strange_parts(runs: list[Run], reference_runs: list[Run]) -> Iterator[str]:
    """Say in which fifth of the steps the losses of a pair jump as those of two seeds.

    From step to step the batch makes the loss jump, and partners have the same batches.
    """
    jumps = by_seed(runs).diff()
    reference_jumps = by_seed(reference_runs).diff()
    gaps = (jumps - reference_jumps).dropna(axis="columns", thresh=MIN_STEPS)
    of_seeds = reference_jumps if len(reference_jumps.columns) > 1 else jumps
    strangers = pd.DataFrame()
    for seed, other_seed in combinations(of_seeds, 2):
        strangers[seed, other_seed] = of_seeds[seed] - of_seeds[other_seed]
    for seed in gaps:
        steps = gaps[seed].dropna().index
        for part in np.array_split(steps, PARTS):
            usual = strangers.reindex(part).abs().median().median()
            jump = gaps[seed][part].abs().median()
            if jump > STRANGE * usual:
                yield (
                    f"from step {part[0]} to {part[-1]} the losses of seed {seed} jump {jump:.2g} "
                    f"apart from step to step, and those of two seeds {usual:.2g}: the pair did "
                    "not read the same batches, or did not learn alike"
                )
                return


# ---- rule 5 ----


def far_above(run: Run, reference_runs: list[Run]) -> pd.Series:
    """Mark the steps at which a run's loss is not finite, or far above its partner's: that of the
    other recipe's run of its seed.

    Only steps that both have are compared; none without a partner. Two seeds differ too much from
    step to step.
    """
    partner = by_seed(reference_runs).get(run.seed, pd.Series(dtype=float)).dropna()
    steps = run.steps.index.intersection(partner.index)
    both = run.steps["loss"].reindex(steps)
    return both.isna() | (both > (1 + FAR) * partner.reindex(steps))


def is_far_at_end(run: Run, reference_runs: list[Run]) -> bool:
    """Tell if a run ends far above its partner; without a partner, if its mean loss in its last
    tenth is far above that of each run of the other recipe."""
    if run.length < MIN_STEPS:
        return False
    far = far_above(run, reference_runs)
    if len(far):
        return last_tenth(far).mean() > 0.5
    end = last_tenth(run.steps["loss"])
    reference_ends = by_seed(reference_runs).reindex(end.index).mean().dropna()
    return bool(len(reference_ends)) and not end.mean() <= (1 + FAR) * reference_ends.max()


def count_diverged(runs: list[Run], reference_runs: list[Run]) -> int:
    """Count the runs, completed or not, whose loss was not finite, or ends far above the completed
    runs of the other recipe."""
    completed = [run for run in reference_runs if run.completed]
    return sum(run.ending == DIVERGED or is_far_at_end(run, completed) for run in runs)


def anomalies(
    runs: list[Run], reference_runs: list[Run], judged: Verdict, strange: list[str]
) -> Iterator[str]:
    """Say what is odd about losses: far above, strange or copied on the way, or apart at the end by
    more than rounding explains.

    Args:
        strange: what `strange_parts` says.
    """
    for each, partners in (runs, reference_runs), (reference_runs, runs):
        for run in each:
            share = far_above(run, partners).mean()
            if share > OFTEN:
                above = f"{FAR:.0%} above its partner's loss in {share:.0%} of its steps"
                yield f"{run.name} is {above}"
    yield from strange
    copied = apart(runs, reference_runs).where(by_seed(runs, "in_fp8")).eq(0).mean().max()
    if copied > COPIED:
        yield f"in {copied:.0%} of a run's steps both recipes have one loss, to the last bit"
    highest = max(judged.by_seed, default=0.0)
    lowest = min(judged.by_seed, default=0.0)
    if judged.high < -judged.margin:
        yield (
            f"its loss is {-judged.difference:.3g} lower, more than the margin of "
            f"{judged.margin:.2g}, and rounding to FP8 explains no such gain"
        )
    elif judged.word == HIGHER:
        return
    elif judged.low > judged.margin:
        more = f"more than the margin of {judged.margin:.2g}"
        yield f"its loss is {judged.difference:.3g} higher, {more}"
    elif highest > HARMED * judged.margin:
        margins = highest / judged.margin
        yield f"one of its runs ends {highest:.3g} above its partner, {margins:.0f} margins"
    elif -lowest > TOO_GOOD * judged.margin:
        margins = -lowest / judged.margin
        yield f"one of its runs ends {-lowest:.3g} below its partner, {margins:.0f} margins"
