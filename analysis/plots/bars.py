"""Rows of horizontal bars, one a recipe: speed, utilisation, step time, first step and memory."""

from collections.abc import Iterable

import pandas as pd
from matplotlib.artist import setp
from matplotlib.axes import Axes
from matplotlib.colors import to_rgba
from scipy.stats import gmean

from analysis.comparison import Comparison, in_order
from analysis.plots.by_step import clock_start, thinned
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

# Paul Tol's muted colours, colour-blind safe, in the order in which the phases happen.
PHASES = {
    "import": "#332288", "distributed": "#88CCEE", "data": "#44AA99", "model build": "#117733",
    "conversion": "#999933", "optimizer": "#AA4499", "compile": "#CC6677", "first step": "#DDCC77",
    "other": "#999999",
}  # fmt: skip
SMALL_SHARE = 0.03  # of the longest first step: phases below it in every row are merged


def completed(comparison: Comparison, column: str) -> pd.DataFrame:
    """Choose the completed runs that have a value in a column, by recipe in the usual order.

    Raises:
        NoData: there is none.
    """
    done = comparison.frames.runs.query("status == 'completed'").dropna(subset=column)
    if done.empty:
        raise NoData(f"no completed run has {column}")
    return done.set_index("recipe").loc[in_order(done["recipe"])]


def fastest(comparison: Comparison) -> str:
    """Choose the recipe that findings are about: the fastest one in FP8, else the fastest."""
    recipes = comparison.fp8 or comparison.recipes
    return max(recipes, key=lambda recipe: comparison.rates[recipe].mean)


def set_rows(axes: Axes, labels: Iterable[str], x_label: str) -> None:
    """Set ticks, limits and room for one row a label, the first on top."""
    labels = list(labels)
    axes.set_yticks(range(len(labels)), labels)
    axes.set(ylim=(len(labels) - 0.5, -0.5), xlabel=x_label, ylabel="")
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=False, axis="y")
    axes.xaxis.set_major_formatter("{x:,.10g}")
    axes.locator_params(axis="x", nbins=6)
    make_room(axes, 3 * len(labels))


