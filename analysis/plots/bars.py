"""Draw rows of horizontal bars, one a recipe: speed, first step and memory."""

from collections.abc import Iterable, Sequence

import pandas as pd
from matplotlib.axes import Axes
from scipy.stats import gmean

from analysis.comparison import Comparison
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
from analysis.speed import MIN_STEPS
from analysis.table import measured_runs

# Parts of the time to the end of step 1, as an attempt's record has them.
STARTUP = ["import", "data", "compile"]
# Of these and of the rest. Paul Tol's muted colours, which colour-blind readers tell apart too.
COLOURS = ["#332288", "#44AA99", "#CC6677", "#999999"]


def completed_runs(comparison: Comparison) -> pd.DataFrame:
    """List what completed runs measured, indexed by recipe."""
    return measured_runs(comparison).query("completed").set_index("recipe")


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

    Raises:
        NoData: there is no value.
    """
    if values.empty:
        raise NoData("no completed run has recorded it")
    grouped = values.groupby(level=0, sort=False)
    for row, (recipe, of_recipe) in enumerate(grouped):
        _, colour, marker = look(recipe)
        axes.barh(row + y, gmean(of_recipe), height, color=colour, alpha=alpha, linewidth=0)
        if len(of_recipe) > 1:
            axes.plot(of_recipe, [row + y] * len(of_recipe), marker, color=colour, zorder=3)
    return grouped.agg(gmean)


def compare_bars(axes: Axes, comparison: Comparison, values: pd.Series, unit: str, of: str) -> None:
    """Draw bars with their ratios to the reference's, and the best FP8 recipe's as the finding.

    Args:
        unit: to write after a bar's length.
        of: what is compared, for the finding.
    """
    lengths = draw_bars(axes, values.dropna())
    words, ratios = lengths.map(number) + unit, pd.Series(dtype=float)
    if comparison.reference in lengths:
        ratios = lengths / lengths[comparison.reference]
        words += ratios.map("\n{:.2f} ×".format)
    set_rows(axes, [*map(short_name, lengths.index)], of, words)
    if comparison.best.recipe in ratios:
        recipe, reference = comparison.best.recipe, name(comparison.reference)
        finding(axes, f"{name(recipe)}: {ratios[recipe]:.2f} times the {of} of {reference}")


@plot
def tokens_per_second(axes: Axes, comparison: Comparison) -> None:
    """Draw tokens per second of each recipe, over all devices, padding included, and write MFU."""
    runs = completed_runs(comparison).dropna(subset="tokens_per_s")
    compare_bars(axes, comparison, runs["tokens_per_s"], "", "tokens/s")
    used = runs.groupby(level=0, sort=False)["mfu_bf16_peak"].mean()
    words = used.map("\nMFU {:.1%}".format).mask(used.isna(), "")
    axes.set_yticklabels(used.index.map(short_name) + words)
    record = comparison.study.completed[used.index[0]][0].record
    device = record.last_attempt.hardware.name
    text = f"By the mean steady step, on {device}, in runs of {MIN_STEPS} steps or more."
    if not runs.index.is_unique:
        text += " Marks: several runs."
    if used.notna().any():
        text += " MFU: of the bf16 peak, for FP8 too."
    note(axes, text)


@plot
def memory(axes: Axes, comparison: Comparison) -> None:
    """Draw the highest memory in GiB."""
    gib = completed_runs(comparison)["peak_memory_gib"]
    compare_bars(axes, comparison, gib, " GiB", "peak memory")
    on_cpu = comparison.study.on_cpu
    whose = "resident memory of the process" if on_cpu else "reserved memory of a device"
    axes.set_xlabel(f"peak {whose} (GiB)")


@plot
def first_step(axes: Axes, comparison: Comparison) -> None:
    """Draw seconds from process start to the end of step 1 by what they went to: means of completed
    runs, of all attempts together."""
    runs = completed_runs(comparison).groupby(level=0, sort=False)
    seconds = runs["time_to_first_step_s"].mean()
    startup = {
        run: pd.DataFrame([timing.startup for timing in run.timings], columns=STARTUP).sum()
        for run in comparison.study.runs
        if run.completed
    }
    table = pd.DataFrame(startup).T.groupby(lambda run: run.recipe, sort=False).mean()
    if table.empty:
        raise NoData("no run was completed")
    table["other"] = seconds - table.sum(axis="columns")
    table.plot.barh(ax=axes, stacked=True, color=COLOURS, width=0.6, edgecolor="white")
    axes.legend([*STARTUP, "other"], loc="lower left", bbox_to_anchor=(0, 1), ncols=len(COLOURS))
    words = seconds.map(number) + " s"
    set_rows(axes, [*map(short_name, seconds.index)], "seconds to the end of step 1", words)
    note(axes, f"The clock starts with {comparison.study.clock_start}.")
    reference, best = comparison.reference, comparison.best
    if {reference, best.recipe} <= {*seconds.index}:
        more = seconds[best.recipe] - seconds[reference]
        text = f"{name(best.recipe)}: {more:+,.0f} s to step 1 over {name(reference)}"
        finding(axes, text, pad=22)
