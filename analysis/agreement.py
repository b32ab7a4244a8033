"""Check rule 3: every honest way to count tokens/s finds the same lead.

Otherwise a reader might not get the lead that the answer promises.
"""

import math
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd
from scipy import stats

from analysis.runs import Run
from analysis.speed import (
    FIFTHS,
    GPUS,
    LEVEL,
    MACHINES,
    MEAN,
    QUICK,
    SMALL,
    UNKNOWN,
    USEFUL,
    Ratio,
    group_names,
    have_common,
    mfu_of_steps,
    rate_of_steps,
    rate_table,
    rates,
    ratios,
    runs_needed,
    timed,
)

CHANCE = 0.01  # that sound runs differ as much, by a t-test
MAX_REPORTED = 2  # of the ways that contradict the ratio
TINY = 1e-12  # variance of equal runs, but for rounding
TREND = "without the trend from run to run"


@dataclass(frozen=True)
class SpeedUp:
    """The tokens/s of a recipe over another's.

    Args:
        ratio: by the mean steady step.
        by: the ratio by each way.
        runs: how many runs have a rate, of the recipe with fewer.
        caveats: what contradicts the ratio; none of a single run, because nothing is known of it.
        runs_needed: how many runs of each recipe would tell whether it is faster, slower or as
            fast; None if unknown.
    """

    ratio: Ratio = Ratio(math.nan)
    by: dict[str, Ratio] = field(default_factory=dict)
    runs: int = 0
    caveats: list[str] = field(default_factory=list)
    runs_needed: int | None = None


def speed_up(
    own: list[Run], others: list[Run], tries: int = 1, mixed: Sequence[str] = ()
) -> SpeedUp:
    """Divide the rates of two recipes' runs.

    Args:
        tries: how many recipes are judged together: each interval is wider (Bonferroni).
        mixed: keys whose values both recipes have, in different shares.
    """
    own = timed(own)
    others = timed(others)
    runs = min(len(own), len(others))
    if not runs:
        return SpeedUp()
    level = 1 - (1 - LEVEL) / tries
    by = ratios(own, others, level)
    mean, low, high = ratio = by[MEAN]
    caveats = [*contradictions(by, own, others, mixed), *impossible(ratio, own, others)]
    caveats += short_of_memory(own, others)
    to_decide = max(abs(mean - 1), SMALL - abs(mean - 1))
    needed = runs_needed(runs, high - low, to_decide, 2, level)
    return SpeedUp(ratio, by, runs, caveats if runs > 1 else [], needed)


def contradictions(
    by: dict[str, Ratio], runs: list[Run], reference_runs: list[Run], mixed: Sequence[str]
) -> Iterator[str]:
    """Say what contradicts a ratio: different places, or another ratio by an honest way."""
    ratio = by[MEAN]
    quick = by[QUICK]
    if math.isnan(ratio.low):
        yield different_places(runs, reference_runs)
    elif ratio.clear or ratio.as_fast:
        ratios_by_way = other_ways(by, runs, reference_runs)
        ratios_by_way |= at_equal_places(runs, reference_runs, mixed)
        ratios_by_way[TREND] = Ratio(ratio.mean / trend(runs, reference_runs))
        if ratio.low > 1:
            # Other runs of a recipe may have been slowed down.
            quickest = rate_table(runs)[MEAN].max() - rate_table(reference_runs)[MEAN].max()
            ratios_by_way["by the quickest run of each"] = Ratio(math.exp(quickest))
        differing = []
        for way, way_ratio in ratios_by_way.items():
            # Nobody minds a larger lead of some steps or runs, except by trend or useful tokens.
            is_welcome = ratio.low > 1 and way_ratio.mean >= ratio.mean
            if is_welcome and way not in (TREND, f"by {USEFUL}"):
                continue
            if way_ratio.contradicts(ratio):
                differing.append(f"{way} it has {way_ratio} times the tokens/s")
        yield from differing[:MAX_REPORTED]
    elif quick.low > 1 and not Ratio(quick.low).contradicts(quick):
        slow = longest_step(runs + reference_runs)
        yield f"slow steps hide its lead ({slow}): by {QUICK} it has {quick} times the tokens/s"


def different_places(runs: list[Run], reference_runs: list[Run]) -> str:
    """Say that two recipes had no machine, or no GPU, in common, or that no record shows one."""
    machines, reference_machines = group_names(runs, reference_runs, MACHINES)
    places = "; ".join(sorted({run.place for run in runs + reference_runs}))
    hosts = "; ".join(sorted({run.record.last_attempt.host for run in runs + reference_runs}))
    if have_common(machines, reference_machines):
        return f"the recipes ran on different GPUs ({places}), which may differ in speed"
    if UNKNOWN in machines + reference_machines:
        return (
            f"no record shows if the recipes shared a machine (host names: {hosts}), and machines "
            "may differ in speed"
        )
    return f"the recipes ran on different machines ({hosts}), which may differ in speed"


def longest_step(runs: list[Run]) -> str:
    """Name the longest steady step of some runs, beside its run's median step."""
    times = pd.concat({run.name: run.steady["seconds"] for run in runs})
    times /= times.groupby(level=0).median()
    name, step = times.idxmax()
    return f"step {step} of {name} took {times.max():.1f} times its median step"


