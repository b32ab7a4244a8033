"""Is it the same loss? Paired differences over steps, and a verdict that says how many seeds it rests on.

Here the loss is smoothed one way: the mean over a tenth of the run's steps, as far as they were logged; its last value
is the final loss. A smoothed value uses nothing from later steps and lags by half of that tenth.
"""

import math
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy import stats

from analysis.rates import LEVEL, completed
from analysis.record import final_from

ALPHA = 0.05  # of the two one-sided tests, and of the ordinary test for a difference
MARGIN_CONFIDENCE = 0.975  # that the true seed-to-seed spread is no smaller than the margin
MIN_SEEDS = 3  # pairs of runs below which nothing is said about equality
# Of the baseline's final loss. DeepSeek-V3 (arXiv 2412.19437, section 3.3) reports FP8 within 0.25 % of bf16, and takes
# that for well within what is random in training.
TOLERANCE = 0.0025
NOISE_STEPS = 40, 200  # from how many logged steps the noise within a run is estimated, at least and at most

SAME, DIFFERENT, CANNOT_TELL = "the same", "different", "cannot tell"
NOT_ENOUGH = "not enough seeds to say"


def loss_by_seed(runs: pd.DataFrame, steps: pd.DataFrame, recipe: str) -> pd.DataFrame:
    """Loss of the completed runs of a recipe: one row a logged step, one column a seed (NaN where none was set)."""
    mine = completed(runs, steps, recipe).dropna(subset="loss")
    return mine.pivot(index="step", columns="seed", values="loss")


def paired_differences(runs: pd.DataFrame, steps: pd.DataFrame, recipe: str, baseline: str) -> pd.DataFrame:
    """Loss of a recipe less the baseline's at the same step and seed: one column a seed that both completed.

    Steps that not all of these runs logged are left out.
    """
    ours, theirs = (loss_by_seed(runs, steps, name) for name in (recipe, baseline))
    return (ours - theirs)[ours.columns.intersection(theirs.columns)].dropna()


def _final(by_step: pd.DataFrame) -> pd.DataFrame:
    """The rows of the last tenth of the steps, of a frame that has a row for each step that was logged."""
    return by_step.loc[final_from(by_step.index[-1]) :]


def loss_difference(
    runs: pd.DataFrame, steps: pd.DataFrame, recipe: str, baseline: str, level: float = LEVEL
) -> pd.DataFrame:
    """Smoothed difference of the loss to the baseline by step: columns step, difference, low, high.

    With several seeds: mean over them, with Student's t interval at each step. With one: the difference, with an
    interval from the autocorrelation within the run, see `_within_run`; NaN if it logged fewer than 20 steps.
    Each interval holds for its step, not for all steps together. Empty where no seed was completed in both recipes.
    """
    raw = paired_differences(runs, steps, recipe, baseline)
    if raw.empty:
        return pd.DataFrame(columns=["step", "difference", "low", "high"], dtype=float)
    width = len(_final(raw))
    smooth = raw.rolling(width).mean().dropna()
    difference = smooth.mean(axis=1).to_numpy()
    if (seeds := raw.shape[1]) > 1:
        half = _t(level, seeds - 1) * stats.sem(smooth, axis=1)
    else:
        half = _within_run(raw.iloc[:, 0].to_numpy(), width, level)[-len(smooth) :]
    step = smooth.index.to_numpy()
    return pd.DataFrame({"step": step, "difference": difference, "low": difference - half, "high": difference + half})


def _t(level: float, freedom: np.ndarray | float) -> np.ndarray | float:
    """Student's t quantile: half the width of a two-sided interval, in standard errors."""
    return stats.t.ppf((1 + level) / 2, freedom)


