"""What some runs say about one another: what the report, the notebooks and the README show,
computed once."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
import yaml

from analysis.load import Frames, LoadError, load, steps
from analysis.losses import Verdict, loss_difference, verdict
from analysis.other_logs.published import TOKENS_PER_S
from analysis.rates import (
    BreakEven,
    Completed,
    Rate,
    SpeedUp,
    break_even,
    completed,
    speed_up,
    spent,
)
from experiments.records.study import STUDY_FILE

BASELINE = "baseline"
COMPILED = "baseline_compiled"  # the fair opponent of compiled FP8
PUBLISHED_FLAVOR = "8B-published"
OWN = "run directory"  # the source of this project's own runs
# Recipes that are listed first, in this order; others follow as their study started them.
FIRST = (BASELINE, COMPILED, "rowwise_fp8_compiled", "tensorwise_fp8_compiled")
# Runs that differ in one of these are of different studies, or their speeds cannot be compared.
SHARED = ["device", "torch", "torchao", "flavor", "overlays", "dataset", "data", "seq_len",
          "world_size", "tokens_per_step", "flops_per_token", "steps_asked"]  # fmt: skip
SHARES_DIFFER = 0.01  # shares of FP8 of runs that convert the same layers differ by rounding only


@dataclass(frozen=True)
class Comparison:
    """Recipes compared. Opponents of the others are the baseline and the compiled one."""

    frames: Frames
    plan: dict  # the study's own study.yaml, empty if there is none
    steps: pd.DataFrame  # one row a step, see `analysis.load.steps`
    baseline: str  # the recipe that losses are compared to
    opponent: str  # what FP8 has to beat: the compiled baseline where there is one
    completed: dict[str, Completed]  # by recipe
    recipes: list[str]  # those with a completed run, in the order in which they are shown
    fp8: list[str]  # those of them that ran in FP8
    # Of each of `fp8` the share of the linear layers' FLOPs that was seen to run in FP8, in the run
    # that has least; 0 where that is unknown, emulated, or differs between its runs.
    proof: dict[str, float]
    # recipe -> (diverged seeds, finished seeds). Recipes that never diverged are absent. FP8 counts
    # seeds that finished in bf16 too.
    diverged: dict[str, tuple[int, int]]
    left: dict[str, dict]  # recipe -> its seeds that ended far above its others, as `Verdict.left`
    # FP8 recipes that diverged in a larger share of their seeds than bf16, or have seeds in `left`
    spoilt: set[str]
    rates: dict[str, Rate]
    speed_ups: dict[tuple[str, str], SpeedUp]  # by recipe and opponent
    break_evens: dict[tuple[str, str], BreakEven]  # by recipe, none of the opponents, and opponent
    differences: dict[str, pd.DataFrame]  # of a recipe's smoothed loss to the baseline's
    verdicts: dict[str, Verdict]  # whether a recipe ends at the baseline's loss
    margin: float | None  # of equality in nats per token, None without a verdict
    # tokens/s to mark in figures where these runs are of the published model
    published: dict[str, float] | None


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
    runs, windows, by_step = frames.runs, frames.windows, steps(frames.windows)
    ended = runs[runs["status"].isin(["completed", "diverged"])]
    _check_one_study(ended, windows)
    folders = {Path(path).resolve().parents[1] for path in runs["path"]}
    plan = read_plan(folders.pop()) if len(folders) == 1 else {}
    recipes = in_order(runs.loc[runs["status"] == "completed", "recipe"])
    baseline = _baseline(baseline, plan, recipes, frames.problems)
    named_fp8 = (runs["source"] != OWN) & runs["recipe"].str.contains("fp8")
    all_fp8 = set(runs.loc[runs["float8"].notna() | named_fp8, "recipe"])
    fp8 = [recipe for recipe in recipes if recipe in all_fp8]
    done = {recipe: completed(recipe, runs, windows, by_step) for recipe in recipes}
    rates = {recipe: of.rate for recipe, of in done.items()}

    opponents = [recipe for recipe in recipes if recipe in (baseline, COMPILED)]
    speed_ups, break_evens = {}, {}
    for a, b in product(recipes, opponents):
        if a != b:
            speed_ups[a, b] = speed_up(rates[a], rates[b])
        if a not in opponents:
            break_evens[a, b] = break_even(done[a], done[b])

    differences, verdicts, left = {}, {}, {baseline: {}}
    for recipe in recipes if baseline in recipes else []:
        if recipe != baseline:
            differences[recipe] = loss_difference(done[recipe], done[baseline])
            verdicts[recipe] = judged = verdict(done[recipe], done[baseline])
            left[recipe] = judged.left
            left[baseline] |= judged.baseline_left
    left = {recipe: seeds for recipe, seeds in left.items() if seeds}
    margins = [judged.margin for judged in verdicts.values() if judged.seeds]

    diverged = _diverged(ended, all_fp8)
    shares = {recipe: lost / finished for recipe, (lost, finished) in diverged.items()}
    usual = max(shares.get(baseline, 0), shares.get(COMPILED, 0))
    more = {recipe for recipe, share in shares.items() if share > usual}

    flavors = set(runs.loc[runs["source"] == OWN, "flavor"].dropna())
    published = {recipe: TOKENS_PER_S[recipe] for recipe in recipes if recipe in TOKENS_PER_S}
    return Comparison(
        frames=frames,
        plan=plan,
        steps=by_step,
        baseline=baseline,
        opponent=COMPILED if COMPILED in recipes else baseline,
        completed=done,
        recipes=recipes,
        fp8=fp8,
        proof={recipe: _proof(done[recipe].runs) for recipe in fp8},
        diverged=diverged,
        left=left,
        spoilt=(more | left.keys()) & all_fp8,
        rates=rates,
        speed_ups=speed_ups,
        break_evens=break_evens,
        differences=differences,
        verdicts=verdicts,
        margin=next(iter(margins), None),
        published=published if flavors == {PUBLISHED_FLAVOR} else None,
    )


def read_plan(folder: Path) -> dict:
    """Read a study's study.yaml; empty where there is none that can be read."""
    try:
        return yaml.safe_load((folder / STUDY_FILE).read_text()) or {}
    except (OSError, yaml.YAMLError):
        return {}


