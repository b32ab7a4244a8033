"""What some runs say about one another: what the report, the notebooks and the README show,
computed once."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml
from pydantic import BaseModel, ValidationError

from analysis.doubts import SHARED, Doubt, find_doubts, of_file
from analysis.load import Frames, LoadError, load
from analysis.losses import DIFFERENT, FarOff, Verdict, far_off, loss_difference, verdict
from analysis.rates import (
    BreakEven,
    Completed,
    SpeedUp,
    break_even,
    completed_runs,
    speed_up,
    spent,
)
from analysis.runs import FLOAT8, UNREADABLE, cause
from experiments.records.run import MANIFEST, METRICS, RECIPE, STUDY_FILE

BASELINE = "baseline"
COMPILED = "baseline_compiled"  # the fair opponent of compiled FP8
OWN = "run directory"  # the source of this project's own runs
# Recipes that are listed first, in this order; others follow as their study started them.
FIRST = (BASELINE, COMPILED, "rowwise_fp8_compiled", "tensorwise_fp8_compiled")


class Plan(BaseModel):
    """What a study was started with, as far as it is used here."""

    recipes: list[str] = []
    baseline: str = BASELINE
    seeds: list[int] = []
    overlays: list[str] = []
    overrides: list[str] = []
    axes: dict[str, list[Any] | dict[str, list[Any]]] = {}


@dataclass(frozen=True)
class Comparison:
    """Recipes compared with one opponent, in speed and in loss."""

    frames: Frames
    plan: Plan
    opponent: str  # compiled bf16 where there is one, else the study's baseline
    completed: dict[str, Completed]  # by recipe
    recipes: list[str]  # those with a completed run, in the order in which they are shown
    fp8: list[str]  # those of them that ran in FP8
    # recipe -> (runs that were started or planned, how they ended), of recipes of which none was
    # completed and none diverged
    unended: dict[str, tuple[int, list[str]]]
    # recipe -> (diverged runs, started runs). Recipes that never diverged are absent.
    diverged: dict[str, tuple[int, int]]
    # FP8 recipes that diverged in a larger share of their runs than bf16, or end far above it in
    # more runs than far below
    spoilt: set[str]
    far_off: dict[str, FarOff]
    doubts: dict[str, list[Doubt]]  # by FP8 recipe, what forbids a plain yes
    speed_ups: dict[tuple[str, str], SpeedUp]  # by recipe and opponent, eager bf16 among these
    break_evens: dict[tuple[str, str], BreakEven]  # by recipe, none of the opponents, and opponent
    differences: dict[str, pd.DataFrame]  # of a recipe's smoothed loss to the opponent's
    verdicts: dict[str, Verdict]  # whether a recipe ends at the opponent's loss
    margin: float | None  # of equality in nats per token, None without a verdict


def in_order(recipes: Iterable[str]) -> list[str]:
    """Each recipe once: those of `FIRST` first, the others as they come."""
    recipes = list(recipes)
    return sorted(set(recipes), key=[*FIRST, *recipes].index)


def compare(paths, baseline: str | None = None) -> Comparison:
    """Load `paths` and compare what they hold; without a `baseline` with the study's.

    Raises:
        LoadError: as `analysis.load.load`, or if the runs are not of one study, or there is no
            recipe `baseline`.
    """
    frames = load(paths)
    runs = frames.runs
    _check_one_study(frames)
    folders = {Path(path).resolve().parents[1] for path in runs["path"]}
    folder = folders.pop()
    plan = Plan() if folders else read_plan(folder)
    missing = _missing(plan, folder, runs)
    recipes = in_order(runs.loc[runs["status"] == "completed", "recipe"])
    opponent = _opponent(baseline, plan, recipes, frames.problems)
    all_fp8 = [recipe for recipe in runs["recipe"].unique() if is_fp8(recipe, runs)]
    fp8 = [recipe for recipe in recipes if recipe in all_fp8]
    done = {recipe: completed_runs(recipe, frames) for recipe in recipes}
    tries = dict.fromkeys(fp8, len(all_fp8))

    speed_ups, break_evens = {}, {}
    opponents = [recipe for recipe in recipes if recipe in (BASELINE, opponent)]
    for a, b in product(recipes, opponents):
        if a != b:
            speed_ups[a, b] = speed_up(done[a], done[b], tries.get(a, 1))
        if a not in opponents:
            break_evens[a, b] = break_even(done[a], done[b])

    started = Counter(runs["recipe"])
    seeds = {recipe: {*of.dropna()} for recipe, of in runs.groupby("recipe")["seed"]}
    differences, verdicts, far, doubts = {}, {}, {}, {}
    for recipe in in_order([*recipes, *all_fp8]) if opponent in recipes else []:
        if recipe == opponent:
            continue
        far[recipe] = far_off(recipe, done[opponent], frames)
        if recipe not in recipes:
            continue
        pair = done[recipe], done[opponent]
        differences[recipe] = loss_difference(*pair)
        verdicts[recipe] = verdict(*pair, tries.get(recipe, 1))
        if len(far[recipe].above) == far[recipe].runs > 0:
            verdicts[recipe] = replace(verdicts[recipe], outcome=DIFFERENT)
        if recipe in fp8:
            found = speed_ups[recipe, opponent], verdicts[recipe], far[recipe]
            doubts[recipe] = [*find_doubts(*pair, frames, *found, missing)]
            lacking = started[opponent] - started[recipe]
            if lacking > 0 and not plan.seeds and set() < seeds[recipe] <= seeds[opponent]:
                facts = {"lacking": lacking, "of": started[opponent]}
                doubts[recipe].append(Doubt("fewer seeds", facts))

    lost = runs["status"].eq("diverged").groupby(runs["recipe"]).agg(["sum", "count"])
    shares = lost["sum"] / lost["count"]
    usual = shares.get(opponent, 0)
    spoilt = {recipe for recipe in all_fp8 if shares[recipe] > usual}
    spoilt |= {r for r, of in far.items() if r in all_fp8 and len(of.above) > len(of.below)}

    return Comparison(
        frames=frames,
        plan=plan,
        opponent=opponent,
        completed=done,
        recipes=recipes,
        fp8=fp8,
        unended=_unended(runs, missing),
        diverged={r: (int(n), int(of)) for r, n, of in lost[lost["sum"] > 0].itertuples()},
        spoilt=spoilt,
        far_off=far,
        doubts=doubts,
        speed_ups=speed_ups,
        break_evens=break_evens,
        differences=differences,
        verdicts=verdicts,
        margin=next((judged.margin for judged in verdicts.values() if judged.seeds), None),
    )


def is_fp8(recipe: str, runs: pd.DataFrame) -> bool:
    """Tell whether a recipe is FP8's: by any of its runs, else by its file, else by its name."""
    own = runs[(runs["recipe"] == recipe) & (runs["status"] != UNREADABLE)]
    if own["source"].eq(OWN).any():
        return own["float8"].notna().any()
    said = of_file(recipe)
    return "fp8" in recipe if said is None else said.get(FLOAT8) is not None


