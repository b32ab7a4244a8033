"""Is it the same loss? Paired differences over steps, and a verdict that says how many seeds it
rests on.

Here the loss is smoothed one way: the mean over a tenth of the run's steps, as far as they were
logged; its last value is the final loss. A smoothed value uses nothing from later steps and lags by
half of that tenth.
"""

import math
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import pandas as pd

from analysis.load import Frames, final_from
from analysis.rates import MIN_STEPS, Completed, half_widths, interval

# Of the interval that decides: two one-sided tests at 5 % each, Schuirmann's test of equivalence.
LEVEL = 0.90
MIN_SEEDS = 3  # pairs of runs below which nothing is said about equality
# The margin, as a share of the baseline's final loss. DeepSeek-V3 (arXiv 2412.19437, section 3.3)
# reports FP8 within 0.25 % of bf16, and takes that for well within what is random in training.
TOLERANCE = 0.0025
LARGE = 1000  # of a loss: of more the first digits are told
FAR = 0.10  # of the loss: so far off, no count of seeds would make it the same

SAME, DIFFERENT, CANNOT_TELL = "the same", "different", "cannot tell"
NOT_ENOUGH, TOO_SHORT = "not enough seeds to say", "too short"
HIGHER, LOWER = "higher", "lower"  # what is different, for people


def paired(recipe: Completed, baseline: Completed) -> pd.DataFrame:
    """Pair the losses of two recipes: a row a step that all runs logged, columns ("loss" or
    "reference", seed).

    "loss" is the recipe's, "reference" the baseline's; of the seeds (NaN where none was set) that
    both completed.
    """
    losses, reference = map(_by_seed, (recipe, baseline))
    seeds = losses.columns.intersection(reference.columns)
    return pd.concat({"loss": losses[seeds], "reference": reference[seeds]}, axis=1).dropna()


def _by_seed(of: Completed) -> pd.DataFrame:
    """Put losses into a row a step and a column a seed; several runs without a seed have no
    partners."""
    steps = of.steps.dropna(subset="loss")
    if of.runs["seed"].isna().sum() > 1:
        steps = steps.dropna(subset="seed")
    return steps.pivot(index="step", columns="seed", values="loss")


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


def figure(value: float, form: str = "+.4f") -> str:
    """Write a loss; one that is large by its first digits."""
    return format(value, form if not abs(value) >= LARGE else f"{form[:-2]}4g")


_NO_SEED = (
    "The losses of {recipe} and {baseline} cannot be compared: no seed was completed with both, at "
    "a step that both logged."
)
_ONE_SEED = " after {step:,} steps: 1 seed, difference {difference}, margin {margin}."
_SEEDS = (
    " after {step:,} steps: {seeds} seeds, difference {difference}, "
    "{level:.3g} % interval {low} to {high}, margin {margin}."
)


@dataclass(frozen=True)
class Verdict:
    """Whether a recipe ends at the baseline's loss."""

    recipe: str
    baseline: str
    outcome: str = NOT_ENOUGH
    seeds: int = 0  # pairs of completed runs it rests on
    step: int = 0  # the last one that all of them logged
    difference: float = math.nan  # of the final loss, recipe less baseline, mean over seeds
    by_seed: tuple[float, ...] = ()
    low: float = math.nan  # its interval
    high: float = math.nan
    level: float = 100 * LEVEL  # of the interval, in percent
    margin: float = math.nan  # `TOLERANCE` of the baseline's final loss
    half_widths: dict[int, float] = field(default_factory=dict)  # with more seeds, if unclear

    @property
    def word(self) -> str:
        """The outcome, for a table."""
        if self.outcome == NOT_ENOUGH:
            return f"{self.seeds} of {MIN_SEEDS} seeds"
        if self.outcome == DIFFERENT:
            return LOWER if self.difference < 0 else HIGHER
        return self.outcome

    @property
    def above(self) -> list[float]:
        """The differences by more than the margin, as shares of the baseline's final loss."""
        margin = self.margin or math.nan
        return sorted(TOLERANCE * d / margin for d in self.by_seed if d > self.margin)

    @property
    def share(self) -> float:
        """The difference as a share of the baseline's final loss; NaN where that is unknown."""
        return TOLERANCE * self.difference / (self.margin or math.nan)

    def sentence(self) -> str:
        """For people, with the numbers it rests on."""
        template = _NO_SEED
        if self.seeds:
            template = _OPENINGS[self.outcome] + (_ONE_SEED if self.seeds == 1 else _SEEDS)
        figures = {name: figure(getattr(self, name)) for name in ("difference", "low", "high")}
        figures["margin"] = figure(self.margin, ".4f")
        return template.format(**vars(self) | figures, word=self.word)


