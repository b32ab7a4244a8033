"""What some runs say about one another: what the report, the notebooks and the README show,
computed once."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import yaml

from analysis import rates as speeds
from analysis.load import Frames, LoadError, load, steps
from analysis.losses import Verdict, loss_difference, verdict
from analysis.other_logs.published import TOKENS_PER_S
from analysis.rates import BreakEven, Rate, SpeedUp

BASELINE = "baseline"
COMPILED = "baseline_compiled"  # the fair opponent of compiled FP8
PUBLISHED_FLAVOR = "8B-published"
OWN = "run directory"  # the source of this project's own runs
ORDER = (BASELINE, COMPILED, "rowwise_fp8_compiled", "tensorwise_fp8_compiled", "rowwise_gw_hp_fp8_compiled",
         "bf16_fp8_bf16", "bf16_then_fp8", "fp8_then_bf16",
         "puzzle_fp8", "puzzle_fp8_optimizer_last", "puzzle_fp8_optimizer_first", "puzzle_bf16_frozen",
         "float32_parameters", "float32_optimizer", "fp8_optimizer", "fp8_optimizer_bf16_master",
         "fp8_optimizer_fp8_master", "fp8_optimizer_fp8_second_moment")  # fmt: skip
# Runs that differ in one of these are of different studies, or their speeds cannot be compared.
SHARED = ("device", "torch", "torchao", "flavor", "overlays", "dataset", "data", "seq_len", "world_size",
          "tokens_per_step", "flops_per_token", "steps_asked")  # fmt: skip


SHARES_DIFFER = 0.01  # runs of one recipe convert the same layers, so their shares of FP8 differ by rounding only


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
    # Recipe to (in how many seeds it diverged, in how many it ended either way), in FP8 of the
    # seeds that ended in bf16 too; without recipes that never did.
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

    def completed(self, recipe: str) -> int:
        """How many of its runs are."""
        return len(speeds.completed(self.frames.runs, self.frames.runs, recipe))

    @property
    def left(self) -> dict[str, dict[int, tuple[float, float]]]:
        """By recipe its seeds that ended far above its others, see `Verdict.left`; without recipes
        that have none."""
        left = {recipe: judged.left for recipe, judged in self.verdicts.items()}
        left[self.baseline] = {
            k: v for judged in self.verdicts.values() for k, v in judged.baseline_left.items()
        }
        return {recipe: seeds for recipe, seeds in left.items() if seeds}

    @property
    def spoilt(self) -> set[str]:
        """FP8 recipes that diverged in a larger share of their seeds than bf16, or of which a seed
        left the others."""
        bf16 = [
            lost / n
            for r, (lost, n) in self.bf16_diverged.items()
            if r in (self.baseline, COMPILED)
        ]
        more = {r for r, (lost, n) in self.diverged.items() if lost / n > max(bf16, default=0)}
        return more | (self.left.keys() & {*self.fp8})

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
    """Each recipe once: the known ones first, in the order in which they are always listed."""
    present = list(dict.fromkeys(recipes))
    return [r for r in ORDER if r in present] + [r for r in present if r not in ORDER]


def compare(paths, baseline: str | None = None) -> Comparison:
    """Load `paths` and compare what they hold; without a `baseline` with the study's.

    Raises:
        LoadError: as `analysis.load.load`, or if the runs are not of one study, or there is no
        recipe `baseline`.
    """
    frames = load(paths)
    runs, windows, by_step = frames.runs, frames.windows, steps(frames.windows)
    done = runs[runs["status"] == "completed"]
    ended = runs[runs["status"].isin(["completed", "diverged"])]
    _check_one_study(ended, windows)
    recipes, plan = in_order(done["recipe"]), _plan(runs)
    baseline = _baseline(baseline, plan, recipes, frames.problems)
    fp8_runs = runs[
        runs["float8"].notna() | ((runs["source"] != OWN) & runs["recipe"].str.contains("fp8"))
    ]
    fp8, in_fp8 = (
        [r for r in recipes if r in set(fp8_runs["recipe"])],
        ended["recipe"].isin(fp8_runs["recipe"]),
    )
    opponents = [r for r in dict.fromkeys((baseline, COMPILED)) if r in recipes]
    rates = {r: speeds.rate_of(runs, by_step, r) for r in recipes}
    pairs = [(a, b) for a in recipes for b in opponents if a != b]
    others = [r for r in recipes if r != baseline] if baseline in recipes else []
    return Comparison(
        frames=frames,
        plan=plan,
        steps=by_step,
        baseline=baseline,
        recipes=recipes,
        fp8=fp8,
        proof={r: _proof(speeds.completed(runs, runs, r)) for r in fp8},
        diverged=_diverged(ended[in_fp8 & ended["seed"].isin(ended.loc[~in_fp8, "seed"])]),
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


def _plan(runs: pd.DataFrame) -> dict:
    """The study.yaml that all these runs share: two folders above each run. Empty if there is none
    that can be read."""
    folders = {Path(path).resolve().parents[1] for path in runs["path"]}
    try:
        (folder,) = folders
        plan = yaml.safe_load((folder / "study.yaml").read_text())
    except (OSError, ValueError, IndexError, yaml.YAMLError):
        return {}
    return plan if isinstance(plan, dict) else {}


def _baseline(asked: str | None, plan: dict, recipes: list[str], problems: list[str]) -> str:
    """The baseline that was asked for, else the study's, else `baseline` or its compiled twin,
    whichever there is."""
    if asked not in (None, plan.get("baseline"), *recipes):
        raise LoadError(
            f"no completed run of --baseline {asked}; there are {', '.join(recipes) or 'none'}"
        )
    default = next((recipe for recipe in (BASELINE, COMPILED) if recipe in recipes), BASELINE)
    baseline = asked or plan.get("baseline", default)
    if baseline not in recipes:
        problems.append(f"no completed run of {baseline}: losses are not compared")
    return baseline


def _proof(rows: pd.DataFrame) -> float:
    """`Comparison.proof` of a recipe's completed runs."""
    emulated = rows["fp8_emulated"].map(lambda value: value is True)
    shares = rows["fp8_share"].astype(float).fillna(0.0).mask(emulated, 0.0)
    return float(shares.min()) if shares.max() - shares.min() < SHARES_DIFFER else 0.0