def read_plan(folder: Path) -> Plan:
    """Read a study's study.yaml. Raises `LoadError` where that does not fit."""
    path = folder / STUDY_FILE
    try:
        return Plan.model_validate(yaml.safe_load(path.read_text()))
    except (FileNotFoundError, NotADirectoryError):
        return Plan()
    except (OSError, ValueError, yaml.YAMLError) as error:
        place = error.errors()[0]["loc"] if isinstance(error, ValidationError) else ()
        where = ".".join(map(str, place)) or "content"
        raise LoadError(f"{path}: {where}: is not what a study writes") from error


def _missing(plan: Plan, folder: Path, runs: pd.DataFrame) -> Counter:
    """Count by recipe the runs that the study in a folder planned and that left no record."""
    missing, loaded = Counter(), set(zip(runs["recipe"], runs["seed"], strict=True))
    for recipe, seed in product(dict.fromkeys(plan.recipes), set(plan.seeds)):
        place = folder / recipe / f"seed{seed}"
        recorded = any((place / name).exists() for name in (MANIFEST, RECIPE, METRICS))
        missing[recipe] += not recorded and (recipe, seed) not in loaded
    return missing


def _unended(runs: pd.DataFrame, missing: Counter) -> dict[str, tuple[int, list[str]]]:
    """Find the recipes that completed no run, see `Comparison.unended`."""
    asked, found = Counter(runs["recipe"]) + missing, {}
    ended = {*runs.loc[runs["status"].isin(["completed", "diverged"]), "recipe"]}
    for recipe in [name for name in asked if name not in ended]:
        own = runs[runs["recipe"] == recipe]
        causes = [*map(cause, own["status"], own["error"])] + ["no record"] * missing[recipe]
        found[recipe] = asked[recipe], sorted({*causes})
    return found


