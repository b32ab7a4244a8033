"""Lines by step: the loss, its difference to the baseline's, and the wall time."""

from typing import TypeVar

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
    short_name,
)
from analysis.rates import FROM, UNTIL

AnyFrame = TypeVar("AnyFrame", pd.Series, pd.DataFrame)
POINTS = 400  # of a line: more than its pixels would only make pages large


def draw_runs(axes: Axes, runs: pd.DataFrame, curves: pd.DataFrame) -> None:
    """Draw completed runs of a recipe as their mean in a band of all, others as a dashed line each.

    Args:
        curves: what to draw, a row a step, a column a run.

    Raises:
        NoData: there is nothing to draw.
    """
    drawn = runs[runs["run"].isin(curves.dropna(axis="columns", how="all"))]
    if drawn.empty:
        raise NoData("no log window has it")
    for recipe in in_order(drawn["recipe"]):
        of_recipe = drawn[drawn["recipe"] == recipe]
        done = of_recipe["status"] == "completed"
        together = curves[of_recipe.loc[done, "run"]].dropna()
        if not together.empty:
            draw_band(axes, recipe, together.agg(["mean", "min", "max"], axis="columns"))
        for run, status in of_recipe.loc[~done, ["run", "status"]].itertuples(index=False):
            axes.plot(
                thinned(curves[run].dropna()),
                "--",
                color=look(recipe).colour,
                linewidth=1,
                label=short_name(f"{recipe} ({status})"),
            )


