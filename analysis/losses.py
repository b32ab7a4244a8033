"""Is it the same loss? Paired differences over steps, and a verdict that says how many seeds it
rests on.

Here the loss is smoothed one way: the mean over a tenth of the run's steps, as far as they were
logged; its last value is the final loss. A smoothed value uses nothing from later steps and lags by
half of that tenth.
"""

import math
from dataclasses import dataclass, field

import numpy as np
import pandas as pd
from scipy import stats

from analysis.load import final_from
from analysis.rates import MIN_STEPS, MOST_NEEDED, POWER, completed, students

# Of the interval that decides: two one-sided tests at 5 % each, Schuirmann's test of equivalence.
LEVEL = 0.90
MIN_SEEDS = 3  # pairs of runs below which nothing is said about equality
# The margin, as a share of the baseline's final loss. DeepSeek-V3 (arXiv 2412.19437, section 3.3)
# reports FP8 within 0.25 % of bf16, and takes that for well within what is random in training.
TOLERANCE = 0.0025
# Of the loss: a seed this far above both the recipe's other seeds and the baseline has left them.
LEFT = 0.10

SAME, DIFFERENT, CANNOT_TELL = "the same", "different", "cannot tell"
NOT_ENOUGH, TOO_SHORT = "not enough seeds to say", "too short"


def paired(runs: pd.DataFrame, steps: pd.DataFrame, recipe: str, baseline: str) -> pd.DataFrame:
    """Losses of the completed runs: a row a step that all of them logged, columns ("loss" or
    "reference", seed).

    "loss" is the recipe's, "reference" the baseline's; of the seeds (NaN where none was set) that
    both completed.
    """
    losses, reference = (
        completed(runs, steps, name)
        .dropna(subset="loss")
        .pivot(index="step", columns="seed", values="loss")
        for name in (recipe, baseline)
    )
    seeds = losses.columns.intersection(reference.columns)
    return pd.concat({"loss": losses[seeds], "reference": reference[seeds]}, axis=1).dropna()


def _final(by_step: pd.DataFrame) -> pd.DataFrame:
    """The rows of the last tenth of the steps, of a frame that has a row for each step that was
    logged."""
    return by_step.loc[final_from(by_step.index[-1]) :]


def loss_difference(
    runs: pd.DataFrame, steps: pd.DataFrame, recipe: str, baseline: str
) -> pd.DataFrame:
    """Smoothed difference of the loss to the baseline by step: columns step, difference, low, high.

    The difference is a mean over seeds, with Student's 90 % interval at each step, as `judge` uses
    it; with one seed low and high are NaN. Each interval holds for its step, not for all steps
    together. Empty where no seed was completed in both recipes, or their logs have no step in
    common.
    """
    pairs = paired(runs, steps, recipe, baseline)
    if pairs.empty:
        return pd.DataFrame(columns=["step", "difference", "low", "high"], dtype=float)
    smooth = (pairs["loss"] - pairs["reference"]).rolling(len(_final(pairs))).mean().dropna()
    difference, half = students(smooth.to_numpy().T, level=LEVEL)
    bands = {"difference": difference, "low": difference - half, "high": difference + half}
    return pd.DataFrame(bands, index=smooth.index).reset_index()


def judge(differences: np.ndarray, margin: float | np.ndarray) -> np.ndarray:
    """Outcomes (...) from paired differences of the final loss (seeds, ...) and margins.

    Runs with the same seed share weights and batches, so their paired difference can be resolved
    far below what another seed does. "the same": its 90 % interval lies within the margins: two
    one-sided t-tests at 5 % (Schuirmann 1987, J. Pharmacokinetics and Biopharmaceutics 15) reject a
    difference of a margin or more. "different": the interval lies beyond one of them. Else "cannot
    tell".
    """
    if len(differences) < MIN_SEEDS:
        return np.full(np.shape(differences)[1:], NOT_ENOUGH)
    mean, half = students(differences, level=LEVEL)
    same, different = np.abs(mean) + half < margin, np.abs(mean) - half > margin
    return np.select([same, different], [SAME, DIFFERENT], CANNOT_TELL)


