"""What some runs say about one another: what the report, the notebooks and the README show, computed once."""

from dataclasses import dataclass
from math import isnan

import numpy as np
import pandas as pd

from analysis import stats
from analysis.equivalence import DIFFERENT, SAME, Verdict, loss_difference, verdict
from analysis.load import Frames, LoadError, load, steps
from analysis.plots.style import in_order
from analysis.published_log import TOKENS_PER_S
from analysis.record import FINAL_WINDOWS
from analysis.stats import BreakEven, Rate, SpeedUp

BASELINE = "baseline"
PUBLISHED_FLAVOR = "8B-published"
COMPILED = "baseline_compiled"  # the fair opponent of compiled FP8


@dataclass(frozen=True)
class Comparison:
    """Recipes compared; only completed runs count.

    Args:
        frames: what was loaded.
        steps: one row a step, see `analysis.load.steps`.
        baseline: the recipe that losses are compared to.
        recipes: those with a completed run, in the order in which they are shown.
        fp8: those of them that ran in FP8.
        rates: steady tokens/s by recipe.
        speed_ups: (recipe, opponent) to the ratio of their rates; opponents are the baseline and the compiled one.
        break_evens: of each FP8 recipe against each opponent; where all have a run that found no compiled kernels, of
            such runs alone, since a warm cache hides the cost that FP8 has to earn back.
        differences: recipe to the smoothed difference of its loss to the baseline's.
        verdicts: recipe to whether it ends at the baseline's loss.
    """

    frames: Frames
    steps: pd.DataFrame
    baseline: str
    recipes: list[str]
    fp8: list[str]
    rates: dict[str, Rate]
    speed_ups: dict[tuple[str, str], SpeedUp]
    break_evens: list[BreakEven]
    differences: dict[str, pd.DataFrame]
    verdicts: dict[str, Verdict]

    @property
    def opponent(self) -> str:
        """What an FP8 recipe has to beat: the compiled baseline where there is one."""
        return COMPILED if COMPILED in self.recipes else self.baseline

    @property
    def published(self) -> dict[str, float] | None:
        """Published tokens/s to mark in figures: where these runs are of the published model."""
        runs = self.frames.runs
        ours = set(runs.loc[runs["source"] == "run directory", "flavor"].dropna())
        return {r: TOKENS_PER_S[r] for r in self.recipes if r in TOKENS_PER_S} if ours == {PUBLISHED_FLAVOR} else None

    def break_even(self, recipe: str, opponent: str) -> BreakEven | None:
        """The break-even of a pair, None if it was not computed."""
        return next((b for b in self.break_evens if (b.a, b.b) == (recipe, opponent)), None)


def compare(paths, baseline: str = BASELINE) -> Comparison:
    """Load `paths` (see `analysis.load.load`) and compare what they hold. Raises `LoadError`."""
    return compare_frames(load(paths), baseline)


def compare_frames(frames: Frames, baseline: str = BASELINE) -> Comparison:
    """Compare loaded runs. Raises `LoadError` if they are not of one study, or there is no recipe `baseline`."""
    frames = _without_short_runs(frames)
    runs, windows, by_step = frames.runs, frames.windows, steps(frames.windows)
    done = runs[runs["status"] == "completed"]
    _check_one_study(done)
    recipes = in_order(done["recipe"])
    if baseline not in recipes:
        if baseline != BASELINE:
            raise LoadError(f"no completed run of --baseline {baseline}; there are {', '.join(recipes) or 'none'}")
        frames.problems.append(f"no completed run of {baseline}: losses are not compared")
    ours = done["source"] == "run directory"  # other programs' logs do not say what they ran in
    in_fp8 = done["float8"].notna() | (~ours & done["recipe"].str.contains("fp8"))
    fp8 = [r for r in recipes if in_fp8[done["recipe"] == r].any()]
    opponents = [r for r in dict.fromkeys((baseline, COMPILED)) if r in recipes]
    rates = {r: stats.rate_of(runs, by_step, r) for r in recipes}
    cold = done[done["compile_cache"] != "warm"]
    paying = cold if set(recipes) <= set(cold["recipe"]) else done
    others = [r for r in recipes if r != baseline] if baseline in recipes else []
    return Comparison(
        frames=frames,
        steps=by_step,
        baseline=baseline,
        recipes=recipes,
        fp8=fp8,
        rates=rates,
        speed_ups={(a, b): stats.speed_up(rates[a], rates[b]) for a in recipes for b in opponents if a != b},
        break_evens=[stats.break_even(paying, windows, by_step, a, b) for a in fp8 for b in opponents],
        differences={r: loss_difference(runs, windows, r, baseline) for r in others},
        verdicts={r: verdict(runs, windows, r, baseline) for r in others},
    )


def _without_short_runs(frames: Frames) -> Frames:
    """Runs that call themselves completed and whose log ends early, or on a loss that is not finite, are no more so.

    They get the status `short`, and a problem that says so: no figure may rest on them.
    """
    runs = frames.runs.copy()
    last = frames.windows.groupby("run")["loss"].apply(lambda losses: losses.tail(FINAL_WINDOWS).notna().all())
    whole = runs["steps_asked"].isna() | (runs["steps"] == runs["steps_asked"])
    short = (runs["status"] == "completed") & ~(whole & runs["run"].map(last).eq(True))
    runs.loc[short, "status"] = "short"
    found = [
        f"{run.path}: completed, but its log ends at step {run.steps:.0f} of {run.steps_asked:.0f} or on a loss that "
        "is not finite, so it is not averaged with others"
        for run in runs[short].itertuples()
    ]
    return Frames(runs, frames.windows, frames.problems + found)


