"""The ladder to FP8 all-gather: speed and bytes of each rung."""

import math

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.comparison import Comparison
from analysis.ladder import PUBLISHED, RUNGS, sent, speed_ups
from analysis.plots.bars import number, set_rows, write_beside
from analysis.plots.series import short_lines
from analysis.plots.style import GREY, NoData, look, note, panels, plot


def allgather_ladder(comparison: Comparison) -> Figure:
    """Rung by rung: speed over bf16 beside the published one, and what each rank sends in a
    step."""
    titles = {
        "Speed over bf16": lambda axes: speed.panel(axes, comparison),
        "Sent in a step": lambda axes: sizes.panel(axes, comparison.frames.runs),
    }
    return panels(titles, (9, 3.4), columns=2)


@plot
def speed(axes: Axes, comparison: Comparison) -> None:
    """Tokens per second over bf16's, by the mean steady step; hollow diamonds: published."""
    found = speed_ups(comparison)
    if not found:
        raise NoData("no completed run of baseline_compiled and of a rung above it")
    for y, (rung, ratio) in enumerate(found.items()):
        axes.barh(y, ratio, 0.6, color=look(rung).colour, alpha=0.55, linewidth=0)
        text = "too short" if math.isnan(ratio) else f"{ratio:.2f}"
        if rung in PUBLISHED:
            axes.plot(
                PUBLISHED[rung], y, "d", markerfacecolor="white", markeredgecolor=GREY, zorder=3
            )
            text += f"\n◇ {PUBLISHED[rung]:.2f}"
        write_beside(axes, y, text)
    set_rows(axes, [short_lines(RUNGS[rung]) for rung in found], "tokens/s over those in bf16")
    axes.set_xlim(left=0)
    runs = comparison.frames.runs
    cpu = (
        " These are CPUs: their speed says nothing of GPUs."
        if (runs["device_type"] == "cpu").all()
        else ""
    )
    note(axes, f"◇ published: Llama 3 70B on 128 H100.{cpu}")


@plot
def sizes(axes: Axes, runs: pd.DataFrame) -> None:
    """MB that are gathered and reduced in a step, one bar below the other; beside them the calls of
    all-reduce."""
    found = sent(runs)
    found = found[found["gathered"].notna()] if len(found) else found
    if not len(found):
        raise NoData("no completed run of several ranks")
    for y, row in enumerate(found.itertuples()):
        for place, size, alpha in ((-0.15, row.gathered, 0.55), (0.15, row.reduced, 0.25)):
            axes.barh(y + place, size, 0.28, color=look(row.Index).colour, alpha=alpha, linewidth=0)
        write_beside(
            axes,
            y,
            f"{number(row.gathered)}, {number(row.reduced)}\n{row.all_reduces:.0f} all-reduces",
        )
    set_rows(axes, [short_lines(rung) for rung in found["rung"]], "MB a step")
    note(
        axes,
        "Upper bars: weights that are gathered; lower ones: gradients that are reduced, in float32.",
    )
