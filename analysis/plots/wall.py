"""How long does it take? Wall time by step without the warm-up, and the lead over another recipe
with it."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from analysis.comparison import OWN, Comparison
from analysis.plots.series import curves, draw_curves, finish, short_lines
from analysis.plots.style import GREY, SMALL, NoData, look, name, note, plot
from analysis.rates import FROM, UNTIL


def clock_start(runs: pd.DataFrame) -> str:
    """What `elapsed_s` counts from: logs of other programs do not say when their process began."""
    return "the process" if (runs["source"] == OWN).all() else "training, not with the process"


@plot
def wall_after_warm_up(axes: Axes, runs: pd.DataFrame, windows: pd.DataFrame) -> None:
    """Seconds since the end of step 1 by step: the published view, in which compilation costs
    nothing."""
    first = windows[windows["step_s"].notna()].sort_values("step").drop_duplicates("run")
    ends = {
        row.run: row.elapsed_s - sum(row.step_s[1:])
        for row in first.itertuples()
        if row.step == len(row.step_s)
    }
    seconds = windows["elapsed_s"] - windows["run"].map(ends).astype(
        float
    )  # NaN where the log begins after step 1
    for group, frame in curves(runs, windows.assign(seconds=seconds), "seconds"):
        draw_curves(axes, group, frame)
    finish(axes, "wall time since the end of step 1 (s)")
    axes.set_ylim(bottom=0)
    note(axes, "The warm-up is left out: compilation costs nothing here.")


@plot
def lead(axes: Axes, comparison: Comparison) -> None:
    """Seconds that each recipe is ahead of the opponent by step, warm-up included, and where it
    gets or loses the lead.

    Above zero a recipe has taken less wall time. Band: from the first to the last of its runs,
    where there are several; each against the mean of the opponent's runs.
    """
    runs, opponent = comparison.frames.runs, comparison.opponent
    drawn = curves(runs, comparison.frames.windows, "elapsed_s")
    totals = [
        frame.mean(axis=1) for group, frame in drawn if group.completed and group.recipe == opponent
    ]
    if not totals:
        raise NoData(f"there is no completed run of {name(opponent)} to be ahead of")
    (total,) = totals
    for group, frame in drawn:
        frame = frame[(frame.index >= total.index[0]) & (frame.index <= total.index[-1])]
        if group.recipe != opponent and len(frame):
            draw_curves(axes, group, -frame.sub(np.interp(frame.index, total.index, total), axis=0))
    if not axes.lines:
        raise NoData(f"no other run has steps in common with {name(opponent)}")
    axes.axhline(0, color=look(opponent).colour, linewidth=1.6, label=short_lines(name(opponent)))
    for place, word in ((0.98, "ahead"), (0.02, "behind")):
        axes.text(0.01, place, word, transform=axes.transAxes, va="top" if word == "ahead" else "bottom", color=GREY,
                  fontsize=SMALL, fontstyle="italic")  # fmt: skip
    finish(axes, f"lead over {name(opponent)},\nwarm-up included (s)")
    axes.margins(y=0.12)
    against = [paid for (_, b), paid in comparison.break_evens.items() if b == opponent]
    for paid in against:
        if paid.outcome in (FROM, UNTIL) and not paid.beyond:
            shape = {
                "markersize": 7,
                "markerfacecolor": "white",
                "markeredgecolor": look(paid.a).colour,
                "zorder": 5,
            }
            axes.plot(paid.step, 0, look(paid.a).marker, **shape)
    words = "; ".join(f"{name(paid.a)} {paid.word}" for paid in against)
    note(axes, f"Ahead: {words}. The clock starts with {clock_start(runs)}.")
