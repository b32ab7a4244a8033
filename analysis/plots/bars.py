"""Rows of horizontal bars, one a recipe: from zero to the median of its completed runs, a mark for
each run, the value beside."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from analysis.plots.series import Group, groups
from analysis.plots.style import SMALL, NoData, look, make_room


def set_rows(axes: Axes, labels: Sequence[str], x_label: str) -> None:
    """Ticks, limits and room for one row a label, the first on top."""
    axes.set_yticks(range(len(labels)), labels)
    axes.set(ylim=(len(labels) - 0.5, -0.5), xlabel=x_label)
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=False, axis="y")
    axes.xaxis.set_major_formatter("{x:,.10g}")
    make_room(axes, len(labels))


def completed_with(runs: pd.DataFrame, column: str) -> list[Group]:
    """The completed runs of each recipe that have a value in `column`. Raises `NoData` if none
    has."""
    completed = [group for group in groups(runs[runs[column].notna()]) if group.completed]
    if not completed:
        raise NoData(f"no completed run has {column}")
    return completed


def draw_row(
    axes: Axes, y: float, group: Group, values: Sequence[float], text: str = "{}", length: float | None = None,
    height: float = 0.6, alpha: float = 0.55,
) -> None:  # fmt: skip
    """A bar with its length beside it as `text` says and, of several runs, their marks.

    Args:
        values: of the runs, finite.
        length: of the bar, where that is not the median of `values`.
        alpha: below 1, so that marks on a bar can be seen.
    """
    colour, marker = look(group.recipe)
    median = float(np.median(values)) if length is None else length
    axes.barh(y, median, height, color=colour, alpha=alpha, linewidth=0)
    if len(values) > 1:
        axes.plot(values, [y] * len(values), marker, color=colour, markersize=4, markeredgecolor="white",
                  markeredgewidth=0.6, zorder=3)  # fmt: skip
    write_beside(axes, y, text.format(number(median)))


def write_beside(axes: Axes, y: float, text: str) -> None:
    """Text right of the axes at the height of a row."""
    axes.annotate(text, (1, y), xycoords=axes.get_yaxis_transform(), xytext=(5, 0), textcoords="offset points",
                  va="center", fontsize=SMALL, annotation_clip=False)  # fmt: skip


def number(value: float) -> str:
    """Three significant digits, or all before the point."""
    digits = 0 if value == 0 else max(0, 2 - int(np.floor(np.log10(abs(value)))))
    return f"{value:,.{digits}f}"
