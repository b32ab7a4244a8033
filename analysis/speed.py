"""Compare the speed of two recipes: the ratio of their tokens/s, counted in several ways.

Two starts of one recipe differ in speed, and a single run does not show by how much. An interval
therefore takes several runs.

Rule 3: every honest way to count tokens/s finds the same lead. Otherwise a reader might not get the
lead that the answer promises.

Ratios are estimated by the means of logarithms: the ratio a/b is then the inverse of b/a.
"""

import math
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from statistics import fmean
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy import stats

from analysis.runs import MIN_STEPS, PlannedRun, Run
from experiments.records.run import NOT_STEADY_STEPS

SPEED_CONFIDENCE = 0.95  # of an interval
MIN_STEADY_STEPS = MIN_STEPS - NOT_STEADY_STEPS  # of a run with a rate: each fifth has four steps
EQUAL_SPEED = 0.01  # ratios this near to 1 count as equal: two GPUs of one model differ as much
MAX_RUNS_NEEDED = 1000  # nobody makes more
LEAD_TOLERANCE = 0.25  # the share of a promised lead that may be missing by another way to count
MAX_P_VALUE = 0.01  # of a difference that chance does not explain
MAX_CONTRADICTIONS = 2  # that a report names
MIN_VARIANCE = 1e-12  # of runs that are equal except for rounding
MAX_QUICK_SHARE = 0.01  # the share of a run's steps that may be quicker than their work allows
MAX_SHORT_SHARE = 0.01  # the share of the steps that may wait for the allocator

# Runs are grouped by machine, or by GPU.
MACHINES = "machines"
GPUS = "GPUs"
UNKNOWN = "unknown"  # the group of a run whose machine or GPU is not on record

# The ways to count tokens/s. Fifths are short enough to show a fault in a tenth of the steps.
MEAN_STEP = "the mean steady step"
QUICK_STEPS = "the quickest tenth of the steps"
WALL_CLOCK = "the wall clock after the first ten steps"
VALID_TOKENS = "tokens that are not padding"
WITHOUT_WAITS = "steps without their waits for data"
FIFTHS = [
    "the first fifth of the steps",
    "the second fifth of the steps",
    "the third fifth of the steps",
    "the fourth fifth of the steps",
    "the last fifth of the steps",
]
TREND = "without the trend from run to run"  # not a way to count, but named like one


class Ratio(NamedTuple):
    """The tokens/s of a recipe over another's, and the ends of its interval: NaN if unknown."""

    mean: float
    low: float = math.nan
    high: float = math.nan

    def __str__(self) -> str:
        if math.isnan(self.mean):
            return "-"
        interval = f" ({self.low:.2f} to {self.high:.2f})" if self.low >= 0 else ""
        return f"{self.mean:.2f}{interval}"

    @property
    def is_clear(self) -> bool:
        """True if the interval lies above 1, or below."""
        return self.low > 1 or self.high < 1

    @property
    def is_equal(self) -> bool:
        """True if the interval lies near 1: an equivalence test."""
        return self.low > 1 - EQUAL_SPEED and self.high < 1 + EQUAL_SPEED

    def contradicts(self, promised: "Ratio") -> bool:
        """Tell if this ratio shows that a promised ratio misleads.

        A promised lead misleads if it is off by more than a quarter of the lead. A promised loss of
        speed misleads if this ratio shows a lead.
        """
        promised_lead = promised.mean - 1
        if promised_lead < 0:
            return self.mean > 1 + EQUAL_SPEED
        tolerance = max(EQUAL_SPEED, LEAD_TOLERANCE * promised_lead)
        return abs(self.mean - promised.mean) > tolerance


