"""Is it the same loss? Paired differences over steps, and a verdict that says how many seeds it
rests on.

Here the loss is smoothed one way: the mean over a tenth of the run's steps, as far as they were
logged; its last value is the final loss. A smoothed value uses nothing from later steps and lags by
half of that tenth.
"""

import math
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy import stats

from analysis.load import final_from
from analysis.rates import MIN_STEPS, MOST_NEEDED, POWER, Completed, interval

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
HIGHER, LOWER = "higher", "lower"  # what is different, for people


def paired(recipe: Completed, baseline: Completed) -> pd.DataFrame:
    """Pair the losses of two recipes: a row a step that all runs logged, columns ("loss" or
    "reference", seed).

    "loss" is the recipe's, "reference" the baseline's; of the seeds (NaN where none was set) that
    both completed.
    """
    losses, reference = (
        of.steps.dropna(subset="loss").pivot(index="step", columns="seed", values="loss")
        for of in (recipe, baseline)
    )
    seeds = losses.columns.intersection(reference.columns)
    return pd.concat({"loss": losses[seeds], "reference": reference[seeds]}, axis=1).dropna()


def _final(by_step: pd.DataFrame) -> pd.DataFrame:
    """Choose the last tenth of the steps, as far as they were logged."""
    return by_step.loc[final_from(by_step.index[-1]) :]


def loss_difference(recipe: Completed, baseline: Completed) -> pd.DataFrame:
    """Smooth the difference of the loss to the baseline's: columns step, difference, low, high.

    The difference is a mean over seeds, with Student's 90 % interval at each step, as `judge` uses
    it; with one seed low and high are NaN. Each interval holds for its step, not for all steps
    together. Empty where no seed was completed in both recipes, or their logs have no step in
    common.
    """
    pairs = paired(recipe, baseline)
    if pairs.empty:
        return pd.DataFrame(columns=["step", "difference", "low", "high"], dtype=float)
    smooth = (pairs["loss"] - pairs["reference"]).rolling(len(_final(pairs))).mean().dropna()
    low, high = interval(smooth.to_numpy().T, level=LEVEL)
    bands = {"difference": smooth.mean(axis=1), "low": low, "high": high}
    return pd.DataFrame(bands).reset_index()


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
    low, high = interval(differences, level=LEVEL)
    same = (-margin < low) & (high < margin)
    different = (margin < low) | (high < -margin)
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


_OPENINGS = {
    SAME: "{recipe} ends at the same loss as {baseline}",
    DIFFERENT: "{recipe} ends at a {word} loss than {baseline}",
    CANNOT_TELL: "These runs cannot tell whether {recipe} ends at the same loss as {baseline}",
    NOT_ENOUGH: f"It takes {MIN_SEEDS} seeds or more to say whether {{recipe}} ends at the same "
    "loss as {baseline}",
    TOO_SHORT: f"Too short (it takes {MIN_STEPS} steps) to say whether {{recipe}} ends at the same "
    "loss as {baseline}",
}
_NO_SEED = (
    "The losses of {recipe} and {baseline} cannot be compared: no seed was completed with both, at "
    "a step that both logged."
)
_ONE_SEED = " after {step:,} steps: 1 seed, difference {difference:+.4f}, margin {margin:.4f}."
_SEEDS = (
    " after {step:,} steps: {seeds} seeds, difference {difference:+.4f}, "
    "90 % interval {low:+.4f} to {high:+.4f}, margin {margin:.4f}."
)


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
    needed: int | None
    # Seeds that ended far above the others: seed -> (its final loss, the highest of the others).
    left: dict[int, tuple]
    baseline_left: dict[int, tuple]

    @property
    def word(self) -> str:
        """The outcome, for a table."""
        if self.outcome == NOT_ENOUGH:
            return f"{self.seeds} of {MIN_SEEDS} seeds"
        if self.outcome == DIFFERENT:
            return HIGHER if self.difference > 0 else LOWER
        return self.outcome

    def sentence(self) -> str:
        """For people, with the numbers it rests on."""
        template = _NO_SEED
        if self.seeds:
            template = _OPENINGS[self.outcome] + (_ONE_SEED if self.seeds == 1 else _SEEDS)
        return template.format(**vars(self), word=self.word)


def verdict(recipe: Completed, baseline: Completed) -> Verdict:
    """Judge whether the final loss of a recipe is the baseline's, see `judge`.

    The final loss is the mean over the last tenth of the steps, those that all compared runs
    logged.
    """
    names = recipe.recipe, baseline.recipe
    pairs = paired(recipe, baseline)
    if pairs.empty:
        return Verdict(*names, NOT_ENOUGH, 0, 0, *[math.nan] * 4, None, {}, {})
    final, step = _final(pairs).mean(), int(pairs.index[-1])
    losses, references = final["loss"], final["reference"]
    differences = (losses - references).to_numpy()
    mean, reference = float(differences.mean()), abs(float(references.mean()))
    low, high = map(float, interval(differences, level=LEVEL))
    margin = TOLERANCE * reference
    outcome = str(judge(differences, margin))
    if outcome == NOT_ENOUGH and (differences > LEFT * reference).all():
        outcome = DIFFERENT  # so far above that no count of seeds would make it the same
    if step < MIN_STEPS:
        outcome = TOO_SHORT
    needed = None
    if outcome == CANNOT_TELL:
        true = 0.0 if low <= 0 <= high else mean / margin
        needed = seeds_needed(true, differences.std(ddof=1) / margin, len(differences))
    left = _left(losses, references), _left(references, losses)
    return Verdict(*names, outcome, len(differences), step, mean, low, high, margin, needed, *left)


def _left(losses: pd.Series, reference: pd.Series) -> dict[int, tuple[float, float]]:
    """Find seeds that ended far above the recipe's others, see `Verdict.left`.

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


def compute_for_margin(parameters: float) -> tuple[float, float]:
    """Work out (parameters, share of compute) that buys a loss lower by `TOLERANCE`, for a model
    trained compute-optimally.

    Trained so, both terms of the law, that of the parameters N and that of the tokens D, fall with
    compute C = 6 N D as C^-(ALPHA BETA / (ALPHA + BETA)). For a model outside of the law's range
    the published study's 8 B is taken.
    """
    n = parameters if FITTED[0] <= parameters <= FITTED[1] else PUBLISHED_PARAMETERS
    # At the optimum the data's term is ALPHA / BETA of the size's.
    above = A / n**ALPHA * (1 + ALPHA / BETA)
    left = 1 - TOLERANCE * (E + above) / above
    return n, left ** (-(ALPHA + BETA) / (ALPHA * BETA)) - 1
