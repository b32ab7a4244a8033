"""Draw lines by step: the loss, its difference to the reference's, and the lead in wall time."""

import math

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from analysis.break_even import When, wall_times
from analysis.comparison import Comparison
from analysis.losses import LEVEL, Verdict, apart
from analysis.plots.style import (
    GREY,
    NoData,
    finding,
    legend_beside,
    look,
    make_room,
    name,
    note,
    plot,
    short_name,
)
from analysis.runs import Run, last_tenth
from analysis.speed import estimate
from models.flops import format_parameters

POINTS = 400  # at least, of a line that has more
FAR = 5  # margins from the reference's loss, at which the axis ends


def draw_runs(axes: Axes, lines: dict[Run, pd.Series]) -> None:
    """Draw completed runs of a recipe as their mean in a band, others as a dashed line.

    Args:
        lines: what to draw of each run, by step.

    Raises:
        NoData: there is nothing to draw.
    """
    completed: dict[str, list[pd.Series]] = {}
    for run, values in lines.items():
        line = values.dropna()
        if run.completed and len(line):
            completed.setdefault(run.recipe, []).append(line)
        elif len(line):
            label = f"{short_name(run.recipe)}\n({run.ending})"
            colour = look(run.recipe).colour
            axes.plot(thinned(line), "--", color=colour, linewidth=1, label=label)
    for recipe, of_recipe in completed.items():
        together = pd.concat(of_recipe, axis="columns", join="inner")
        draw_band(axes, recipe, together.agg(["mean", "min", "max"], axis="columns"))
    if not axes.lines:
        raise NoData("no run has logged it")


