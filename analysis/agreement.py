"""Rule 3: every honest way to count tokens/s finds the same lead.

Else a reader is promised a lead that she may not get.
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
    Ratio,
    mfu,
    rate_table,
    ratios,
    runs_needed,
    timed,
)

CHANCE = 0.01  # that sound runs differ so, by a t-test
NAMED = 2  # of several ways that contradict the ratio


@dataclass(frozen=True)
class SpeedUp:
    """The tokens/s of a recipe over another's.

    Args:
        ratio: by the mean steady step.
        by: the ratio by all ways.
        runs: with a rate, of the recipe that has fewer.
        caveats: what contradicts the ratio; of a single run nothing is known.
        runs_needed: runs of each recipe that would tell which is faster; None if these tell.
    """

    ratio: Ratio = Ratio(math.nan)
    by: dict[str, Ratio] = field(default_factory=dict)
    runs: int = 0
    caveats: list[str] = field(default_factory=list)
    runs_needed: int | None = None


def speed_up(own: list[Run], others: list[Run], tries: int = 1) -> SpeedUp:
    """Divide the rates of two recipes' runs.

    Args:
        tries: recipes that are judged together: the interval of each is wider (Bonferroni).
    """
    own, others = timed(own), timed(others)
    few = min(len(own), len(others))
    if not few:
        return SpeedUp()
    level = 1 - (1 - LEVEL) / tries
    by = ratios(own, others, level)
    if few == 1:
        return SpeedUp(by[MEAN], by, few)
    caveats = [*contradictions(by, own, others), *impossible(by[MEAN], own, others)]
    if caveats:
        return SpeedUp(by[MEAN], by, few, caveats)
    mean, low, high = np.log(by[MEAN])
    enough = max(abs(mean), SMALL - abs(mean))
    return SpeedUp(by[MEAN], by, few, runs_needed=runs_needed((high - low) / 2, enough, few))


def contradictions(by: dict[str, Ratio], own: list[Run], others: list[Run]) -> Iterator[str]:
    """Say what contradicts a ratio: where the runs were, or honest ways to find another, the
    furthest first."""
    ratio, quick = by[MEAN], by[QUICK]
    if math.isnan(ratio.low):
        yield f"{where(own)}, and {where(others)}, so the machine may have made the difference"
    elif ratio.clear or ratio.as_fast:
        found = other_ways(by, own, others) | leave_one_out(ratio, own, others)
        found["without the trend from run to run"] = Ratio(ratio.mean / trend(own, others))
        found = {words: other for words, other in found.items() if other.contradicts(ratio)}
        furthest = sorted(found, key=lambda words: -abs(found[words].mean - ratio.mean))
        yield from (f"{words} it has {found[words]}" for words in furthest[:NAMED])
    elif quick.low > 1 and not Ratio(quick.low).contradicts(quick):
        yield f"slow steps hide its lead ({longest_step(own + others)}): by {QUICK} it has {quick}"


def where(runs: list[Run]) -> str:
    """Say where the runs of a recipe were."""
    places = " or ".join(sorted({run.place for run in runs}))
    return f"all runs of {runs[0].recipe} were on {places}"


def longest_step(runs: list[Run]) -> str:
    """Name the longest steady step of some runs, relative to its run's median step."""
    longest = []
    for run in runs:
        seconds = run.steps["seconds"][run.steps["steady"]]
        times = seconds.max() / seconds.median()
        longest.append((times, seconds.max(), seconds.idxmax(), run.name))
    times, seconds, step, name = max(longest)
    return f"step {step} of {name} took {seconds:.3g} s, {times:.1f} times its median step"


def other_ways(by: dict[str, Ratio], own: list[Run], others: list[Run]) -> dict[str, Ratio]:
    """Find ratios unlike the mean steady step's by more than chance.

    Of the fifths of the steps only those count in which the lead is smaller: a part with a larger
    lead takes nothing away.
    """
    a, b = (rate_table(runs) for runs in (own, others))
    with warnings.catch_warnings(action="ignore"):  # runs that are equal
        test = stats.ttest_ind(a.sub(a[MEAN], axis=0), b.sub(b[MEAN], axis=0))
    found = {}
    for (way, ratio), chance in zip(by.items(), test.pvalue, strict=True):
        larger_for_a_while = way in FIFTHS and ratio.mean > by[MEAN].mean
        if chance < CHANCE and not larger_for_a_while:
            why = f" ({longest_step(own + others)})" if way == QUICK else ""
            found[f"by {way}{why}"] = ratio
    return found


def trend(own: list[Run], others: list[Run]) -> float:
    """Work out the ratio that comes from runs getting slower or faster in the order in which they
    were made, where one recipe's runs were made first; 1 if that may be chance."""
    runs = own + others
    table = pd.DataFrame({"start": [run.manifest.start for run in runs]}).rank()
    table["rate"] = rate_table(runs)[MEAN].to_numpy()
    means = table.groupby([run.recipe for run in runs]).transform("mean")
    within = table - means
    with warnings.catch_warnings(action="ignore"):  # runs that were all made at once
        chance = stats.pearsonr(within["start"], within["rate"]).pvalue
    if not chance < CHANCE:
        return 1.0
    slope = (within["start"] @ within["rate"]) / (within["start"] @ within["start"])
    later = means["start"].iloc[0] - means["start"].iloc[-1]
    return math.exp(later * slope)


def leave_one_out(ratio: Ratio, own: list[Run], others: list[Run]) -> dict[str, Ratio]:
    """Find the ratio without each seed, where its interval does not hold the ratio of all."""
    found = {}
    for seed in sorted({run.seed for run in own + others}):
        kept = [[run for run in runs if run.seed != seed] for runs in (own, others)]
        if min(map(len, kept)) > 1:
            rest = ratios(*kept, LEVEL)[MEAN]
            if not rest.low < ratio.mean < rest.high:
                found[f"without seed {seed}"] = rest
    return found


def impossible(ratio: Ratio, own: list[Run], others: list[Run]) -> Iterator[str]:
    """Say what is faster than FP8 can make it (its matmuls at twice the rate, and nothing else
    slower), or than the GPU can be."""
    share = float(np.mean([run.fp8_share for run in own]))
    most = 1 / (1 - share / 2)
    if share and ratio.mean > most:
        yield f"FP8 in {share:.0%} of the matmul FLOPs gives {most:.2f} times at most"
    for run in own + others:
        used = mfu(run, "fp8" if run.fp8_share else "bf16")
        if used > 1:
            yield f"{run.name} ran at {used:.0%} of its GPU's peak"
