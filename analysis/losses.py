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
STRANGE = 0.5  # of the distance of strangers' first losses: partners are nearer to one another
FAR = 0.10  # of a loss: rounding moves none so far
OFTEN = 0.02  # of a run's steps: a bad batch takes fewer
COPIED = 0.10  # of the steps in FP8 with the other's loss to the last bit: chance gives fewer
TOO_GOOD = 0.02  # of the loss: eight times the tolerance, and rounding takes nothing off

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
        runs_needed: seeds that would give a verdict; None if there is one.
    """

    word: str = f"0 of {MIN_SEEDS} seeds"
    by_seed: tuple[float, ...] = ()
    low: float = math.nan
    high: float = math.nan
    level: float = LEVEL
    margin: float = math.nan
    step: int = 0
    runs_needed: int | None = None

    @property
    def difference(self) -> float:
        return float(np.mean(self.by_seed)) if self.by_seed else math.nan

    @property
    def share(self) -> float:
        """The difference as a share of the reference's loss."""
        return TOLERANCE * self.difference / (self.margin or math.nan)


def paired(own: list[Run], others: list[Run]) -> dict[str, pd.DataFrame]:
    """Join the steps of both runs of each seed, by name of the recipe's run."""
    partners = {run.seed: run for run in others}
    return {
        run.name: run.steps.join(partners[run.seed].steps, rsuffix="_beside", how="inner")
        for run in own
        if run.seed in partners
    }


def verdict(own: list[Run], others: list[Run], tries: int = 1) -> Verdict:
    """Test equivalence: the loss is the same if the interval of the mean difference lies within the
    margin, which is two one-sided t-tests (Schuirmann 1987)."""
    pairs = [pair for pair in paired(own, others).values() if len(pair) >= MIN_STEPS]
    if not pairs:
        return Verdict()
    ends = np.array([last_tenth(pair)[["loss", "loss_beside"]].mean() for pair in pairs])
    by_seed = ends[:, 0] - ends[:, 1]
    margin = float(TOLERANCE * abs(ends[:, 1].mean()))
    level = 1 - (1 - LEVEL) / tries
    _, low, high = map(float, estimate(by_seed, level=level))
    enough = len(pairs) >= MIN_SEEDS
    if not enough:
        word = f"{len(pairs)} of {MIN_SEEDS} seeds"
    elif max(-low, high) < margin:
        word = SAME
    elif low > margin or min(by_seed) > margin / TOLERANCE * FAR:  # however much they vary
        word = HIGHER
    else:
        word = LOWER if high < -margin else CANNOT_TELL
    more = None
    if word == CANNOT_TELL:
        near = abs(margin - abs(by_seed.mean()))
        more = runs_needed((high - low) / 2, near, len(pairs))
    last = int(min(pair.index[-1] for pair in pairs))
    return Verdict(word, tuple(by_seed.tolist()), low, high, level, margin, last, more)


def differences(own: list[Run], others: list[Run]) -> pd.DataFrame:
    """Smooth the difference of the loss: by step its mean over seeds, and the interval of that.

    A value is the mean over a tenth of the steps, up to its own.
    """
    pairs = paired(own, others).values()
    by_seed = [pair["loss"] - pair["loss_beside"] for pair in pairs]
    by_seed = pd.concat(by_seed, axis="columns").dropna()
    smooth = by_seed.rolling(len(last_tenth(by_seed))).mean().dropna()
    lines = estimate(smooth.to_numpy().T, level=LEVEL)
    return pd.DataFrame(lines.T, smooth.index, ["difference", "low", "high"])


# ---- rule 4 ----