@dataclass(frozen=True)
class SpeedUp:
    """The tokens/s of a recipe over another's.

    Args:
        ratio: by the mean steady step.
        ratio_by_method: the ratio by each way to count.
        runs: how many runs have a rate, of the recipe with fewer.
        caveats: what contradicts the ratio; empty with a single run, which shows too little.
        runs_needed: how many runs of each recipe would tell whether it is faster, slower or as
            fast; None if unknown.
    """

    ratio: Ratio = Ratio(math.nan)
    ratio_by_method: dict[str, Ratio] = field(default_factory=dict)
    runs: int = 0
    caveats: list[str] = field(default_factory=list)
    runs_needed: int | None = None


def compare_speeds(
    runs: list[Run],
    reference_runs: list[Run],
    recipes_judged: int = 1,
    mixed_keys: Sequence[str] = (),
) -> SpeedUp:
    """Divide the rates of two recipes' runs.

    Args:
        recipes_judged: how many recipes are judged together: each interval is wider (Bonferroni).
        mixed_keys: keys whose values both recipes have, in different shares.
    """
    runs = select_timed(runs)
    reference_runs = select_timed(reference_runs)
    n_runs = min(len(runs), len(reference_runs))
    if not n_runs:
        return SpeedUp()
    confidence = 1 - (1 - SPEED_CONFIDENCE) / recipes_judged
    ratios = find_ratios(runs, reference_runs, confidence)
    ratio = ratios[MEAN_STEP]
    caveats: list[str] = []
    if n_runs > 1:
        caveats += find_differing_ratios(ratios, runs, reference_runs, mixed_keys)
        caveats += find_impossible_speeds(ratio, runs, reference_runs)
        caveats += find_short_memory(runs) + find_short_memory(reference_runs)
    lead = abs(ratio.mean - 1)
    # An interval this narrow does not contain 1, or lies within EQUAL_SPEED of 1.
    sufficient_width = 2 * max(lead, EQUAL_SPEED - lead)
    runs_needed = count_runs_needed(
        runs=n_runs,
        width=ratio.high - ratio.low,
        sufficient_width=sufficient_width,
        samples=1 if are_paired_by_gpu(runs, reference_runs) else 2,
        confidence=confidence,
    )
    return SpeedUp(ratio, ratios, n_runs, caveats, runs_needed)


# ---- tokens/s of a run ----


def select_timed(runs: list[Run]) -> list[Run]:
    """Select the runs with enough steps for a rate."""
    return [run for run in runs if len(run.steady_steps) >= MIN_STEADY_STEPS]


@cache
def count_rates(run: Run) -> dict[str, float]:
    """Count a run's tokens/s in every way.

    If a run has steps in bf16 and in FP8, the quickest tenth and the fifths are of the steps in the
    precision that most steps have.
    """
    steps = run.steady_steps
    total = steps[["step_s", "tokens", "valid_tokens", "data_wait_s"]].sum()
    is_mostly_fp8 = steps["in_fp8"].mean() >= 0.5
    step_s = steps["step_s"][steps["in_fp8"] == is_mostly_fp8].to_numpy()
    mean_rate = total["tokens"] / total["step_s"]
    rates = {
        MEAN_STEP: mean_rate,
        QUICK_STEPS: mean_rate * step_s.mean() / np.quantile(step_s, 0.1),
        WALL_CLOCK: count_wall_clock_rate(run),
        VALID_TOKENS: total["valid_tokens"] / total["step_s"],
        WITHOUT_WAITS: total["tokens"] / (total["step_s"] - total["data_wait_s"]),
    }
    # Fifths are compared by the mean of their middle half, which a few slow steps do not change.
    middle_s = stats.trim_mean(step_s, 0.25)
    for method, fifth_s in zip(FIFTHS, np.array_split(step_s, len(FIFTHS)), strict=True):
        rates[method] = mean_rate * middle_s / stats.trim_mean(fifth_s, 0.25)
    return rates


