"""Lines by step: the loss, its difference to the reference's, and the lead in wall time."""

import math

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from analysis.answer import short
from analysis.break_even import When, wall_times
from analysis.comparison import BASELINE, Comparison
from analysis.losses import LEVEL, TOLERANCE, Verdict, differences
from analysis.plots.style import (
    GREY,
    SMALL,
    NoData,
    finding,
    legend_beside,
    look,
    make_room,
    name,
    note,
    number,
    plot,
    short_name,
)
from analysis.runs import Run
from analysis.table import first_step_s

POINTS = 400  # of a line: more than its pixels would only make pages large
FAR = 10  # margins: a loss that ends farther from the reference's is off the axis of the others


def draw_runs(axes: Axes, runs: dict[Run, pd.Series], groups: list[list[str]]) -> None:
    """Draw completed runs of a group of recipes as their mean in a band, others as a dashed line.

    Args:
        runs: what to draw of each run, by step.
        groups: recipes that are drawn together.

    Raises:
        NoData: there is nothing to draw.
    """
    drawn = {run: line.dropna() for run, line in runs.items() if line.notna().any()}
    if not drawn:
        raise NoData("no run has logged it")
    for recipes in groups:
        lines = [line for run, line in drawn.items() if run.completed and run.recipe in recipes]
        if lines:
            together = pd.concat(lines, axis="columns", join="inner")
            draw_band(axes, recipes, together.agg(["mean", "min", "max"], axis="columns"))
    for run, line in drawn.items():
        if not run.completed:
            label = f"{short_name(run.recipe)}\n({run.ending})"
            colour = look(run.recipe).colour
            axes.plot(thinned(line), "--", color=colour, linewidth=1, label=label)