def verdict(recipe: Completed, baseline: Completed, tries: int = 1) -> Verdict:
    """Judge whether the final loss of a recipe is the baseline's, see `judge`.

    The final loss is the mean over the last tenth of the steps, those that all compared runs
    logged.
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
    if step < MIN_STEPS:
        outcome = TOO_SHORT
    widths = {}
    if outcome == CANNOT_TELL:
        widths = half_widths(differences.var(ddof=1), level)
    return Verdict(
        **names,
        outcome=outcome,
        seeds=len(differences),
        step=step,
        difference=float(differences.mean()),
        by_seed=tuple(differences.tolist()),
        low=float(low),
        high=float(high),
        level=100 * level,
        margin=margin,
        half_widths=widths,
    )


# ---- runs that end far from the baseline ----


class FarOff(NamedTuple):
    """The runs of a recipe that end `FAR` from the baseline's: a row a run, columns loss, low and
    high, the last two of the baseline's runs."""

    recipe: str
    baseline: str
    runs: int  # that were compared
    above: pd.DataFrame
    below: pd.DataFrame

    def sentences(self) -> list[str]:
        sides = {"above": self.above, "below": self.below}
        return [self.sentence(side, ends) for side, ends in sides.items() if len(ends)]

    def sentence(self, side: str, ends: pd.DataFrame) -> str:
        own = _span(ends["loss"].min(), ends["loss"].max())
        beside = _span(ends["low"].min(), ends["high"].max())
        return (
            f"{self.recipe} ends far {side} {self.baseline} in {len(ends)} of {self.runs} "
            f"seed{'s' * (self.runs > 1)} ({own} beside {beside})"
        )


def _span(*ends: float) -> str:
    """Write the lowest and the highest loss, or the only one."""
    return " to ".join(dict.fromkeys(figure(end, ".2f") for end in ends))


def far_off(recipe: str, baseline: Completed, frames: Frames) -> FarOff:
    """Find runs that end `FAR` from the baseline's, also those that were not completed, over the
    last tenth of the steps that each has made.

    A run is compared with the baseline's run of the same seed, or with all of them if there is
    none. Runs that diverged are counted as such.
    """
    ends = frames.runs.query("recipe == @recipe and status != 'diverged' and steps >= @MIN_STEPS")
    last = frames.steps["run"].map(final_from(ends.set_index("run")["steps"]))
    late = frames.steps[frames.steps["step"] >= last]
    beside = late.merge(baseline.steps, on="step", suffixes=("", "_reference"))
    keys = ["run", "seed", "seed_reference"]
    means = beside.groupby(keys, dropna=False)[["loss", "loss_reference"]].mean().reset_index()
    partner = means["seed"] == means["seed_reference"]
    alone = ~partner.groupby(means["run"]).transform("any")
    by_run = means[partner | alone].dropna(subset="loss").groupby("run")
    table = by_run["loss_reference"].agg(low="min", high="max").assign(loss=by_run["loss"].first())
    far = FAR * table.abs().min(axis="columns")
    above = table[table["loss"] - table["high"] > far]
    below = table[table["low"] - table["loss"] > far]
    return FarOff(recipe, baseline.recipe, len(table), above, below)


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