def count_wall_clock_rate(run: Run) -> float:
    """Count tokens/s by the wall clock, without the first steps of each attempt and without the
    compilation at a switch between bf16 and FP8; NaN without two log intervals after these."""
    tokens = 0.0
    seconds = 0.0
    stretches = run.record.proof.stretches if run.record.proof else {}
    for _, steps in run.steps.groupby("attempt"):
        clock = steps["wall_s"].iloc[NOT_STEADY_STEPS:].dropna()
        if len(clock) > 1:
            first = clock.index[0]
            last = clock.index[-1]
            tokens += steps["tokens"].loc[first + 1 : last].sum()
            seconds += clock[last] - clock[first]
            for step, stretch in stretches.items():
                if first < int(step) <= last:
                    seconds -= stretch.compile_s
    return tokens / seconds if tokens else math.nan


def tokens_per_s(run: PlannedRun) -> float:
    """Count tokens/s of the steady steps, of all devices, padding included; NaN if too short."""
    if not isinstance(run, Run) or not select_timed([run]):
        return math.nan
    return count_rates(run)[MEAN_STEP]


def mfu(run: PlannedRun) -> float:
    """Divide a run's FLOP/s on one GPU by the GPU's peak in bf16; NaN if either is unknown."""
    if not isinstance(run, Run) or not run.record.last_attempt.peak_flops:
        return math.nan
    flops_per_s = tokens_per_s(run) * run.record.flops_per_token / run.record.world_size
    return flops_per_s / run.record.last_attempt.peak_flops.bf16


def rate_of_steps(run: Run) -> pd.Series:
    """Count the tokens/s of each steady step."""
    return run.steady_steps["tokens"] / run.steady_steps["step_s"]


def mfu_of_steps(run: Run) -> pd.Series:
    """Find the MFU of each steady step; NaN if the peak is unknown."""
    return rate_of_steps(run) / tokens_per_s(run) * mfu(run)


def tabulate_log_rates(runs: list[Run]) -> pd.DataFrame:
    """Take logarithms of the rates of some runs: a row for each run, a column for each way to
    count."""
    return np.log(pd.DataFrame([count_rates(run) for run in runs]))


# ---- what counts once ----


def find_units(runs: list[Run], reference_runs: list[Run]) -> tuple[list[str], list[str]]:
    """Name the unit of each run of two recipes: what counts once in an interval.

    Runs on one GPU share what is particular to the GPU, and runs on one machine what is particular
    to the machine. The unit is a run if the recipes have a GPU in common, else a GPU if they have a
    machine in common, else a machine. All runs on unknown GPUs or machines are one unit.
    """
    gpus, reference_gpus = group_names(runs, reference_runs, GPUS)
    machines, reference_machines = group_names(runs, reference_runs, MACHINES)
    if has_common_name(gpus, reference_gpus):
        return [run.name for run in runs], [run.name for run in reference_runs]
    if has_common_name(machines, reference_machines):
        return gpus, reference_gpus
    return machines, reference_machines


def has_common_name(names: list[str], reference_names: list[str]) -> bool:
    """Tell if two lists of GPUs, or of machines, have a known name in common."""
    common_names = set(names) & set(reference_names)
    return bool(common_names - {UNKNOWN})


def group_names(
    runs: list[Run], reference_runs: list[Run], level: str
) -> tuple[list[str], list[str]]:
    """Name the group of each run of two recipes.

    Runs with a common GPU are one group, and at the level of machines so are runs with a common
    machine. A group's name is the first by alphabet of its GPUs or of its machines.

    Args:
        level: `GPUS` or `MACHINES`.
    """
    all_runs = runs + reference_runs
    groups: list[set[str]] = []  # each holds the labels of the group's runs
    gpus: set[str] = set()
    for run in all_runs:
        gpus |= run.gpus
        merged_group = link_labels(run, level)
        separate_groups = []
        for group in groups:
            if group.isdisjoint(link_labels(run, level)):
                separate_groups.append(group)
            else:
                merged_group |= group
        groups = [*separate_groups, merged_group]
    names = []
    for run in all_runs:
        name = UNKNOWN
        for group in groups:
            if not group.isdisjoint(link_labels(run, level)):
                candidates = group if level == GPUS else group - gpus
                name = min(candidates, default=UNKNOWN)
        names.append(name)
    return names[: len(runs)], names[len(runs) :]


