"""What does it cost besides steady steps? Warm-up and memory."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from analysis.plots.bars import completed_with, draw_row, number, set_rows, write_beside
from analysis.plots.style import note, plot
from analysis.plots.wall import clock_start

# Paul Tol's muted colours, colour-blind safe, in the order in which the phases happen.
_PHASES = {
    "import": "#332288", "distributed": "#88CCEE", "data": "#44AA99", "model_build": "#117733", "conversion": "#999933",
    "optimizer": "#AA4499", "compile": "#CC6677", "first_step": "#DDCC77", "other": "#999999", "not_split": "#DDDDDD",
}  # fmt: skip
_SMALL_SHARE = 0.03  # of the longest warm-up: phases below it in every row are merged


@plot
def warm_up(axes: Axes, runs: pd.DataFrame) -> None:
    """Seconds from process start to the end of step 1, by phase; a recipe's completed runs are
    averaged."""
    completed = completed_with(runs, "warm_up_s")
    table = pd.DataFrame([_mean_phases(group.runs) for group in completed]).fillna(0.0)
    total = table.sum(axis=1)
    small = [p for p in table if p not in _PHASES or table[p].max() < _SMALL_SHARE * total.max()]
    table = table.drop(columns=small).assign(other=table[small].sum(axis=1))
    left = np.zeros(len(table))
    for phase in [phase for phase in _PHASES if phase in table and table[phase].any()]:
        axes.barh(table.index, table[phase], 0.6, left, color=_PHASES[phase], edgecolor="white", linewidth=0.5,
                  label=phase.replace("_", " "))  # fmt: skip
        left += table[phase]
    set_rows(axes, [group.label for group in completed],
             f"seconds to the end of step 1; the clock starts with\n{clock_start(runs)}")  # fmt: skip
    for y, seconds in enumerate(total):
        write_beside(axes, y, f"{number(seconds)} s")
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=4)
    if small:
        note(axes, "Other: " + ", ".join(phase.replace("_", " ") for phase in small) + ".")


def _mean_phases(runs: pd.DataFrame) -> pd.Series:
    """Mean seconds by phase; what phases leave of a warm-up (without timing.json; of earlier
    attempts) is not split."""
    phases, whole = (
        pd.DataFrame([phases or {} for phases in runs["phases"]]),
        runs["warm_up_s"].mean(),
    )
    mean = phases.fillna(0.0).mean()
    if (rest := whole - mean.sum()) > 0.01 * whole:
        mean["not_split"] = rest
    return mean


@plot
def memory(axes: Axes, runs: pd.DataFrame) -> None:
    """Highest memory of a run in GiB: median over a recipe's completed runs, and a mark for
    each."""
    completed = completed_with(runs, "peak_memory_bytes")
    for y, group in enumerate(completed):
        draw_row(axes, y, group, group.runs["peak_memory_bytes"] / 2**30, "{} GiB")
    cpu = (runs["device_type"] == "cpu").all()
    what = "peak resident memory of the process" if cpu else "peak reserved memory of a device"
    set_rows(axes, [group.label for group in completed], f"{what} (GiB)")
