"""How long does it take? Wall time by step without the warm-up, and the lead over another recipe with it."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.comparison import Comparison
from analysis.plots.series import LineEnd, curves, draw_curves, label_ends
from analysis.plots.style import (
    GREY,
    HALF_PAGE,
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
from analysis.rates import AHEAD, FROM, NEVER, NO_COMMON_STEP, UNCLEAR, UNKNOWN, UNTIL, BreakEven


@styled
def wall_after_warm_up(runs: pd.DataFrame, windows: pd.DataFrame) -> Figure:
    """Seconds since the end of step 1 by step: the published view, in which compilation costs nothing."""
    figure, ((axes,),) = new_figure()
    label_ends(axes, draw_wall_after_warm_up(axes, runs, windows))
    return figure


@panel
def draw_wall_after_warm_up(axes: Axes, runs: pd.DataFrame, windows: pd.DataFrame) -> list[LineEnd]:
    wall = _wall(windows)
    wall["seconds"] = wall["elapsed_s"] - wall["first_step_end_s"]
    ends = [end for pair in curves(runs, wall, "seconds") for end in draw_curves(axes, *pair, marker="")]
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
    sentences = len({b.a for b in comparison.break_evens})
    figure, ((axes,),) = new_figure((HALF_PAGE[0], HALF_PAGE[1] + 0.15 * sentences))
    label_ends(axes, draw_lead(axes, comparison))
    return figure


@panel
def draw_lead(axes: Axes, comparison: Comparison) -> list[LineEnd]:
    runs, opponent = comparison.frames.runs, comparison.opponent
    found = curves(runs, _wall(comparison.frames.windows), "elapsed_s")
    totals = {group.recipe: frame.mean(axis=1) for group, frame in found if group.completed}
    if opponent not in totals:
        raise NoData(f"there is no completed run of {name(opponent)} to be ahead of")
    if len(found) == 1:
        raise NoData(f"there are runs of {name(opponent)} alone")
    total, ends = totals[opponent], []
    for group, frame in found:
        if group.recipe != opponent:
            frame = frame[(frame.index >= total.index[0]) & (frame.index <= total.index[-1])]
            ahead = -frame.sub(np.interp(frame.index, total.index, total), axis=0)
            ends += draw_curves(axes, group, ahead, marker="") if len(ahead) else []
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
    note(axes, f"Clock starts with {clock_start(runs)}.", *(f"{name(paid.a)}: {_in_words(paid)}" for paid in against))
    return ends


def _in_words(paid: BreakEven) -> str:
    step = f"{'about ' if paid.beyond else ''}step {paid.step or 0:,}{', beyond these runs' if paid.beyond else ''}"
    return {
        AHEAD: "ahead from the start",
        FROM: f"ahead from {step}",
        UNTIL: f"ahead until {step}, and behind after it",
        NEVER: "never ahead",
        UNKNOWN: "behind; too short to say whether it stays so",
        UNCLEAR: "behind; these runs cannot tell whether it stays so",
        NO_COMMON_STEP: "no step in common",
    }[paid.outcome]


def _wall(windows: pd.DataFrame) -> pd.DataFrame:
    """Columns run, step, elapsed_s, first_step_end_s, with a row for step 1 where the first window ends later."""
    require(windows, "log window", "run", "step", "elapsed_s", "step_s")
    first = windows[windows["step_s"].notna()].sort_values("step").drop_duplicates("run").set_index("run")
    ends = {run: row["elapsed_s"] - sum(row["step_s"][1:])
            for run, row in first.iterrows() if row["step"] == len(row["step_s"])}  # fmt: skip
    extra = [(run, 1, end) for run, end in ends.items() if first.loc[run, "step"] > 1]
    rows = pd.DataFrame(extra, columns=["run", "step", "elapsed_s"])
    wall = windows[["run", "step", "elapsed_s"]]
    wall = pd.concat([rows, wall], ignore_index=True) if extra else wall.copy()
    return wall.assign(first_step_end_s=wall["run"].map(ends))
