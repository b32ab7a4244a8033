"""What some runs say about one another: what the report, the notebooks and the README show,
computed once."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
import yaml

from analysis import rates as speeds
from analysis.load import Frames, LoadError, load, steps
from analysis.losses import Verdict, loss_difference, verdict
from analysis.other_logs.published import TOKENS_PER_S
from analysis.rates import BreakEven, Rate, SpeedUp
from experiments.records.study import PLAN

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
    """Recipes compared; only completed runs count. Opponents of the others are the baseline and the
    compiled one."""

    frames: Frames
    plan: dict  # the study's own study.yaml, empty if there is none
    steps: pd.DataFrame  # one row a step, see `analysis.load.steps`
    baseline: str  # the recipe that losses are compared to
    recipes: list[str]  # those with a completed run, in the order in which they are shown
    fp8: list[str]  # those of them that ran in FP8
    # Of each of `fp8` the share of the linear layers' FLOPs that was seen to run in FP8, in the run
    # that has least; 0 where that is unknown, emulated, or differs between its runs.
    proof: dict[str, float]
    # recipe -> (diverged seeds, finished seeds). Recipes that never diverged are absent. FP8 counts
    # seeds that finished in bf16 too.
    diverged: dict[str, tuple[int, int]]
    bf16_diverged: dict[str, tuple[int, int]]
    rates: dict[str, Rate]
    clock: dict[str, float]  # tokens/s by the clock, see `analysis.rates.by_clock`
    speed_ups: dict[tuple[str, str], SpeedUp]  # by recipe and opponent
    break_evens: dict[tuple[str, str], BreakEven]  # by recipe, none of the opponents, and opponent
    differences: dict[str, pd.DataFrame]  # of a recipe's smoothed loss to the baseline's
    verdicts: dict[str, Verdict]  # whether a recipe ends at the baseline's loss

    @property
    def opponent(self) -> str:
        """What an FP8 recipe has to beat: the compiled baseline where there is one."""
        return COMPILED if COMPILED in self.recipes else self.baseline

    @property
    def all_diverged(self) -> dict[str, tuple[int, int]]:
        return self.diverged | self.bf16_diverged

    @property
    def left(self) -> dict[str, dict[int, tuple[float, float]]]:
        """recipe -> its seeds that ended far above its others, see `Verdict.left`. Recipes without
        such seeds are absent."""
        left = {recipe: judged.left for recipe, judged in self.verdicts.items()}
        left[self.baseline] = {}
        for judged in self.verdicts.values():
            left[self.baseline] |= judged.baseline_left
        return {recipe: seeds for recipe, seeds in left.items() if seeds}

    @property
    def spoilt(self) -> set[str]:
        """FP8 recipes that diverged in a larger share of their seeds than bf16, or of which a seed
        left the others."""
        shares = {recipe: lost / n for recipe, (lost, n) in self.all_diverged.items()}
        usual = max(shares.get(recipe, 0) for recipe in (self.baseline, COMPILED))
        more = {recipe for recipe in self.diverged if shares[recipe] > usual}
        return more | (self.left.keys() & {*self.fp8})

    @property
    def worse(self) -> set[str]:
        """Recipes whose loss is proven to be higher than the baseline's."""
        return {recipe for recipe, judged in self.verdicts.items() if judged.worse}

    @property
    def margin(self) -> float | None:
        """The margin of equality in nats per token, None without a verdict."""
        return next((v.margin for v in self.verdicts.values() if v.seeds), None)

    @property
    def published(self) -> dict[str, float] | None:
        """Published tokens/s to mark in figures: where these runs are of the published model."""
        runs = self.frames.runs
        flavors = set(runs.loc[runs["source"] == OWN, "flavor"].dropna())
        published = {r: TOKENS_PER_S[r] for r in self.recipes if r in TOKENS_PER_S}
        return published if flavors == {PUBLISHED_FLAVOR} else None


