"""Lines by step: the loss, its difference to the baseline's, and the wall time."""

from typing import NamedTuple, TypeVar

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from analysis.comparison import OWN, Comparison, in_order
from analysis.load import final_from
from analysis.losses import LEVEL
from analysis.plots.style import (
    GREY,
    SMALL,
    NoData,
    legend_beside,
    look,
    make_room,
    name,
    note,
    plot,
    short_lines,
)  # fmt: skip
from analysis.rates import FROM, UNTIL

AnyFrame = TypeVar("AnyFrame", pd.Series, pd.DataFrame)
POINTS = 400  # of a line: more than its pixels would only make pages large


class Curves(NamedTuple):
    """One quantity of a recipe's completed runs, or of its other runs of one status."""

    recipe: str
    status: str
    frame: pd.DataFrame  # (steps, runs); of completed runs the steps that all have


def curves(runs: pd.DataFrame, windows: pd.DataFrame, column: str) -> list[Curves]:
    """Arrange a column of the log windows by recipe and status, completed runs first.

    Raises:
        NoData: there is nothing finite to draw.
    """
    found = []
    for recipe in in_order(runs["recipe"]):
        statuses = runs[runs["recipe"] == recipe].groupby("status")["run"]
        for status, names in sorted(statuses, key=lambda of: (of[0] != "completed", of[0])):
            frame = windows[windows["run"].isin(names)]
            frame = frame.pivot(index="step", columns="run", values=column)
            frame = frame.dropna(how="any" if status == "completed" else "all")
            if len(frame):
                found.append(Curves(recipe, status, frame))
    if not found:
        raise NoData(f"no log window has {column}")
    return found


def draw(axes: Axes, of: Curves, marked: bool = False) -> None:
    """Draw completed runs as their mean in a band of all, others as a dashed line each."""
    frame = of.frame
    if of.status == "completed":
        draw_band(axes, of.recipe, frame.agg(["mean", "min", "max"], axis=1), marked)
        return
    label = short_lines(f"{name(of.recipe)} ({of.status})")
    for run in frame.dropna(axis=1, how="all"):
        line = thinned(frame[run].dropna())
        colour = look(of.recipe).colour
        axes.plot(line.index, line, "--", color=colour, linewidth=1.0, label=label)
        label = "_"


