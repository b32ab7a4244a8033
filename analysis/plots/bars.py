"""Draw rows of horizontal bars, one a recipe: speed, first step and memory."""

from collections.abc import Iterable, Sequence

import pandas as pd
from matplotlib.axes import Axes
from scipy.stats import gmean

from analysis.comparison import Comparison
from analysis.plots.style import (
    SMALL_FONT,
    NoData,
    PanelDrawing,
    find_look,
    format_number,
    full_name,
    set_height,
    short_name,
    write_headline,
    write_note,
)
from analysis.runs import MIN_STEPS
from analysis.tables import measure_runs

# Parts of the time to the end of step 1, as an attempt's record has them.
STARTUP = ["import", "data", "compile"]
# Of these parts, and of the rest: Paul Tol's muted colours, which colour-blind readers tell apart.
STARTUP_COLOURS = ["#332288", "#44AA99", "#CC6677", "#999999"]


def measure_completed_runs(comparison: Comparison) -> pd.DataFrame:
    """Measure the completed runs: a row for each run, indexed by recipe."""
    return measure_runs(comparison.study).query("completed").set_index("recipe")


def set_rows(axes: Axes, labels: Sequence[str], x_label: str, texts: Iterable[str] = ()) -> None:
    """Name the rows of a panel, the first one on top, and make room for them.

    Args:
        texts: what to write of each row, on the right of the panel.
    """
    axes.set_yticks(range(len(labels)), labels)
    axes.set(ylim=(len(labels) - 0.5, -0.5), xlabel=x_label, ylabel="")
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=False, axis="y")
    axes.xaxis.set_major_formatter("{x:,.10g}")
    for row, text in enumerate(texts):
        axes.annotate(
            text,
            (1, row),
            xytext=(5, 0),
            xycoords=axes.get_yaxis_transform(),
            textcoords="offset points",
            verticalalignment="center",
            fontsize=SMALL_FONT,
        )
    set_height(axes, text_lines=3 * len(labels))


def draw_bars(
    axes: Axes, values: pd.Series, offset: float = 0.0, height: float = 0.6, alpha: float = 0.55
) -> pd.Series:
    """Draw a bar for each recipe, from zero to the geometric mean of its runs.

    A mark shows each run, if a recipe has several.

    Args:
        values: of the runs, indexed by recipe.
        offset: how far below the middle of its row a bar is; rows are 1 apart.

    Returns:
        The lengths of the bars, by recipe.

    Raises:
        NoData: there is no value.
    """
    if values.empty:
        raise NoData("no completed run has recorded it")
    lengths = values.groupby(level=0, sort=False).agg(gmean)
    for row, (recipe, length) in enumerate(lengths.items()):
        look = find_look(recipe)
        axes.barh(row + offset, length, height, color=look.colour, alpha=alpha, linewidth=0)
        run_values = values.loc[[recipe]]
        if len(run_values) > 1:
            rows = [row + offset] * len(run_values)
            axes.plot(run_values, rows, look.marker, color=look.colour, zorder=3)
    return lengths


def compare_bars(
    axes: Axes, comparison: Comparison, values: pd.Series, unit: str, quantity: str
) -> None:
    """Draw bars, and write each bar's ratio to the reference's beside it. The headline is the ratio
    of the best FP8 recipe.

    Args:
        values: of the runs, indexed by recipe.
        unit: to write after a bar's length.
        quantity: what is compared, for the x label and the headline.
    """
    reference = comparison.reference
    best_recipe = comparison.best.recipe
    lengths = draw_bars(axes, values.dropna())
    texts = lengths.map(format_number) + unit
    if reference in lengths:
        ratios = lengths / lengths[reference]
        texts += ratios.map("\n{:.2f} ×".format)
        if best_recipe in ratios:
            ratio = f"{ratios[best_recipe]:.2f} times the {quantity}"
            write_headline(axes, f"{full_name(best_recipe)}: {ratio} of {full_name(reference)}")
    set_rows(axes, [*map(short_name, lengths.index)], quantity, texts)