def draw_bars(
    axes: Axes, values: pd.Series, unit="", over: str | None = None, y=0.0, height=0.6, alpha=0.55
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
    for row, (recipe, of_recipe) in enumerate(by_recipe):
        _, colour, marker = look(recipe)
        axes.barh(row + y, lengths[recipe], height, color=colour, alpha=alpha, linewidth=0)
        if len(of_recipe) > 1:
            rows = [row + y] * len(of_recipe)
            axes.plot(of_recipe, rows, marker, color=colour, markersize=4, zorder=3)
        beside = f"{number(lengths[recipe])} {unit}"
        if over in lengths and recipe != over:
            beside += f"\n{lengths[recipe] / lengths[over]:.2f} ×"
        write_beside(axes, row + y, beside)
    axes.set_xlim(left=0)
    return lengths


def write_beside(axes: Axes, y: float, text: str) -> None:
    """Write text right of the axes at the height of a row."""
    axes.annotate(
        text,
        (1, y),
        (5, 0),
        xycoords=axes.get_yaxis_transform(),
        va="center",
        textcoords="offset points",
        fontsize=SMALL,
        annotation_clip=False,
    )


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
    """Draw tokens per second of each recipe, over all devices, padding included."""
    known = {recipe: rate for recipe, rate in comparison.rates.items() if rate.runs}
    if not known:
        raise NoData(f"no run is long enough for a rate: train {MIN_STEPS} steps or more")
    speeds = pd.concat({recipe: rate.by_run for recipe, rate in known.items()}).droplevel(1)
    compare_bars(axes, comparison, speeds, "", "tokens/s")
    for y, rate in enumerate(known.values()):
        axes.plot([rate.low, rate.high], [y, y], color="black", solid_capstyle="butt")
    note(
        axes,
        "By the mean steady step. Marks: runs, where there are several; black line: "
        f"{LEVEL:.0%} interval over them.",
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
def mfu(axes: Axes, comparison: Comparison) -> None:
    """Draw model FLOPs utilisation in percent of the bf16 peak, and write that of the mixed one."""
    done = completed(comparison, "mfu_bf16_peak")
    lengths = draw_bars(axes, 100 * done["mfu_bf16_peak"], "%")
    mixed = 100 * done["mfu_mixed_peak"].groupby(level=0, sort=False).mean()
    for row, share in enumerate(mixed):
        if share > 0:
            write_beside(axes, row + 0.3, f"{share:.1f} % mixed")
    set_rows(axes, map(short_name, lengths.index), "MFU (% of the bf16 peak)")
    recipe = fastest(comparison)
    if recipe in lengths:
        finding(axes, f"{name(recipe)}: {lengths[recipe]:.1f} % of the bf16 peak")
    note(
        axes,
        f"Peak: {'; '.join(done['peak_source'].unique())}. Mixed: each FLOP against the "
        "peak of the precision in which it ran.",
    )


@plot
def step_time(axes: Axes, comparison: Comparison) -> None:
    """Draw milliseconds of steady steps: box of quartiles, whiskers to 1.5 times their distance.

    Outliers are marks.
    """
    done = completed(comparison, "tokens_per_s")["run"]
    steady = comparison.steps.query("steady")
    steady = steady[steady["run"].isin(done)].sort_values("seconds")
    apart = {}
    for y, (recipe, runs) in enumerate(done.groupby(level=0, sort=False)):
        milliseconds = 1000 * steady.loc[steady["run"].isin(runs), "seconds"]
        _, colour, marker = look(recipe)
        # Of many steps evenly spread quantiles, the extremes among them, stand for all.
        box = axes.boxplot(
            thinned(milliseconds),
            positions=[y],
            orientation="horizontal",
            widths=0.5,
            manage_ticks=False,
            sym=marker,
        )
        setp(sum(box.values(), []), color=colour)
        setp(box["boxes"], facecolor=to_rgba(colour, 0.35))
        setp(box["fliers"], markeredgecolor=colour)
        low, median, high = milliseconds.quantile([0.25, 0.5, 0.75])
        apart[recipe] = (high - low) / median
        write_beside(axes, y, f"mean {number(milliseconds.mean())}\n{len(milliseconds):,} steps")
    set_rows(axes, map(short_name, apart), "time of a steady step (ms)")
    most = 100 * max(apart.values())
    finding(axes, f"Quartiles of a recipe's steps are at most {most:.1f}\xa0% apart")
    note(axes, "Median, quartiles and outliers. The axis does not start at zero.")


@plot
def warm_up(axes: Axes, comparison: Comparison) -> None:
    """Draw seconds from process start to the end of step 1 by phase: means of completed runs."""
    done = completed(comparison, "warm_up_s")
    phases = pd.DataFrame([*done["phases"]], index=done.index).fillna(0.0)
    phases.columns = phases.columns.str.replace("_", " ")
    table = phases.groupby(level=0, sort=False).mean()
    total = done["warm_up_s"].groupby(level=0, sort=False).mean()
    small = [p for p in table if p not in PHASES or table[p].max() < SMALL_SHARE * total.max()]
    table = table.drop(columns=small)
    table["other"] = total - table.sum(axis=1)
    table = table[[phase for phase in PHASES if phase in table]]
    table.plot.barh(ax=axes, stacked=True, color=PHASES, width=0.6, edgecolor="white")
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=table.shape[1])
    set_rows(axes, map(short_name, table.index), "seconds to the end of step 1")
    for y, seconds in enumerate(total):
        write_beside(axes, y, f"{number(seconds)} s")
    opponent, recipe = comparison.opponent, fastest(comparison)
    if {opponent, recipe} <= {*total.index} and opponent != recipe:
        more = total[recipe] - total[opponent]
        when = "later" if more > 0 else "earlier"
        words = f"{name(recipe)} ends step 1 {abs(more):,.0f} s {when} than {name(opponent)}"
        finding(axes, words, pad=22)
    other = f"Other: {', '.join([*small, 'what no phase holds'])}."
    note(axes, f"The clock starts with {clock_start(comparison.frames.runs)}. {other}")
