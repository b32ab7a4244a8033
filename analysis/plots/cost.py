"""What does it cost besides steady steps? Warm-up and memory."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from analysis.plots.bars import completed_with, draw_row, number, row_figure, set_rows, write_beside
from analysis.plots.style import clock_start, note, optional, panel, styled

# Paul Tol's muted colours, colour-blind safe, in the order in which the phases happen.
_PHASES = {
    "import": "#332288", "distributed": "#88CCEE", "data": "#44AA99", "model_build": "#117733", "conversion": "#999933",
    "optimizer": "#AA4499", "compile": "#CC6677", "first_step": "#DDCC77",
}  # fmt: skip
_OTHER, _NOT_SPLIT = "other", "not_split"
_REST = {_OTHER: "#999999", _NOT_SPLIT: "#DDDDDD"}
_SMALL_SHARE = 0.03  # of the longest warm-up: phases below it in every row are merged


@styled
def warm_up(runs: pd.DataFrame) -> Figure:
    """Seconds from process start to the end of step 1, by phase; a recipe's completed runs are averaged."""
    figure, axes = row_figure(runs)
    draw_warm_up(axes, runs)
    return figure


@panel
def draw_warm_up(axes: Axes, runs: pd.DataFrame) -> None:
    found = completed_with(runs, "warm_up_s")
    table = pd.DataFrame([_mean_phases(group.runs) for group in found]).fillna(0.0)
    large = [p for p in _PHASES if p in table and table[p].max() >= _SMALL_SHARE * table.sum(axis=1).max()]
    small = [phase for phase in table if phase not in (*large, _NOT_SPLIT)]
    table[_OTHER] = table[small].sum(axis=1)
    left, keys = np.zeros(len(table)), []
    for phase in [*large, _OTHER, _NOT_SPLIT]:
        if phase in table and table[phase].any():
            colour = (_PHASES | _REST)[phase]
            keys.append(Patch(color=colour, label=phase.replace("_", " ")))
            axes.barh(table.index, table[phase], 0.6, left, color=colour, edgecolor="white", linewidth=0.5)
            left += table[phase].to_numpy()
    start = clock_start(runs)
    set_rows(axes, [group.label for group in found], f"seconds to the end of step 1; the clock starts with\n{start}")
    for y, total in enumerate(left):
        write_beside(axes, y, f"{number(total)} s")
    axes.legend(handles=keys, loc="lower left", bbox_to_anchor=(0, 1), ncols=4, frameon=False, handlelength=1)
    if small:
        note(axes, "Other: " + ", ".join(phase.replace("_", " ") for phase in small) + ".")


def _mean_phases(runs: pd.DataFrame) -> dict[str, float]:
    """Mean seconds by phase; what phases leave of a warm-up (without timing.json; of earlier attempts) is not split."""
    split = []
    for run in runs.to_dict("records"):
        phases = dict(run["phases"]) if isinstance(run.get("phases"), dict) else {}
        left = run["warm_up_s"] - sum(phases.values())
        split.append(phases | ({_NOT_SPLIT: left} if left > 0.01 * run["warm_up_s"] else {}))
    return pd.DataFrame(split).fillna(0.0).mean().to_dict()


@styled
def memory(runs: pd.DataFrame) -> Figure:
    """Highest memory of a run in GiB: median over a recipe's completed runs, and a mark for each."""
    figure, axes = row_figure(runs)
    draw_memory(axes, runs)
    return figure


@panel
def draw_memory(axes: Axes, runs: pd.DataFrame) -> None:
    found = completed_with(runs, "peak_memory_bytes")
    for y, group in enumerate(found):
        gib = group.runs["peak_memory_bytes"].to_numpy(float) / 2**30
        write_beside(axes, y, draw_row(axes, y, group, gib) + " GiB")
    cpu = (optional(runs, "device_type") == "cpu").all()
    what = "peak resident memory of the process" if cpu else "peak reserved memory of a device"
    set_rows(axes, [group.label for group in found], f"{what} (GiB)")
