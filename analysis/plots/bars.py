"""Rows of horizontal bars, one a recipe: speed, utilisation, step time, warm-up and memory.

A bar goes from zero to the median of the recipe's completed runs, with a mark for each run and the
value beside.
"""

from collections.abc import Iterable, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from analysis.comparison import in_order
from analysis.plots.by_step import clock_start, thinned
from analysis.plots.style import (
    GREY,
    SMALL,
    NoData,
    look,
    make_room,
    name,
    note,
    number,
    plot,
    short_lines,
)  # fmt: skip
from analysis.rates import LEVEL, MIN_STEPS, Rate

PEAKS = {
    "mfu_bf16_peak": ("{} % of bf16 peak", 0.6),
    "mfu_fp8_peak": ("{} % of FP8 peak", 0.4),
    "mfu_mixed_peak": ("{} % mixed", 0.22),
}
# Paul Tol's muted colours, colour-blind safe, in the order in which the phases happen.
PHASES = {
    "import": "#332288", "distributed": "#88CCEE", "data": "#44AA99", "model_build": "#117733",
    "conversion": "#999933", "optimizer": "#AA4499", "compile": "#CC6677", "first_step": "#DDCC77",
    "other": "#999999", "not_split": "#DDDDDD",
}  # fmt: skip
SMALL_SHARE = 0.03  # of the longest warm-up: phases below it in every row are merged


def by_recipe(runs: pd.DataFrame, column: str) -> dict[str, pd.DataFrame]:
    """Group the completed runs that have a value in a column. Raises `NoData` if none has."""
    done = runs[(runs["status"] == "completed") & runs[column].notna()]
    if done.empty:
        raise NoData(f"no completed run has {column}")
    return {recipe: done[done["recipe"] == recipe] for recipe in in_order(done["recipe"])}


def set_rows(axes: Axes, names: Iterable[str], x_label: str) -> None:
    """Set ticks, limits and room for one row a name, the first on top."""
    labels = [short_lines(label) for label in names]
    axes.set_yticks(range(len(labels)), labels)
    axes.set(ylim=(len(labels) - 0.5, -0.5), xlabel=x_label)
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=False, axis="y")
    axes.xaxis.set_major_formatter("{x:,.10g}")
    make_room(axes, len(labels))


def draw_bar(
    axes: Axes, y: float, recipe: str, values: Sequence[float], text: str = "{}",
    length: float | None = None, height: float = 0.6, alpha: float = 0.55,
) -> None:  # fmt: skip
    """Draw a bar with its length beside it as `text` says and, of several runs, their marks.

    Args:
        values: of the runs, finite.
        length: of the bar, if it is not the median of `values`.
        alpha: below 1, so that marks on a bar can be seen.
    """
    colour, marker = look(recipe)
    length = float(np.median(values)) if length is None else length
    axes.barh(y, length, height, color=colour, alpha=alpha, linewidth=0)
    if len(values) > 1:
        axes.plot(values, [y] * len(values), marker, color=colour, markersize=4,
                  markeredgecolor="white", markeredgewidth=0.6, zorder=3)  # fmt: skip
    write_beside(axes, y, text.format(number(length)))


def write_beside(axes: Axes, y: float, text: str) -> None:
    """Write text right of the axes at the height of a row."""
    axes.annotate(text, (1, y), xycoords=axes.get_yaxis_transform(), xytext=(5, 0),
                  textcoords="offset points", va="center", fontsize=SMALL,
                  annotation_clip=False)  # fmt: skip


def draw_diamond(axes: Axes, x: float, y: float) -> None:
    """Mark a published value."""
    axes.plot(x, y, "d", markerfacecolor="white", markeredgecolor=GREY, zorder=3)


@plot
def tokens_per_s(
    axes: Axes,
    runs: pd.DataFrame,
    rates: dict[str, Rate],
    published: dict[str, float] | None = None,
) -> None:
    """Draw tokens per second of each recipe, over all devices, padding included.

    Bar: by the mean steady step of the recipe's completed runs; marks: each run; line: interval
    over several runs. Runs that are too short for a rate are shown by their median step.

    Args:
        rates: by recipe, see `analysis.rates.rate_of`.
        published: tokens/s by recipe to compare with, drawn as hollow diamonds.
    """
    completed, marks = by_recipe(runs, "tokens_per_s"), "One run each: no interval."
    for y, (recipe, of_recipe) in enumerate(completed.items()):
        rate, text = rates[recipe], "{}"
        if published and recipe in published:
            draw_diamond(axes, published[recipe], y + 0.17)
            text += f"\n◇ published {number(published[recipe])}"
        if not rate.runs:
            draw_bar(axes, y, recipe, of_recipe["tokens_per_s"], text)
            continue
        draw_bar(axes, y, recipe, rate.by_run, text, length=rate.mean)
        if rate.runs > 1:
            interval = [rate.low, rate.high]
            axes.plot(interval, [y, y], color="black", linewidth=1.5, solid_capstyle="butt")
            marks = f"Marks: runs; black line: {LEVEL:.0%} interval over them."
    set_rows(axes, map(name, completed), "tokens/s")
    axes.set_xlim(left=0)
    note(axes, f"Bar: by the mean steady step. {marks}")


