"""How many times as fast is a recipe? Its tokens/s, counted in several ways, over another recipe's.

Processes of one recipe differ in speed from start to start, which cannot be seen within one of
them. An interval therefore comes from several runs, or there is none.
"""

import math
import warnings
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy import stats

from analysis.runs import Run
from experiments.records.run import NOT_STEADY_STEPS

LEVEL = 0.95  # confidence of an interval
MIN_STEADY = 20  # steady steps that a run needs for a rate: fifths of four
MIN_STEPS = MIN_STEADY + NOT_STEADY_STEPS
SMALL = 0.01  # ratios this near to 1 are as fast: GPUs of a kind differ by as much
PART_OF_LEAD = 0.25  # whoever is promised a lead must not find a quarter of it missing
REPEATS = (3, 5, 10)  # runs of each recipe, for which the width of the interval is foretold

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
def rates(run: Run) -> dict[str, float]:
    """Work out the logarithm of a run's tokens/s, counted in every way.

    Of a run with steps in bf16 and in FP8, the ways that look at single steps look at the
    precision of most steps.
    """
    steps = run.steps[run.steps["steady"]]
    seconds, tokens, useful, wait = steps[["seconds", "tokens", "useful", "wait"]].sum()
    mostly = steps["in_fp8"].mean() >= 0.5
    usual = steps["seconds"][steps["in_fp8"] == mostly].to_numpy()
    ways = {
        MEAN: tokens / seconds,
        QUICK: tokens / seconds * usual.mean() / np.quantile(usual, 0.25),
        CLOCK: clock_rate(run),
        USEFUL: useful / seconds,
        NO_WAIT: tokens / (seconds - wait),
    }
    for way, part in zip(FIFTHS, np.array_split(usual, len(FIFTHS)), strict=True):
        ways[way] = tokens / seconds * middle(usual) / middle(part)
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
        ends = steps["elapsed"].iloc[NOT_STEADY_STEPS:].dropna()
        if len(ends) < 2:
            continue
        first, last = ends.index[0], ends.index[-1]
        tokens += steps["tokens"].loc[first + 1 : last].sum()
        seconds += ends[last] - ends[first]
        seconds -= sum(of.compile_s for at, of in stretches.items() if first < int(at) <= last)
    return tokens / seconds if tokens else math.nan


def tokens_per_s(run: Run) -> float:
    """Steady tokens/s over all devices, padding included; NaN if the run is too short."""
    return math.exp(rates(run)[MEAN]) if timed([run]) else math.nan


def mfu(run: Run, precision: str = "bf16") -> float:
    """Work out the share of a GPU's peak FLOP/s that a run makes use of; NaN if it is not known."""
    peak = getattr(run.manifest.peak_flops, precision, None) or math.nan
    return tokens_per_s(run) * run.manifest.flops_per_token / run.manifest.world_size / peak


def rate_table(runs: list[Run]) -> pd.DataFrame:
    """The rates of some runs: a row a run, a column a way."""
    return pd.DataFrame(map(rates, runs), [run.name for run in runs])


def paired_by_seed(own: list[Run], others: list[Run]) -> bool:
    """Tell whether both runs of each seed had one place, and not all seeds the same.

    Machines then differ by more than recipes, and ratios are of the pairs.
    """
    pairs = [[(run.seed, run.place) for run in runs] for runs in (own, others)]
    return pairs[0] == pairs[1] and len({run.place for run in own}) > 1


def ratios(own: list[Run], others: list[Run], level: float) -> dict[str, Ratio]:
    """Find the ratio by each way, with its interval. Both recipes' runs are in the order of their
    seeds.

    Where the recipes had no place in common, places are what is repeated, not runs: a recipe that
    kept to one has no interval. Else Welch's t-test compares the runs, or Student's the pairs.
    """
    a, b = rate_table(own), rate_table(others)
    if paired_by_seed(own, others):
        low, high = t_interval(a.to_numpy() - b.to_numpy(), level=level)
    else:
        places = [[run.place for run in runs] for runs in (own, others)]
        if set(places[0]).isdisjoint(places[1]):
            a, b = a.groupby(places[0]).mean(), b.groupby(places[1]).mean()
        low, high = t_interval(a.to_numpy(), b.to_numpy(), level)
    found = np.exp([a.mean() - b.mean(), low, high]).T.tolist()
    return {way: Ratio(*ends) for way, ends in zip(a, found, strict=True)}


def t_interval(a, b=None, level: float = LEVEL) -> tuple[np.ndarray, np.ndarray]:
    """Estimate the interval of the mean of `a` (samples, ...), or of how far it is above the mean
    of `b`: Student's or Welch's, NaN where there are too few samples."""
    with warnings.catch_warnings(action="ignore"):  # a single sample, or samples that are equal
        test = stats.ttest_1samp(a, 0) if b is None else stats.ttest_ind(a, b, equal_var=False)
        return test.confidence_interval(level)


def foretell(*samples: np.ndarray, level: float) -> dict[int, float]:
    """Foretell half of the width of an interval with so many runs (`REPEATS`) of each recipe.

    Args:
        samples: differences of pairs, or the values of both recipes.
    """
    variance = sum(np.var(sample, ddof=1) for sample in samples)
    widths = {}
    for runs in REPEATS:
        critical = stats.t.ppf((1 + level) / 2, len(samples) * (runs - 1))
        widths[runs] = float(critical * math.sqrt(variance / runs))
    return widths
