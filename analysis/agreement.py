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
    """

    ratio: Ratio = Ratio(math.nan)
    by: dict[str, Ratio] = field(default_factory=dict)
    runs: int = 0
    caveats: list[str] = field(default_factory=list)

    @property
    def runs_needed(self) -> int | None:
        """How many runs of each recipe would tell if it is faster, slower or as fast."""
        mean, low, high = self.ratio
        distance = max(abs(mean - 1), SMALL - abs(mean - 1))
        return runs_needed(self.runs, (high - low) / 2, distance, 2, LEVEL)


def speed_up(own: list[Run], others: list[Run], tries: int = 1) -> SpeedUp:
    """Divide the rates of two recipes' runs.

    Args:
        tries: recipes that are judged together: the interval of each is wider (Bonferroni).
    """
    own, others = timed(own), timed(others)
    runs = min(len(own), len(others))
    if not runs:
        return SpeedUp()
    by = ratios(own, others, 1 - (1 - LEVEL) / tries)
    caveats = [*contradictions(by, own, others), *impossible(by[MEAN], own, others)]
    return SpeedUp(by[MEAN], by, runs, caveats if runs > 1 else [])


def contradictions(by: dict[str, Ratio], own: list[Run], others: list[Run]) -> Iterator[str]:
    """Say what contradicts a ratio: where the runs were, or honest ways to find another."""
    ratio, quick = by[MEAN], by[QUICK]
    if math.isnan(ratio.low):
        places = "; ".join(sorted({run.place for run in own + others}))
        yield f"the recipes were in different places ({places}), which may have made the difference"
    elif ratio.clear or ratio.as_fast:
        found = other_ways(by, own, others) | leave_one_out(ratio, own, others)
        found["without the trend from run to run"] = Ratio(ratio.mean / trend(own, others))
        told = [f"{how} it has {other}" for how, other in found.items() if other.contradicts(ratio)]
        yield from told[:NAMED]
    elif quick.low > 1 and not Ratio(quick.low).contradicts(quick):
        yield f"slow steps hide its lead ({longest_step(own + others)}): by {QUICK} it has {quick}"


def longest_step(runs: list[Run]) -> str:
    """Name the longest steady step of some runs, relative to its run's median step."""
    seconds = {run.name: run.steady["seconds"] for run in runs}
    times = pd.concat({name: of / of.median() for name, of in seconds.items()})
    name, step = times.idxmax()
    return f"step {step} of {name} took {times.max():.1f} times its median step"


def other_ways(by: dict[str, Ratio], own: list[Run], others: list[Run]) -> dict[str, Ratio]:
    """Find ratios unlike the mean steady step's by more than chance.

    Of the fifths of the steps only those count in which the lead is smaller: a part with a larger
    lead takes nothing away.
    """
    a, b = rate_table(own), rate_table(others)
    with warnings.catch_warnings(action="ignore"):  # runs that are equal
        test = stats.ttest_ind(a.sub(a[MEAN], axis="rows"), b.sub(b[MEAN], axis="rows"))
    found = {}
    for (way, ratio), chance in zip(by.items(), test.pvalue, strict=True):
        smaller = ratio.mean < by[MEAN].mean
        if chance < CHANCE and (smaller or way not in FIFTHS):
            why = f" ({longest_step(own + others)})" if way == QUICK else ""
            found[f"by {way}{why}"] = ratio
    return found


def trend(own: list[Run], others: list[Run]) -> float:
    """Work out the ratio that comes from runs getting slower or faster in the order in which they
    were made, where one recipe's runs were made first; 1 if that may be chance."""
    runs = own + others
    start = pd.Series([run.manifest.start for run in runs]).rank()
    table = rate_table(runs)[[MEAN]].assign(start=start)
    means = table.groupby([run.recipe for run in runs]).transform("mean")
    within = table - means
    if not within["start"].any():
        return 1.0  # all were made at once
    fit = stats.linregress(within["start"], within[MEAN])
    later = means["start"].iloc[0] - means["start"].iloc[-1]
    return math.exp(later * fit.slope) if fit.pvalue < CHANCE else 1.0


def leave_one_out(ratio: Ratio, own: list[Run], others: list[Run]) -> dict[str, Ratio]:
    """Find the ratio without each seed, where its interval does not hold the ratio of all."""
    found = {}
    for seed in sorted({run.seed for run in own + others}):
        kept = [[run for run in runs if run.seed != seed] for runs in (own, others)]
        rest = ratios(*kept, LEVEL)[MEAN]
        if ratio.mean < rest.low or rest.high < ratio.mean:
            found[f"without seed {seed}"] = rest
    return found


def impossible(ratio: Ratio, own: list[Run], others: list[Run]) -> Iterator[str]:
    """Say what is faster than FP8 can make it, beside bf16 or beside the GPU's peak in bf16."""
    share = np.mean([run.fp8_share for run in own])
    most = times_at_most(share)
    if share and ratio.mean > most:
        yield f"FP8 in {share:.0%} of the matmul FLOPs gives {most:.2f} times at most"
    for run in own + others:
        if mfu(run) > times_at_most(run.fp8_share):
            yield f"{run.name} ran at {mfu(run):.0%} of its GPU's peak in bf16"


def times_at_most(share: float) -> float:
    """Work out how many times as fast a share of FP8 is: matmuls at twice the rate, and nothing
    else slower."""
    return 1 / (1 - share / 2)