def _check_one_study(done: pd.DataFrame) -> None:
    """Raise `LoadError` where completed runs cannot be compared: other machines or sizes, or a seed twice."""
    for column in ("device", "flavor", "world_size", "flops_per_token", "steps_asked"):
        if len(kinds := done[column].dropna().unique()) > 1:
            raise LoadError(
                f"these runs differ in {column} ({', '.join(map(str, kinds))}) and cannot be compared: name the runs "
                "of one study"
            )
    twice = done[done.duplicated(["recipe", "seed"], keep=False)].sort_values(["recipe", "seed"])
    if len(twice):
        first, second = twice["path"].iloc[:2]
        raise LoadError(f"{first} and {second} have the same recipe and seed: name the runs of one study")


def cost_by_steps(comparison: Comparison, lengths: list[int]) -> pd.DataFrame:
    """Wall hours of a run of each length (rows) by recipe (columns), warm-up included, mean over a recipe's runs.

    Within the runs as measured; beyond them at the mean seconds of a steady step, NaN where there is none.
    """
    runs, windows = comparison.frames.runs, comparison.frames.windows
    hours = {}
    for recipe in comparison.recipes:
        seconds = np.concatenate([*stats.steady_seconds(runs, comparison.steps, recipe), np.empty(0)])
        per_step = seconds.mean() if len(seconds) else np.nan
        curves = [run.sort_values("step") for _, run in stats.completed(runs, windows, recipe).groupby("run")]
        hours[recipe] = [np.mean([_seconds_at(run, length, per_step) for run in curves]) / 3600 for length in lengths]
    return pd.DataFrame(hours, index=pd.Index(lengths, name="steps"))


def _seconds_at(run: pd.DataFrame, step: int, per_step: float) -> float:
    """Wall seconds of a run, its windows sorted, by the end of `step`."""
    last, spent = run["step"].iloc[-1], run["elapsed_s"].iloc[-1]
    return np.interp(step, run["step"], run["elapsed_s"]) if step <= last else spent + (step - last) * per_step


def answer(comparison: Comparison) -> list[str]:
    """Should this Llama be trained in FP8? The answer first, then what it rests on, a sentence each."""
    others = [r for r in comparison.verdicts if r not in (*comparison.fp8, COMPILED)]
    losses = [comparison.verdicts[recipe].sentence() for recipe in others]
    if not comparison.fp8 or comparison.opponent not in comparison.recipes:
        return ["No answer: it needs a completed run in FP8 and one of a baseline.", *losses]
    runs = comparison.frames.runs
    facts = [sentence for recipe in comparison.fp8 for sentence in _facts(comparison, recipe)] + losses
    if (runs.loc[runs["status"] == "completed", "device_type"] == "cpu").any():
        first = (
            "No answer about speed: these runs are from a CPU, which has no FP8 units, so FP8 is slower here. "
            "They show the method, and what FP8 does to the loss of a small model."
        )
        return [first, *facts]
    return [_headline(comparison), *facts]


def _headline(comparison: Comparison) -> str:
    """The answer where FP8 has units to run on: about the fastest FP8 recipe."""
    opponent = comparison.opponent
    gains = {r: g for r in comparison.fp8 if not isnan((g := comparison.speed_ups[r, opponent]).ratio)}
    if not gains:
        return "No answer: the runs are too short for a steady rate; one needs more than 11 steps."
    best = max(gains, key=lambda recipe: gains[recipe].ratio)
    gain, judged = gains[best], comparison.verdicts.get(best)
    said = f"{best} has {gain.ratio:.2f} times the tokens/s of {opponent}"
    if gain.high <= 1:
        return f"No: {said}, and is the fastest in FP8."
    if gain.low <= 1:
        return f"Cannot tell: {said}, with a 95 % interval of {gain.low:.2f} to {gain.high:.2f}."
    said += _pays_back(comparison.break_even(best, opponent))
    if judged and judged.outcome == SAME:
        return f"Yes: {said}. It ends at the same loss."
    if judged and judged.outcome == DIFFERENT:
        return f"Not as it is: {said}, but it ends at another loss than {comparison.baseline}."
    return f"For speed, yes: {said}. Whether the loss is the same, these runs cannot tell."


def _pays_back(paid: BreakEven | None) -> str:
    """When the warm-up is earned back, as the end of a sentence."""
    words = {
        "ahead from the start": ", and is ahead from the start, warm-up included",
        "reached": ", and is ahead from step {step:,}, warm-up included",
        "extrapolated": ", and would be ahead from about step {step:,}, warm-up included, beyond these runs",
    }
    return words.get(paid.outcome, "").format(step=paid.step) if paid else ""


def _facts(comparison: Comparison, recipe: str) -> list[str]:
    found = []
    gain = comparison.speed_ups.get((recipe, comparison.opponent))
    if gain and not isnan(gain.ratio):
        found.append(
            f"{recipe} has {gain.ratio:.2f} times the tokens/s of {comparison.opponent} "
            f"(95 % interval {gain.low:.2f} to {gain.high:.2f})."
        )
    found += [b.sentence() for b in comparison.break_evens if b.a == recipe]
    if judged := comparison.verdicts.get(recipe):
        found.append(judged.sentence())
    return found