def _baseline(asked: str | None, plan: dict, recipes: list[str], problems: list[str]) -> str:
    """Choose the baseline that was asked for, else the study's, else `baseline` or its compiled
    twin, whichever there is."""
    if asked not in (None, plan.get("baseline"), *recipes):
        there = ", ".join(recipes) or "none"
        raise LoadError(f"no completed run of --baseline {asked}; there are {there}")
    default = COMPILED if COMPILED in recipes and BASELINE not in recipes else BASELINE
    baseline = asked or plan.get("baseline", default)
    if baseline not in recipes:
        problems.append(f"no completed run of {baseline}: losses are not compared")
    return baseline


def _proof(runs: pd.DataFrame) -> float:
    """Find `Comparison.proof` of a recipe's completed runs."""
    shares = runs["fp8_share"].fillna(0.0).mask(runs["fp8_emulated"].eq(True), 0.0)
    return float(shares.min()) if shares.max() - shares.min() < SHARES_DIFFER else 0.0


def _diverged(ended: pd.DataFrame, fp8: set[str]) -> dict[str, tuple[int, int]]:
    """Count `Comparison.diverged` of runs that are completed or diverged."""
    in_fp8 = ended["recipe"].isin(fp8)
    counted = ended[~in_fp8 | ended["seed"].isin(ended.loc[~in_fp8, "seed"])]
    lost = counted["status"].eq("diverged").groupby(counted["recipe"]).agg(["sum", "count"])
    return {recipe: (int(n), int(of)) for recipe, n, of in lost[lost["sum"] > 0].itertuples()}


def _check_one_study(ended: pd.DataFrame, windows: pd.DataFrame) -> None:
    """Raise `LoadError` where runs cannot be compared: see `SHARED`, other learning rates, or a
    seed twice."""
    values = ended[SHARED].copy()
    values["overlays"] = values["overlays"].map(str, na_action="ignore")
    batch = values["tokens_per_step"]  # from logged times: whole numbers but for their rounding
    values["tokens_per_step"] = batch.mask(batch <= 1.01 * batch.min(), batch.min()).round()
    kinds = {column: list(map(str, values[column].dropna().unique())) for column in SHARED}
    differ = [f"{column} ({', '.join(of)})" for column, of in kinds.items() if len(of) > 1]
    by_step = windows[windows["run"].isin(ended["run"])].groupby("step")["lr"]
    rates = by_step.agg(low="min", high="max").query("high > 1.01 * low")
    for step, (low, high) in rates.head(1).iterrows():
        differ.append(f"their learning rate (at step {step}: {low:g}, {high:g})")
    if differ:
        raise LoadError(
            f"these runs differ in {', '.join(differ)} and cannot be compared: name the runs of "
            "one study"
        )
    for _, paths in ended.groupby(["recipe", "seed"], dropna=False)["path"]:
        if len(paths) > 1:
            raise LoadError(
                f"{' and '.join(paths)} have the same recipe and seed: name the runs of one study"
            )


def cost_by_steps(comparison: Comparison, lengths: list[int]) -> pd.DataFrame:
    """Average the wall hours of a run of each length (rows) by recipe (columns), warm-up included.

    Within the runs as measured; beyond them at the mean seconds of a steady step, NaN where there
    is none.
    """
    hours = {}
    for recipe, of in comparison.completed.items():
        hours[recipe] = spent(of, np.array(lengths)).mean(axis=0) / 3600
    return pd.DataFrame(hours, index=pd.Index(lengths, name="steps"))
