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

from analysis.load import FAR, final_from
from analysis.rates import MIN_STEPS, Completed, half_widths, interval

# Of the interval that decides: two one-sided tests at 5 % each, Schuirmann's test of equivalence.
LEVEL = 0.90
MIN_SEEDS = 3  # pairs of runs below which nothing is said about equality
# The margin, as a share of the baseline's final loss. DeepSeek-V3 (arXiv 2412.19437, section 3.3)
# reports FP8 within 0.25 % of bf16, and takes that for well within what is random in training.
TOLERANCE = 0.0025

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


def _final(steps: pd.DataFrame) -> pd.DataFrame:
    """Choose the last tenth of the steps, as far as they were logged."""
    return steps.loc[final_from(steps.index[-1]) :]


def loss_difference(recipe: Completed, baseline: Completed) -> pd.DataFrame:
    """Smooth the difference of the loss to the baseline's: columns step, difference, low, high.

    The difference is a mean over seeds, with Student's 90 % interval at each step, as `judge` uses
    it for a single recipe; with one seed low and high are NaN. Each interval holds for its step,
    not for all steps together. Empty where no seed was completed in both recipes, or their logs
    have no step in common.
    """
    pairs = paired(recipe, baseline)
    if pairs.empty:
        return pd.DataFrame(columns=["step", "difference", "low", "high"], dtype=float)
    smooth = (pairs["loss"] - pairs["reference"]).rolling(len(_final(pairs))).mean().dropna()
    low, high = interval(smooth.to_numpy(float).T, level=LEVEL)
    bands = {"difference": smooth.mean(axis=1), "low": low, "high": high}
    return pd.DataFrame(bands).reset_index()


def judge(differences: np.ndarray, margin: float | np.ndarray, tries: int = 1) -> np.ndarray:
    """Outcomes (...) from paired differences of the final loss (seeds, ...) and margins.

    Runs with the same seed share weights and batches, so their paired difference can be resolved
    far below what another seed does. "the same": its 90 % interval lies within the margins: two
    one-sided t-tests at 5 % (Schuirmann 1987, J. Pharmacokinetics and Biopharmaceutics 15) reject a
    difference of a margin or more. "different": the interval lies beyond one of them. Else "cannot
    tell". With several `tries` the level is Bonferroni's.
    """
    if len(differences) < MIN_SEEDS:
        return np.full(np.shape(differences)[1:], NOT_ENOUGH)
    low, high = interval(differences, level=1 - (1 - LEVEL) / tries)
    same = (-margin < low) & (high < margin)
    different = (margin < low) | (high < -margin)
    return np.select([same, different], [SAME, DIFFERENT], CANNOT_TELL)


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
    "{level:.3g} % interval {low:+.4f} to {high:+.4f}, margin {margin:.4f}."
)
FAR_OFF = "{recipe} ends far {side} {baseline} in {count} of {seeds} seeds ({ends} beside {beside})"


@dataclass(frozen=True)
class Verdict:
    """Whether a recipe ends at the baseline's loss."""

    recipe: str
    baseline: str
    outcome: str = NOT_ENOUGH
    seeds: int = 0  # pairs of completed runs it rests on
    step: int = 0  # the last one that all of them logged
    difference: float = math.nan  # of the final loss, recipe less baseline, mean over seeds
    low: float = math.nan  # its interval
    high: float = math.nan
    level: float = 100 * LEVEL  # of the interval, in percent
    margin: float = math.nan  # `TOLERANCE` of the baseline's final loss
    # Seeds whose final loss is `FAR` above (below) the baseline's of the same seed:
    # seed -> (loss, the baseline's).
    above: dict[int, tuple[float, float]] = field(default_factory=dict)
    below: dict[int, tuple[float, float]] = field(default_factory=dict)
    alike: bool = False  # all losses of all seeds are equal to the last bit
    half_widths: dict[int, float] = field(
        default_factory=dict
    )  # of the interval with more seeds, if unclear

    @property
    def word(self) -> str:
        """The outcome, for a table."""
        if self.outcome == NOT_ENOUGH:
            return f"{self.seeds} of {MIN_SEEDS} seeds"
        if self.outcome == DIFFERENT:
            return HIGHER if self.difference > 0 else LOWER
        return self.outcome

    def far_off(self) -> list[str]:
        """Say how many seeds end far above the baseline, and how many far below."""
        words = []
        for side, seeds in ("above", self.above), ("below", self.below):
            if seeds:
                losses, references = zip(*seeds.values(), strict=True)
                facts = {"ends": _span(losses), "beside": _span(references), "count": len(seeds)}
                words.append(FAR_OFF.format(**vars(self) | facts, side=side))
        return words

    def sentence(self) -> str:
        """For people, with the numbers it rests on."""
        template = _NO_SEED
        if self.seeds:
            template = _OPENINGS[self.outcome] + (_ONE_SEED if self.seeds == 1 else _SEEDS)
        return template.format(**vars(self), word=self.word)


def _span(losses) -> str:
    """Write the lowest and the highest loss, or the only one."""
    return " to ".join(dict.fromkeys(f"{end:.2f}" for end in (min(losses), max(losses))))


def verdict(recipe: Completed, baseline: Completed, tries: int = 1) -> Verdict:
    """Judge whether the final loss of a recipe is the baseline's, see `judge`.

    The final loss is the mean over the last tenth of the steps, those that all compared runs
    logged. Where it is `FAR` above in every seed, one seed is enough.
    """
    names = {"recipe": recipe.recipe, "baseline": baseline.recipe}
    pairs = paired(recipe, baseline)
    if pairs.empty:
        return Verdict(**names)
    final, step = _final(pairs).mean(), int(pairs.index[-1])
    losses, references = final["loss"], final["reference"]
    differences = (losses - references).to_numpy(float)
    level = 1 - (1 - LEVEL) / tries
    low, high = interval(differences, level=level)
    margin = TOLERANCE * abs(float(references.mean()))
    outcome = str(judge(differences, margin, tries))
    above, below = _far(losses, references), _far(references, losses)
    if step < MIN_STEPS:
        outcome = TOO_SHORT
    elif len(above) == len(differences):
        outcome = DIFFERENT
    widths = {}
    if outcome == CANNOT_TELL:
        widths = half_widths(differences.var(ddof=1), level)
    return Verdict(
        **names,
        outcome=outcome,
        seeds=len(differences),
        step=step,
        difference=float(differences.mean()),
        low=float(low),
        high=float(high),
        level=100 * level,
        margin=margin,
        above=above,
        below={seed: ends[::-1] for seed, ends in below.items()},
        alike=bool((pairs["loss"] == pairs["reference"]).all(axis=None)),
        half_widths=widths,
    )


def _far(losses: pd.Series, references: pd.Series) -> dict[int, tuple[float, float]]:
    """Find seeds whose loss is `FAR` above the other recipe's of the same seed."""
    lowest = np.minimum(losses.abs(), references.abs())
    far = losses[losses - references > FAR * lowest]
    return {seed: (float(loss), float(references[seed])) for seed, loss in far.items()}


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