def _within_run(series: np.ndarray, width: int, level: float) -> np.ndarray:
    """Half-widths (n,) of the intervals of the trailing `width`-step means of a series (n,) with autocorrelated noise.

    The noise around each point is taken from the steps up to it, four times as many as are averaged but 40 to 200 (the
    first ones before those are full), a straight line removed, as an autoregression of order one. With correlation r
    from one step to the next, the mean of m steps has 1 + 2 sum_k (1 - k/m) r^k times the variance it would have with
    independent ones; the same factor over all these steps gives the effective sample size, whence the variance (less
    two for the line) and the degrees of freedom of Student's t (e.g. von Storch and Zwiers 1999, Statistical Analysis
    in Climate Research, 6.6). A line fitted to n steps lowers r by (2 + 4 r) / n, which is given back; a negative r
    counts as none. Simulated 95 % intervals of ten steps from 40 cover the truth in 94 to 96 % of runs up to r = 0.7
    and in 89 % at r = 0.9; from 20 in 90 to 97 % and 82 %. Below 20, r cannot be told: NaN.
    """
    least, most = NOISE_STEPS
    n = min(max(least, 4 * width), most, len(series))
    if n < least // 2:
        return np.full(len(series), math.nan)
    stretches = np.lib.stride_tricks.sliding_window_view(series, n)
    time = np.arange(n) - (n - 1) / 2
    noise = stretches - stretches.mean(axis=1, keepdims=True)
    noise = noise - (noise @ time / (time @ time))[:, None] * time
    power = (noise**2).sum(axis=1)
    measured = np.divide((noise[:, 1:] * noise[:, :-1]).sum(axis=1), power, out=np.zeros_like(power), where=power > 0)
    correlation = np.clip((measured * n + 2) / (n - 4), 0, 0.95)
    effective = np.maximum(n / _inflation(correlation, n), 3)
    variance = power / n * effective / (effective - 2)
    error = np.sqrt(variance / width * _inflation(correlation, width))
    half = error * _t(level, effective - 2)
    return half[np.maximum(np.arange(len(series)) - n + 1, 0)]


def _inflation(correlation: np.ndarray, m: int) -> np.ndarray:
    """Factor (n,) by which autocorrelation, `correlation` (n,), raises the variance of a mean of m values."""
    return (1 + correlation) / (1 - correlation) - 2 * correlation * (1 - correlation**m) / (m * (1 - correlation) ** 2)


def spread_over_seeds(baseline_losses: np.ndarray) -> np.ndarray:
    """What reseeding does, surely, to the baseline's final losses (..., seeds): NaN with one seed.

    Runs with the same seed share weights and batches, so their paired difference can be resolved far below what another
    seed does, and a difference that is measurable need not matter. What matters is whether a reader who changed nothing
    but the seed would see a larger change. Two runs that differ in their seed alone differ by a normal variable of
    standard deviation sqrt(2) s, whose median size is 0.95 s: a recipe within one s changes the loss by less than
    reseeding does about every other time.

    s has to be estimated from few seeds, and one that comes out too large would let real differences pass. This is
    therefore not the estimate but its lower confidence limit (97.5 %, from the chi-square distribution): 0.52 of
    the estimate with 3 seeds, 0.60 with 5, 0.69 with 10. More seeds of the baseline are rewarded by a wider margin.
    """
    freedom = baseline_losses.shape[-1] - 1
    if freedom < 1:
        return np.full(baseline_losses.shape[:-1], math.nan)
    return baseline_losses.std(axis=-1, ddof=1) * np.sqrt(freedom / stats.chi2.ppf(MARGIN_CONFIDENCE, freedom))


def margin_from(baseline_losses: np.ndarray) -> np.ndarray:
    """The margin of equality from the baseline's final losses (..., seeds): NaN with one seed.

    `spread_over_seeds`, but no more than `TOLERANCE` of the loss: seeds also order the data, so in short runs most of
    the spread is which batches came last, which is the same for both sides of a pair and says nothing of the model.
    """
    return np.minimum(spread_over_seeds(baseline_losses), TOLERANCE * baseline_losses.mean(axis=-1))


def judge(differences: np.ndarray, margin: np.ndarray) -> np.ndarray:
    """Outcomes (...) from paired differences of the final loss (..., seeds) and margins (...).

    "the same": two one-sided t-tests at 5 % (Schuirmann 1987, J. Pharmacokinetics and Biopharmaceutics 15) reject that
    the difference is at or beyond either margin, which is to say that its 90 % interval lies within them. "different":
    the ordinary paired t-test at 5 % rejects no difference, and the one found exceeds the margin. Else "cannot tell".
    With a margin from `spread_over_seeds`, a recipe whose true difference is one true seed-to-seed spread or more is
    called the same in at most 2.5 % of studies (by simulation, 3 to 10 seeds, any pairing): in that many the margin
    comes out above the spread, and the two tests only add to what is then still needed.
    """
    n = differences.shape[-1]
    if n < MIN_SEEDS:
        return np.full(differences.shape[:-1], NOT_ENOUGH)
    size, error = np.abs(differences.mean(axis=-1)), stats.sem(differences, axis=-1)
    same = size + _t(1 - 2 * ALPHA, n - 1) * error < margin
    different = (size - _t(1 - ALPHA, n - 1) * error > 0) & (size > margin)
    return np.select([same, different], [SAME, DIFFERENT], CANNOT_TELL)


