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

# The levels of what runs share, and the unit of runs whose level is unknown.
MACHINES, GPUS = "machines", "GPUs"
UNKNOWN = "unknown"

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
    record = run.record
    if not record or not record.last_attempt.peak_flops:
        return math.nan
    flops_per_s = tokens_per_s(run) * record.flops_per_token / record.world_size
    return flops_per_s / record.last_attempt.peak_flops.bf16


def rate_of_steps(run: Run) -> pd.Series:
    """Count the tokens/s of each steady step."""
    return run.steady["tokens"] / run.steady["seconds"]


def mfu_of_steps(run: Run) -> pd.Series:
    """Find the MFU of each steady step; NaN if the peak is unknown."""
    return rate_of_steps(run) / tokens_per_s(run) * mfu(run)


def rate_table(runs: list[Run]) -> pd.DataFrame:
    """Take logarithms of the rates of some runs: a row a run, a column a way."""
    return np.log(pd.DataFrame(map(rates, runs)))


# ---- what counts once ----


def are_paired(runs: list[Run], reference_runs: list[Run]) -> bool:
    """Tell if two recipes ran on the same several GPUs one by one."""
    gpus = [run.gpus for run in runs]
    known = all(gpus) and len(set(gpus)) > 1
    return known and gpus == [run.gpus for run in reference_runs]


def find_units(runs: list[Run], reference_runs: list[Run]) -> tuple[list[str], list[str]]:
    """Name the unit of each run of two recipes: what counts once.

    Runs on one machine share what is particular to the machine, and so do runs on one GPU. If the
    recipes had no machine in common, a machine counts once; else if they had no GPU in common, a
    GPU does; else a run. Where a recipe's machines or GPUs are unknown, they may be one.
    """
    gpus, reference_gpus = group_names(runs, reference_runs, GPUS)
    machines, reference_machines = group_names(runs, reference_runs, MACHINES)
    if have_common(gpus, reference_gpus):
        return [run.name for run in runs], [run.name for run in reference_runs]
    if have_common(machines, reference_machines):
        return gpus, reference_gpus
    return machines, reference_machines


def have_common(names: list[str], reference_names: list[str]) -> bool:
    """Tell if two recipes have a machine, or a GPU, in common that is known."""
    return bool(set(names) & set(reference_names) - {UNKNOWN})


def group_names(
    runs: list[Run], reference_runs: list[Run], level: str
) -> tuple[list[str], list[str]]:
    """Name the group of each run of two recipes: runs that a common machine or GPU links.

    Runs on one GPU are on one machine, whatever the machine's name.
    """
    together = runs + reference_runs
    groups: list[set[str]] = []
    for run in together:
        labels = labels_of(run, level)
        linked = [group for group in groups if group & labels]
        groups = [group for group in groups if not group & labels]
        groups.append(labels.union(*linked))
    gpus = set().union(*(run.gpus for run in together))
    names = []
    for run in together:
        labels = labels_of(run, level)
        group = next((group for group in groups if group & labels), set())
        known = group if level == GPUS else group - gpus
        names.append(min(known, default=UNKNOWN))
    return names[: len(runs)], names[len(runs) :]


def labels_of(run: Run, level: str) -> set[str]:
    """Return what links a run to others: its GPUs, and at the level of machines also these."""
    return {*run.gpus} if level == GPUS else {*run.gpus, *run.machines}


# ---- ratios ----


def ratios(runs: list[Run], reference_runs: list[Run], level: float) -> dict[str, Ratio]:
    """Find the ratio of two recipes by each way, with its interval."""
    ends_by_way = np.exp(difference(runs, reference_runs, rate_table, level)).T.tolist()
    return {way: Ratio(*ends) for way, ends in zip(rates(runs[0]), ends_by_way, strict=True)}


def difference(
    runs: list[Run], reference_runs: list[Run], work_out: Callable, level: float = LEVEL
) -> np.ndarray:
    """Estimate how far the mean of one recipe's runs is above another's, by Welch's t-test.

    If both recipes ran on the same several GPUs one by one, runs are paired by GPU, which takes the
    differences between GPUs out. Else each unit counts once, however many runs it had.

    Args:
        work_out: values (runs, ...) of some runs.

    Returns:
        As `estimate`.
    """
    table = pd.DataFrame(work_out(runs))
    reference_table = pd.DataFrame(work_out(reference_runs))
    if are_paired(runs, reference_runs):
        return estimate(table - reference_table, level)
    units, reference_units = find_units(runs, reference_runs)
    table = table.groupby(units).mean()
    reference_table = reference_table.groupby(reference_units).mean()
    with warnings.catch_warnings(action="ignore"):  # a single run, or runs that are equal
        test = stats.ttest_ind(table, reference_table, equal_var=False)
    return np.array([table.mean() - reference_table.mean(), *test.confidence_interval(level)])


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
