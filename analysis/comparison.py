"""What some runs say about one another: what the report, the notebooks and the README show, computed once."""

from dataclasses import dataclass
from math import isnan

import numpy as np
import pandas as pd

from analysis import rates as speeds
from analysis.load import Frames, LoadError, load, steps
from analysis.losses import SAME, Verdict, loss_difference, verdict
from analysis.other_logs.published import TOKENS_PER_S
from analysis.plots.style import in_order
from analysis.rates import BreakEven, Rate, SpeedUp

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
        diverged: FP8 recipe to (in how many seeds it diverged, in how many it ended either way), of the seeds that a
            bf16 recipe completed; recipes that never did are not in it.
        rates: steady tokens/s by recipe.
        speed_ups: (recipe, opponent) to the ratio of their rates; opponents are the baseline and the compiled one.
        break_evens: of each FP8 recipe against each opponent.
        differences: recipe to the smoothed difference of its loss to the baseline's.
        verdicts: recipe to whether it ends at the baseline's loss.
    """

    frames: Frames
    steps: pd.DataFrame
    baseline: str
    recipes: list[str]
    fp8: list[str]
    diverged: dict[str, tuple[int, int]]
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
    """Load `paths` (see `analysis.load.load`) and compare what they hold.

    Raises `LoadError`, also if the runs are not of one study, or there is no recipe `baseline`.
    """
    frames = _without_short_runs(load(paths))
    runs, windows, by_step = frames.runs, frames.windows, steps(frames.windows)
    done = runs[runs["status"] == "completed"]
    _check_one_study(runs[runs["status"].isin(["completed", "diverged"])], windows)
    recipes = in_order(done["recipe"])
    if baseline not in recipes:
        if baseline != BASELINE:
            raise LoadError(f"no completed run of --baseline {baseline}; there are {', '.join(recipes) or 'none'}")
        frames.problems.append(f"no completed run of {baseline}: losses are not compared")
    ours = runs["source"] == "run directory"  # other programs' logs do not say what they ran in
    in_fp8 = runs[runs["float8"].notna() | (~ours & runs["recipe"].str.contains("fp8"))]
    fp8 = [r for r in recipes if r in set(in_fp8["recipe"])]
    opponents = [r for r in dict.fromkeys((baseline, COMPILED)) if r in recipes]
    rates = {r: speeds.rate_of(runs, by_step, r) for r in recipes}
    speed_ups = {(a, b): speeds.speed_up(rates[a], rates[b]) for a in recipes for b in opponents if a != b}
    others = [r for r in recipes if r != baseline] if baseline in recipes else []
    return Comparison(
        frames=frames,
        steps=by_step,
        baseline=baseline,
        recipes=recipes,
        fp8=fp8,
        diverged=_diverged(in_fp8, set(done.loc[~done["recipe"].isin(fp8), "seed"])),
        rates=rates,
        speed_ups=speed_ups,
        break_evens=[
            speeds.break_even(runs, windows, by_step, a, b, speed_ups[a, b]) for a in fp8 for b in opponents if a != b
        ],
        differences={r: loss_difference(runs, by_step, r, baseline) for r in others},
        verdicts={r: verdict(runs, by_step, r, baseline) for r in others},
    )


def _without_short_runs(frames: Frames) -> Frames:
    """Runs that call themselves completed and whose log ends early, or on a loss that is not finite, are no more so.

    They get the status `short`, and a problem that says so: no figure may rest on them.
    """
    runs = frames.runs.copy()
    whole = runs["steps_asked"].isna() | (runs["steps"] == runs["steps_asked"])
    short = (runs["status"] == "completed") & ~(whole & runs["final_loss"].notna())
    runs.loc[short, "status"] = "short"
    found = []
    for run in runs[short].itertuples():
        where = "on a loss that is not finite" if whole[run.Index] else f"at step {run.steps:.0f}, before the last one"
        found.append(f"{run.path}: completed, but its log ends {where}, so it is not averaged with others")
    return Frames(runs, frames.windows, frames.problems + found)


def _diverged(in_fp8: pd.DataFrame, seeds: set) -> dict[str, tuple[int, int]]:
    """`Comparison.diverged` of the runs in FP8, given the seeds that bf16 completed."""
    ended = in_fp8[in_fp8["seed"].isin(seeds) & in_fp8["status"].isin(["completed", "diverged"])]
    lost = {recipe: (of_one["status"] == "diverged", len(of_one)) for recipe, of_one in ended.groupby("recipe")}
    return {recipe: (int(which.sum()), n) for recipe, (which, n) in lost.items() if which.any()}


def _check_one_study(done: pd.DataFrame, windows: pd.DataFrame) -> None:
    """Raise `LoadError` where runs cannot be compared: other machines, sizes, overlays or rates, or a seed twice."""
    batch = done["tokens_per_step"]  # from logged times: whole numbers but for their rounding
    told = done.assign(
        overlays=done["overlays"].map(lambda names: " + ".join(names) or "none", na_action="ignore"),
        tokens_per_step=batch.mask(batch <= 1.01 * batch.min(), batch.min()).round(),
    )
    for column in ("device", "flavor", "overlays", "world_size", "tokens_per_step", "flops_per_token", "steps_asked"):
        if len(kinds := told[column].dropna().unique()) > 1:
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
        raise LoadError(f"{first} and {second} have the same recipe and seed: name the runs of one study")


def cost_by_steps(comparison: Comparison, lengths: list[int]) -> pd.DataFrame:
    """Wall hours of a run of each length (rows) by recipe (columns), warm-up included: the mean of `stats.paying` runs.

    Within the runs as measured; beyond them at the mean seconds of a steady step, NaN where there is none.
    """
    runs, windows = comparison.frames.runs, comparison.frames.windows
    paid, hours = speeds.paying(runs), {}
    for recipe in comparison.recipes:
        seconds = np.concatenate([*speeds.steady_seconds(runs, comparison.steps, recipe), np.empty(0)])
        per_step = seconds.mean() if len(seconds) else np.nan
        curves = [run.sort_values("step") for _, run in speeds.completed(paid, windows, recipe).groupby("run")]
        hours[recipe] = [np.mean([_seconds_at(run, length, per_step) for run in curves]) / 3600 for length in lengths]
    return pd.DataFrame(hours, index=pd.Index(lengths, name="steps"))


def _seconds_at(run: pd.DataFrame, step: int, per_step: float) -> float:
    """Wall seconds of a run, its windows sorted, by the end of `step`."""
    last, spent = run["step"].iloc[-1], run["elapsed_s"].iloc[-1]
    return np.interp(step, run["step"], run["elapsed_s"]) if step <= last else spent + (step - last) * per_step


def answer(comparison: Comparison) -> list[str]:
    """Should this Llama be trained in FP8? The answer first, then what it rests on, a sentence each."""
    in_fp8 = in_order(pd.Series([*comparison.fp8, *comparison.diverged], dtype=object))
    others = [r for r in comparison.verdicts if r not in in_fp8]
    facts = [sentence for recipe in in_fp8 for sentence in _facts(comparison, recipe)]
    facts += [comparison.verdicts[recipe].sentence() for recipe in others]
    if not in_fp8 or comparison.opponent not in comparison.recipes or comparison.baseline in in_fp8:
        return ["No answer: it needs completed runs in FP8, and in bf16 those of the baseline.", *facts]
    runs = comparison.frames.runs
    if (runs.loc[runs["status"] == "completed", "device_type"] == "cpu").any():
        first = (
            "No answer about speed: these runs are from a CPU, which has no FP8 units. "
            "They show the method, and what FP8 does to the loss of a small model."
        )
        return [first, *facts]
    return [_headline(comparison), *facts]


def _headline(comparison: Comparison) -> str:
    """The answer where FP8 has units to run on: about the FP8 recipe that speaks most for it.

    That is the fastest one, but before it comes what is not proven to end at a higher loss, of those what is surely
    faster than bf16, and of those again what the loss is known of.
    """
    opponent = comparison.opponent
    worse, told = ({r for r, v in comparison.verdicts.items() if getattr(v, word)} for word in ("worse", "told"))
    whole = [recipe for recipe in comparison.fp8 if recipe not in comparison.diverged]
    if not whole:
        return "Not as it is: " + "; ".join(_divergence(comparison, recipe) for recipe in comparison.diverged) + "."
    gains = {r: g for r in whole if not isnan((g := comparison.speed_ups[r, opponent]).ratio)}
    if not gains:
        return "No answer: the runs are too short for a steady rate; one needs more than 11 steps."

    def rank(recipe: str) -> tuple:
        faster = gains[recipe].low > 1
        return recipe not in worse, faster, faster and recipe in told, gains[recipe].ratio

    best = max(gains, key=rank)
    gain, runs = gains[best], comparison.frames.runs
    compiled = {COMPILED, *runs.loc[runs["compiled"].eq(True), "recipe"]}
    said = f"{best} has {gain.ratio:.2f} times the tokens/s of {opponent}{' (single runs)' if gain.runs == 1 else ''}"
    if best in compiled and opponent not in compiled:
        return f"No answer on FP8 alone: {said}, but it is compiled too; it needs a completed run of {COMPILED}."
    if gain.unclear:
        return f"Cannot tell: {said}, with a 95 % interval of {gain.low:.2f} to {gain.high:.2f}."
    if gain.ratio < 1:
        others = set(comparison.fp8) - {best}
        among = (
            " of those without divergence or a higher loss"
            if others & (worse | comparison.diverged.keys()) and best not in worse
            else ""
        )
        return f"No: {said}, and is the fastest in FP8{among}."
    said += _pays_back(comparison.break_even(best, opponent))
    if best in worse:
        return f"Not as it is: {said}, but it ends at a higher loss than {comparison.baseline}."
    if best in told:
        same = comparison.verdicts[best].outcome == SAME
        return f"Yes: {said}. It ends at {'the same' if same else 'a lower'} loss."
    return f"For speed, yes: {said}. Whether the loss is the same, these runs cannot tell."


def about_loss(comparison: Comparison) -> list[str]:
    """Of each recipe that has one, the verdict on its loss, and where in FP8 it diverged."""
    diverged = [f"{_divergence(comparison, recipe)}." for recipe in comparison.diverged]
    return diverged + [judged.sentence() for judged in comparison.verdicts.values()]


def _divergence(comparison: Comparison, recipe: str) -> str:
    lost, ended = comparison.diverged[recipe]
    return f"{recipe} diverged in {lost} of {ended} seeds, where bf16 did not"


def _pays_back(paid: BreakEven | None) -> str:
    """When the warm-up is earned back, as the end of a sentence."""
    words = {
        "ahead from the start": ", and is ahead from the start, warm-up included",
        "reached": ", and is ahead from step {step:,}, warm-up included",
        "extrapolated": ", and would be ahead from about step {step:,}, warm-up included, beyond these runs",
    }
    if paid is None or paid.outcome not in words:
        return ""
    return words[paid.outcome].format(step=paid.step) + (" (with a warm compile cache)" if paid.warm else "")


def _facts(comparison: Comparison, recipe: str) -> list[str]:
    found = [f"{_divergence(comparison, recipe)}."] if recipe in comparison.diverged else []
    gain = comparison.speed_ups.get((recipe, comparison.opponent))
    if gain and not isnan(gain.ratio):
        found.append(f"{recipe} has {gain.ratio:.2f} times the tokens/s of {comparison.opponent} ({gain.interval()}).")
    found += [b.sentence() for b in comparison.break_evens if b.a == recipe]
    if judged := comparison.verdicts.get(recipe):
        found.append(judged.sentence())
    return found