def seeds_needed(difference: float, spread: float, more_than: int) -> int | None:
    """Seeds with which `judge` would tell in 80 % of studies; None if more than 100.

    Args:
        difference: the true one; spread: standard deviation of the paired differences; both in
        margins.
        more_than: the seeds there are.
    """
    seeds = range(more_than + 1, MOST_NEEDED + 1)
    return next((n for n in seeds if chance_of_telling(n, difference, spread) >= POWER), None)


def chance_of_telling(seeds: int, difference: float, spread: float) -> float:
    """How often `judge` says "the same" or "different", for a true `difference` and `spread` in
    margins.

    For each spread that may come out (chi-square quantiles), the mean difference has to fall within
    what half of the interval leaves of the margins, or as far beyond one of them.
    """
    quantiles, error = (np.arange(500) + 0.5) / 500, spread / math.sqrt(seeds)
    seen = error * np.sqrt(stats.chi2.ppf(quantiles, seeds - 1) / (seeds - 1))
    half = stats.t.ppf((1 + LEVEL) / 2, seeds - 1) * seen
    inner = np.clip(1 - half, 0, None)
    true = stats.norm(difference, error)
    same = true.cdf(inner) - true.cdf(-inner)
    return float(np.mean(same + true.sf(1 + half) + true.cdf(-1 - half)))


@dataclass(frozen=True)
class Verdict:
    """Whether a recipe ends at the baseline's loss."""

    recipe: str
    baseline: str
    outcome: str
    seeds: int  # pairs of completed runs it rests on
    step: int  # the last one that all of them logged
    difference: float  # of the final loss, recipe less baseline, mean over seeds
    low: float  # its 90 % interval
    high: float
    margin: float  # `TOLERANCE` of the baseline's final loss
    # Where these runs cannot tell: seeds that would in 80 % of studies, by the spread that was
    # seen, if the true difference is the one that was seen (zero where the interval holds it); None
    # if more than 100.
    needed: int | None = None
    left: dict[int, tuple[float, float]] = field(
        default_factory=dict
    )  # seeds of the recipe, see `_left`
    baseline_left: dict[int, tuple[float, float]] = field(default_factory=dict)

    @property
    def worse(self) -> bool:
        """Whether the loss is proven to be higher by more than the margin."""
        return self.outcome == DIFFERENT and self.difference > 0

    @property
    def conclusive(self) -> bool:
        """Whether the runs can tell."""
        return self.outcome in (SAME, DIFFERENT)

    @property
    def word(self) -> str:
        """One word for a table."""
        if self.outcome == DIFFERENT:
            return "higher" if self.worse else "lower"
        return _count(self.seeds) if self.outcome == NOT_ENOUGH else self.outcome

    def sentence(self) -> str:
        """For people, with the numbers it rests on."""
        pair = f"{self.recipe} and {self.baseline}"
        if self.seeds == 0:
            return (
                f"The losses of {pair} cannot be compared: no seed was completed with both, at a "
                "step that both logged."
            )
        same = f"whether {self.recipe} ends at the same loss as {self.baseline}"
        opening = {
            SAME: f"{self.recipe} ends at the same loss as {self.baseline}",
            DIFFERENT: f"{self.recipe} ends at a {self.word} loss than {self.baseline}",
            CANNOT_TELL: f"These runs cannot tell {same}",
            NOT_ENOUGH: f"It takes {MIN_SEEDS} seeds or more to say {same}",
            TOO_SHORT: f"Too short (it takes {MIN_STEPS} steps) to say {same}",
        }[self.outcome]
        numbers = [f"{self.seeds} seed{'s' * (self.seeds > 1)}, difference {self.difference:+.4f}"]
        if not math.isnan(self.low):
            numbers.append(f"90 % interval {self.low:+.4f} to {self.high:+.4f}")
        numbers.append(f"margin {self.margin:.4f}")
        return f"{opening} after {self.step:,} steps: {', '.join(numbers)}."

    def remedy(self) -> str:
        """What it would take to tell, where these runs cannot."""
        if self.needed is None:
            return f"more than {MOST_NEEDED} seeds, or longer runs, for the loss of {self.recipe}"
        return f"about {self.needed} seeds for the loss of {self.recipe}"


