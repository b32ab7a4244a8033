"""Rows of horizontal bars, one a recipe: from zero to the median of its completed runs, a mark for each run, the value
beside."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.plots.series import Group, groups
from analysis.plots.style import HALF_PAGE, SMALL, NoData, new_figure, require, thousands

_ROW_INCHES = 0.46  # three lines of text and some air
BAR_ALPHA = 0.55  # lets the marks on a bar be seen


def row_figure(runs: pd.DataFrame) -> tuple[Figure, Axes]:
    """A figure of half a page, higher where the rows, one for each recipe in `runs`, need it."""
    rows = runs["recipe"].nunique() if "recipe" in runs else 0
    figure, ((axes,),) = new_figure((HALF_PAGE[0], max(HALF_PAGE[1], 1.3 + _ROW_INCHES * rows)))
    return figure, axes


def set_rows(axes: Axes, labels: Sequence[str], x_label: str) -> None:
    """One row a label, from the top, and an x axis that starts at zero."""
    axes.set_yticks(range(len(labels)), labels)
    axes.set(ylim=(len(labels) - 0.5, -0.5), xlabel=x_label)
    axes.set_xlim(left=0)
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=False, axis="y")
    thousands(axes, "x")


def completed_with(runs: pd.DataFrame, column: str) -> list[Group]:
    """The completed runs of each recipe that have a value in `column`. Raises `NoData` if none has."""
    require(runs, "run", column)
    found = [group for group in groups(runs[runs[column].notna()]) if group.completed]
    if not found:
        raise NoData("no run is completed")
    return found


def draw_row(
    axes: Axes, y: float, group: Group, values: np.ndarray, height: float = 0.6, alpha: float = BAR_ALPHA,
    length: float | None = None,
) -> str:  # fmt: skip
    """A bar and, of several runs, their marks; returns the bar's length as text.

    Args:
        values: (runs,), finite.
        length: of the bar, where that is not the median of `values`.
    """
    colour, marker = group.look
    median = np.median(values) if length is None else length
    axes.barh(y, median, height, color=colour, alpha=alpha, linewidth=0)
    if len(values) > 1:
        heights = np.full(len(values), y)
        axes.plot(values, heights, marker, color=colour, markersize=4, markeredgecolor="white", markeredgewidth=0.6,
                  zorder=3)  # fmt: skip
    return number(median)


def write_beside(axes: Axes, y: float, text: str) -> None:
    """Text right of the axes at the height of a row."""
    axes.annotate(text, (1, y), xycoords=axes.get_yaxis_transform(), xytext=(5, 0), textcoords="offset points",
                  va="center", fontsize=SMALL, annotation_clip=False)  # fmt: skip


def number(value: float) -> str:
    """Three significant digits, or all before the point."""
    digits = 0 if value == 0 else max(0, 2 - int(np.floor(np.log10(abs(value)))))
    return f"{value:,.{digits}f}"
