"""What does it cost besides steady steps? Warm-up and memory."""

from typing import NamedTuple

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from analysis.plots.bars import draw_row, number, row_figure, set_rows, write_beside
from analysis.plots.series import Group, groups
from analysis.plots.style import note, optional, panel, require, styled

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
    """Seconds from process start to the end of step 1, by phase; completed runs averaged per recipe and cache state."""
    figure, axes = row_figure(runs, "recipe", "status", "compile_cache")
    draw_warm_up(axes, runs)
    return figure


@panel
def draw_warm_up(axes: Axes, runs: pd.DataFrame) -> None:
    require(runs, "run", "warm_up_s")
    rows = _warm_up_rows(runs[runs["warm_up_s"].notna()])
    table = pd.DataFrame([row.seconds for row in rows]).fillna(0.0)
    large = [p for p in _PHASES if p in table and table[p].max() >= _SMALL_SHARE * table.sum(axis=1).max()]
    small = [phase for phase in table if phase not in (*large, _NOT_SPLIT)]
    table[_OTHER] = table[small].sum(axis=1)
    left, keys = np.zeros(len(table)), []
    for phase in [*large, _OTHER, _NOT_SPLIT]:
        if phase in table and table[phase].any():
            colour = (_PHASES | _REST)[phase]
            keys.append(Patch(color=colour, label=phase.replace("_", " ")))
            bars = axes.barh(table.index, table[phase], 0.6, left, color=colour, edgecolor="white", linewidth=0.5)
            for bar, row in zip(bars, rows, strict=True):
                if not row.group.completed:
                    bar.set(facecolor="none", edgecolor=colour, linewidth=1, linestyle="--")
            left += table[phase].to_numpy()
    set_rows(axes, [row.group.label for row in rows], "seconds from process start to the end of step 1")
    for y, (row, total) in enumerate(zip(rows, left, strict=True)):
        write_beside(axes, y, f"{number(total)} s" + (f"\n{row.cache} cache" if row.cache in ("cold", "warm") else ""))
    axes.legend(handles=keys, loc="lower left", bbox_to_anchor=(0, 1), ncols=4, frameon=False, handlelength=1)
    if small:
        note(axes, "other: " + ", ".join(phase.replace("_", " ") for phase in small))


class _Row(NamedTuple):
    group: Group
    cache: str
    seconds: dict[str, float]  # by phase


def _warm_up_rows(runs: pd.DataFrame) -> list[_Row]:
    """A row for each group and state of the compile cache, a mean, if the runs completed; else a row for each run."""
    rows = []
    for group in groups(runs):
        for cache, same in group.runs.groupby(optional(group.runs, "compile_cache").fillna("none")):
            split = [_phases(run) for _, run in same.iterrows()]
            means = [pd.DataFrame(split).fillna(0.0).mean().to_dict()] if group.completed else split
            rows += [_Row(group, cache, seconds) for seconds in means]
    return rows


def _phases(run: pd.Series) -> dict[str, float]:
    """Seconds by phase; what they leave of the warm-up (without timing.json; of earlier attempts) is not split."""
    phases = dict(run["phases"]) if isinstance(run.get("phases"), dict) else {}
    left = run["warm_up_s"] - sum(phases.values())
    return phases | ({_NOT_SPLIT: left} if left > 0.01 * run["warm_up_s"] else {})


@styled
def memory(runs: pd.DataFrame) -> Figure:
    """Highest memory of a run in GiB: median over a recipe's completed runs, and a mark for each."""
    figure, axes = row_figure(runs, "recipe", "status")
    draw_memory(axes, runs)
    return figure


@panel
def draw_memory(axes: Axes, runs: pd.DataFrame) -> None:
    require(runs, "run", "peak_memory_bytes")
    found = [group for group in groups(runs) if group.runs["peak_memory_bytes"].notna().any()]
    for y, group in enumerate(found):
        gib = group.runs["peak_memory_bytes"].dropna().to_numpy(float) / 2**30
        write_beside(axes, y, draw_row(axes, y, group, gib) + " GiB")
    cpu = (optional(runs, "device_type") == "cpu").all()
    what = "peak resident memory of the process" if cpu else "peak reserved memory of a device"
    set_rows(axes, [group.label for group in found], f"{what} (GiB)")
