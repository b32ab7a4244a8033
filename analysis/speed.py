"""How many times as fast is a recipe? Its tokens/s, counted in several ways, over another recipe's.

Processes of one recipe differ in speed from start to start, which cannot be seen within one of
them. An interval therefore comes from several runs, or there is none.
"""

import math
import warnings
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy import stats

from analysis.runs import MIN_STEPS, Run
from experiments.records.run import NOT_STEADY_STEPS

LEVEL = 0.95  # confidence of an interval
MIN_STEADY = MIN_STEPS - NOT_STEADY_STEPS  # that a run needs for a rate: fifths of four steps
SMALL = 0.01  # ratios this near to 1 are as fast: GPUs of a kind differ by as much
PART_OF_LEAD = 0.25  # whoever is promised a lead must not find a quarter of it missing

# The ways to count tokens/s. A run has noise in each fifth of its steps, and a fault in a tenth of
# them shows in one.
MEAN = "the mean steady step"
QUICK = "the quicker steps alone, without hiccups"
CLOCK = "the wall clock after the first ten steps"
USEFUL = "tokens that are not padding"
NO_WAIT = "steps without their waits for data"
FIFTHS = [
    f"the {place} fifth of the steps" for place in ("first", "second", "third", "fourth", "last")
]


class Ratio(NamedTuple):
    """How many times the tokens/s of another recipe, with its interval: NaN where there is none."""

    mean: float
    low: float = math.nan
    high: float = math.nan

    def __str__(self) -> str:
        return f"{self.mean:.2f} times{self.interval}"

    @property
    def interval(self) -> str:
        return f" ({self.low:.2f} to {self.high:.2f})" if self.low >= 0 else ""

    @property
    def clear(self) -> bool:
        """Whether the interval says that it is faster, or slower."""
        return self.low > 1 or self.high < 1

    @property
    def as_fast(self) -> bool:
        """Whether the interval says that it is as fast: an equivalence test."""
        return self.low > 1 - SMALL and self.high < 1 + SMALL

    def contradicts(self, other: "Ratio") -> bool:
        """Whether it promises another lead than `other`, or a lead where `other` has none."""
        if other.mean < 1:
            return self.mean > 1 + SMALL
        return abs(self.mean - other.mean) > max(SMALL, PART_OF_LEAD * (other.mean - 1))


def timed(runs: list[Run]) -> list[Run]:
    """Choose the runs that are long enough for a rate."""
    return [run for run in runs if run.steps["steady"].sum() >= MIN_STEADY]


@lru_cache(maxsize=500)
def log_rates(run: Run) -> dict[str, float]:
    """Work out the logarithm of a run's tokens/s, counted in every way.

    Of a run with steps in bf16 and in FP8, the ways that look at single steps look at the
    precision of most steps.
    """
    steps = run.steps[run.steps["steady"]]
    seconds, tokens, useful, wait = steps[["seconds", "tokens", "useful", "wait"]].sum()
    mostly = steps["in_fp8"].mean() >= 0.5
    usual = steps["seconds"][steps["in_fp8"] == mostly].to_numpy()
    mean = tokens / seconds
    ways = {
        MEAN: mean,
        QUICK: mean * usual.mean() / np.quantile(usual, 0.25),
        CLOCK: clock_rate(run),
        USEFUL: useful / seconds,
        NO_WAIT: tokens / (seconds - wait),
    }
    for way, part in zip(FIFTHS, np.array_split(usual, len(FIFTHS)), strict=True):
        ways[way] = mean * middle(usual) / middle(part)
    return {way: np.log(rate) for way, rate in ways.items()}


def middle(seconds: np.ndarray) -> float:
    """Average the middle half: a few slow steps say nothing of a fifth."""
    left_out = len(seconds) // 4
    return np.sort(seconds)[left_out : len(seconds) - left_out].mean()