def link_labels(run: Run, level: str) -> set[str]:
    """Return what links a run to other runs: its GPUs, and at the level of machines also its
    machines. A GPU links runs whatever names their machine has."""
    return {*run.gpus} if level == GPUS else {*run.gpus, *run.machines}


# ---- ratios and intervals ----


def find_ratios(runs: list[Run], reference_runs: list[Run], confidence: float) -> dict[str, Ratio]:
    """Find the ratio of two recipes by each way to count, with its interval."""
    table = tabulate_log_rates(runs)
    estimates = np.exp(
        compare_means(runs, reference_runs, table, tabulate_log_rates(reference_runs), confidence)
    )
    ratios = {}
    for method, estimate in zip(table, estimates.T, strict=True):
        mean, low, high = estimate
        ratios[method] = Ratio(mean, low, high)
    return ratios


def compare_means(
    runs: list[Run],
    reference_runs: list[Run],
    values: pd.DataFrame,
    reference_values: pd.DataFrame,
    confidence: float = SPEED_CONFIDENCE,
) -> np.ndarray:
    """Estimate how far the mean of one recipe's runs is above another's, by Welch's t-test.

    If both recipes ran on the same GPUs in the same order, runs are paired by GPU: the differences
    between GPUs then cancel. Otherwise each unit counts once, however many runs it had.

    Args:
        values, reference_values: (runs, quantities) of each recipe.

    Returns:
        As `estimate_mean`.
    """
    if are_paired_by_gpu(runs, reference_runs):
        return estimate_mean(values - reference_values, confidence)
    units, reference_units = find_units(runs, reference_runs)
    means = values.groupby(units).mean()
    reference_means = reference_values.groupby(reference_units).mean()
    with warnings.catch_warnings(action="ignore"):  # a single run, or runs that are equal
        test = stats.ttest_ind(means, reference_means, equal_var=False)
    difference = means.mean() - reference_means.mean()
    return np.array([difference, *test.confidence_interval(confidence)])


def are_paired_by_gpu(runs: list[Run], reference_runs: list[Run]) -> bool:
    """Tell if two recipes ran on the same GPUs in the same order, and on more than one."""
    gpus = [run.gpus for run in runs]
    reference_gpus = [run.gpus for run in reference_runs]
    are_known = all(gpus)
    return are_known and len(set(gpus)) > 1 and gpus == reference_gpus


def estimate_mean(values: pd.DataFrame | pd.Series, confidence: float) -> np.ndarray:
    """Estimate the mean of values (samples, ...).

    Returns (3, ...): the mean, and its interval by Student's t-test, NaN of a single sample.
    """
    with warnings.catch_warnings(action="ignore"):  # a single sample, or samples that are equal
        interval = stats.ttest_1samp(values, 0).confidence_interval(confidence)
    return np.array([values.mean(axis=0), *interval])


def count_runs_needed(
    runs: int, width: float, sufficient_width: float, samples: int, confidence: float
) -> int | None:
    """Foretell how many runs of each recipe make an interval narrow enough.

    None if that takes more than `MAX_RUNS_NEEDED`, or is not known.

    Args:
        runs: how many runs of each recipe the present interval is of.
        width: from end to end of the present interval.
        samples: 1 if runs are paired, else 2.
    """
    counts = np.arange(1, MAX_RUNS_NEEDED + 1)
    # The width of Student's interval is proportional to this.
    relative_widths = stats.t.ppf((1 + confidence) / 2, samples * (counts - 1)) / np.sqrt(counts)
    widths = width * relative_widths / relative_widths[runs - 1]
    sufficient_counts = counts[widths <= sufficient_width]
    return int(sufficient_counts[0]) if len(sufficient_counts) else None


# ---- rule 3 ----