def _count(seeds: int) -> str:
    return "one seed" if seeds == 1 else f"{seeds} seeds"


def verdict(runs: pd.DataFrame, steps: pd.DataFrame, recipe: str, baseline: str) -> Verdict:
    """Judge whether the final loss of `recipe` is that of `baseline`, see `judge`.

    The final loss is the mean over the last tenth of the steps, those that all compared runs
    logged.
    """
    pairs = paired(runs, steps, recipe, baseline)
    if pairs.empty:
        return Verdict(recipe, baseline, NOT_ENOUGH, 0, 0, *[math.nan] * 4)
    final, step = _final(pairs).mean(), int(pairs.index[-1])
    losses, references = final["loss"], final["reference"]
    differences = (losses - references).to_numpy()
    reference = abs(float(references.mean()))
    margin = TOLERANCE * reference
    outcome = str(judge(differences, margin))
    if outcome == NOT_ENOUGH and (differences > LEFT * reference).all():
        outcome = DIFFERENT  # so far above that no count of seeds would make it the same
    if step < MIN_STEPS:
        outcome = TOO_SHORT
    mean, half = map(float, students(differences, level=LEVEL))
    needed = None
    if outcome == CANNOT_TELL:
        spread = differences.std(ddof=1) / margin
        true = mean / margin if abs(mean) > half else 0.0
        needed = seeds_needed(true, spread, len(differences))
    left = _left(losses, references), _left(references, losses)
    interval = mean, mean - half, mean + half, margin
    return Verdict(recipe, baseline, outcome, len(differences), step, *interval, needed, *left)


def _left(losses: pd.Series, reference: pd.Series) -> dict[int, tuple[float, float]]:
    """Find seeds that ended far above the recipe's others: seed -> (its final loss, the highest of
    the others).

    "Far" is `LEFT` of the loss. A seed that is as far above in the other recipe too is a hard seed,
    and has not left.
    """
    limit = LEFT * abs(min(losses.mean(), reference.mean()))
    others = pd.Series({seed: losses.drop(seed).median() for seed in losses.index}, dtype=float)
    left = losses[(losses - others > limit) & (losses - reference > limit)]
    highest = float(losses.drop(left.index).max())
    return {int(seed): (float(loss), highest) for seed, loss in left.items()}


# Hoffmann et al. 2022, "Training Compute-Optimal Large Language Models", arXiv 2203.15556, equation
# 10: the loss of a model of N parameters after D tokens is E + A / N^ALPHA + B / D^BETA; fitted to
# 70 M to 16 B parameters.
E, A, B, ALPHA, BETA = 1.69, 406.4, 410.7, 0.34, 0.28
FITTED = (70e6, 16e9)
PUBLISHED_PARAMETERS = 8.05e9


def compute_for_margin(parameters: float | None) -> tuple[float, float]:
    """(parameters, share of compute) that buys a loss lower by `TOLERANCE`, for a model trained
    compute-optimally.

    Trained so, both terms of the law, that of the parameters N and that of the tokens D, fall with
    compute C = 6 N D as C^-(ALPHA BETA / (ALPHA + BETA)). For a model outside of the law's range
    the published study's 8 B is taken.
    """
    n = parameters if parameters and FITTED[0] <= parameters <= FITTED[1] else PUBLISHED_PARAMETERS
    above = (
        A / n**ALPHA * (1 + ALPHA / BETA)
    )  # at the optimum the data's term is ALPHA / BETA of the size's
    left = 1 - TOLERANCE * (E + above) / above
    return n, left ** (-(ALPHA + BETA) / (ALPHA * BETA)) - 1