def no_pairs(own: list[Run], others: list[Run]) -> Iterator[str]:
    """Say if runs of one seed do not begin at one loss, or runs of two seeds do.

    The first losses of partners, which share weights and batches, differ by rounding alone: by far
    less than strangers' losses.
    """
    firsts = []
    for runs in own, others:
        losses = {run.seed: run.steps["loss"].iloc[0] for run in runs if run.length}
        firsts.append(pd.Series(losses).dropna())
        if firsts[-1].duplicated().any():
            yield f"seeds of {runs[0].recipe} begin with the same loss, so they are no other runs"
    seeds = firsts[0].index.intersection(firsts[1].index)
    if len(seeds) < 2:
        return
    mine, theirs = (of[seeds].to_numpy() for of in firsts)
    apart = np.abs(np.subtract.outer(mine, theirs))
    partners = np.median(apart.diagonal())
    strangers = np.median(apart[~np.eye(len(seeds), dtype=bool)])
    if partners > STRANGE * strangers:
        yield (
            f"it begins {partners:.2g} from its partners of the same seed, and seeds begin "
            f"{strangers:.2g} apart: runs of a seed do not share weights and batches, or log "
            "different losses"
        )


# ---- rule 5 ----


def excess(run: Run, others: list[Run]) -> pd.Series:
    """How far a run's loss is above the other recipe's at each step, as a share; infinite where it
    is not finite. Beside it is the run of its seed, or the mean of all where there is none."""
    beside = [other for other in others if other.seed == run.seed] or others
    losses = [other.steps["loss"].reindex(run.steps.index, method="ffill") for other in beside]
    return (run.steps["loss"] / np.mean(losses, axis=0) - 1).fillna(math.inf)


def diverged(own: list[Run], others: list[Run], unpaired: bool) -> int:
    """Count the runs whose loss was not finite, or is far above the other recipe's in most of their
    last tenth, whether or not they were completed.

    Args:
        unpaired: losses of the recipes do not compare: only those count that were not finite.
    """
    beside = [run for run in others if run.completed and not unpaired]
    found = {run for run in own if run.ending == "diverged"}
    for run in own if beside else []:
        if run.length >= MIN_STEPS and last_tenth(excess(run, beside)).median() > FAR:
            found.add(run)
    return len(found)


def odd(own: list[Run], others: list[Run], judged: Verdict) -> Iterator[str]:
    """Say what losses show besides their ends."""
    for runs, beside in (own, others), (others, own):
        for run in runs if beside else []:
            far = (excess(run, beside) > FAR).mean()
            if far > OFTEN:
                yield (
                    f"{run.recipe} is far above {beside[0].recipe} in seed {run.seed}, by more "
                    f"than {100 * FAR:.0f} % of the loss in {far:.0%} of the steps"
                )
    for name, pair in paired(own, others).items():
        copied = (pair["loss"] == pair["loss_beside"])[pair["in_fp8"]].mean()
        if copied > COPIED:
            yield f"in {copied:.0%} of its steps {name} has the other's loss to the last bit"
    if judged.share < -TOO_GOOD:
        yield f"its loss is {-judged.share:.1%} lower, which FP8 does not explain"


# ---- what the margin is worth ----

# Hoffmann et al. 2022, "Training Compute-Optimal Large Language Models", arXiv 2203.15556, equation
# 10: the loss of a model of N parameters after D tokens is E + A / N^ALPHA + B / D^BETA; fitted to
# 70 M to 16 B parameters.
E, A, B, ALPHA, BETA = 1.69, 406.4, 410.7, 0.34, 0.28
FITTED = (70e6, 16e9)
PUBLISHED_PARAMETERS = 8.05e9


def equivalent_compute(parameters: float) -> tuple[float, float]:
    """Work out (parameters, share of compute) that buys a loss lower by `TOLERANCE`, for a model
    trained compute-optimally.

    Trained so, both terms of the law, the parameters' (N) and the tokens' (D), fall with
    compute C = 6 N D as C^-(ALPHA BETA / (ALPHA + BETA)). For a model outside of the law's range
    the published study's 8 B is taken.
    """
    n = parameters if FITTED[0] <= parameters <= FITTED[1] else PUBLISHED_PARAMETERS
    # At the optimum the data's term is ALPHA / BETA of the size's.
    above = A / n**ALPHA * (1 + ALPHA / BETA)
    left = 1 - TOLERANCE * (E + above) / above
    return n, left ** (-(ALPHA + BETA) / (ALPHA * BETA)) - 1