def find_differing_ratios(
    ratios: dict[str, Ratio],
    runs: list[Run],
    reference_runs: list[Run],
    mixed_keys: Sequence[str],
) -> Iterator[str]:
    """Say what contradicts a ratio: different places, or another ratio by an honest way."""
    ratio = ratios[MEAN_STEP]
    quick_ratio = ratios[QUICK_STEPS]
    if math.isnan(ratio.low):
        yield describe_places(runs, reference_runs)
    elif ratio.is_clear or ratio.is_equal:
        unlike_ratios = find_unlike_ratios(ratios, runs, reference_runs)
        unlike_ratios |= find_ratios_at_equal_places(runs, reference_runs, mixed_keys)
        unlike_ratios[TREND] = Ratio(ratio.mean / estimate_trend(runs, reference_runs))
        if ratio.low > 1:
            # Other runs of a recipe may have been slowed down.
            unlike_ratios["by the quickest run of each"] = compare_quickest(runs, reference_runs)
        yield from describe_contradictions(ratio, unlike_ratios)
    elif quick_ratio.low > 1 and not Ratio(quick_ratio.low).contradicts(quick_ratio):
        longest = describe_longest_step(runs + reference_runs)
        yield (
            f"slow steps hide its lead ({longest}): by {QUICK_STEPS} it has {quick_ratio} times "
            "the tokens/s"
        )


def describe_contradictions(ratio: Ratio, unlike_ratios: dict[str, Ratio]) -> list[str]:
    """Say which ratios contradict the promised ratio: the first ones, if there are several.

    A larger lead in some steps or runs does not count, because nobody minds it. A larger lead
    without the trend, or by valid tokens, counts: it is of all steps.

    Args:
        ratio: the promised ratio.
        unlike_ratios: by the way to find them.
    """
    contradictions = []
    for method, unlike_ratio in unlike_ratios.items():
        is_larger_lead = ratio.low > 1 and unlike_ratio.mean >= ratio.mean
        if is_larger_lead and method not in (TREND, f"by {VALID_TOKENS}"):
            continue
        if unlike_ratio.contradicts(ratio):
            contradictions.append(f"{method} it has {unlike_ratio} times the tokens/s")
    return contradictions[:MAX_CONTRADICTIONS]


def describe_places(runs: list[Run], reference_runs: list[Run]) -> str:
    """Say that two recipes had no machine, or no GPU, in common, or that no record shows one."""
    machines, reference_machines = group_names(runs, reference_runs, MACHINES)
    all_runs = runs + reference_runs
    places = "; ".join(sorted({run.place for run in all_runs}))
    hosts = "; ".join(sorted({run.record.last_attempt.host for run in all_runs}))
    if has_common_name(machines, reference_machines):
        return f"the recipes ran on different GPUs ({places}), which may differ in speed"
    if UNKNOWN in machines + reference_machines:
        return (
            f"no record shows if the recipes shared a machine (host names: {hosts}), and machines "
            "may differ in speed"
        )
    return f"the recipes ran on different machines ({hosts}), which may differ in speed"


def describe_longest_step(runs: list[Run]) -> str:
    """Name the steady step that is longest beside its run's median step."""
    relative_s = {}
    for run in runs:
        step_s = run.steady_steps["step_s"]
        relative_s[run.name] = step_s / step_s.median()
    table = pd.concat(relative_s)
    name, step = table.idxmax()
    return f"step {step} of {name} took {table.max():.1f} times its median step"