def draw_band(axes: Axes, recipe: str, band: pd.DataFrame, marked: bool) -> None:
    """Draw a line in the recipe's colour, in its band.

    Args:
        band: by step the line and the ends of its band, which may be NaN.
        marked: with markers, a fifth further on for each line: equal curves show each other's.
    """
    colour, marker = look(recipe)
    line, low, high = thinned(band).to_numpy().T
    steps, marks = thinned(band).index, {}
    if marked:
        every = max(1, len(line) // 6)
        marks = {"marker": marker, "markevery": (len(axes.lines) * every // 5 % every, every)}
    axes.plot(steps, line, color=colour, label=short_lines(name(recipe)),
              markeredgecolor="white", markeredgewidth=0.5, **marks)  # fmt: skip
    if not np.array_equal(low, high, equal_nan=True):
        axes.fill_between(steps, low, high, color=colour, alpha=0.15, linewidth=0)


def thinned(values: AnyFrame) -> AnyFrame:
    """Choose at most `POINTS` rows evenly, the last among them."""
    count = min(len(values), POINTS)
    return values.iloc[np.linspace(0, len(values) - 1, count).round().astype(int)]


def finish(axes: Axes, y_label: str) -> None:
    """Write labels, and the names of the lines on the right in the order in which they end."""
    axes.set(xlabel="step", ylabel=y_label)
    axes.margins(x=0)
    axes.xaxis.set_major_formatter("{x:,.10g}")
    axes.yaxis.set_major_formatter("{x:,.10g}")
    lines = [line for line in axes.lines if not line.get_label().startswith("_")]
    lines.sort(key=lambda line: line.get_ydata()[-1], reverse=True)
    make_room(axes, len(lines))
    legend_beside(axes, handles=lines)


def draw_margin(axes: Axes, margin: float | None) -> list[str]:
    """Draw the band in which losses count as the same, if there is one; return what to note."""
    if not margin:
        return []
    axes.axhspan(-margin, margin, color=GREY, alpha=0.15, linewidth=0, zorder=0)
    return ["Grey: so near, two losses count as the same."]


@plot
def loss(axes: Axes, runs: pd.DataFrame, windows: pd.DataFrame, log: bool = False) -> None:
    """Draw the training loss (nats per token) by step: means over a tenth of the steps.

    A mean is drawn in the middle of its steps. The last one is the final loss where log windows
    divide that tenth. Line: mean of a recipe's seeds; band: from the smallest to the largest of
    them. `log`: of the loss, where one recipe's is many times the others'.
    """
    drawn = curves(runs, windows, "loss")
    for of in drawn:
        tenth = len(of.frame.loc[final_from(of.frame.index[-1]) :])
        smooth = of.frame.rolling(tenth, center=True).mean().dropna(how="all")
        draw(axes, of._replace(frame=smooth), marked=True)
    finish(axes, "loss (nats per token)")
    if log:
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter("{x:,.10g}")
        axes.yaxis.set_minor_formatter("{x:,.10g}")
    words = "Smoothed: mean over a tenth of the steps."
    seeds = [of.frame.shape[1] for of in drawn if of.status == "completed"]
    if max(seeds, default=1) > 1:
        words += " Line: mean, band: range of the seeds."
    note(axes, words)


@plot
def loss_difference(
    axes: Axes, differences: dict[str, pd.DataFrame], margin: float | None, baseline: str
) -> None:
    """Draw the loss of each recipe minus the baseline's, in its band, and the margin of equality.

    Args:
        differences: by recipe, see `analysis.losses.loss_difference`.
        margin: what counts as the same, in nats per token; None if there is none.
        baseline: the recipe that was subtracted.
    """
    recipes = [recipe for recipe in in_order(differences) if len(differences[recipe])]
    if not recipes:
        raise NoData(f"no recipe has a loss at the same step and seed as {name(baseline)}")
    several = False
    for recipe in recipes:
        frame = differences[recipe].set_index("step")
        several = several or frame["low"].notna().any()
        draw_band(axes, recipe, frame[["difference", "low", "high"]], marked=True)
    axes.axhline(0, color="black", linewidth=0.8)
    finish(axes, f"loss − loss of {name(baseline)}\n(nats per token)")
    words = draw_margin(axes, margin)
    if words:
        axes.text(0.01, margin, f"margin ± {margin:.3g}", transform=axes.get_yaxis_transform(),
                  va="top", fontsize=SMALL, color=GREY, zorder=4,
                  bbox={"facecolor": "white", "alpha": 0.7, "linewidth": 0, "pad": 1})  # fmt: skip
    bands = f"Bands: {LEVEL:.0%} interval over the seeds, as in the verdict."
    note(axes, " ".join([*words, bands if several else "One seed: no interval."]))


def clock_start(runs: pd.DataFrame) -> str:
    """Say what wall time counts from: other programs' logs do not say when their process began."""
    return "the process" if (runs["source"] == OWN).all() else "training, not with the process"


@plot
def wall_after_warm_up(axes: Axes, runs: pd.DataFrame, windows: pd.DataFrame) -> None:
    """Draw seconds since the end of step 1: the published view, compiling costs nothing."""
    first = windows[windows["step_s"].notna()].sort_values("step").drop_duplicates("run")
    # Without the runs whose log begins after step 1.
    first = first[first["step"] == first["step_s"].map(len)].set_index("run")
    ends = first["elapsed_s"] - first["step_s"].map(lambda seconds: sum(seconds[1:]))
    seconds = windows["elapsed_s"] - windows["run"].map(ends).astype(float)
    for of in curves(runs, windows.assign(seconds=seconds), "seconds"):
        draw(axes, of)
    finish(axes, "wall time since the end of step 1 (s)")
    axes.set_ylim(bottom=0)
    note(axes, "The warm-up is left out: compilation costs nothing here.")


@plot
def lead(axes: Axes, comparison: Comparison) -> None:
    """Draw the seconds that each recipe is ahead of the opponent, warm-up included.

    Above zero a recipe has taken less wall time; a mark shows where it gets or loses the lead.
    Band: from the first to the last of its runs, where there are several; each against the mean of
    the opponent's runs.
    """
    runs, opponent = comparison.frames.runs, comparison.opponent
    drawn = curves(runs, comparison.frames.windows, "elapsed_s")
    references = [of for of in drawn if (of.recipe, of.status) == (opponent, "completed")]
    if not references:
        raise NoData(f"there is no completed run of {name(opponent)} to be ahead of")
    reference = references[0].frame.mean(axis=1)
    for of in drawn:
        frame = of.frame.loc[reference.index[0] : reference.index[-1]]
        if of.recipe != opponent and len(frame):
            at_same_step = np.interp(frame.index, reference.index, reference)
            draw(axes, of._replace(frame=-frame.sub(at_same_step, axis=0)))
    if not axes.lines:
        raise NoData(f"no other run has steps in common with {name(opponent)}")
    axes.axhline(0, color=look(opponent).colour, linewidth=1.6, label=short_lines(name(opponent)))
    small = {"transform": axes.transAxes, "color": GREY, "fontsize": SMALL, "fontstyle": "italic"}
    axes.text(0.01, 0.98, "ahead", va="top", **small)
    axes.text(0.01, 0.02, "behind", va="bottom", **small)
    finish(axes, f"lead over {name(opponent)},\nwarm-up included (s)")
    axes.margins(y=0.12)
    against = [paid for (_, b), paid in comparison.break_evens.items() if b == opponent]
    for paid in against:
        if paid.outcome in (FROM, UNTIL) and not paid.beyond:
            colour, marker = look(paid.a)
            axes.plot(paid.step, 0, marker, markersize=7, markerfacecolor="white",
                      markeredgecolor=colour, zorder=5)  # fmt: skip
    words = "; ".join(f"{name(paid.a)} {paid.word}" for paid in against)
    note(axes, f"Ahead: {words}. The clock starts with {clock_start(runs)}.")