def draw_band(axes: Axes, recipe: str, band: pd.DataFrame) -> None:
    """Draw a line in the recipe's colour, in its band.

    Markers are a fifth further on for each line, so that equal curves show each other's.

    Args:
        band: by step the line and the ends of its band, which may be NaN.
    """
    colour, marker = look(recipe)
    line, low, high = thinned(band).to_numpy().T
    steps, every = thinned(band).index, max(1, len(line) // 6)
    first = len(axes.lines) * every // 5 % every
    axes.plot(
        steps, line, color=colour, label=short_name(recipe), marker=marker, markevery=(first, every)
    )
    axes.fill_between(steps, low, high, color=colour, alpha=0.15, linewidth=0)


def thinned(values: AnyFrame) -> AnyFrame:
    """Choose at most `POINTS` rows evenly, the last among them."""
    count = min(len(values), POINTS)
    return values.iloc[np.linspace(0, len(values) - 1, count).round().astype(int)]


def finish(axes: Axes, y_label: str, scale: str = "linear") -> None:
    """Write labels, and the names of the lines on the right in the order in which they end."""
    axes.set(xlabel="step", ylabel=y_label, yscale=scale)
    axes.margins(x=0)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter("{x:,.10g}")
    axes.yaxis.set_minor_formatter("{x:,.10g}")
    lines, names = axes.get_legend_handles_labels()
    named = dict(zip(names, lines, strict=True)).values()
    make_room(axes, len(named))
    by_end = sorted(named, key=lambda line: line.get_ydata()[-1], reverse=True)
    legend_beside(axes, handles=by_end)


def draw_margin(axes: Axes, margin: float) -> None:
    """Draw the zero line, and the band in which losses count as the same."""
    axes.axhline(0, color="black", linewidth=0.8)
    axes.axhspan(-margin, margin, color=GREY, alpha=0.15, linewidth=0, zorder=0)
    axes.text(
        0.01,
        margin,
        f"margin ± {margin:.3g}",
        transform=axes.get_yaxis_transform(),
        va="top",
        fontsize=SMALL,
        color=GREY,
        zorder=4,
        bbox={"facecolor": "white", "alpha": 0.7, "linewidth": 0, "pad": 1},
    )


def _smoothed(losses: pd.Series) -> pd.Series:
    """Average each tenth of a run's steps; a mean is in the middle of its steps."""
    logged = losses.dropna()
    tenth = logged.loc[final_from(logged.index[-1]) :]
    return logged.rolling(len(tenth), center=True).mean()


@plot
def loss(axes: Axes, runs: pd.DataFrame, windows: pd.DataFrame, scale: str = "linear") -> None:
    """Draw the training loss (nats per token) by step: means over a tenth of the steps.

    The last one is the final loss where log windows divide that tenth. `scale`: "log" where one
    recipe's loss is many times the others'.
    """
    losses = windows.pivot(index="step", columns="run", values="loss").dropna(axis=1, how="all")
    draw_runs(axes, runs, losses.apply(_smoothed))
    finish(axes, "loss (nats per token)", scale)
    note(axes, "Mean over a tenth of the steps and over the seeds; band: range of the seeds.")


@plot
def loss_difference(
    axes: Axes, differences: dict[str, pd.DataFrame], margin: float | None, baseline: str
) -> None:
    """Draw the loss of each recipe minus the baseline's, in its band, and the margin of equality.

    Args:
        differences: by recipe, see `analysis.losses.loss_difference`.
        margin: what counts as the same, in nats per token; None if no two can be compared.
        baseline: the recipe that was subtracted.
    """
    if margin is None:
        raise NoData(f"no recipe has a loss at the same step and seed as {name(baseline)}")
    draw_margin(axes, margin)
    for recipe in in_order(differences):
        if len(differences[recipe]):
            draw_band(axes, recipe, differences[recipe].set_index("step"))
    finish(axes, f"loss − loss of {name(baseline)}\n(nats per token)")
    note(
        axes,
        f"Grey: so near, two losses count as the same. Bands: {LEVEL:.0%} interval over "
        "several seeds, as in the verdict.",
    )


def clock_start(runs: pd.DataFrame) -> str:
    """Say what wall time counts from: other programs' logs do not say when their process began."""
    return "the process" if (runs["source"] == OWN).all() else "training, not with the process"


@plot
def wall_after_warm_up(axes: Axes, runs: pd.DataFrame, windows: pd.DataFrame) -> None:
    """Draw seconds since the end of step 1: the published view, compiling costs nothing."""
    elapsed = windows.pivot(index="step", columns="run", values="elapsed_s")
    draw_runs(axes, runs, elapsed - runs.set_index("run")["warm_up_s"])
    finish(axes, "wall time since the end of step 1 (s)")
    axes.set_ylim(bottom=0)
    note(axes, "The warm-up is left out: compilation costs nothing here.")


@plot
def lead(axes: Axes, comparison: Comparison) -> None:
    """Draw the seconds that each recipe is ahead of the opponent, warm-up included.

    Above zero a recipe has taken less wall time; a mark shows where it gets or loses the lead.
    Each run is drawn against the mean of the opponent's.
    """
    runs, windows = comparison.frames.runs, comparison.frames.windows
    opponent = comparison.opponent
    if opponent not in comparison.completed:
        raise NoData(f"there is no completed run of {name(opponent)} to be ahead of")
    reference = comparison.completed[opponent].windows.groupby("step")["elapsed_s"].mean().dropna()
    elapsed = windows.pivot(index="step", columns="run", values="elapsed_s")
    taken = np.interp(elapsed.index, reference.index, reference, left=np.nan, right=np.nan)
    draw_runs(axes, runs[runs["recipe"] != opponent], -elapsed.sub(taken, axis="index"))
    axes.axhline(0, color=look(opponent).colour, label=short_name(opponent))
    small = {"transform": axes.transAxes, "color": GREY, "fontsize": SMALL, "fontstyle": "italic"}
    axes.text(0.01, 0.98, "ahead", va="top", **small)
    axes.text(0.01, 0.02, "behind", va="bottom", **small)
    finish(axes, f"lead over {name(opponent)},\nwarm-up included (s)")
    axes.margins(y=0.12)
    against = [paid for (_, b), paid in comparison.break_evens.items() if b == opponent]
    for paid in against:
        if paid.outcome in (FROM, UNTIL) and not paid.beyond:
            colour, marker = look(paid.a)
            axes.plot(
                paid.step,
                0,
                marker,
                markersize=7,
                markerfacecolor="white",
                markeredgecolor=colour,
                zorder=5,
            )
    words = "; ".join(f"{name(paid.a)} {paid.word}" for paid in against)
    note(axes, f"Ahead: {words}. The clock starts with {clock_start(runs)}.")