def find_unlike_ratios(
    ratios: dict[str, Ratio], runs: list[Run], reference_runs: list[Run]
) -> dict[str, Ratio]:
    """Find the ratios that are unlike the ratio by the mean steady step.

    There are three cases. A t-test shows that a ratio differs by more than chance. Or the ratio by
    the mean steady step is clear, and another ratio is not. Or the rates of all runs of one recipe
    deviate further than those of all runs of the other: so do bursts, which vary too much for a
    t-test. For fifths only the first case counts, because fifths vary by chance.

    Returns:
        The ratios, by the way to count. The quickest steps also have an explanation.
    """
    table = tabulate_log_rates(runs)
    reference_table = tabulate_log_rates(reference_runs)
    # How far a run's rate by each way to count is from its rate by the mean steady step.
    deviations = table.sub(table[MEAN_STEP], axis="rows")
    reference_deviations = reference_table.sub(reference_table[MEAN_STEP], axis="rows")
    with warnings.catch_warnings(action="ignore"):  # runs that are equal
        test = stats.ttest_ind(deviations, reference_deviations)
    p_values = dict(zip(deviations, test.pvalue, strict=True))
    are_all_above = deviations.min() > reference_deviations.max()
    are_all_below = deviations.max() < reference_deviations.min()
    unlike_ratios = {}
    for method, ratio in ratios.items():
        is_unlike = p_values[method] < MAX_P_VALUE
        if method not in FIFTHS:
            is_unclear = ratios[MEAN_STEP].is_clear and not ratio.is_clear
            is_unlike = is_unlike or is_unclear or are_all_above[method] or are_all_below[method]
        if is_unlike and method == QUICK_STEPS:
            longest = describe_longest_step(runs + reference_runs)
            unlike_ratios[f"by {method} ({longest})"] = ratio
        elif is_unlike:
            unlike_ratios[f"by {method}"] = ratio
    return unlike_ratios


def compare_quickest(runs: list[Run], reference_runs: list[Run]) -> Ratio:
    """Divide the tokens/s of the quickest run of each recipe."""
    highest_rate = max(map(tokens_per_s, runs))
    return Ratio(highest_rate / max(map(tokens_per_s, reference_runs)))


def estimate_trend(runs: list[Run], reference_runs: list[Run]) -> float:
    """Estimate the ratio that the order of the runs explains; 1 if the trend may be chance.

    If all runs became slower in time, the recipe that ran first looks faster.
    """
    all_runs = runs + reference_runs
    table = tabulate_log_rates(all_runs)[[MEAN_STEP]]
    starts = pd.Series([run.record.last_attempt.start for run in all_runs])
    table["order"] = starts.rank()
    recipes = [run.recipe for run in all_runs]
    means = table.groupby(recipes).transform("mean")  # a row for each run, with its recipe's means
    deviations = table - means
    if not deviations["order"].any():
        return 1.0  # the runs of each recipe began at once
    line = stats.linregress(deviations["order"], deviations[MEAN_STEP])
    if line.pvalue >= MAX_P_VALUE:
        return 1.0
    mean_order = means["order"].iloc[0]
    reference_mean_order = means["order"].iloc[-1]
    return math.exp((mean_order - reference_mean_order) * line.slope)


def find_ratios_at_equal_places(
    runs: list[Run], reference_runs: list[Run], mixed_keys: Sequence[str]
) -> dict[str, Ratio]:
    """Find the ratio within groups of runs: of one GPU, of one machine, and of equal settings.

    A recipe that had the quicker places more often looks faster.

    Returns:
        The ratios, by what the runs of a group share. Missing where groups make no difference.
    """
    groups_by_place = {
        "on the GPUs that both had": group_names(runs, reference_runs, GPUS),
        "on the machines that both had": group_names(runs, reference_runs, MACHINES),
    }
    for key in mixed_keys:
        values = [str(run.facts.get(key)) for run in runs]
        reference_values = [str(run.facts.get(key)) for run in reference_runs]
        groups_by_place[f"where both have the same {key}"] = values, reference_values
    ratios = {}
    for place, (groups, reference_groups) in groups_by_place.items():
        ratio = estimate_ratio_in_groups(runs, reference_runs, groups, reference_groups)
        if ratio is not None:
            ratios[place] = Ratio(ratio)
    return ratios


