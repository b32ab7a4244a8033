"""Count the tokens/s of runs in several ways, and find the ratio of two recipes.

Two starts of one recipe differ in speed, and a single run does not show by how much. An interval
therefore takes several runs.
"""

import math
import warnings
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy import stats

from analysis.runs import MIN_STEPS, Run
from experiments.records.run import NOT_STEADY_STEPS

LEVEL = 0.95  # confidence of an interval
MIN_STEADY = MIN_STEPS - NOT_STEADY_STEPS  # steps of a run with a rate: fifths of four steps
SMALL = 0.01  # recipes are as fast within this distance: two GPUs of one model differ as much
MANY = 1000  # runs: nobody makes more
PART_OF_LEAD = 0.25  # of a promised lead, that a reader may find missing

# The ways to count tokens/s. With fifths a fault in a tenth of the steps shows.
MEAN = "the mean steady step"
QUICK = "the quickest tenth of the steps"
USEFUL = "tokens that are not padding"
FIFTHS = [
    "the first fifth of the steps",
    "the second fifth of the steps",
    "the third fifth of the steps",
    "the fourth fifth of the steps",
    "the last fifth of the steps",
]


class Ratio(NamedTuple):
    """The tokens/s of a recipe over another's, with an interval: NaN where there is none."""

    mean: float
    low: float = math.nan
    high: float = math.nan

    def __str__(self) -> str:
        if math.isnan(self.mean):
            return "-"
        interval = f" ({self.low:.2f} to {self.high:.2f})" if self.low >= 0 else ""
        return f"{self.mean:.2f}{interval}"

    @property
    def clear(self) -> bool:
        """True if the interval lies above 1, or below."""
        return self.low > 1 or self.high < 1

    @property
    def as_fast(self) -> bool:
        """True if the interval lies near 1: an equivalence test."""
        return self.low > 1 - SMALL and self.high < 1 + SMALL

    def contradicts(self, other: "Ratio") -> bool:
        """Tell if `other` misleads: its lead is a quarter off this one, or only this one leads."""
        if other.mean < 1:
            return self.mean > 1 + SMALL
        return abs(self.mean - other.mean) > max(SMALL, PART_OF_LEAD * (other.mean - 1))


def timed(runs: list[Run]) -> list[Run]:
    """Choose the runs with enough steps for a rate."""
    return [run for run in runs if len(run.steady) >= MIN_STEADY]


@cache
def rates(run: Run) -> dict[str, float]:
    """Count a run's tokens/s in every way.

    Quantiles and fifths are of the steps in one precision: the one that most steps have.
    """
    steps = run.steady
    seconds, tokens, useful, wait = steps[["seconds", "tokens", "useful", "wait"]].sum()
    in_fp8 = steps["in_fp8"].mean() >= 0.5
    usual = steps["seconds"][steps["in_fp8"] == in_fp8].to_numpy()
    mean = tokens / seconds
    ways = {
        MEAN: mean,
        QUICK: mean * usual.mean() / np.quantile(usual, 0.1),
        "the wall clock after the first ten steps": clock_rate(run),
        USEFUL: useful / seconds,
        "steps without their waits for data": tokens / (seconds - wait),
    }
    for way, part in zip(FIFTHS, np.array_split(usual, len(FIFTHS)), strict=True):
        # The mean of the middle half: a few slow steps say nothing of a fifth.
        ways[way] = mean * stats.trim_mean(usual, 0.25) / stats.trim_mean(part, 0.25)
    return ways


def clock_rate(run: Run) -> float:
    """Count tokens/s by the wall clock, without the first steps of each process and without the
    compilation at a switch between bf16 and FP8."""
    tokens = seconds = 0.0
    stretches = run.proof.stretches if run.proof else {}
    for _, steps in run.steps.groupby("process"):
        clock = steps["elapsed"].iloc[NOT_STEADY_STEPS:].dropna()
        if len(clock) > 1:
            first = clock.index[0]
            last = clock.index[-1]
            tokens += steps["tokens"].loc[first + 1 : last].sum()
            seconds += clock[last] - clock[first]
            seconds -= sum(of.compile_s for at, of in stretches.items() if first < int(at) <= last)
    return tokens / seconds if tokens else math.nan


def tokens_per_s(run: Run) -> float:
    """Count tokens/s of the steady steps, of all devices, padding included; NaN if too short."""
    return rates(run)[MEAN] if timed([run]) else math.nan


def mfu(run: Run) -> float:
    """Divide a run's FLOP/s on one GPU by the GPU's peak in bf16; NaN if either is unknown."""
    manifest = run.manifest
    if not manifest or not manifest.peak_flops:
        return math.nan
    flops_per_s = tokens_per_s(run) * manifest.flops_per_token / manifest.world_size
    return flops_per_s / manifest.peak_flops.bf16


def rate_table(runs: list[Run]) -> pd.DataFrame:
    """Take logarithms of the rates of some runs: a row a run, a column a way."""
    return np.log(pd.DataFrame(map(rates, runs)))


def ratios(own: list[Run], others: list[Run], level: float) -> dict[str, Ratio]:
    """Find the ratio of two recipes by each way, with its interval."""
    found = np.exp(difference(own, others, rate_table, level)).T
    return {way: Ratio(*ends) for way, ends in zip(rates(own[0]), found.tolist(), strict=True)}


def difference(
    own: list[Run], others: list[Run], work_out: Callable, level: float = LEVEL
) -> np.ndarray:
    """Estimate how far the mean of one recipe's runs is above another's, by Welch's t-test.

    If both recipes ran in the same several places one by one, runs are paired by place, which
    takes the differences between machines out. If the recipes had no place in common, a place
    counts once, however many runs it had: a recipe that kept to one place has no interval.

    Args:
        work_out: values (runs, ...) of some runs.

    Returns:
        As `estimate`.
    """
    a, b = (
        pd.DataFrame(work_out(runs)).set_axis([run.place for run in runs]) for runs in (own, others)
    )
    if a.index.equals(b.index) and a.index.nunique() > 1:
        return estimate(a - b, level)
    if a.index.intersection(b.index).empty:
        a = a.groupby(level=0).mean()
        b = b.groupby(level=0).mean()
    with warnings.catch_warnings(action="ignore"):  # a single run, or runs that are equal
        ends = stats.ttest_ind(a, b, equal_var=False).confidence_interval(level)
    return np.array([a.mean() - b.mean(), *ends])


def estimate(values, level: float) -> np.ndarray:
    """Estimate the mean of values (samples, ...).

    Returns (3, ...): the mean, and its interval by Student's t-test, NaN of a single sample.
    """
    with warnings.catch_warnings(action="ignore"):  # a single sample, or samples that are equal
        ends = stats.ttest_1samp(values, 0).confidence_interval(level)
    return np.array([values.mean(axis=0), *ends])


def runs_needed(runs: int, width: float, distance: float, samples: int, level: float) -> int | None:
    """Foretell how many runs of each recipe narrow an interval to `distance` on each side.

    None if that takes more than `MANY`, or is not known.

    Args:
        runs: how many runs of each recipe the interval is from now.
        width: from end to end of the interval now.
        samples: 1 if runs are paired, else 2.
    """
    counts = np.arange(1, MANY)
    widths = stats.t.ppf((1 + level) / 2, samples * (counts - 1)) / np.sqrt(counts)
    enough = counts[width * widths / widths[runs - 1] <= 2 * distance]
    return next(iter(enough), None)
