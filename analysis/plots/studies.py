"""Figures of single studies; their tables are in analysis/studies.py."""

import math

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, LogNorm, Normalize

from analysis.comparison import COMPILED, Comparison
from analysis.losses import LEVEL
from analysis.plots.bars import completed, draw_bars, set_rows, write_beside
from analysis.plots.by_step import draw_margin
from analysis.plots.style import (
    SMALL,
    NoData,
    Plot,
    finding,
    legend_beside,
    look,
    make_room,
    name,
    note,
    panels,
    plot,
    short_name,
)
from analysis.studies import LADDER_PUBLISHED, WAYS, ladder_bytes, ladder_speed_ups
from analysis.sweep import Row, Sweep, cells, values

# ---- allgather_ladder ----


def allgather_ladder(comparison: Comparison) -> Plot:
    """Draw rung by rung the published speed over bf16, the measured one, and what a rank sends."""
    measured = ladder_speed_ups(comparison)
    runs = comparison.frames.runs
    draws = [
        (
            ladder_speed,
            pd.Series({COMPILED: 1.0} | LADDER_PUBLISHED),
            "70 B on 128 H100, published",
        ),
        (ladder_speed, measured, f"here, on {runs['device'].iloc[0]}"),
        (ladder_sizes, runs),
    ]
    return panels(draws, (11, 3.2), columns=3)


@plot
def ladder_speed(axes: Axes, speed_ups: pd.Series, where: str) -> None:
    """Draw tokens per second over bf16's, by the mean steady step."""
    if len(speed_ups) == 1:
        raise NoData("no completed run of baseline_compiled and of a rung above it")
    draw_bars(axes, speed_ups, "×")
    set_rows(axes, map(short_name, speed_ups.index), "tokens/s over those in bf16")
    finding(axes, f"{speed_ups.iloc[-1]:.2f} times bf16: {where}")


@plot
def ladder_sizes(axes: Axes, runs: pd.DataFrame) -> None:
    """Draw MB that are gathered and reduced in a step, one bar below the other."""
    found = ladder_bytes(runs)
    if found.empty:
        raise NoData("no completed run of several ranks")
    gathered = draw_bars(axes, found["gathered"], "gathered", y=-0.2, height=0.28)
    draw_bars(axes, found["reduced"], "reduced", y=0.1, height=0.28, alpha=0.25)
    for row, calls in enumerate(found["all_reduces"]):
        write_beside(axes, row + 0.4, f"{calls} all-reduces")
    set_rows(axes, map(short_name, found.index), "MB a step")
    finding(
        axes, f"FP8 all-gather sends {gathered.min() / gathered.max():.2f} of the weights' bytes"
    )
    note(axes, "Upper bars: weights; lower bars: gradients, in float32.")


# ---- fp8_lm ----

SUM_COLOURS = ["#0072B2", "#56B4E9", "#444444", "#009E73", "#CC79A7", "#D55E00"]


@plot
def gradient_sums(axes: Axes, sums: pd.DataFrame) -> None:
    """Draw signal to noise of gradients' sums by the number of ranks, a line a way to add up.

    `sums` as from `analysis.studies.gradient_sums`.
    """
    table = sums.pivot(index="ranks", columns="how", values="snr_db")[list(WAYS)]
    in_fp8 = ["in FP8" in words for words in WAYS.values()]
    styles = np.where(in_fp8, "s--", "o-").tolist()
    table.rename(columns=WAYS).plot(ax=axes, style=styles, color=SUM_COLOURS)
    axes.set_xscale("log", base=2)
    axes.set_xticks(table.index, table.index)
    axes.set(xlabel="ranks", ylabel="signal to noise of the sum (dB)", ylim=(0, None))
    legend_beside(axes, title="e4m3 gradients, added up")
    few, many = table.index[[0, -1]]
    gained = (table.loc[many] - table.loc[few]).groupby(list(in_fp8)).agg(["min", "max"])
    finding(
        axes,
        f"From {few} to {many} ranks sums in FP8 lose {-gained.loc[True, 'max']:.0f} to "
        f"{-gained.loc[True, 'min']:.0f} dB, sums in float32 gain {gained.loc[False, 'min']:.0f}",
    )
    note(axes, "20 dB: an error of a tenth, 40 dB: of a hundredth.")


# ---- phases ----