def estimate_ratio_in_groups(
    runs: list[Run], reference_runs: list[Run], groups: list[str], reference_groups: list[str]
) -> float | None:
    """Estimate the ratio of two recipes within groups of runs, by least squares.

    The model is: log rate = effect of the recipe + effect of the group. An F-test compares it with
    a model without groups. Unknown groups of two recipes are not the same group.

    Args:
        groups, reference_groups: the group of each run.

    Returns:
        None if groups do not differ by more than chance, or if the recipes have none in common.
    """
    labels = []
    for group in groups:
        labels.append(f"{UNKNOWN} too" if group == UNKNOWN else group)
    log_rates = tabulate_log_rates(runs + reference_runs)[MEAN_STEP].to_numpy()
    # A row for each run, a column for each effect: 1 where a run has it.
    in_recipe = np.repeat([1.0, 0.0], [len(runs), len(reference_runs)])
    in_group = pd.get_dummies(labels + reference_groups, dtype=float).to_numpy()
    simple_model = np.column_stack([in_recipe, np.ones_like(in_recipe)])
    group_model = np.column_stack([in_recipe, in_group])
    rank = np.linalg.matrix_rank(group_model)
    has_common_group = rank > np.linalg.matrix_rank(in_group)
    added_parameters = rank - 2
    degrees_of_freedom = len(log_rates) - rank
    if not has_common_group or added_parameters < 1 or degrees_of_freedom < 1:
        return None
    coefficients = np.linalg.lstsq(group_model, log_rates)[0]
    residual = np.square(log_rates - group_model @ coefficients).sum()
    simple_coefficients = np.linalg.lstsq(simple_model, log_rates)[0]
    simple_residual = np.square(log_rates - simple_model @ simple_coefficients).sum()
    explained = (simple_residual - residual) / added_parameters
    variance = max(residual / degrees_of_freedom, MIN_VARIANCE)
    p_value = stats.f.sf(explained / variance, added_parameters, degrees_of_freedom)
    recipe_effect = coefficients[0]
    return math.exp(recipe_effect) if p_value < MAX_P_VALUE else None


def find_impossible_speeds(
    ratio: Ratio, runs: list[Run], reference_runs: list[Run]
) -> Iterator[str]:
    """Say what is faster than FP8 allows: a ratio, or steps, which may have done no work."""
    fp8_share = fmean(run.fp8_share for run in runs)
    highest_ratio = find_highest_speed_up(fp8_share)
    if fp8_share and ratio.mean > highest_ratio:
        share = f"FP8 in {fp8_share:.0%} of the matmul FLOPs"
        yield f"{share} gives {highest_ratio:.2f} times the tokens/s at most"
    highest_reference_rate = max(count_rates(run)[QUICK_STEPS] for run in reference_runs)
    quick_shares = {}
    for run in runs + reference_runs:
        proof = run.record.proof
        highest_speed_up = find_highest_speed_up(proof.fp8_share if proof else math.nan)
        # The MFU is of the peak in bf16: FP8 may exceed 1.
        is_too_quick = mfu_of_steps(run) > highest_speed_up
        if run in runs and fp8_share:
            highest_rate = highest_speed_up * highest_reference_rate
            is_too_quick |= rate_of_steps(run) > highest_rate
        quick_share = is_too_quick.mean()
        if quick_share > MAX_QUICK_SHARE:
            quick_shares[run.name] = quick_share
    if quick_shares:
        share = f"{max(quick_shares.values()):.0%}"
        names = ", ".join(quick_shares)
        yield f"{share} of the steps were too quick for their work ({names})"


def find_highest_speed_up(fp8_share: float) -> float:
    """Work out how many times as fast a step can be if a share of its FLOPs is in FP8.

    FP8 has twice the rate of bf16.
    """
    return 1 / (1 - fp8_share / 2)


def find_short_memory(runs: list[Run]) -> list[str]:
    """Say if a recipe's steady steps waited for the allocator because memory was short.

    The time of such steps tells of the GPU's memory, not of the recipe.
    """
    share = pd.concat([run.steady_steps["memory_was_short"] for run in runs]).mean()
    if share <= MAX_SHORT_SHARE:
        return []
    return [
        f"the GPU's memory was short in {share:.0%} of the steady steps of {runs[0].recipe}: a "
        "smaller size would tell"
    ]
