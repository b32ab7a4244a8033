"""Draw lines by step: the loss, its difference to the reference's, and the lead in wall time."""

import math
from collections.abc import Sequence
from statistics import fmean

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from analysis.break_even import BreakEven, When, interpolate_wall_s
from analysis.comparison import Comparison, ComparisonResult
from analysis.losses import (
    LOSS_CONFIDENCE,
    LossVerdict,
    final_loss,
    last_tenth,
    subtract_losses,
)
from analysis.plots.style import (
    GREY,
    NoData,
    PanelDrawing,
    find_look,
    full_name,
    set_height,
    short_name,
    write_headline,
    write_legend,
    write_note,
)
from analysis.runs import PlannedRun, Run
from analysis.speed import estimate_mean
from models.flops import format_parameters

MIN_POINTS = 400  # that stay of a line with more points
AXIS_MARGINS = 5  # the axis of loss differences ends at so many margins
MARKER_DISTANCE = 0.17  # as a share of the panel's diagonal


def draw_runs(axes: Axes, lines: dict[PlannedRun, pd.Series]) -> None:
    """Draw completed runs of a recipe as their mean in a band, and each other run as a dashed line.

    Args:
        lines: of each run the values to draw, by step.

    Raises:
        NoData: there is nothing to draw.
    """
    lines_by_recipe: dict[str, list[pd.Series]] = {}
    for run, values in lines.items():
        line = values.dropna()
        if run.completed and len(line):
            lines_by_recipe.setdefault(run.recipe, []).append(line)
        elif len(line):
            label = f"{short_name(run.recipe)}\n({run.ending})"
            colour = find_look(run.recipe).colour
            axes.plot(thin_out(line), "--", color=colour, linewidth=1, label=label)
    for recipe, recipe_lines in lines_by_recipe.items():
        table = pd.concat(recipe_lines, axis="columns", join="inner")
        draw_band(axes, recipe, table.agg(["mean", "min", "max"], axis="columns"))
    if not axes.lines:
        raise NoData("no run has logged it")


def draw_band(axes: Axes, recipe: str, band: pd.DataFrame) -> None:
    """Draw a recipe's line in its band.

    The first marker of each line is a fifth of their distance further to the right than that of the
    line before, so that the markers of equal lines show.

    Args:
        band: a row for each step; columns: the line, and the ends of its band, which may be NaN.
    """
    look = find_look(recipe)
    band = thin_out(band)
    line, low, high = band.to_numpy().T
    first_marker = len(axes.lines) % 5 / 5 * MARKER_DISTANCE
    axes.plot(
        band.index,
        line,
        color=look.colour,
        label=short_name(recipe),
        marker=look.marker,
        markevery=(first_marker, MARKER_DISTANCE),
    )
    axes.fill_between(band.index, low, high, color=look.colour, alpha=0.15, linewidth=0)