def draw_band(axes: Axes, recipe: str, band: pd.DataFrame) -> None:
    """Draw a recipe's line in its band.

    Markers are a fifth further on for each line, so that equal curves show each other's.

    Args:
        band: by step the line and the ends of its band, which may be NaN.
    """
    _, colour, marker = look(recipe)
    band = thinned(band)
    line, low, high = band.to_numpy().T
    every = max(1, len(band) // 6)
    places = len(axes.lines) * every // 5 % every, every
    label = short_name(recipe)
    axes.plot(band.index, line, color=colour, label=label, marker=marker, markevery=places)
    axes.fill_between(band.index, low, high, color=colour, alpha=0.15, linewidth=0)


def thinned(values: pd.Series | pd.DataFrame) -> pd.Series | pd.DataFrame:
    """Choose rows evenly, the last among them: more points than pixels only make pages large."""
    every = max(1, len(values) // POINTS)
    return values.iloc[::-every].iloc[::-1]


def finish(axes: Axes, y_label: str, end: str) -> None:
    """Write labels, and on the right, from top to bottom, each line's name and its end.

    A line that leaves the axis says so there.

    Args:
        end: format of a line's last value.
    """
    axes.set(xlabel="step", ylabel=y_label)
    axes.margins(x=0)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter("{x:,.10g}")
    lines = {line.get_label(): line for line in axes.get_legend_handles_labels()[0]}
    handles = sorted(lines.values(), key=last_of, reverse=True)
    lowest, highest = axes.get_ylim()
    labels = []
    for line in handles:
        off = "" if lowest <= last_of(line) <= highest else ", off the axis"
        labels.append(f"{line.get_label()}\n{end.format(last_of(line))}{off}")
    make_room(axes, "\n".join(labels).count("\n") + 1)
    legend_beside(axes, handles=handles, labels=labels)


def last_of(line) -> float:
    return line.get_ydata()[-1]


# ---- loss ----


@plot
def loss(axes: Axes, comparison: Comparison) -> None:
    """Draw the training loss (nats per token) by step: means over a tenth of the steps.

    The axis ends at the loss of the beginning.
    """
    smooth = pd.DataFrame({run: smoothed(run.steps["loss"]) for run in comparison.study.runs})
    draw_runs(axes, dict(smooth))
    axes.set_ylim(0.98 * smooth.min(axis=None), 1.02 * smooth.bfill().iloc[0].median())
    finish(axes, "loss (nats per token)", "{:,.4g}")
    note(axes, "Mean over a tenth of the steps and over seeds; band: range of the runs.")
    runs = comparison.study.completed
    ends = [
        f"{name(recipe)} ends at {np.mean([run.final_loss for run in runs[recipe]]):.3f}"
        for recipe in (comparison.best.recipe, comparison.reference)
        if runs[recipe]
    ]
    if ends:
        finding(axes, ", ".join(ends))


def smoothed(losses: pd.Series) -> pd.Series:
    """Average each tenth of a run's steps; a mean is in the middle of its steps."""
    tenth = max(1, len(losses) // 10)
    return losses.rolling(tenth, center=True).mean()


@plot
def loss_difference(axes: Axes, comparison: Comparison) -> None:
    """Draw the loss of each recipe minus the reference's, in its interval, over the margin.

    A recipe that ends more than `FAR` margins away is off the axis.
    """
    judged, runs = verdicts(comparison), comparison.study.completed
    if not judged:
        raise NoData("it takes completed runs of the reference and of another recipe, equal seeds")
    margin = next(iter(judged.values())).margin
    axes.axhline(0, color="black", linewidth=0.8)
    axes.axhspan(-margin, margin, color=GREY, alpha=0.15, linewidth=0, zorder=0)
    most = 1.1 * margin
    for recipe in judged:
        band = smooth_difference(runs[recipe], runs[comparison.reference])
        draw_band(axes, recipe, band)
        most = max(most, band.abs().max(axis=None))
    most = min(most, FAR * margin)
    axes.set_ylim(-most, most)
    finish(axes, f"loss − loss of {name(comparison.reference)}\n(nats per token)", "{:+z.4f}")
    note(
        axes,
        f"Same step and seed. Grey: margin ± {margin:.3g}, in which two losses count as the same. "
        f"Bands: {LEVEL:.0%} interval over several seeds.",
    )
    find_farthest(axes, comparison)


def smooth_difference(own: list[Run], others: list[Run]) -> pd.DataFrame:
    """Average the difference of the loss over seeds and over the last tenth of the steps so far: a
    row a step, with the interval over seeds."""
    pairs = apart(own, others)
    smooth = pairs.rolling(len(last_tenth(pairs))).mean().dropna()
    lines = estimate(smooth.T, LEVEL)
    return pd.DataFrame(lines.T, smooth.index, ["difference", "low", "high"])


def verdicts(comparison: Comparison) -> dict[str, Verdict]:
    """Choose the verdicts on the loss with pairs of runs."""
    return {recipe: of.loss for recipe, of in comparison.findings.items() if of.loss.by_seed}


def find_farthest(axes: Axes, comparison: Comparison) -> None:
    """Write the recipe with the farthest final loss as the finding."""
    judged = verdicts(comparison)
    if judged:
        recipe = max(judged, key=lambda recipe: abs(judged[recipe].difference))
        apart, margin = judged[recipe].difference, judged[recipe].margin
        finding(
            axes,
            f"{name(recipe)} ends {apart:+.4f} from {name(comparison.reference)}'s loss: "
            f"{abs(apart) / margin:.2g} times the margin",
        )


# ---- wall time ----


@plot
def lead(axes: Axes, comparison: Comparison, with_first_step: bool = True) -> None:
    """Draw each recipe's lead over the reference, in seconds of wall time.

    Above zero a recipe has taken less wall time; a mark shows where it gets or loses the lead.
    Each run is drawn against the mean of the reference's.

    Args:
        with_first_step: counts too; without it compilation costs nothing, as in the published
            study.
    """
    reference = comparison.reference
    runs = comparison.study.completed[reference]
    if not runs:
        raise NoData(f"there is no completed run of {name(reference)} to be ahead of")
    length = min(run.length for run in runs)
    first = np.mean([run.first_step_s for run in runs])
    lines = {}
    for run in comparison.study.runs:
        clock = run.clock.loc[:length]
        if run.recipe != reference and len(clock):
            lines[run] = wall_times(runs, clock.index.to_numpy()).mean(axis=0) - clock
            if not with_first_step:
                lines[run] += run.first_step_s - first
    draw_runs(axes, lines)
    axes.axhline(0, color=look(reference).colour, label=short_name(reference))
    axes.margins(y=0.12)
    included = "included" if with_first_step else "left out"
    label = f"seconds ahead of {name(reference)},\nfirst step (compile) {included}"
    finish(axes, label, "{:+,.0f} s")
    record = runs[0].record
    note(
        axes,
        f"{format_parameters(record.parameters)} parameters on {record.world_size} "
        f"{record.last_attempt.hardware.name}. The clock starts with "
        f"{comparison.study.clock_start}.",
    )
    best = comparison.best
    if with_first_step:
        mark_break_even(axes, comparison)
    elif best.recipe:
        end = np.mean([lines[run].iloc[-1] for run in comparison.study.completed[best.recipe]])
        finding(axes, f"Without the first step {name(best.recipe)}'s lead ends at {end:+,.0f} s")


def mark_break_even(axes: Axes, comparison: Comparison) -> None:
    """Mark where FP8 recipes win the lead, and with a cross where they lose it.

    The finding is about the answer's recipe.
    """
    best, reference = comparison.best, comparison.reference
    if best.recipe:
        finding(axes, f"{name(best.recipe)} ahead of {name(reference)}: {best.break_even}")
    for below, (recipe, of) in enumerate(comparison.findings.items(), start=1):
        found = of.break_even
        if recipe not in comparison.fp8 or found.beyond or not math.isfinite(found.step):
            continue
        _, colour, marker = look(recipe)
        lost, late = found.when == When.UNTIL, found.step > np.mean(axes.get_xlim())
        # Inside the panel, and off the line, which rises where a lead is won and falls where it is
        # lost.
        height = 11 * below - 6 if lost != late else -4 - 11 * below
        place, side = ((-5, height), "right") if late else ((5, height), "left")
        marker = "x" if lost else marker
        sign = {"color": "white", "markeredgecolor": colour, "markeredgewidth": 1.5}
        axes.plot(found.step, 0, marker, **sign, markersize=8, zorder=5)
        text = f"{found.when} {found.step:,.0f}"
        bold = {"color": colour, "fontweight": "bold", "horizontalalignment": side}
        axes.annotate(text, (found.step, 0), place, textcoords="offset points", **bold)