@dataclass(frozen=True)
class Verdict:
    """Whether a recipe ends at the baseline's loss.

    seeds           pairs of completed runs it rests on; baseline_seeds: runs that the margin rests on
    difference      of the final loss, recipe less baseline, mean over seeds; low, high: its 90 % interval
    margin          see `margin_from`; NaN with fewer than two seeds of the baseline; tolerance: its upper bound
    """

    recipe: str
    baseline: str
    outcome: str
    seeds: int
    baseline_seeds: int
    difference: float
    low: float
    high: float
    margin: float
    tolerance: float

    @property
    def worse(self) -> bool:
        """Whether the loss is proven to be higher, and estimated to be so by more than the margin."""
        return self.outcome == DIFFERENT and self.difference > 0

    @property
    def told(self) -> bool:
        """Whether the runs can tell."""
        return self.outcome in (SAME, DIFFERENT)

    def sentence(self) -> str:
        """For people, with the numbers it rests on."""
        if self.seeds == 0:
            return f"{self.recipe} and {self.baseline}: {self.outcome}; no seed was completed with both."
        sign = "higher" if self.difference > 0 else "lower"
        outside = self.low > 0 or self.high < 0  # is 0 of the interval: a two-sided test at 10 %
        opening = {
            SAME: f"{self.recipe} ends at the same loss as {self.baseline}"
            + (f" to within the margin, and slightly {sign}" if outside else ""),
            DIFFERENT: f"{self.recipe} ends at a {sign} loss than {self.baseline}",
            CANNOT_TELL: f"Cannot tell whether {self.recipe} ends at the same loss as {self.baseline}",
            NOT_ENOUGH: f"Not enough seeds to say whether {self.recipe} ends at the same loss as {self.baseline}",
        }[self.outcome]
        seeds = f"{self.seeds} seed{'s' if self.seeds > 1 else ''}"
        needed = f" (at least {MIN_SEEDS} are needed)" if self.outcome == NOT_ENOUGH else ""
        what = "90 % interval" if self.seeds > 1 else "noise within the run, 90 % interval"
        interval = "" if math.isnan(self.low) else f" ({what} {self.low:+.4f} to {self.high:+.4f})"
        source = (
            "from the baseline's spread over seeds"
            if self.margin < self.tolerance
            else f"{100 * TOLERANCE:g} % of the baseline's loss"
        )
        margin = "" if self.outcome == NOT_ENOUGH else f"; margin {self.margin:.4f}, {source}"
        return f"{opening}: {seeds}{needed}, difference {self.difference:+.4f}{interval}{margin}."


def verdict(runs: pd.DataFrame, steps: pd.DataFrame, recipe: str, baseline: str) -> Verdict:
    """Is the final loss of `recipe` that of `baseline`? See `judge` for the test and `margin_from` for the margin.

    The final loss is the mean over the last tenth of the steps, those that all compared runs logged. With one seed
    nothing is said about equality; the difference's interval then tells its noise within the run, not what another seed
    would give.
    """
    raw = paired_differences(runs, steps, recipe, baseline)
    if raw.empty:
        return Verdict(recipe, baseline, NOT_ENOUGH, 0, 0, *[math.nan] * 5)
    final = _final(raw)
    theirs = loss_by_seed(runs, steps, baseline).loc[final.index].dropna(axis="columns").mean().to_numpy()
    margin = margin_from(theirs)
    last = loss_difference(runs, steps, recipe, baseline, level=1 - 2 * ALPHA).iloc[-1]
    outcome = str(judge(final.mean().to_numpy(), margin))
    interval = last[["difference", "low", "high"]].tolist()
    tolerance = float(TOLERANCE * theirs.mean())
    return Verdict(recipe, baseline, outcome, raw.shape[1], len(theirs), *interval, float(margin), tolerance)