def clock_rate(run: Run) -> float:
    """Work out tokens/s by the wall clock, without each process's first steps, and without what a
    switch between bf16 and FP8 compiled."""
    tokens = seconds = 0.0
    stretches = run.proof.stretches if run.proof else {}
    for _, steps in run.steps.groupby("process"):
        clock = steps["elapsed"].iloc[NOT_STEADY_STEPS:].dropna()
        if len(clock) > 1:
            first, last = clock.index[0], clock.index[-1]
            tokens += steps["tokens"].loc[first + 1 : last].sum()
            seconds += clock[last] - clock[first]
            seconds -= sum(of.compile_s for at, of in stretches.items() if first < int(at) <= last)
    return tokens / seconds if tokens else math.nan


def tokens_per_s(run: Run) -> float:
    """Steady tokens/s over all devices, padding included; NaN if the run is too short."""
    return math.exp(log_rates(run)[MEAN]) if timed([run]) else math.nan


def mfu(run: Run, precision: str = "bf16") -> float:
    """Work out the share of a GPU's peak FLOP/s that a run makes use of; NaN if it is not known."""
    peak = getattr(run.manifest.peak_flops, precision, None) or math.nan
    return tokens_per_s(run) * run.manifest.flops_per_token / run.manifest.world_size / peak


def rate_table(runs: list[Run]) -> pd.DataFrame:
    """The rates of some runs: a row a run, a column a way."""
    return pd.DataFrame(map(log_rates, runs), [run.name for run in runs])


def samples(own: list[Run], others: list[Run], work_out: Callable) -> list[np.ndarray]:
    """Choose what a t-test compares: the differences of pairs, or the values of both recipes.

    Where both runs of each seed had one place, and not all seeds the same, machines differ by more
    than recipes, and runs are paired. Where the recipes had no place in common, places are what is
    repeated, not runs. Both recipes' runs are in the order of their seeds.

    Args:
        work_out: values (runs, ...) of some runs.
    """
    values = [np.asarray(work_out(runs)) for runs in (own, others)]
    places = [[run.place for run in runs] for runs in (own, others)]
    seeds = [[run.seed for run in runs] for runs in (own, others)]
    if seeds[0] == seeds[1] and places[0] == places[1] and len(set(places[0])) > 1:
        return [values[0] - values[1]]
    if set(places[0]).isdisjoint(places[1]):
        grouped = zip(values, places, strict=True)
        return [pd.DataFrame(of).groupby(at).mean().to_numpy() for of, at in grouped]
    return values


def ratios(own: list[Run], others: list[Run], level: float) -> dict[str, Ratio]:
    """Find the ratio by each way, with its interval; none where a recipe kept to a place that the
    other never had."""
    found = np.exp(estimate(*samples(own, others, rate_table), level=level)).T.tolist()
    return {way: Ratio(*ends) for way, ends in zip(log_rates(own[0]), found, strict=True)}


def estimate(a: np.ndarray, b: np.ndarray | None = None, level: float = LEVEL) -> np.ndarray:
    """Estimate the mean of `a` (samples, ...), or how far it is above the mean of `b`.

    Returns (3, ...): the estimate, and its interval by Student's or Welch's t-test, NaN where there
    are too few samples.
    """
    with warnings.catch_warnings(action="ignore"):  # a single sample, or samples that are equal
        if b is None:
            mean, test = a.mean(axis=0), stats.ttest_1samp(a, 0)
        else:
            mean = a.mean(axis=0) - b.mean(axis=0)
            test = stats.ttest_ind(a, b, equal_var=False)
        return np.array([mean, *test.confidence_interval(level)])


def runs_needed(half_width: float, enough: float, runs: int) -> int | None:
    """Work out how many runs of each give a verdict: an interval shrinks with the root of their
    number. None if there is a verdict, or no interval.

    Args:
        enough: half of an interval with which there is a verdict.
    """
    if not 0 < enough < half_width:
        return None
    return math.ceil(runs * (half_width / enough) ** 2)
