"""Rows of horizontal bars, one a recipe: speed, first step and memory."""

from collections.abc import Iterable, Sequence

import pandas as pd
from matplotlib.axes import Axes
from scipy.stats import gmean

from analysis.comparison import Comparison
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
    done = comparison.frames.runs.query("status == 'completed'").set_index("recipe")
    known = done.loc[comparison.recipes].dropna(subset=column)
    if known.empty:
        raise NoData(f"no completed run has {column}")
    return known


def set_rows(axes: Axes, names: Sequence[str], x_label: str, words: Iterable[str] = ()) -> None:
    """Name the rows of a panel, the first one on top, and make room for them.

    Args:
        words: what to write of each row, on the right of the panel.
    """
    axes.set_yticks(range(len(names)), names)
    axes.set(ylim=(len(names) - 0.5, -0.5), xlabel=x_label, ylabel="")
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=False, axis="y")
    axes.xaxis.set_major_formatter("{x:,.10g}")
    beside = {"xycoords": axes.get_yaxis_transform(), "textcoords": "offset points"}
    for row, text in enumerate(words):
        axes.annotate(text, (1, row), (5, 0), **beside, va="center", fontsize=SMALL)
    make_room(axes, 3 * len(names))


def draw_bars(axes: Axes, values: pd.Series, y=0.0, height=0.6, alpha=0.55) -> pd.Series:
    """Draw a bar a recipe, from zero to the mean of its runs, with a mark for each of several runs.

    Args:
        values: of the runs, indexed by recipe.
        y: how far below the middle of its row a bar is.

    Returns:
        The lengths, by recipe.
    """
    by_recipe = values.groupby(level=0, sort=False)
    for row, (recipe, of_recipe) in enumerate(by_recipe):
        _, colour, marker = look(recipe)
        axes.barh(row + y, gmean(of_recipe), height, color=colour, alpha=alpha, linewidth=0)
        if len(of_recipe) > 1:
            axes.plot(of_recipe, [row + y] * len(of_recipe), marker, color=colour, zorder=3)
    return by_recipe.agg(gmean)


def compare_bars(axes: Axes, comparison: Comparison, values: pd.Series, unit: str, of: str) -> None:
    """Draw bars with their ratios to the opponent's, and the fastest FP8 recipe's as the finding.

    Args:
        unit: to write after a bar's length.
        of: what is compared, for the finding.
    """
    opponent, recipe = comparison.opponent, fastest(comparison)
    lengths = draw_bars(axes, values)
    words = lengths.map(number) + f" {unit}"
    if opponent in lengths:
        ratios = lengths / lengths[opponent]
        words += ratios.map("\n{:.2f} ×".format).mask(lengths.index == opponent, "")
        if recipe != opponent and recipe in lengths:
            text = f"{name(recipe)}: {ratios[recipe]:.2f} times the {of} of {name(opponent)}"
            finding(axes, text)
    set_rows(axes, [*map(short_name, lengths.index)], of, words)


@plot
def tokens_per_s(axes: Axes, comparison: Comparison) -> None:
    """Draw tokens per second of each recipe, over all devices, padding included, and write MFU."""
    known = {r: of for r, of in comparison.completed.items() if of.rate.runs}
    if not known:
        raise NoData(f"no run is long enough for a rate: train {MIN_STEPS} steps or more")
    speeds = pd.concat({recipe: of.rate.by_run for recipe, of in known.items()}).droplevel(1)
    compare_bars(axes, comparison, speeds, "", "tokens/s")
    names = []
    for row, (recipe, of) in enumerate(known.items()):
        axes.plot([of.rate.low, of.rate.high], [row, row], color="black", solid_capstyle="butt")
        share = of.runs["mfu_bf16_peak"].mean()
        names.append(f"{short_name(recipe)}\nMFU {share:.1%}".removesuffix("\nMFU nan%"))
    axes.set_yticklabels(names)
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
    phases = pd.DataFrame([*done["phases"]], done.index, [*PHASES]).fillna(0.0)
    phases["other"] = done["warm_up_s"] - phases.sum(axis="columns")
    table = phases.groupby(level=0, sort=False).mean()
    table = table.loc[:, table.gt(0).any()]
    table.plot.barh(ax=axes, stacked=True, color=PHASES, width=0.6, edgecolor="white")
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=len(PHASES))
    seconds = table.sum(axis="columns")
    words = (f"{number(of_recipe)} s" for of_recipe in seconds)
    set_rows(axes, [*map(short_name, seconds.index)], "seconds to the end of step 1", words)
    opponent, recipe = comparison.opponent, fastest(comparison)
    if {opponent, recipe} <= {*seconds.index}:
        more = seconds[recipe] - seconds[opponent]
        finding(axes, f"{name(recipe)}: {more:+,.0f} s to step 1 over {name(opponent)}", pad=22)
    note(axes, f"The clock starts with {clock_start(comparison.frames.runs)}.")
