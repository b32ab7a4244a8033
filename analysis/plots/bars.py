"""Rows of horizontal bars, one a recipe: speed, utilisation, step time, warm-up and memory."""

from collections.abc import Iterable

import numpy as np
import pandas as pd
from matplotlib.artist import setp
from matplotlib.axes import Axes
from matplotlib.colors import to_rgba
from scipy.stats import gmean

from analysis.comparison import in_order
from analysis.plots.by_step import clock_start, thinned
from analysis.plots.style import (
    GREY,
    SMALL,
    NoData,
    look,
    make_room,
    note,
    number,
    plot,
    short_name,
)
from analysis.rates import LEVEL, MIN_STEPS, Rate

# Column: the text beside a bar, and how dark the bar is.
PEAKS = {
    "mfu_bf16_peak": ("{} % of bf16 peak", 0.6),
    "mfu_fp8_peak": ("{} % of FP8 peak", 0.4),
    "mfu_mixed_peak": ("{} % mixed", 0.22),
}
# Paul Tol's muted colours, colour-blind safe, in the order in which the phases happen.
PHASES = {
    "import": "#332288", "distributed": "#88CCEE", "data": "#44AA99", "model build": "#117733",
    "conversion": "#999933", "optimizer": "#AA4499", "compile": "#CC6677", "first step": "#DDCC77",
    "other": "#999999",
}  # fmt: skip
SMALL_SHARE = 0.03  # of the longest warm-up: phases below it in every row are merged


def completed(runs: pd.DataFrame, column: str) -> pd.DataFrame:
    """Choose the completed runs that have a value in a column, by recipe in the usual order.

    Raises:
        NoData: there is none.
    """
    done = runs[runs["status"] == "completed"].dropna(subset=column)
    if done.empty:
        raise NoData(f"no completed run has {column}")
    return done.set_index("recipe").loc[in_order(done["recipe"])]


def set_rows(axes: Axes, names: Iterable[str], x_label: str) -> None:
    """Set ticks, limits and room for one row a name, the first on top."""
    labels = [short_name(recipe) for recipe in dict.fromkeys(names)]
    axes.set_yticks(range(len(labels)), labels)
    axes.set(ylim=(len(labels) - 0.5, -0.5), xlabel=x_label, ylabel="")
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=False, axis="y")
    axes.xaxis.set_major_formatter("{x:,.10g}")
    make_room(axes, len(labels))


def draw_bars(
    axes: Axes,
    values: pd.Series,
    text="{}",
    published=None,
    mean=np.median,
    y=0.0,
    height=0.6,
    alpha=0.55,
) -> None:
    """Draw a bar a recipe, from zero to the mean of its runs, with a mark for each of several runs.

    Args:
        values: of the runs, indexed by recipe.
        text: to write beside a bar, with its length for {}.
        published: by recipe, drawn as a hollow diamond.
        mean: the kind of mean, of an array.
        y: how far below the middle of its row a bar is.
    """
    for row, (recipe, of_recipe) in enumerate(values.groupby(level=0, sort=False)):
        (colour, marker), length = look(recipe), mean(of_recipe)
        axes.barh(row + y, length, height, color=colour, alpha=alpha, linewidth=0)
        if len(of_recipe) > 1:
            rows = [row + y] * len(of_recipe)
            axes.plot(of_recipe, rows, marker, color=colour, markersize=4, zorder=3)
        beside = text.format(number(length))
        if published and recipe in published:
            axes.plot(
                published[recipe], row + 0.17, "d", markerfacecolor="white", markeredgecolor=GREY
            )
            beside += f"\n◇ published {number(published[recipe])}"
        write_beside(axes, row + y, beside)
    axes.set_xlim(left=0)


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


