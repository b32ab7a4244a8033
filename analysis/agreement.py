"""Check rule 3: every honest way to count tokens/s finds the same lead.

Otherwise a reader might not get the lead that the answer promises.
"""

import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import pandas as pd
from scipy import stats

from analysis.runs import Run
from analysis.speed import (
    FIFTHS,
    LEVEL,
    MEAN,
    QUICK,
    SMALL,
    USEFUL,
    Ratio,
    mfu,
    rate_table,
    ratios,
    runs_needed,
    timed,
)

CHANCE = 0.01  # that sound runs differ as much, by a t-test
NAMED = 2  # at most, of the ways that contradict the ratio
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


def speed_up(own: list[Run], others: list[Run], tries: int = 1) -> SpeedUp:
    """Divide the rates of two recipes' runs.

    Args:
        tries: how many recipes are judged together: each interval is wider (Bonferroni).
    """
    own = timed(own)
    others = timed(others)
    runs = min(len(own), len(others))
    if not runs:
        return SpeedUp()
    level = 1 - (1 - LEVEL) / tries
    by = ratios(own, others, level)
    mean, low, high = ratio = by[MEAN]
    caveats = [*contradictions(by, own, others), *impossible(ratio, own, others)]
    caveats += short_of_memory(own, others)
    to_decide = max(abs(mean - 1), SMALL - abs(mean - 1))
    needed = runs_needed(runs, high - low, to_decide, 2, level)
    return SpeedUp(ratio, by, runs, caveats if runs > 1 else [], needed)


def contradictions(by: dict[str, Ratio], own: list[Run], others: list[Run]) -> Iterator[str]:
    """Say what contradicts a ratio: different places, or another ratio by an honest way."""
    ratio = by[MEAN]
    quick = by[QUICK]
    if math.isnan(ratio.low):
        places = "; ".join(sorted({run.place for run in own + others}))
        yield f"the recipes ran in different places ({places}), which may differ in speed"
    elif ratio.clear or ratio.as_fast:
        found = other_ways(by, own, others) | leave_one_out(ratio, own, others)
        found |= same_places(own, others)
        found[TREND] = Ratio(ratio.mean / trend(own, others))
        # If the recipe is faster, only smaller ratios count; the trend and useful tokens always do.
        if ratio.low > 1:
            # Others may have been slowed down.
            quickest = rate_table(own)[MEAN].max() - rate_table(others)[MEAN].max()
            found["by the quickest run of each"] = Ratio(math.exp(quickest))
            # A larger lead of some steps or runs disappoints nobody.
            found = {
                how: each
                for how, each in found.items()
                if each.mean < ratio.mean or how in (TREND, f"by {USEFUL}")
            }
        unlike = [how for how in found if found[how].contradicts(ratio)]
        for how in unlike[:NAMED]:
            yield f"{how} it has {found[how]} times the tokens/s"
    elif quick.low > 1 and not Ratio(quick.low).contradicts(quick):
        slow = longest_step(own + others)
        yield f"slow steps hide its lead ({slow}): by {QUICK} it has {quick} times the tokens/s"


def longest_step(runs: list[Run]) -> str:
    """Name the longest steady step of some runs, beside its run's median step."""
    times = pd.concat({run.name: run.steady["seconds"] for run in runs})
    times /= times.groupby(level=0).median()
    name, step = times.idxmax()
    return f"step {step} of {name} took {times.max():.1f} times its median step"


def other_ways(by: dict[str, Ratio], own: list[Run], others: list[Run]) -> dict[str, Ratio]:
    """Find ratios unlike the mean steady step's.

    They differ by more than chance, or are unclear beside a clear one. Fifths of the steps vary by
    chance.
    """
    a = rate_table(own)
    b = rate_table(others)
    with warnings.catch_warnings(action="ignore"):  # runs that are equal
        test = stats.ttest_ind(a.sub(a[MEAN], axis="rows"), b.sub(b[MEAN], axis="rows"))
    found = {}
    for (way, ratio), chance in zip(by.items(), test.pvalue, strict=True):
        unclear = by[MEAN].clear and not ratio.clear and way not in FIFTHS
        if chance < CHANCE or unclear:
            why = f" ({longest_step(own + others)})" if way == QUICK else ""
            found[f"by {way}{why}"] = ratio
    return found


def trend(own: list[Run], others: list[Run]) -> float:
    """Estimate the ratio explained by order alone; 1 if the trend may be chance.

    If all runs became slower in time, the recipe that ran first looks faster.
    """
    runs = own + others
    start = pd.Series([run.manifest.start for run in runs]).rank()
    table = rate_table(runs)[[MEAN]].assign(start=start)
    means = table.groupby([run.recipe for run in runs]).transform("mean")
    within = table - means
    if not within["start"].any():
        return 1.0  # all runs were made at once
    fit = stats.linregress(within["start"], within[MEAN])
    later = means["start"].iloc[0] - means["start"].iloc[-1]
    return math.exp(later * fit.slope) if fit.pvalue < CHANCE else 1.0


def same_places(own: list[Run], others: list[Run]) -> dict[str, Ratio]:
    """Find the ratio at the places of both recipes, if their shares differ."""
    a, b = (rate_table(runs)[MEAN].groupby([run.place for run in runs]) for runs in (own, others))
    if (a.size() / len(own)).equals(b.size() / len(others)):
        return {}
    return {"at the places that both had": Ratio(math.exp((a.mean() - b.mean()).mean()))}


def leave_one_out(ratio: Ratio, own: list[Run], others: list[Run]) -> dict[str, Ratio]:
    """Leave out one seed at a time. Returns the ratios whose interval excludes the ratio of all."""
    found = {}
    for seed in sorted({run.seed for run in own + others}):
        kept = [[run for run in runs if run.seed != seed] for runs in (own, others)]
        rest = ratios(*kept, LEVEL)[MEAN]
        if ratio.mean < rest.low or rest.high < ratio.mean:
            found[f"without seed {seed}"] = rest
    return found


def impossible(ratio: Ratio, own: list[Run], others: list[Run]) -> Iterator[str]:
    """Say what is faster than FP8 allows: a ratio, or a run beside its GPU's peak in bf16."""
    share = np.mean([run.fp8_share for run in own])
    most = times_at_most(share)
    if share and ratio.mean > most:
        yield f"FP8 in {share:.0%} of the matmul FLOPs gives {most:.2f} times the tokens/s at most"
    for run in own + others:
        if mfu(run) > times_at_most(run.fp8_share):
            yield f"{run.name} ran at {mfu(run):.0%} of its GPU's peak in bf16"


def short_of_memory(own: list[Run], others: list[Run]) -> Iterator[str]:
    """Say which recipe's steady steps waited for the allocator, because the GPU's memory was short:
    their time depends on the size of the GPU's memory, and is not the recipe's."""
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