def _opponent(asked: str | None, plan: Plan, recipes: list[str], problems: list[str]) -> str:
    """Choose the baseline that was asked for, else the study's; of an eager and a compiled
    baseline the compiled one."""
    if asked not in (None, plan.baseline, *recipes):
        there = ", ".join(recipes) or "none"
        raise LoadError(f"no completed run of --baseline {asked}; there are {there}")
    opponent = asked or plan.baseline
    if opponent == BASELINE and COMPILED in recipes:
        return COMPILED
    if opponent not in recipes:
        problems.append(f"no completed run of {opponent}: nothing is compared with it")
    return opponent


def _check_one_study(frames: Frames) -> None:
    """Raise `LoadError` where runs cannot be compared: see `SHARED`, other learning rates, a seed
    twice, or one run as two seeds."""
    ended = frames.runs[frames.runs["status"].isin(["completed", "diverged"])]
    done = ended["status"] == "completed"  # a budget cuts these alone
    ended = ended.assign(steps_asked=ended["steps_asked"].where(done))
    kinds = {column: ended[column].dropna().map(str).unique() for column in SHARED}
    differ = [f"{column} ({', '.join(of)})" for column, of in kinds.items() if len(of) > 1]
    rates = frames.windows[frames.windows["run"].isin(ended["run"])].groupby("step")["lr"]
    others = rates.agg(low="min", high="max").query("high > 1.01 * low")
    for step, (low, high) in others.head(1).iterrows():
        differ.append(f"their learning rate (at step {step}: {low:g}, {high:g})")
    if differ:
        raise LoadError(
            f"these runs differ in {', '.join(differ)} and cannot be compared: name the runs of "
            "one study"
        )
    seeded = ended.dropna(subset="seed")
    twice = seeded[seeded.duplicated(["recipe", "seed"], keep=False)]
    logs = frames.steps.groupby("run")[["loss", "seconds"]].agg(tuple).reindex(ended["run"])
    logged = logs["loss"].notna().to_numpy()
    copied = logs.assign(recipe=ended["recipe"].to_numpy()).duplicated(keep=False).to_numpy()
    copied = copied & logged  # runs without a step are no copies
    for found, words in (twice, "recipe and seed"), (ended[copied], "losses and step times"):
        if len(found):
            raise LoadError(
                f"{' and '.join(found['path'])} have the same {words}: name each run of one study "
                "once"
            )


def cost_by_steps(comparison: Comparison, lengths: list[int]) -> pd.DataFrame:
    """Average the wall hours of a run of each length (rows) by recipe (columns), the first step
    (compile) included.

    Within the runs as measured; beyond them at the mean seconds of a steady step, NaN where there
    is none.
    """
    hours = {}
    for recipe, of in comparison.completed.items():
        hours[recipe] = spent(of, np.array(lengths)).mean(axis=0) / 3600
    return pd.DataFrame(hours, index=pd.Index(lengths, name="steps"))