@plot
def trade(axes: Axes, comparison: Comparison) -> None:
    """Draw a point a recipe: its final loss less the baseline's, against its wall time.

    Wall time is over the opponent's mean. Horizontal line: from the fastest to the slowest of its
    runs. Vertical line: the interval of the verdict.
    """
    opponent, baseline, margin = comparison.opponent, comparison.baseline, comparison.margin
    wall = completed(comparison, "wall_s").groupby(level=0, sort=False)["wall_s"]
    wall = wall.agg(["min", "mean", "max"])
    if margin is None or opponent not in wall.index:
        raise NoData(f"it takes completed runs of {name(baseline)} and of {name(opponent)}")
    wall /= wall.loc[opponent, "mean"]
    draw_margin(axes, margin)
    losses = []
    for recipe, (fastest, mean, slowest) in zip(wall.index, wall.to_numpy(), strict=True):
        loss, half = 0.0, math.nan
        if recipe != baseline:
            judged = comparison.verdicts[recipe]
            loss, half = judged.difference, judged.high - judged.difference
        losses.append(loss)
        _, colour, marker = look(recipe)
        words = f"{short_name(recipe)}\n{mean:.2f} ×, {loss:+.4f}"
        axes.hlines(loss, fastest, slowest, colour, linewidth=1)
        axes.errorbar(mean, loss, half, fmt=marker, color=colour, markersize=7, label=words)
    axes.set(
        xlabel=f"wall time over {name(opponent)}, first step included",
        ylabel=f"final loss − that of {name(baseline)}\n(nats per token)",
    )
    make_room(axes, 3 * len(wall))
    legend_beside(axes)
    times = wall["mean"].drop(opponent)
    within = sum(abs(loss) < margin for loss in losses)
    finding(
        axes,
        f"{times.min():.2f} to {times.max():.2f} times the wall time; {within} of {len(losses)} "
        "losses within the margin",
    )
    note(
        axes,
        "Left and below is better. Grey: so near, two losses count as the same. Lines: "
        f"range of the times, {LEVEL:.0%} interval of the loss over seeds.",
    )


# ---- how near to its limits FP8 was ----


def fp8_ranges(ranges: pd.DataFrame) -> Plot:
    """Draw by step the share of values that become 0, of weights and of their gradients.

    They are of the first FP8 run with any. `ranges` as from `analysis.studies.fp8_ranges`.
    """
    flushed = ranges[(ranges["run"] == ranges["run"].min()) & (ranges["quantity"] == "flushed")]
    draws = [
        (group_lines, flushed[flushed["tensor"] == tensor], tensor)
        for tensor in ("weight", "gradient")
    ]
    return panels(draws, (9, 3.2), columns=2)


@plot
def group_lines(axes: Axes, ranges: pd.DataFrame, tensor: str) -> None:
    """Draw one line a group of layers."""
    if ranges.empty:
        raise NoData("no run kept FP8's ranges")
    table = 100 * ranges.pivot(index="step", columns="group", values="value")
    table.columns = table.columns.str.rpartition(".").get_level_values(2)
    table.plot(ax=axes, style=list("osD^vPX*")[: table.shape[1]], linestyle="-", legend=False)
    axes.set(xlabel="step", ylabel="values that become 0 (%)", ylim=(0, None))
    if tensor == "gradient":  # one legend for both
        legend_beside(axes)
    group = table.max().idxmax()
    finding(axes, f"At most {table.max(axis=None):.2g} % of a {tensor}'s values become 0 ({group})")


# ---- sweep ----

ACROSS = "training.seq_len"  # the axis that goes to the right, if there is one; the others go down
RATIO, EFFICIENCY = "over bf16", "efficiency"
PALE_RED, PALE_BLUE = "#F4A582", "#92C5DE"
FINDINGS = {
    RATIO: "{recipe} has {low:.2f} to {high:.2f} times the tokens/s of bf16",
    EFFICIENCY: "{recipe} reaches {low:.0%} to {high:.0%} of linear scaling",
}


@plot
def heat_map(axes: Axes, sweep: Sweep, quantity: str, recipe: str) -> None:
    """Draw a field a cell, with what the table says of it; grey where nothing was measured.

    Args:
        quantity: a key of `FINDINGS`. Speed-ups are blue where FP8 is faster, red where it is
            slower.
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
    table = table[~(table["text"] == "-").all(axis="columns")]  # such as efficiencies of one GPU
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
    low, high = numbers.min(axis=None), numbers.max(axis=None)
    finding(axes, FINDINGS[quantity].format(low=low, high=high, recipe=name(recipe)))


def _others(row: Row, across: str) -> str:
    """Name a row of the map by the cell's values on all axes but the one that goes to the right."""
    others = [(key.rpartition(".")[2], value) for key, value in row.values.items() if key != across]
    return "\n".join(f"{axis} {value}" for axis, value in others) or " "


def _colour(axes: Axes, numbers: pd.DataFrame, quantity: str) -> None:
    """Colour the fields so palely that black text can be read, and draw the scale.

    A ratio goes from red over white at 1 to blue, a share from white to blue.
    """
    most = max(1.1, numbers.max(axis=None), 1 / numbers.min(axis=None))
    scale, colours, ticks = (
        LogNorm(1 / most, most),
        [PALE_RED, "white", PALE_BLUE],
        [1 / most, 1, most],
    )
    if quantity != RATIO:
        scale, colours, ticks = Normalize(0, 1), colours[1:], [0, 0.5, 1]
    colours = LinearSegmentedColormap.from_list("pale", colours)
    bar = axes.figure.colorbar(
        axes.imshow(numbers, colours, scale, aspect="auto"), ax=axes, label=quantity
    )
    bar.set_ticks(ticks, labels=[f"{tick:.2f}" for tick in ticks])
    bar.minorticks_off()