def draw_band(axes: Axes, recipes: list[str], band: pd.DataFrame) -> None:
    """Draw a line in the look of the first recipe, in its band.

    Markers are a fifth further on for each line, so that equal curves show each other's.

    Args:
        band: by step the line and the ends of its band, which may be NaN.
    """
    _, colour, marker = look(recipes[0])
    band = thinned(band)
    line, low, high = band.to_numpy().T
    every = max(1, len(band) // 6)
    places = len(axes.lines) * every // 5 % every, every
    label = "\n".join(map(short_name, recipes))
    axes.plot(band.index, line, color=colour, label=label, marker=marker, markevery=places)
    axes.fill_between(band.index, low, high, color=colour, alpha=0.15, linewidth=0)


def thinned(values):
    """Choose at most `POINTS` rows evenly, the last among them."""
    count = min(len(values), POINTS)
    return values.iloc[np.linspace(0, len(values) - 1, count).round().astype(int)]


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
    lowest, highest = axes.get_ylim()
    lines = {line.get_label(): line for line in axes.get_legend_handles_labels()[0]}
    for label, line in lines.items():
        words = f"{label}\n{end.format(last_of(line))}"
        if not lowest <= last_of(line) <= highest:
            words += ", off the axis"
        line.set_label(words)
    handles = sorted(lines.values(), key=last_of, reverse=True)
    make_room(axes, "\n".join(line.get_label() for line in handles).count("\n") + 1)
    legend_beside(axes, handles=handles)


def last_of(line) -> float:
    return line.get_ydata()[-1]


# ---- loss ----


@plot
def loss(axes: Axes, comparison: Comparison) -> None:
    """Draw the training loss (nats per token) by step: means over a tenth of the steps.

    Recipes whose final losses coincide are one band. The axis ends at the loss of the beginning.
    """
    smooth = {run: smoothed(run.steps["loss"]) for run in comparison.study.runs if run.length}
    draw_runs(axes, smooth, alike(comparison))
    lowest = min(line.min() for line in smooth.values())
    highest = np.median([line.dropna().iloc[0] for line in smooth.values()])
    axes.set_ylim(0.98 * lowest, 1.02 * highest)
    finish(axes, "loss (nats per token)", "{:,.4g}")
    note(axes, "Mean over a tenth of the steps and over seeds; band: range of the runs.")
    find_farthest(axes, comparison)


def alike(comparison: Comparison) -> list[list[str]]:
    """Group recipes: a group ends where the next final loss is higher by more than the margin."""
    final = {}
    for recipe, runs in comparison.completed.items():
        final[recipe] = np.mean([run.final_loss for run in runs])
    groups, before = [], -math.inf
    for recipe in sorted(final, key=final.get):
        if final[recipe] - before > TOLERANCE * final[recipe]:
            groups.append([])
        groups[-1].append(recipe)
        before = final[recipe]
    return [sorted(group, key=comparison.recipes.index) for group in groups]


def smoothed(losses: pd.Series) -> pd.Series:
    """Average each tenth of a run's steps; a mean is in the middle of its steps."""
    tenth = max(1, len(losses) // 10)
    return losses.rolling(tenth, center=True).mean()


@plot
def loss_difference(axes: Axes, comparison: Comparison) -> None:
    """Draw the loss of each recipe minus the reference's, in its interval, over the margin.

    A recipe that ends more than `FAR` margins away is off the axis, if another does not.
    """
    judged = verdicts(comparison)
    if not judged:
        raise NoData("it takes completed runs of the reference and of another recipe, equal seeds")
    margin = next(iter(judged.values())).margin
    axes.axhline(0, color="black", linewidth=0.8)
    axes.axhspan(-margin, margin, color=GREY, alpha=0.15, linewidth=0, zorder=0)
    reach = []
    for recipe, verdict in judged.items():
        band = differences(*map(comparison.study.completed, (recipe, comparison.reference)))
        if abs(verdict.difference) < FAR * margin:
            reach.append(band.abs().max(axis=None))
        else:
            band[["low", "high"]] = math.nan
        draw_band(axes, [recipe], band)
    if reach:
        most = max(*reach, 1.1 * margin)
        axes.set_ylim(-most, most)
    finish(axes, f"loss − loss of {name(comparison.reference)}\n(nats per token)", "{:+z.4f}")
    note(
        axes,
        f"Same step and seed. Grey: margin ± {margin:.3g}, in which two losses count as the same. "
        f"Bands: {LEVEL:.0%} interval over several seeds.",
    )
    find_farthest(axes, comparison)


def verdicts(comparison: Comparison) -> dict[str, Verdict]:
    """Give the verdict on the loss of each recipe that has seeds in common with the reference."""
    return {recipe: of.loss for recipe, of in comparison.findings.items() if of.loss.by_seed}


def find_farthest(axes: Axes, comparison: Comparison) -> None:
    """Write as the finding who ends farthest from the reference's loss, or that nobody does."""
    judged, reference = verdicts(comparison), name(comparison.reference)
    if not judged:
        return
    far = max(judged, key=lambda recipe: abs(judged[recipe].difference))
    apart, margin = judged[far].difference, judged[far].margin
    if abs(apart) <= margin:
        finding(axes, f"No final loss is more than {abs(apart):.2g} from {reference}'s")
    else:
        side = "above" if apart > 0 else "below"
        times = number(abs(apart) / margin)
        finding(
            axes, f"{name(far)}: final loss {abs(apart):.3g} {side} {reference}, {times} margins"
        )


# ---- wall time ----


@plot
def lead(axes: Axes, comparison: Comparison, with_first_step: bool = True) -> None:
    """Draw the seconds that each recipe is ahead of the reference.

    Above zero a recipe has taken less wall time; a mark shows where it gets or loses the lead.
    Each run is drawn against the mean of the reference's.

    Args:
        with_first_step: counts too; without it compilation costs nothing, as in the published
            study.
    """
    reference = comparison.reference
    if reference not in comparison.completed:
        raise NoData(f"there is no completed run of {name(reference)} to be ahead of")
    runs = comparison.completed[reference]
    length = min(run.length for run in runs)
    left_out = 0.0 if with_first_step else np.mean([first_step_s(run) for run in runs])
    lines = {}
    for run in comparison.study.runs:
        clock = run.steps["elapsed"].dropna().loc[:length]
        if run.recipe != reference and len(clock):
            taken = wall_times(runs, clock.index.to_numpy()).mean(axis=0) - left_out
            lines[run] = taken - clock + (0.0 if with_first_step else first_step_s(run))
    draw_runs(axes, lines, [[recipe] for recipe in comparison.recipes])
    axes.axhline(0, color=look(reference).colour, label=short_name(reference))
    axes.margins(y=0.12)
    small = {"transform": axes.transAxes, "color": GREY, "fontsize": SMALL, "fontstyle": "italic"}
    axes.text(0.01, 0.98, "ahead", va="top", **small)
    axes.text(0.01, 0.02, "behind", va="bottom", **small)
    included = "included" if with_first_step else "left out"
    finish(axes, f"lead over {name(reference)} (s),\nfirst step (compile) {included}", "{:+,.0f} s")
    trained = runs[0].manifest
    note(
        axes,
        f"{short(trained.parameters)} parameters on {trained.world_size} {trained.hardware.name}. "
        f"The clock starts with {comparison.study.clock_start}.",
    )
    if with_first_step:
        mark_break_even(axes, comparison)
    best = comparison.best
    if best and with_first_step:
        who = f"{name(best.recipe)} against {name(reference)}"
        finding(axes, f"Break-even step of {who}: {best.break_even}")
    elif best:
        ends = [line.iloc[-1] for run, line in lines.items() if run.recipe == best.recipe]
        finding(axes, f"{name(best.recipe)}: {np.mean(ends):+,.0f} s without the first step")


def mark_break_even(axes: Axes, comparison: Comparison) -> None:
    """Mark where recipes win the lead, and with a cross where they lose it."""
    below = 0
    for recipe, of in comparison.findings.items():
        found, below = of.break_even, below + 11
        if recipe == BASELINE or found.beyond or not math.isfinite(found.step):
            continue
        _, colour, marker = look(recipe)
        lost = found.when == When.UNTIL
        sign = {"marker": "x" if lost else marker, "color": colour if lost else "white"}
        axes.plot(found.step, 0, **sign, markeredgecolor=colour, markersize=8, markeredgewidth=1.5,
                  zorder=5)  # fmt: skip
        # beside the line, which rises where a lead is won and falls where it is lost
        place = (5, below - 6 if lost else -4 - below)
        axes.annotate(f"{found.when} step {found.number}", (found.step, 0), place,
                      textcoords="offset points", color=colour, fontweight="bold")  # fmt: skip