def _diverged(ended: pd.DataFrame) -> dict[str, tuple[int, int]]:
    """`Comparison.diverged` of runs that are completed or diverged."""
    lost = {recipe: rows["status"] == "diverged" for recipe, rows in ended.groupby("recipe")}
    return {recipe: (int(which.sum()), len(which)) for recipe, which in lost.items() if which.any()}


def _check_one_study(done: pd.DataFrame, windows: pd.DataFrame) -> None:
    """Raise `LoadError` where runs cannot be compared: see `SHARED`, other learning rates, or a
    seed twice."""
    batch = done["tokens_per_step"]  # from logged times: whole numbers but for their rounding
    values = done.assign(
        overlays=done["overlays"].map(
            lambda names: " + ".join(names) or "none", na_action="ignore"
        ),
        tokens_per_step=batch.mask(batch <= 1.01 * batch.min(), batch.min()).round(),
    )
    for column in (column for column in SHARED if column in values):
        if len(kinds := values[column].dropna().unique()) > 1:
            raise LoadError(
                f"these runs differ in {column} ({', '.join(map(str, kinds))}) and cannot be compared: name the runs "
                "of one study"
            )
    rates = windows[windows["run"].isin(done["run"])].groupby("step")["lr"].agg(["min", "max"])
    if (other := rates[rates["max"] > 1.01 * rates["min"]]).size:
        low, high = other.iloc[0]
        raise LoadError(
            f"these runs differ in their learning rate (at step {other.index[0]}: {low:g}, {high:g}) and cannot be "
            "compared: name the runs of one study"
        )
    twice = done[done.duplicated(["recipe", "seed"], keep=False)].sort_values(["recipe", "seed"])
    if len(twice):
        first, second = twice["path"].iloc[:2]
        raise LoadError(
            f"{first} and {second} have the same recipe and seed: name the runs of one study"
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