def thin_out(values: pd.Series | pd.DataFrame) -> pd.Series | pd.DataFrame:
    """Choose rows at equal distances, and the last one: more points than pixels only make pages
    large."""
    distance = max(1, len(values) // MIN_POINTS)
    first = (len(values) - 1) % distance  # from here the last row is reached
    return values.iloc[first::distance]


def finish_panel(axes: Axes, y_label: str, end_format: str) -> None:
    """Write the labels of the axes, and on the right, from top to bottom, the label and the last
    value of each line. A line that ends outside the panel is "off the axis".

    Args:
        end_format: of a line's last value.
    """
    axes.set(xlabel="step", ylabel=y_label)
    axes.margins(x=0)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter("{x:,.10g}")
    line_by_label = {}  # of runs with one label, one line
    for line in axes.get_lines():
        label = str(line.get_label())
        if not label.startswith("_"):  # matplotlib's name for a line without a label
            line_by_label[label] = line
    lines = sorted(line_by_label.values(), key=find_end, reverse=True)
    bottom, top = axes.get_ylim()
    labels = []
    text_lines = 0
    for line in lines:
        end = find_end(line)
        label = f"{line.get_label()}\n{end_format.format(end)}"
        if not bottom <= end <= top:
            label += ", off the axis"
        labels.append(label)
        text_lines += len(label.splitlines())
    set_height(axes, text_lines)
    write_legend(axes, lines, labels)


def find_end(line: Line2D) -> float:
    """Find the last value of a line."""
    return float(np.asarray(line.get_ydata())[-1])


# ---- loss ----


@PanelDrawing
def loss(axes: Axes, comparison: Comparison) -> None:
    """Draw the training loss (nats per token) by step: means over a tenth of the steps."""
    curves = {run: smooth(run.steps["loss"]) for run in comparison.study.runs}
    draw_runs(axes, curves)
    table = pd.DataFrame(curves)  # a row for each step, a column for each run
    first_losses = table.bfill().iloc[0]
    axes.set_ylim(0.98 * table.min(axis=None), 1.02 * first_losses.median())
    finish_panel(axes, "loss (nats per token)", "{:,.3f}")
    note = "Mean over a tenth of the steps."
    if max(map(len, comparison.study.completed_by_recipe.values()), default=0) > 1:
        note = "Mean over a tenth of the steps and over seeds; band: range of the runs."
    write_note(axes, note)
    final_losses = []
    for recipe in (comparison.best.recipe, comparison.reference):
        runs = comparison.study.completed_by_recipe.get(recipe, [])
        if runs:
            mean_loss = fmean(map(final_loss, runs))
            final_losses.append(f"{full_name(recipe)} ends at {mean_loss:.3f}")
    if final_losses:
        write_headline(axes, ", ".join(final_losses))


def smooth(losses: pd.Series) -> pd.Series:
    """Average the losses over a moving window of a tenth of the run's steps, by its middle step."""
    return losses.rolling(max(1, len(losses) // 10), center=True).mean()


@PanelDrawing
def loss_difference(axes: Axes, comparison: Comparison) -> None:
    """Draw the loss of each recipe minus the reference's, with its interval. The margin is grey.

    The axis ends at `AXIS_MARGINS` margins at most.
    """
    verdicts = select_verdicts(comparison)
    if not verdicts:
        raise NoData("it takes completed runs of the reference and of another recipe, equal seeds")
    completed = comparison.study.completed_by_recipe
    margin = next(iter(verdicts.values())).margin
    axes.axhline(0, color="black", linewidth=0.8)
    axes.axhspan(-margin, margin, color=GREY, alpha=0.15, linewidth=0, zorder=0)
    limit = 1.1 * margin
    for recipe in verdicts:
        band = smooth_difference(completed[recipe], completed[comparison.reference])
        draw_band(axes, recipe, band)
        limit = max(limit, band.abs().max(axis=None))
    limit = min(limit, AXIS_MARGINS * margin)
    axes.set_ylim(-limit, limit)
    y_label = f"loss − loss of {full_name(comparison.reference)}\n(nats per token)"
    finish_panel(axes, y_label, "{:+z.4f}")
    note = f"Grey: margin ± {margin:.3g}, in which two losses count as the same."
    if max(len(verdict.difference_by_seed) for verdict in verdicts.values()) > 1:
        note += f" Bands: {LOSS_CONFIDENCE:.0%} interval over the seeds."
    elif not comparison.study.completed[0].seed:
        note += " The runs have no seed, so another seed may explain the difference."
    write_note(axes, note)
    write_headline(axes, describe_largest_difference(verdicts, comparison.reference))


def describe_largest_difference(verdicts: dict[str, LossVerdict], reference: str) -> str:
    """Name the recipes that are off the axis; else say how far the farthest recipe ends from the
    reference."""
    off_axis = []
    differences = {}
    for recipe, verdict in verdicts.items():
        differences[recipe] = verdict.difference
        if abs(verdict.difference) > AXIS_MARGINS * verdict.margin:
            off_axis.append(f"{full_name(recipe)} is off the axis ({verdict.difference:+.3g})")
    if off_axis:
        return "; ".join(off_axis)
    recipe = max(differences, key=lambda recipe: abs(differences[recipe]))
    margins = abs(differences[recipe]) / verdicts[recipe].margin
    return (
        f"{full_name(recipe)} ends {differences[recipe]:+.4f} from {full_name(reference)}'s loss: "
        f"{margins:.2g} times the margin"
    )


def smooth_difference(runs: list[Run], reference_runs: list[Run]) -> pd.DataFrame:
    """Average the difference of the loss over seeds, and over a moving window of a tenth of the
    steps, by its last step.

    Returns:
        A row for each step; columns: `difference`, and its interval over seeds, `low` and `high`.
    """
    differences = subtract_losses(runs, reference_runs)
    means = differences.rolling(len(last_tenth(differences))).mean().dropna()
    estimates = estimate_mean(means.T, LOSS_CONFIDENCE)
    return pd.DataFrame(estimates.T, means.index, ["difference", "low", "high"])


def select_verdicts(comparison: Comparison) -> dict[str, LossVerdict]:
    """Select the verdicts on the loss that rest on pairs of runs, by recipe."""
    verdicts = {}
    for recipe, result in comparison.results.items():
        if result.loss.difference_by_seed:
            verdicts[recipe] = result.loss
    return verdicts


# ---- wall time ----


@PanelDrawing
def lead(axes: Axes, comparison: Comparison, with_first_step: bool = True) -> None:
    """Draw each recipe's lead over the mean of the reference's runs, in seconds of wall time.

    Above zero a recipe has taken less wall time. A mark shows where it wins or loses the lead.

    Args:
        with_first_step: whether the first step counts. Without it compilation costs nothing, as in
            the published study.
    """
    reference = comparison.reference
    reference_runs = comparison.study.completed_by_recipe.get(reference, [])
    if not reference_runs:
        raise NoData(f"there is no completed run of {full_name(reference)} to be ahead of")
    leads = find_leads(comparison.study.runs, reference_runs, with_first_step)
    draw_runs(axes, leads)
    axes.axhline(0, color=find_look(reference).colour, label=short_name(reference))
    axes.margins(y=0.12)
    first_step = "included" if with_first_step else "left out"
    y_label = f"seconds ahead of {full_name(reference)},\nfirst step (compile) {first_step}"
    finish_panel(axes, y_label, "{:+,.0f} s")
    record = reference_runs[0].record
    clock_note = ""
    if with_first_step:
        clock_note = f" The clock starts with {comparison.study.file.clock_start}."
    write_note(
        axes,
        f"{format_parameters(record.parameters)} parameters on {record.world_size} "
        f"{record.last_attempt.hardware.name}.{clock_note}",
    )
    best = comparison.best
    best_runs = comparison.study.completed_by_recipe.get(best.recipe, [])
    if best.recipe and with_first_step:
        mark_break_even(axes, comparison)
        write_headline(axes, describe_lead(best.recipe, reference, best.break_even))
    elif best_runs:
        lead_s = fmean(leads[run].iloc[-1] for run in best_runs)
        side = "ahead of" if lead_s > 0 else "behind"
        write_headline(
            axes,
            f"Without the first step {full_name(best.recipe)} ends {abs(lead_s):,.0f} s {side} "
            f"{full_name(reference)}",
        )


def describe_lead(recipe: str, reference: str, break_even: BreakEven) -> str:
    """Say when a recipe is ahead of the reference in wall time."""
    names = f"{full_name(recipe)} is {{}}ahead of {full_name(reference)}"
    if break_even.when == When.NOT_COMPARED:
        return f"Whether {full_name(recipe)} is ahead of {full_name(reference)} is unknown"
    if break_even.when == When.NEVER:
        return names.format("never ")
    return f"{names.format('')} {break_even}"


def find_leads(
    runs: Sequence[PlannedRun], reference_runs: list[Run], with_first_step: bool
) -> dict[PlannedRun, pd.Series]:
    """Work out, by step, how many seconds each run is ahead of the mean of the reference's runs."""
    length = min(run.length for run in reference_runs)
    reference_first_step_s = fmean(run.first_step_s for run in reference_runs)
    leads = {}
    for run in runs:
        clock = run.clock.loc[:length]
        if run.recipe != reference_runs[0].recipe and len(clock):
            steps = clock.index.to_numpy()
            leads[run] = interpolate_wall_s(reference_runs, steps).mean(axis=0) - clock
            if not with_first_step:
                leads[run] += run.first_step_s - reference_first_step_s
    return leads


def mark_break_even(axes: Axes, comparison: Comparison) -> None:
    """Mark the break-even steps of FP8 recipes, except those beyond the end of the runs."""
    row = 0
    for recipe in comparison.fp8:
        break_even = comparison.results.get(recipe, ComparisonResult()).break_even
        if math.isfinite(break_even.step) and not break_even.is_beyond:
            mark_step(axes, recipe, break_even, row)
            row += 1


def mark_step(axes: Axes, recipe: str, break_even: BreakEven, row: int) -> None:
    """Mark a recipe's break-even step on the zero line: with a cross if the lead is lost there.

    Args:
        row: of the text, counted from the zero line, so that texts do not overlap.
    """
    look = find_look(recipe)
    is_lost = break_even.when == When.UNTIL
    axes.plot(
        break_even.step,
        0,
        "x" if is_lost else look.marker,
        color="white",
        markeredgecolor=look.colour,
        markeredgewidth=1.5,
        markersize=8,
        zorder=5,
    )
    # The text stays inside the panel: left of a mark in the right half, else right of it.
    is_on_left = break_even.step > np.mean(axes.get_xlim())
    # It stays off the line, which rises where a lead is won and falls where it is lost.
    is_above = is_on_left != is_lost
    x_offset = -5 if is_on_left else 5  # points
    y_offset = 11 * row + 5 if is_above else -11 * row - 15
    axes.annotate(
        f"{break_even.when} {break_even.step:,.0f}",
        (break_even.step, 0),
        xytext=(x_offset, y_offset),
        textcoords="offset points",
        color=look.colour,
        fontweight="bold",
        horizontalalignment="right" if is_on_left else "left",
    )