@plot
def mfu(axes: Axes, runs: pd.DataFrame) -> None:
    """Draw model FLOPs utilisation in percent of each peak: bf16's, FP8's, and the mixed one.

    A peak that does not apply to a recipe has no bar.
    """
    completed = by_recipe(runs, "mfu_bf16_peak")
    for y, (recipe, of_recipe) in enumerate(completed.items()):
        known = 100 * of_recipe[list(PEAKS)].dropna(axis="columns", how="all")
        height = 0.8 / max(2, known.shape[1])
        first = y - (known.shape[1] - 1) / 2 * height
        for index, key in enumerate(known):
            text, alpha = PEAKS[key]
            place, values = first + index * height, known[key].dropna()
            draw_bar(axes, place, recipe, values, text, height=0.9 * height, alpha=alpha)
    sources = runs["peak_source"].dropna().unique()
    measured = all(source.startswith("measured") for source in sources)
    peak = "measured" if measured else "datasheet"
    set_rows(axes, map(name, completed), f"MFU (% of the {peak} peak)")
    axes.set_xlim(left=0)
    words = [f"Peak: {'; '.join(sources)}."]
    if runs["mfu_mixed_peak"].notna().any():
        words.append("Mixed: each FLOP against the peak of the precision it ran in.")
    note(axes, *words)


@plot
def step_time(axes: Axes, runs: pd.DataFrame, steps: pd.DataFrame) -> None:
    """Draw milliseconds of steady steps: box of quartiles, whiskers to 1.5 times their distance.

    Outliers are marks. `steps` as from `analysis.load.steps`.
    """
    done = runs.loc[runs["status"] == "completed", "run"]
    steady = steps[steps["steady"] & steps["run"].isin(done)]
    if steady.empty:
        raise NoData(f"no run has steady steps: train {MIN_STEPS} or more")
    recipes, counts = in_order(steady["recipe"]), []
    for y, recipe in enumerate(recipes):
        milliseconds = 1000 * steady.loc[steady["recipe"] == recipe, "seconds"].sort_values()
        colour, marker = look(recipe)
        line = {"color": colour}
        axes.boxplot(
            # of many steps evenly spread quantiles, the extremes among them, stand for all
            thinned(milliseconds), positions=[y], orientation="horizontal", widths=0.5,
            manage_ticks=False, medianprops=line, whiskerprops=line, capprops=line,
            boxprops={"facecolor": colour, "edgecolor": colour, "alpha": 0.35},
            flierprops={"marker": marker, "markeredgecolor": colour},
        )  # fmt: skip
        write_beside(axes, y, f"{number(milliseconds.median())} ms")
        counts.append(f"{len(milliseconds):,}")
    set_rows(axes, map(name, recipes), "time of a steady step (ms)")
    note(axes, f"{', '.join(dict.fromkeys(counts))} steps a row. The axis does not start at zero.")


@plot
def warm_up(axes: Axes, runs: pd.DataFrame) -> None:
    """Draw seconds from process start to the end of step 1 by phase: means of completed runs."""
    completed = by_recipe(runs, "warm_up_s")
    table = pd.DataFrame([_mean_phases(of) for of in completed.values()]).fillna(0.0)
    total = table.sum(axis=1)
    small = [p for p in table if p not in PHASES or table[p].max() < SMALL_SHARE * total.max()]
    if small:
        note(axes, f"Other: {', '.join(small)}.".replace("_", " "))
        table = table.assign(other=table[small].sum(axis=1)).drop(columns=small)
    shown = [phase for phase in PHASES if phase in table]
    colours = [PHASES[phase] for phase in shown]
    table[shown].rename(columns=lambda phase: phase.replace("_", " ")).plot.barh(
        ax=axes, stacked=True, color=colours, width=0.6, edgecolor="white", linewidth=0.5
    )
    x_label = f"seconds to the end of step 1; the clock starts with\n{clock_start(runs)}"
    set_rows(axes, map(name, completed), x_label)
    for y, seconds in enumerate(total):
        write_beside(axes, y, f"{number(seconds)} s")
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=4)


def _mean_phases(runs: pd.DataFrame) -> pd.Series:
    """Average seconds by phase.

    What phases leave of a warm-up (without timing.json; of earlier attempts) is not split.
    """
    whole = runs["warm_up_s"].mean()
    mean = pd.DataFrame([phases or {} for phases in runs["phases"]]).fillna(0.0).mean()
    rest = whole - mean.sum()
    if rest > 0.01 * whole:
        mean["not_split"] = rest
    return mean


@plot
def memory(axes: Axes, runs: pd.DataFrame) -> None:
    """Draw the highest memory in GiB: median over completed runs, and a mark for each."""
    completed = by_recipe(runs, "peak_memory_bytes")
    for y, (recipe, of_recipe) in enumerate(completed.items()):
        draw_bar(axes, y, recipe, of_recipe["peak_memory_bytes"] / 2**30, "{} GiB")
    cpu = (runs["device_type"] == "cpu").all()
    what = "peak resident memory of the process" if cpu else "peak reserved memory of a device"
    set_rows(axes, map(name, completed), f"{what} (GiB)")
