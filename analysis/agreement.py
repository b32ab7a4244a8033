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
    Ratio,
    foretell,
    mfu,
    paired_by_seed,
    rate_table,
    ratios,
    timed,
)

CHANCE = 0.01  # that sound runs differ so, by a t-test
NAMED = 2  # of several ways that contradict


@dataclass(frozen=True)
class SpeedUp:
    """The tokens/s of a recipe over another's.

    Args:
        ratio: by the mean steady step.
        by: the ratio by all ways.
        runs: with a rate, of the recipe that has fewer.
        caveats: what contradicts the ratio; of a single run nothing is known.
        half_widths: of the interval with more runs.
    """

    ratio: Ratio = Ratio(math.nan)
    by: dict[str, Ratio] = field(default_factory=dict)
    runs: int = 0
    caveats: list[str] = field(default_factory=list)
    half_widths: dict[int, float] = field(default_factory=dict)


def speed_up(own: list[Run], others: list[Run], tries: int = 1) -> SpeedUp:
    """Divide the rates of two recipes' runs.

    Args:
        tries: recipes that are judged together: the interval of each is wider (Bonferroni).
    """
    own, others = (sorted(timed(runs), key=lambda run: run.seed) for runs in (own, others))
    few = min(len(own), len(others))
    if not few:
        return SpeedUp()
    level = 1 - (1 - LEVEL) / tries
    by = ratios(own, others, level)
    if few == 1:
        return SpeedUp(by[MEAN], by, few)
    caveats = [*contradictions(by, own, others), *impossible(by[MEAN], own, others)]
    samples = [rate_table(runs)[MEAN].to_numpy() for runs in (own, others)]
    if paired_by_seed(own, others):
        samples = [samples[0] - samples[1]]
    return SpeedUp(by[MEAN], by, few, caveats, foretell(*samples, level=level))


def contradictions(by: dict[str, Ratio], own: list[Run], others: list[Run]) -> Iterator[str]:
    """Say what contradicts a ratio: where the runs were, another way to count, a trend in time, or
    all seeds but one."""
    ratio = by[MEAN]
    if math.isnan(ratio.low):
        yield f"{where(own)}, and {where(others)}, so the machine may have made the difference"
        return
    if not ratio.clear and not ratio.as_fast:
        yield from hidden_lead(by, own, others)
        return
    yield from other_ways(by, own, others)
    corrected = Ratio(ratio.mean / trend(own, others))
    if corrected.contradicts(ratio):
        yield f"runs got slower or faster from one to the next; without that it has {corrected}"
    for seed in sorted({run.seed for run in own + others}):
        kept = [[run for run in runs if run.seed != seed] for runs in (own, others)]
        if min(map(len, kept)) > 1:
            rest = ratios(*kept, LEVEL)[MEAN]
            if rest.contradicts(ratio) and not rest.low < ratio.mean < rest.high:
                yield f"without seed {seed} it has {rest}"


def where(runs: list[Run]) -> str:
    """Say where the runs of a recipe were."""
    places = " or ".join(sorted({run.place for run in runs}))
    return f"all runs of {runs[0].recipe} were on {places}"


def hidden_lead(by: dict[str, Ratio], own: list[Run], others: list[Run]) -> Iterator[str]:
    """Say where a lead, which the quicker steps have, is lost in the noise of slow ones."""
    quick = by[QUICK]
    if quick.low > 1 and not Ratio(quick.low).contradicts(quick):
        yield f"slow steps hide its lead ({longest_step(own + others)}): by {QUICK} it has {quick}"


def longest_step(runs: list[Run]) -> str:
    """Name the longest steady step of some runs, beside their usual step."""
    longest = {}
    for run in runs:
        seconds = run.steps["seconds"][run.steps["steady"]]
        longest[run.name, seconds.idxmax()] = seconds.max() / seconds.median(), seconds.max()
    (name, step), (times, seconds) = max(longest.items(), key=lambda item: item[1])
    return f"step {step} of {name} took {seconds:.3g} s, {times:.1f} times its median step"


def other_ways(by: dict[str, Ratio], own: list[Run], others: list[Run]) -> list[str]:
    """Say which ways contradict the mean steady step by more than chance, the furthest first.

    Of the fifths of the steps only those count in which the lead is smaller: a part with a larger
    lead takes nothing away.
    """
    a, b = rate_table(own), rate_table(others)
    with warnings.catch_warnings(action="ignore"):  # runs that are equal
        test = stats.ttest_ind(a.sub(a[MEAN], axis=0), b.sub(b[MEAN], axis=0))
    apart = {}
    for (way, other), chance in zip(by.items(), test.pvalue, strict=True):
        more = other.mean - by[MEAN].mean
        larger_for_a_while = way in FIFTHS and more > 0
        if other.contradicts(by[MEAN]) and chance < CHANCE and not larger_for_a_while:
            why = f" ({longest_step(own + others)})" if way == QUICK else ""
            apart[f"by {way} it has {other}{why}"] = abs(more)
    return sorted(apart, key=apart.get, reverse=True)[:NAMED]


def trend(own: list[Run], others: list[Run]) -> float:
    """Work out the ratio that comes from runs getting slower or faster in the order in which they
    were made, where one recipe's runs were made first; 1 if that may be chance."""
    runs = pd.DataFrame({
        "recipe": [run.recipe for run in own + others],
        "order": pd.Series([run.manifest.start for run in own + others]).rank(),
        "rate": rate_table(own + others)[MEAN].to_numpy(),
    })  # fmt: skip
    means = runs.groupby("recipe").transform("mean")
    order, rate = runs["order"] - means["order"], runs["rate"] - means["rate"]
    with warnings.catch_warnings(action="ignore"):  # runs that were all made at once
        chance = stats.pearsonr(order, rate).pvalue
    if not chance < CHANCE:
        return 1.0
    slope = (order * rate).sum() / (order**2).sum()
    return math.exp(slope * (means["order"].iloc[0] - means["order"].iloc[-1]))


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
