"""How long does it take? Wall time by step, with and without the warm-up."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.plots.series import Group, LineEnd, curves, draw_curves, label_ends
from analysis.plots.style import (
    HALF_PAGE,
    NoData,
    in_order,
    look,
    name,
    new_figure,
    note,
    optional,
    panel,
    require,
    styled,
    thousands,
)
from analysis.rates import BreakEven


@styled
def wall_after_warm_up(runs: pd.DataFrame, windows: pd.DataFrame) -> Figure:
    """Seconds since the end of step 1 by step: the published view, in which compilation costs nothing."""
    figure, ((axes,),) = new_figure()
    label_ends(axes, draw_wall_after_warm_up(axes, runs, windows))
    return figure


@panel
def draw_wall_after_warm_up(axes: Axes, runs: pd.DataFrame, windows: pd.DataFrame) -> list[LineEnd]:
    wall = _wall(windows)
    wall["seconds"] = wall["elapsed_s"] - wall["first_step_end_s"]
    found = curves(runs, wall, "seconds")
    ends = [end for group, frame in found for end in draw_curves(axes, group, frame, marker="")]
    _set_axes(axes, "wall time since the end of step 1 (s)")
    note(axes, "warm-up left out: see wall time with it")
    return ends


@styled
def wall_with_warm_up(runs: pd.DataFrame, windows: pd.DataFrame, break_even: Sequence[BreakEven]) -> Figure:
    """Seconds since process start by step, and where a recipe's total drops below another's.

    Strong: runs with a cold compile cache, or without compilation. Thin: runs that found compiled kernels.

    Args:
        break_even: see `analysis.rates.break_even`; marked where it is within the lines, and told below.
    """
    figure, ((axes,),) = new_figure((HALF_PAGE[0], HALF_PAGE[1] + 0.15 * len(break_even)))  # room for the sentences
    label_ends(axes, draw_wall_with_warm_up(axes, runs, windows, break_even))
    return figure


@panel
def draw_wall_with_warm_up(
    axes: Axes, runs: pd.DataFrame, windows: pd.DataFrame, break_even: Sequence[BreakEven]
) -> list[LineEnd]:
    require(runs, "run", "run")
    warm = optional(runs, "compile_cache") == "warm"
    wall = _wall(windows)
    strong = _curves(runs[~warm], wall)
    thin = _curves(runs[warm], wall)
    if not strong + thin:
        raise NoData("no run has a log window with its elapsed_s")
    labelled = {(group.recipe, group.status) for group, _ in strong}
    ends = [end for group, frame in strong for end in draw_curves(axes, group, frame, marker="")]
    for group, frame in thin:
        more = draw_curves(axes, group, frame, marker="", linewidth=0.8)
        ends += more if (group.recipe, group.status) not in labelled else []
    _set_axes(axes, "wall time since process start (s)")
    lines = {group.recipe: frame.mean(axis=1) for group, frame in thin + strong if group.completed}
    told = _mark_break_even(axes, lines, break_even)
    if thin and strong:
        told.append("thin: warm compile cache")
    if told:
        note(axes, *told)
    return ends


def _curves(runs: pd.DataFrame, wall: pd.DataFrame) -> list[tuple[Group, pd.DataFrame]]:
    return curves(runs, wall, "elapsed_s") if wall["run"].isin(runs["run"]).any() else []


def _wall(windows: pd.DataFrame) -> pd.DataFrame:
    """Columns run, step, elapsed_s, first_step_end_s, with a row for step 1 where the first window ends later."""
    require(windows, "log window", "run", "step", "elapsed_s", "step_s")
    first = windows[windows["step_s"].notna()].sort_values("step").drop_duplicates("run").set_index("run")
    ends = {run: row["elapsed_s"] - sum(row["step_s"][1:])
            for run, row in first.iterrows() if row["step"] == len(row["step_s"])}  # fmt: skip
    extra = [(run, 1, end) for run, end in ends.items() if first.loc[run, "step"] > 1]
    rows = pd.DataFrame(extra, columns=["run", "step", "elapsed_s"])
    wall = windows[["run", "step", "elapsed_s"]]
    wall = pd.concat([rows, wall], ignore_index=True) if extra else wall.copy()
    return wall.assign(first_step_end_s=wall["run"].map(ends))


def _set_axes(axes: Axes, y_label: str) -> None:
    axes.set(xlabel="step", ylabel=y_label)
    axes.margins(x=0)
    axes.set_ylim(bottom=0)
    thousands(axes, "x", "y")


def _mark_break_even(axes: Axes, lines: dict[str, pd.Series], break_even: Sequence[BreakEven]) -> list[str]:
    """Mark what lies within the lines; all of it in words, a sentence for each recipe."""
    for one in break_even:
        if one.outcome == "reached" and one.a in lines and one.step <= lines[one.a].index[-1]:
            _mark(axes, lines[one.a], one.a, one.step)
    recipes = in_order(pd.Series([one.a for one in break_even], dtype=object))
    parts = {recipe: [_in_words(one) for one in break_even if one.a == recipe] for recipe in recipes}
    return [f"{name(recipe)}: {', '.join(words)}" for recipe, words in parts.items()]


def _in_words(one: BreakEven) -> str:
    other = name(one.b)
    if one.step is None:
        unsaid = {"unknown": "too short to say about", "unclear": "too uneven to say about"}
        return f"{unsaid.get(one.outcome, 'never breaks even with')} {other}"
    since = {
        "ahead from the start": "from the start",
        "reached": f"from step {one.step:,}",
        "extrapolated": f"from about step {one.step:,} (beyond this run)",
    }[one.outcome]
    until = "" if one.lost_at is None else f" to about step {one.lost_at:,}"
    return f"ahead of {other} {since}{until}"


def _mark(axes: Axes, line: pd.Series, recipe: str, step: float) -> None:
    """A hollow mark on the recipe's line, and a thin line down to the step."""
    colour, marker = look(recipe)
    seconds = np.interp(step, line.index, line)
    axes.plot(step, seconds, marker, markersize=7, markerfacecolor="white", markeredgecolor=colour, zorder=5)
    axes.vlines(step, 0, seconds, color=colour, linewidth=0.8, linestyle=":")