@plot
def tokens_per_s(
    axes: Axes,
    rates: dict[str, Rate],
    published: dict[str, float] | None = None,
) -> None:
    """Draw tokens per second of each recipe, over all devices, padding included.

    Args:
        rates: by recipe, see `analysis.rates.Rate`.
        published: tokens/s by recipe to compare with.
    """
    known = {recipe: rate for recipe, rate in rates.items() if rate.runs}
    if not known:
        raise NoData(f"no run is long enough for a rate: train {MIN_STEPS} steps or more")
    speeds = pd.concat({recipe: rate.by_run for recipe, rate in known.items()}).droplevel(1)
    draw_bars(axes, speeds, published=published, mean=gmean)
    for y, rate in enumerate(known.values()):
        axes.plot([rate.low, rate.high], [y, y], color="black", solid_capstyle="butt")
    set_rows(axes, known, "tokens/s")
    note(
        axes,
        "Bar: by the mean steady step. Marks: runs, where there are several; black line: "
        f"{LEVEL:.0%} interval over them.",
    )


@plot
def mfu(axes: Axes, runs: pd.DataFrame) -> None:
    """Draw model FLOPs utilisation in percent of each peak: bf16's, FP8's, and the mixed one."""
    done = completed(runs, "mfu_bf16_peak")
    known = 100 * done[list(PEAKS)].dropna(axis="columns", how="all")
    height = 0.8 / max(2, known.shape[1])
    for index, peak in enumerate(known):
        text, alpha = PEAKS[peak]
        y = (index - (known.shape[1] - 1) / 2) * height
        draw_bars(axes, known[peak].dropna(), text, y=y, height=0.9 * height, alpha=alpha)
    set_rows(axes, done.index, "MFU (%)")
    note(
        axes,
        f"Peak: {'; '.join(done['peak_source'].unique())}. Mixed: each FLOP against the "
        "peak of the precision it ran in.",
    )


@plot
def step_time(axes: Axes, runs: pd.DataFrame, steps: pd.DataFrame) -> None:
    """Draw milliseconds of steady steps: box of quartiles, whiskers to 1.5 times their distance.

    Outliers are marks. `steps` as from `analysis.load.steps`.
    """
    done = completed(runs, "tokens_per_s")["run"]
    steady = steps[steps["steady"] & steps["run"].isin(done)].sort_values("seconds")
    recipes = done.index.unique()
    for y, recipe in enumerate(recipes):
        milliseconds = 1000 * steady.loc[steady["recipe"] == recipe, "seconds"]
        colour, marker = look(recipe)
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
        median = number(milliseconds.median())
        write_beside(axes, y, f"{median} ms\n{len(milliseconds):,} steps")
    set_rows(axes, recipes, "time of a steady step (ms)")
    note(axes, "The axis does not start at zero.")


@plot
def warm_up(axes: Axes, runs: pd.DataFrame) -> None:
    """Draw seconds from process start to the end of step 1 by phase: means of completed runs."""
    done = completed(runs, "warm_up_s")
    phases = pd.DataFrame([*done["phases"]], index=done.index).fillna(0.0)
    phases.columns = phases.columns.str.replace("_", " ")
    table = phases.groupby(level=0, sort=False).mean()
    total = done["warm_up_s"].groupby(level=0, sort=False).mean()
    small = [p for p in table if p not in PHASES or table[p].max() < SMALL_SHARE * total.max()]
    table = table.drop(columns=small)
    table["other"] = total - table.sum(axis=1)
    table = table[[phase for phase in PHASES if phase in table]]
    table.plot.barh(ax=axes, stacked=True, color=PHASES, width=0.6, edgecolor="white")
    x_label = f"seconds to the end of step 1; the clock starts with\n{clock_start(runs)}"
    set_rows(axes, table.index, x_label)
    for y, seconds in enumerate(total):
        write_beside(axes, y, f"{number(seconds)} s")
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=4)
    note(axes, f"Other: {', '.join([*small, 'what no phase holds'])}.")


@plot
def memory(axes: Axes, runs: pd.DataFrame) -> None:
    """Draw the highest memory in GiB."""
    done = completed(runs, "peak_memory_bytes")
    draw_bars(axes, done["peak_memory_bytes"] / 2**30, "{} GiB")
    cpu = (runs["device_type"] == "cpu").all()
    what = "peak resident memory of the process" if cpu else "peak reserved memory of a device"
    set_rows(axes, done.index, f"{what} (GiB)")
