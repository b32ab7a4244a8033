"""Figures of single studies; their tables are in analysis/studies.py."""

import math

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.comparison import Comparison
from analysis.losses import LEVEL
from analysis.plots.bars import completed, draw_bars, set_rows, write_beside
from analysis.plots.by_step import draw_margin
from analysis.plots.style import (
    SMALL,
    NoData,
    legend_beside,
    look,
    make_room,
    name,
    note,
    panels,
    plot,
    short_name,
)
from analysis.studies import LADDER_PUBLISHED, RUNGS, WAYS, ladder_bytes, ladder_speed_ups
from analysis.sweep import Row, Sweep, cells, values

# ---- allgather_ladder ----


def allgather_ladder(comparison: Comparison) -> Figure:
    """Draw rung by rung the speed over bf16 beside the published one, and what each rank sends."""
    draws = {
        "Speed over bf16": (ladder_speed, comparison),
        "Sent in a step": (ladder_sizes, comparison.frames.runs),
    }
    return panels(draws, (9, 3.4), columns=2)


@plot
def ladder_speed(axes: Axes, comparison: Comparison) -> None:
    """Draw tokens per second over bf16's, by the mean steady step; hollow diamonds: published."""
    speed_ups = ladder_speed_ups(comparison)
    if len(speed_ups) == 1:
        raise NoData("no completed run of baseline_compiled and of a rung above it")
    draw_bars(axes, speed_ups, published=LADDER_PUBLISHED)
    set_rows(axes, speed_ups.index.map(RUNGS), "tokens/s over those in bf16")
    note(axes, "◇ published: Llama 3 70B on 128 H100. The speed of CPUs says nothing of GPUs.")


@plot
def ladder_sizes(axes: Axes, runs: pd.DataFrame) -> None:
    """Draw MB that are gathered and reduced in a step, one bar below the other."""
    found = ladder_bytes(runs)
    if found.empty:
        raise NoData("no completed run of several ranks")
    draw_bars(axes, found["gathered"], "{} gathered", y=-0.2, height=0.28)
    draw_bars(axes, found["reduced"], "{} reduced", y=0.1, height=0.28, alpha=0.25)
    for row, calls in enumerate(found["all_reduces"]):
        write_beside(axes, row + 0.4, f"{calls} all-reduces")
    set_rows(axes, found["rung"], "MB a step")
    note(axes, "Upper bars: weights; lower bars: gradients, in float32.")


# ---- fp8_lm ----

SUM_COLOURS = ["#0072B2", "#56B4E9", "#444444", "#009E73", "#CC79A7", "#D55E00"]


@plot
def gradient_sums(axes: Axes, sums: pd.DataFrame) -> None:
    """Draw signal to noise of gradients' sums by the number of ranks, a line a way to add up.

    `sums` as from `analysis.studies.gradient_sums`.
    """
    table = sums.pivot(index="ranks", columns="how", values="snr_db")[list(WAYS)]
    styles = ["s--" if "FP8" in words else "o-" for words in WAYS.values()]
    table.rename(columns=WAYS).plot(ax=axes, style=styles, color=SUM_COLOURS)
    axes.set_xscale("log", base=2)
    axes.set_xticks(table.index, table.index)
    axes.set(xlabel="ranks", ylabel="signal to noise of the sum (dB)", ylim=(0, None))
    legend_beside(axes, title="e4m3 gradients, added up")
    note(axes, "20 dB: an error of a tenth, 40 dB: of a hundredth.")


# ---- phases ----


@plot
def trade(axes: Axes, comparison: Comparison) -> None:
    """Draw a point a recipe: its final loss less the baseline's, against its wall time.

    Wall time is over the opponent's mean. Horizontal line: from the fastest to the slowest of its
    runs. Vertical line: the interval of the verdict.
    """
    opponent, baseline = comparison.opponent, comparison.baseline
    wall = completed(comparison.frames.runs, "wall_s").groupby(level=0, sort=False)["wall_s"]
    wall = wall.agg(["min", "mean", "max"])
    if comparison.margin is None or opponent not in wall.index:
        raise NoData(f"it takes completed runs of {name(baseline)} and of {name(opponent)}")
    wall /= wall.loc[opponent, "mean"]
    draw_margin(axes, comparison.margin)
    for recipe, (fastest, mean, slowest) in zip(wall.index, wall.to_numpy(), strict=True):
        loss, half = 0.0, math.nan
        if recipe != baseline:
            judged = comparison.verdicts[recipe]
            loss, half = judged.difference, judged.high - judged.difference
        colour, marker = look(recipe)
        axes.hlines(loss, fastest, slowest, colour, linewidth=1)
        axes.errorbar(
            mean,
            loss,
            half,
            fmt=marker,
            color=colour,
            markersize=7,
            elinewidth=1,
            label=short_name(recipe),
        )
    axes.set(
        xlabel=f"wall time over {name(opponent)}, warm-up included",
        ylabel=f"final loss − that of {name(baseline)}\n(nats per token)",
    )
    make_room(axes, len(wall))
    legend_beside(axes)
    note(
        axes,
        "Left and below is better. Grey: so near, two losses count as the same. Lines: "
        f"range of the times, {LEVEL:.0%} interval of the loss over seeds.",
    )