def in_order(recipes: Iterable[str]) -> list[str]:
    """Each recipe once: those of `FIRST` first, the others as they come."""
    present = dict.fromkeys(recipes)
    return list(dict.fromkeys([*(recipe for recipe in FIRST if recipe in present), *present]))


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
    recipes = in_order(runs.loc[runs["status"] == "completed", "recipe"])
    folders = {Path(path).resolve().parents[1] for path in runs["path"]}
    plan = read_plan(folders.pop()) if len(folders) == 1 else {}
    baseline = _baseline(baseline, plan, recipes, frames.problems)
    named_fp8 = (runs["source"] != OWN) & runs["recipe"].str.contains("fp8")
    all_fp8 = set(runs.loc[runs["float8"].notna() | named_fp8, "recipe"])
    fp8 = [recipe for recipe in recipes if recipe in all_fp8]
    in_fp8 = ended["recipe"].isin(all_fp8)
    bf16_seeds = ended.loc[~in_fp8, "seed"]
    opponents = [r for r in dict.fromkeys((baseline, COMPILED)) if r in recipes]
    others = [r for r in recipes if r != baseline] if baseline in recipes else []
    rates = {recipe: speeds.rate_of(runs, by_step, recipe) for recipe in recipes}
    pairs = [(a, b) for a, b in product(recipes, opponents) if a != b]
    return Comparison(
        frames=frames,
        plan=plan,
        steps=by_step,
        baseline=baseline,
        recipes=recipes,
        fp8=fp8,
        proof={r: _proof(speeds.completed(runs, runs, r)) for r in fp8},
        diverged=_diverged(ended[in_fp8 & ended["seed"].isin(bf16_seeds)]),
        bf16_diverged=_diverged(ended[~in_fp8]),
        rates=rates,
        clock={r: speeds.by_clock(runs, windows, r) for r in recipes},
        speed_ups={(a, b): speeds.speed_up(rates[a], rates[b]) for a, b in pairs},
        break_evens={
            (a, b): speeds.break_even(runs, windows, a, b, rates)
            for a, b in pairs
            if a not in opponents
        },
        differences={r: loss_difference(runs, by_step, r, baseline) for r in others},
        verdicts={r: verdict(runs, by_step, r, baseline) for r in others},
    )


def read_plan(folder: Path) -> dict:
    """Read a study's study.yaml; empty where there is none that can be read."""
    try:
        return yaml.safe_load((folder / PLAN).read_text()) or {}
    except (OSError, yaml.YAMLError):
        return {}


def _baseline(asked: str | None, plan: dict, recipes: list[str], problems: list[str]) -> str:
    """The baseline that was asked for, else the study's, else `baseline` or its compiled twin,
    whichever there is."""
    if asked not in (None, plan.get("baseline"), *recipes):
        raise LoadError(
            f"no completed run of --baseline {asked}; there are {', '.join(recipes) or 'none'}"
        )
    default = COMPILED if COMPILED in recipes and BASELINE not in recipes else BASELINE
    baseline = asked or plan.get("baseline", default)
    if baseline not in recipes:
        problems.append(f"no completed run of {baseline}: losses are not compared")
    return baseline


def _proof(rows: pd.DataFrame) -> float:
    """`Comparison.proof` of a recipe's completed runs."""
    shares = rows["fp8_share"].fillna(0.0).mask(rows["fp8_emulated"].eq(True), 0.0)
    return float(shares.min()) if shares.max() - shares.min() < SHARES_DIFFER else 0.0


def _diverged(ended: pd.DataFrame) -> dict[str, tuple[int, int]]:
    """`Comparison.diverged` of runs that are completed or diverged."""
    lost = ended["status"].eq("diverged").groupby(ended["recipe"]).agg(["sum", "count"])
    counts = lost[lost["sum"] > 0].astype(int)
    return dict(zip(counts.index, counts.itertuples(index=False, name=None), strict=True))


def _check_one_study(ended: pd.DataFrame, windows: pd.DataFrame) -> None:
    """Raise `LoadError` where runs cannot be compared: see `SHARED`, other learning rates, or a
    seed twice."""
    values = ended[SHARED].copy()
    values["overlays"] = values["overlays"].map(_joined, na_action="ignore")
    batch = values["tokens_per_step"]  # from logged times: whole numbers but for their rounding
    values["tokens_per_step"] = batch.mask(batch <= 1.01 * batch.min(), batch.min()).round()
    for column in SHARED:
        kinds = values[column].dropna().unique()
        if len(kinds) > 1:
            raise _differ(f"{column} ({', '.join(map(str, kinds))})")
    rates = windows[windows["run"].isin(ended["run"])].groupby("step")["lr"].agg(["min", "max"])
    other = rates[rates["max"] > 1.01 * rates["min"]]
    if len(other):
        low, high = other.iloc[0]
        raise _differ(f"their learning rate (at step {other.index[0]}: {low:g}, {high:g})")
    twice = ended[ended.duplicated(["recipe", "seed"], keep=False)].sort_values(["recipe", "seed"])
    if len(twice):
        first, second = twice["path"].iloc[:2]
        raise LoadError(
            f"{first} and {second} have the same recipe and seed: name the runs of one study"
        )


def _joined(overlays: list[str]) -> str:
    return " + ".join(overlays) or "none"


def _differ(what: str) -> LoadError:
    return LoadError(
        f"these runs differ in {what} and cannot be compared: name the runs of one study"
    )


def cost_by_steps(comparison: Comparison, lengths: list[int]) -> pd.DataFrame:
    """Wall hours of a run of each length (rows) by recipe (columns), warm-up included: the mean of
    its runs.

    Within the runs as measured; beyond them at the mean seconds of a steady step, NaN where there
    is none.
    """
    runs, windows, rates = comparison.frames.runs, comparison.frames.windows, comparison.rates
    steps = np.array(lengths)
    hours = {
        r: speeds.spent(runs, windows, r, rates[r], steps).mean(axis=0) / 3600
        for r in comparison.recipes
    }
    return pd.DataFrame(hours, index=pd.Index(lengths, name="steps"))
