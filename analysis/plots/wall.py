"""How long does it take? Wall time by step without the warm-up, and the lead over another recipe with it."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.comparison import Comparison
from analysis.plots.series import LineEnd, curves, draw_curves, label_ends
from analysis.plots.style import (
    GREY,
    SMALL,
    NoData,
    clock_start,
    look,
    name,
    new_figure,
    note,
    panel,
    require,
    styled,
    thousands,
)
from analysis.rates import FROM, UNTIL


@styled
def wall_after_warm_up(runs: pd.DataFrame, windows: pd.DataFrame) -> Figure:
    """Seconds since the end of step 1 by step: the published view, in which compilation costs nothing."""
    figure, ((axes,),) = new_figure()
    label_ends(axes, draw_wall_after_warm_up(axes, runs, windows))
    return figure


@panel
def draw_wall_after_warm_up(axes: Axes, runs: pd.DataFrame, windows: pd.DataFrame) -> list[LineEnd]:
    ends = [end for pair in curves(runs, _wall(windows), "seconds") for end in draw_curves(axes, *pair, marker="")]
    axes.set(xlabel="step", ylabel="wall time since the end of step 1 (s)")
    axes.margins(x=0)
    axes.set_ylim(bottom=0)
    thousands(axes, "x", "y")
    note(axes, "The warm-up is left out: compilation costs nothing here.")
    return ends


@styled
def lead(comparison: Comparison) -> Figure:
    """Seconds that each recipe is ahead of the opponent by step, warm-up included, and where it gets or loses the lead.

    Above zero a recipe has taken less wall time. Band: from the first to the last of its runs, where there are several;
    each against the mean of the opponent's runs.
    """
    figure, ((axes,),) = new_figure()
    label_ends(axes, draw_lead(axes, comparison))
    return figure


@panel
def draw_lead(axes: Axes, comparison: Comparison) -> list[LineEnd]:
    runs, opponent = comparison.frames.runs, comparison.opponent
    found = curves(runs, _wall(comparison.frames.windows), "elapsed_s")
    totals = {group.recipe: frame.mean(axis=1) for group, frame in found if group.completed}
    if opponent not in totals:
        raise NoData(f"there is no completed run of {name(opponent)} to be ahead of")
    total, ends = totals[opponent], []
    for group, frame in found:
        if group.recipe != opponent:
            frame = frame[(frame.index >= total.index[0]) & (frame.index <= total.index[-1])]
            ahead = -frame.sub(np.interp(frame.index, total.index, total), axis=0)
            ends += draw_curves(axes, group, ahead, marker="") if len(ahead) else []
    if not ends:
        raise NoData(f"no other run has steps in common with {name(opponent)}")
    colour = look(opponent).colour
    axes.axhline(0, color=colour, linewidth=1.6)
    ends.append(LineEnd(total.index[-1], 0.0, name(opponent), colour))
    for place, word in ((0.98, "ahead"), (0.02, "behind")):
        axes.text(0.01, place, word, transform=axes.transAxes, va="top" if word == "ahead" else "bottom", color=GREY,
                  fontsize=SMALL, fontstyle="italic")  # fmt: skip
    axes.set(xlabel="step", ylabel=f"lead over {name(opponent)},\nwarm-up included (s)")
    axes.margins(x=0, y=0.12)
    thousands(axes, "x", "y")
    against = [b for b in comparison.break_evens if b.b == opponent]
    for paid in against:
        if paid.outcome in (FROM, UNTIL) and not paid.beyond:
            shape = {"markersize": 7, "markerfacecolor": "white", "markeredgecolor": look(paid.a).colour, "zorder": 5}
            axes.plot(paid.step, 0, look(paid.a).marker, **shape)
    words = "; ".join(f"{name(paid.a)} {paid.word}" for paid in against)
    note(axes, f"Ahead: {words}. The clock starts with {clock_start(runs)}.")
    return ends


def _wall(windows: pd.DataFrame) -> pd.DataFrame:
    """Columns run, step, elapsed_s, and seconds: those since the end of step 1, NaN where the log begins after it."""
    require(windows, "log window", "run", "step", "elapsed_s", "step_s")
    wall = windows.loc[windows["elapsed_s"].notna(), ["run", "step", "elapsed_s"]]
    first = windows[windows["step_s"].notna()].sort_values("step").drop_duplicates("run")
    ends = {row.run: row.elapsed_s - sum(row.step_s[1:]) for row in first.itertuples() if row.step == len(row.step_s)}
    return wall.assign(seconds=wall["elapsed_s"] - wall["run"].map(ends))
