"""Why a recipe gets no plain yes: what else differs from the opponent, and what its runs show
besides their steady steps. The sentences are in analysis/answer.py."""

from collections.abc import Iterator
from typing import NamedTuple

import pandas as pd
import yaml

from analysis.losses import Verdict
from analysis.newest import ROOT
from analysis.rates import SMALL, Completed, SpeedUp
from analysis.runs import flat

RATIOS_DIFFER = 0.02  # two ratios that are so far apart are both told
PADDING_DIFFERS = 0.05  # of the tokens
SHARES_DIFFER = 0.01  # of runs that convert the same layers: no more than by rounding
# Machines that differ in one of these may differ in speed.
MACHINE = {"driver": "driver", "power_limit_w": "power limit (W)", "torchtitan": "torchtitan",
           "sm_clock_max_mhz": "highest clock (MHz)"}  # fmt: skip
# Keys of a resolved recipe that change nothing of what is computed.
LABELS = ("name", "description", "debug.seed", "data.cache_dir")


class Doubt(NamedTuple):
    """One thing that forbids a plain yes."""

    kind: str  # a key of `analysis.answer.DOUBTS`
    facts: dict  # what its sentence names


def find_doubts(
    recipe: Completed, opponent: Completed, runs: pd.DataFrame, gain: SpeedUp, judged: Verdict
) -> Iterator[Doubt]:
    """Find what forbids a plain yes for an FP8 recipe.

    Args:
        runs: all runs, also those that are not completed.
    """
    both = pd.concat([recipe.runs, opponent.runs])
    for run, doubts in both[["run", "doubts"]].itertuples(index=False):
        for doubt in doubts:
            yield Doubt("run", {"run": run, "doubt": doubt})
    yield from _setups(recipe.runs, opponent.runs)
    yield from _unfinished(recipe.recipe, opponent.recipe, runs)
    unusable = both.loc[both["wall_s"].isna(), "run"]
    if len(unusable):
        yield Doubt("no clock", {"runs": ", ".join(unusable)})
    yield from _paces(both, gain)
    if judged.alike:
        yield Doubt("alike", {"steps": judged.step})
    for words in judged.far_off() if judged.below else []:
        yield Doubt("below", {"words": words})


def _setups(recipe: pd.DataFrame, opponent: pd.DataFrame) -> Iterator[Doubt]:
    """Yield doubts where the proofs are wanting, or settings, machines or data differ."""
    shares = recipe["fp8_share"]
    if not shares.gt(0).all():
        yield Doubt("proof", {})
    if shares.max() - shares.min() > SHARES_DIFFER:
        yield Doubt("proofs", {})
    unexpected = _settings(recipe, opponent)
    if unexpected:
        yield Doubt("settings", {"keys": ", ".join(unexpected)})
    for column, words in MACHINE.items():
        kinds = [sorted(set(of[column].dropna().map(str))) for of in (recipe, opponent)]
        if all(kinds) and kinds[0] != kinds[1]:
            beside = " beside ".join(map(", ".join, kinds))
            yield Doubt("machine", {"what": f"{words} {beside}"})
    own, others = (1 - of["valid_share"].mean() for of in (recipe, opponent))
    if abs(own - others) > PADDING_DIFFERS:
        yield Doubt("padding", {"own": own, "others": others})


def _unfinished(recipe: str, opponent: str, runs: pd.DataFrame) -> Iterator[Doubt]:
    """Yield a doubt where more of the recipe's runs than of the opponent's did not end."""
    ended = runs["status"].isin(["completed", "diverged"]).groupby(runs["recipe"])
    share, counts = ended.mean(), ended.agg(["sum", "count"])
    if share[recipe] < share[opponent]:
        (own, started), (others, all_others) = counts.loc[[recipe, opponent]].to_numpy()
        facts = {"own": own, "started": started, "others": others, "all_others": all_others}
        yield Doubt("unfinished", facts)


def _paces(both: pd.DataFrame, gain: SpeedUp) -> Iterator[Doubt]:
    """Yield doubts where the mean steady step is not all there is to say of the speed."""
    told = abs(gain.by_clock / gain.ratio - 1) > RATIOS_DIFFER
    opposite = (gain.ratio - 1) * (gain.by_clock - 1) < 0
    if told and (opposite or gain.ratio > 1 + SMALL >= gain.by_clock):
        yield Doubt("clock", {"ratio": gain.by_clock})
    stalled = both[both["stall"] > 0]
    if len(stalled) and abs(gain.without_stalls / gain.ratio - 1) > RATIOS_DIFFER:
        run = stalled.sort_values("stall_s").iloc[-1]
        facts = {"run": run["run"], "step": run["stall"], "seconds": run["stall_s"]}
        yield Doubt("stall", facts | {"ratio": gain.without_stalls})
    if gain.drifts:
        yield Doubt("drift", {"first": gain.first_third, "last": gain.last_third})


# ---- settings ----


def _settings(recipe: pd.DataFrame, opponent: pd.DataFrame) -> list[str]:
    """List the keys in which the resolved recipes of two recipes' runs differ, and in which the
    recipes' files do not say so. A recipe that is not in recipes/ may differ in anything."""
    files = [of_file(runs["recipe"].iloc[0]) for runs in (recipe, opponent)]
    settings = [*recipe["settings"], *opponent["settings"]]
    if None in files or not all(isinstance(each, dict) for each in settings):
        return []
    differ, said = _differing(settings), _differing(files)
    return [key for key in differ if not key.startswith((*said, *LABELS))]


def _differing(settings: list[dict]) -> list[str]:
    rows = pd.DataFrame(settings, dtype=object)
    return [key for key in rows if rows[key].map(str).nunique() > 1]


def of_file(recipe: str) -> dict | None:
    """Read what a recipe's file and those of its ancestors say below base.yaml, by key.path; None
    where there is no such file."""
    paths = (ROOT / "recipes").rglob(f"{recipe}.yaml")
    paths = [path for path in paths if path.parent.name not in ("studies", "overlays")]
    if not paths:
        return None
    said = yaml.safe_load(paths[0].read_text())
    parent = said.pop("base", None)
    above = of_file(parent) if parent not in (None, "base") else {}
    return (above or {}) | flat(said)