# ---- how near to its limits FP8 was ----

QUANTITIES = {"flushed": "share of values that become 0", "amax": "largest absolute value"}


def fp8_ranges(ranges: pd.DataFrame) -> Figure:
    """Draw flushed shares and largest values by step, of weights and of their gradients.

    They are of the first FP8 run with any. `ranges` as from `analysis.studies.fp8_ranges`.
    """
    first = ranges[ranges["run"] == next(iter(ranges["run"]), None)]
    draws = {}
    for tensor in ("weight", "gradient"):
        for quantity, words in QUANTITIES.items():
            chosen = first[(first["tensor"] == tensor) & (first["quantity"] == quantity)]
            draws[f"{tensor.capitalize()}s: {words}"] = (group_lines, chosen, quantity)
    return panels(draws, (10, 6.4), columns=2)


@plot
def group_lines(axes: Axes, ranges: pd.DataFrame, quantity: str) -> None:
    """Draw one line a group of layers."""
    if ranges.empty:
        raise NoData("no run kept FP8's ranges")
    table = ranges.pivot(index="step", columns="group", values="value")
    table.rename(columns=lambda group: group.rpartition(".")[2]).plot(
        ax=axes, style=list("osD^vPX*")[: table.shape[1]], linestyle="-", legend=False
    )
    if quantity == "amax":
        axes.set_yscale("log")
        legend_beside(axes)
    else:
        axes.set_ylim(0, max(1e-4, 1.1 * ranges["value"].max()))
        axes.ticklabel_format(axis="y", scilimits=(0, 0))
    axes.set_xlabel(f"step of {ranges['run'].iloc[0].replace('$', '')}")


# ---- sweep ----

ACROSS = "training.seq_len"  # the axis that goes to the right, if there is one; the others go down
RATIO = "over bf16"


@plot
def heat_map(axes: Axes, sweep: Sweep, quantity: str, recipe: str) -> None:
    """Draw a field a cell, with what the table says of it; grey where nothing was measured.

    Args:
        quantity: a key of `analysis.sweep.values`. Speed-ups are blue where FP8 is faster, red
            where it is slower.
    """
    across = ACROSS if ACROSS in sweep.axes else list(sweep.axes)[-1]
    fields = {}
    for row in sweep.rows:
        if row.recipe == recipe:
            value, text = values(row)[quantity], cells(row, sweep.opponent)[quantity]
            if value is None:
                text = "-" if row.rate else row.state.split(",")[0]
            fields[_others(row, across), row.values[across]] = {"number": value, "text": text}
    table = pd.DataFrame.from_dict(fields, orient="index").unstack(sort=False)
    numbers, texts = table["number"].astype(float), table["text"]
    if numbers.isna().all(axis=None):
        raise NoData(f"no completed run of {recipe} has {quantity}")
    _colour(axes, numbers, quantity)
    for (y, x), text in np.ndenumerate(texts):
        lines = text.replace(" (", "\n(").replace(", ", "\n").replace("about ", "about\n")
        axes.text(x, y, lines, ha="center", va="center", fontsize=SMALL)
    set_rows(axes, numbers.index, across.rpartition(".")[2])
    axes.set_xticks(range(numbers.shape[1]), numbers.columns)
    axes.set_facecolor("#EEEEEE")
    axes.grid(visible=False)


def _others(row: Row, across: str) -> str:
    """Name a row of the map by the cell's values on all axes but the one that goes to the right."""
    others = [(key.rpartition(".")[2], value) for key, value in row.values.items() if key != across]
    return ", ".join(f"{axis} {value}" for axis, value in others) or " "


def _colour(axes: Axes, numbers: np.ndarray, quantity: str) -> None:
    """Colour the fields palely, so that black text can be read.

    A ratio goes from red over white at 1 to blue, others go from white to blue.
    """
    colours, lowest, highest = "Blues", 0.0, 2 * np.nanmax(numbers)
    if quantity == RATIO:
        numbers = np.log(numbers)
        highest = 2 * max(0.01, np.nanmax(np.abs(numbers)))
        colours, lowest = "RdBu", -highest
    axes.imshow(numbers, colours, vmin=lowest, vmax=highest, aspect="auto")
