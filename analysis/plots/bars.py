"""Rows of horizontal bars, one a recipe: speed, first step and memory."""

from collections.abc import Iterable

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from scipy.stats import gmean

from analysis.comparison import Comparison, in_order
from analysis.plots.by_step import clock_start, fastest
from analysis.plots.style import (
    SMALL,
    NoData,
    finding,
    look,
    make_room,
    name,
    note,
    number,
    plot,
    short_name,
)
from analysis.rates import LEVEL, MIN_STEPS

# What the time until the end of step 1 goes to, in this order. Paul Tol's muted colours, which
# colour-blind readers tell apart too.
PHASES = {"import": "#332288", "data": "#44AA99", "compile": "#CC6677", "other": "#999999"}


def completed(comparison: Comparison, column: str) -> pd.DataFrame:
    """Choose the completed runs that have a value in a column, by recipe in the usual order.

    Raises:
        NoData: there is none.
    """
    done = comparison.frames.runs.query("status == 'completed'").dropna(subset=column)
    if done.empty:
        raise NoData(f"no completed run has {column}")
    return done.set_index("recipe").loc[in_order(done["recipe"])]


def set_rows(axes: Axes, labels: Iterable[str], x_label: str) -> None:
    """Set ticks, limits and room for one row a label, the first on top."""
    labels = list(labels)
    axes.set_yticks(range(len(labels)), labels)
    axes.set(ylim=(len(labels) - 0.5, -0.5), xlabel=x_label, ylabel="")
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=False, axis="y")
    axes.xaxis.set_major_formatter("{x:,.10g}")
    make_room(axes, 3 * len(labels))


def draw_bars(
    axes: Axes, values: pd.Series, unit: str, over: str = "", y=0.0, height=0.6, alpha=0.55
) -> pd.Series:
    """Draw a bar a recipe, from zero to the mean of its runs, with a mark for each of several runs.

    Args:
        values: of the runs, indexed by recipe.
        unit: to write after a bar's length.
        over: recipe whose bar is 1 in the ratios that are written below the lengths.
        y: how far below the middle of its row a bar is.

    Returns:
        The lengths, by recipe.
    """
    by_recipe = values.groupby(level=0, sort=False)
    lengths = by_recipe.agg(gmean)
    for row, (recipe, of_recipe) in zip(y + np.arange(len(lengths)), by_recipe, strict=True):
        _, colour, marker = look(recipe)
        axes.barh(row, lengths[recipe], height, color=colour, alpha=alpha, linewidth=0)
        if len(of_recipe) > 1:
            axes.plot(of_recipe, [row] * len(of_recipe), marker, color=colour, zorder=3)
        beside = f"{number(lengths[recipe])} {unit}"
        if over in lengths and recipe != over:
            beside += f"\n{lengths[recipe] / lengths[over]:.2f} ×"
        write_beside(axes, row, beside)
    axes.set_xlim(left=0)
    return lengths


def write_beside(axes: Axes, y: float, text: str) -> None:
    """Write text right of the axes at the height of a row."""
    place = {"xycoords": axes.get_yaxis_transform(), "textcoords": "offset points", "va": "center"}
    axes.annotate(text, (1, y), (5, 0), **place, fontsize=SMALL, annotation_clip=False)


def compare_bars(axes: Axes, comparison: Comparison, values: pd.Series, unit: str, of: str) -> None:
    """Draw bars with their ratios to the opponent's, and the fastest FP8 recipe's as the finding.

    Args:
        of: what is compared, for the finding.
    """
    opponent, recipe = comparison.opponent, fastest(comparison)
    lengths = draw_bars(axes, values, unit, opponent)
    set_rows(axes, map(short_name, lengths.index), of)
    if {opponent, recipe} <= {*lengths.index} and opponent != recipe:
        ratio = lengths[recipe] / lengths[opponent]
        finding(axes, f"{name(recipe)}: {ratio:.2f} times the {of} of {name(opponent)}")


@plot
def tokens_per_s(axes: Axes, comparison: Comparison) -> None:
    """Draw tokens per second of each recipe, over all devices, padding included, and write MFU."""
    known = {r: of.rate for r, of in comparison.completed.items() if of.rate.runs}
    if not known:
        raise NoData(f"no run is long enough for a rate: train {MIN_STEPS} steps or more")
    speeds = pd.concat({recipe: rate.by_run for recipe, rate in known.items()}).droplevel(1)
    compare_bars(axes, comparison, speeds, "", "tokens/s")
    labels = []
    for y, (recipe, rate) in enumerate(known.items()):
        axes.plot([rate.low, rate.high], [y, y], color="black", solid_capstyle="butt")
        labels.append(short_name(recipe))
        share = comparison.completed[recipe].runs["mfu_bf16_peak"].mean()
        if share > 0:
            labels[-1] += f"\nMFU {share:.1%}"
    axes.set_yticks(range(len(labels)), labels)
    note(
        axes,
        f"By the mean steady step, on {comparison.frames.runs['device'].iloc[0]}. Marks: several "
        f"runs; black line: {LEVEL:.0%} interval over them. MFU: of the bf16 peak, for FP8 too.",
    )


@plot
def memory(axes: Axes, comparison: Comparison) -> None:
    """Draw the highest memory in GiB."""
    done = completed(comparison, "peak_memory_bytes")
    compare_bars(axes, comparison, done["peak_memory_bytes"] / 2**30, "GiB", "peak memory")
    of_device = "reserved memory of a device"
    if (done["device_type"] == "cpu").all():
        of_device = "resident memory of the process"
    axes.set_xlabel(f"peak {of_device} (GiB)")


@plot
def warm_up(axes: Axes, comparison: Comparison) -> None:
    """Draw seconds from process start to the end of step 1 by phase: means of completed runs."""
    done = completed(comparison, "warm_up_s")
    phases = pd.DataFrame([*done["phases"]], index=done.index).reindex(columns=[*PHASES][:-1])
    total = done["warm_up_s"]
    table = phases.fillna(0.0).assign(other=total - phases.sum(axis="columns"))
    table = table.groupby(level=0, sort=False).mean()
    table = table.loc[:, table.gt(0).any()]
    table.plot.barh(ax=axes, stacked=True, color=PHASES, width=0.6, edgecolor="white")
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=len(PHASES))
    set_rows(axes, map(short_name, table.index), "seconds to the end of step 1")
    seconds = table.sum(axis="columns")
    for y, of_recipe in enumerate(seconds):
        write_beside(axes, y, f"{number(of_recipe)} s")
    opponent, recipe = comparison.opponent, fastest(comparison)
    if {opponent, recipe} <= {*seconds.index}:
        more = seconds[recipe] - seconds[opponent]
        finding(axes, f"{name(recipe)}: {more:+,.0f} s to step 1 over {name(opponent)}", pad=22)
    note(axes, f"The clock starts with {clock_start(comparison.frames.runs)}.")