@PanelDrawing
def tokens_per_second(axes: Axes, comparison: Comparison) -> None:
    """Draw tokens per second of each recipe, over all devices, padding included, and write MFU."""
    runs = measure_completed_runs(comparison).dropna(subset="tokens_per_s")
    compare_bars(axes, comparison, runs["tokens_per_s"], "", "tokens/s")
    mfu = runs.groupby(level=0, sort=False)["mfu_bf16_peak"].mean()
    mfu_texts = mfu.map("\nMFU {:.1%}".format).mask(mfu.isna(), "")
    axes.set_yticklabels(mfu.index.map(short_name) + mfu_texts)
    first_run = comparison.study.completed_by_recipe[mfu.index[0]][0]
    device = first_run.record.last_attempt.hardware.name
    text = f"By the mean steady step, on {device}, in runs of {MIN_STEPS} steps or more."
    if not runs.index.is_unique:
        text += " Marks: several runs."
    if mfu.notna().any() and comparison.study.on_cpu:
        text += " MFU: of a matmul peak measured on this CPU."
    elif mfu.notna().any():
        text += " MFU: of the bf16 peak, for FP8 too."
    write_note(axes, text)


@PanelDrawing
def mfu(axes: Axes, comparison: Comparison) -> None:
    """Draw each recipe's MFU in percent: model FLOP/s over the GPU's dense bf16 peak."""
    percent = 100 * measure_completed_runs(comparison)["mfu_bf16_peak"].dropna()
    if percent.empty:
        raise NoData("no peak of this device is known")
    compare_bars(axes, comparison, percent, " %", "MFU")
    if comparison.study.on_cpu:
        axes.set_xlabel("MFU (% of a measured peak)")
        write_note(axes, "Of the highest rate of matmuls that was measured on this CPU.")
    else:
        axes.set_xlabel("MFU (% of the bf16 peak)")
        write_note(axes, "FP8 matmuls count against the bf16 peak too, so that recipes compare.")


@PanelDrawing
def time_after_first_step(axes: Axes, comparison: Comparison) -> None:
    """Draw each recipe's wall time in seconds, without the first step (compile)."""
    runs = measure_completed_runs(comparison)
    seconds = runs["wall_s"] - runs["time_to_first_step_s"]
    compare_bars(axes, comparison, seconds, " s", "wall time after the first step")
    axes.set_xlabel("wall time after the first step (s)")
    write_note(axes, "From the end of step 1 to the end of the run; the next figure adds step 1.")


@PanelDrawing
def memory(axes: Axes, comparison: Comparison) -> None:
    """Draw each recipe's peak memory in GiB."""
    peak_memory_gib = measure_completed_runs(comparison)["peak_memory_gib"]
    compare_bars(axes, comparison, peak_memory_gib, " GiB", "peak memory")
    if comparison.study.on_cpu:
        axes.set_xlabel("peak resident memory of the process (GiB)")
    else:
        axes.set_xlabel("peak reserved memory of a device (GiB)")


@PanelDrawing
def first_step(axes: Axes, comparison: Comparison) -> None:
    """Draw the seconds from process start to the end of step 1, divided into parts: summed over the
    attempts of a run, averaged over completed runs."""
    rows = []
    for run in comparison.study.completed:
        startups = [timing.startup for timing in run.timings]
        seconds_by_part = pd.DataFrame(startups, columns=STARTUP).sum()
        rows.append({"recipe": run.recipe, "total": run.first_step_s, **seconds_by_part})
    if not rows:
        raise NoData("no run was completed")
    table = pd.DataFrame(rows).groupby("recipe", sort=False).mean()
    seconds = table.pop("total")
    table["other"] = seconds - table.sum(axis="columns")
    table.plot.barh(ax=axes, stacked=True, color=STARTUP_COLOURS, width=0.6, edgecolor="white")
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=len(STARTUP_COLOURS))
    texts = seconds.map(format_number) + " s"
    set_rows(axes, [*map(short_name, seconds.index)], "seconds to the end of step 1", texts)
    write_note(axes, f"The clock starts with {comparison.study.file.clock_start}.")
    recipe = comparison.best.recipe
    reference = comparison.reference
    if recipe in seconds and reference in seconds:
        difference = seconds[recipe] - seconds[reference]
        text = f"{full_name(recipe)}: {difference:+,.0f} s to step 1 over {full_name(reference)}"
        write_headline(axes, text, pad=22)