def other_ways(
    by: dict[str, Ratio], runs: list[Run], reference_runs: list[Run]
) -> dict[str, Ratio]:
    """Find ratios unlike the mean steady step's.

    They differ by more than chance, or are unclear beside a clear one. A t-test shows more than
    chance. So do ranks, if all runs of one recipe differ more from their mean step than all runs of
    the other: bursts vary too much for a t-test. Fifths of the steps vary by chance.
    """
    table = rate_table(runs)
    reference_table = rate_table(reference_runs)
    deviations = table.sub(table[MEAN], axis="rows")
    reference_deviations = reference_table.sub(reference_table[MEAN], axis="rows")
    with warnings.catch_warnings(action="ignore"):  # runs that are equal
        test = stats.ttest_ind(deviations, reference_deviations)
    above = deviations.min() > reference_deviations.max()
    below = deviations.max() < reference_deviations.min()
    found = {}
    for (way, ratio), chance in zip(by.items(), test.pvalue, strict=True):
        differs = chance < CHANCE
        if way not in FIFTHS:
            unclear = by[MEAN].clear and not ratio.clear
            differs = differs or unclear or above[way] or below[way]
        if differs:
            reason = f" ({longest_step(runs + reference_runs)})" if way == QUICK else ""
            found[f"by {way}{reason}"] = ratio
    return found


def trend(own: list[Run], others: list[Run]) -> float:
    """Estimate the ratio explained by order alone; 1 if the trend may be chance.

    If all runs became slower in time, the recipe that ran first looks faster.
    """
    runs = own + others
    start = pd.Series([run.record.last_attempt.start for run in runs]).rank()
    table = rate_table(runs)[[MEAN]].assign(start=start)
    means = table.groupby([run.recipe for run in runs]).transform("mean")
    within = table - means
    if not within["start"].any():
        return 1.0  # all runs were made at once
    fit = stats.linregress(within["start"], within[MEAN])
    later = means["start"].iloc[0] - means["start"].iloc[-1]
    return math.exp(later * fit.slope) if fit.pvalue < CHANCE else 1.0


def at_equal_places(
    runs: list[Run], reference_runs: list[Run], mixed: Sequence[str]
) -> dict[str, Ratio]:
    """Find the ratio among runs of one GPU, of one machine, and with equal records of the machine.

    A recipe that had the quicker places more often looks faster.
    """
    groups = {
        "on the GPUs that both had": group_names(runs, reference_runs, GPUS),
        "on the machines that both had": group_names(runs, reference_runs, MACHINES),
    }
    for key in mixed:
        values = [str(run.facts.get(key)) for run in runs]
        reference_values = [str(run.facts.get(key)) for run in reference_runs]
        groups[f"where both have the same {key}"] = values, reference_values
    found = {}
    for way, (names, reference_names) in groups.items():
        ratio = adjusted_ratio(runs, reference_runs, names, reference_names)
        if ratio:
            found[way] = Ratio(ratio)
    return found


def adjusted_ratio(
    runs: list[Run], reference_runs: list[Run], groups: list[str], reference_groups: list[str]
) -> float | None:
    """Estimate the ratio of two recipes within groups of runs, by least squares.

    None if groups do not differ by more than chance (an F-test), or if the recipes have none in
    common. Unknown groups of two recipes are not the same.
    """
    labels = [f"{UNKNOWN} too" if name == UNKNOWN else name for name in groups]
    recipe = np.repeat([1.0, 0.0], [len(runs), len(reference_runs)])
    of_group = pd.get_dummies(labels + reference_groups, dtype=float).to_numpy()
    rates = rate_table(runs + reference_runs)[MEAN].to_numpy()
    alone = np.column_stack([recipe, np.ones_like(recipe)])
    full = np.column_stack([recipe, of_group])
    rank = np.linalg.matrix_rank(full)
    more = rank - 2
    left = len(rates) - rank
    if rank == np.linalg.matrix_rank(of_group) or more < 1 or left < 1:
        return None
    coefficients = np.linalg.lstsq(full, rates)[0]
    residual = np.square(rates - full @ coefficients).sum()
    residual_alone = np.square(rates - alone @ np.linalg.lstsq(alone, rates)[0]).sum()
    explained = (residual_alone - residual) / more
    chance = stats.f.sf(explained / max(residual / left, TINY), more, left)
    return math.exp(coefficients[0]) if chance < CHANCE else None


def impossible(ratio: Ratio, runs: list[Run], reference_runs: list[Run]) -> Iterator[str]:
    """Say what is faster than FP8 allows: a ratio, or steps, which may have done no work."""
    share = np.mean([run.fp8_share for run in runs])
    limit = times_at_most(share)
    if share and ratio.mean > limit:
        yield f"FP8 in {share:.0%} of the matmul FLOPs gives {limit:.2f} times the tokens/s at most"
    quick_reference = max(rates(run)[QUICK] for run in reference_runs)
    shares = {}
    for run in runs + reference_runs:
        limit_of_step = times_at_most(run.proof.fp8_share if run.proof else math.nan)
        too_quick = mfu_of_steps(run) > limit_of_step
        if run in runs and share:
            too_quick |= rate_of_steps(run) > limit_of_step * quick_reference
        if too_quick.mean() > SMALL:
            shares[run.name] = too_quick.mean()
    if shares:
        names = ", ".join(shares)
        yield f"{max(shares.values()):.0%} of the steps were too quick for their work ({names})"


def short_of_memory(own: list[Run], others: list[Run]) -> Iterator[str]:
    """Name a recipe whose steady steps waited for the allocator, because memory was short.

    Their time then tells of the GPU's memory, not of the recipe.
    """
    for runs in (own, others):
        share = pd.concat([run.steady["short"] for run in runs]).mean()
        if share > SMALL:
            yield (
                f"the GPU's memory was short in {share:.0%} of the steady steps of "
                f"{runs[0].recipe}: a smaller size would tell"
            )


def times_at_most(share: float) -> float:
    """Work out how many times as fast a step can be with a share of its FLOPs in FP8, at twice the
    rate."""
    return 1 / (1 - share / 2)
