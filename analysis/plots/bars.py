"""Rows of horizontal bars: from zero to the median of the completed runs, a mark for each run, the value beside."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.plots.series import Group
from analysis.plots.style import HALF_PAGE, SMALL, new_figure, thousands

_ROW_INCHES = 0.46  # three lines of text and some air
BAR_ALPHA = 0.55  # lets the marks on a bar be seen


def row_figure(runs: pd.DataFrame, *columns: str) -> tuple[Figure, Axes]:
    """A figure of half a page, higher where the rows, one for each combination of `columns` in `runs`, need it."""
    rows = len(runs.reindex(columns=columns).drop_duplicates())
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


def draw_row(
    axes: Axes, y: float, group: Group, values: np.ndarray, median: float | None = None, height: float = 0.6,
    alpha: float = BAR_ALPHA,
) -> str:  # fmt: skip
    """The bar and marks of a group's runs; returns the median as text, or the range of runs that are not completed.

    Args:
        values: (runs,), finite.
        median: the length of the bar, where it is not the median of `values`.
    """
    colour, marker = group.look
    heights = np.full(len(values), y)
    if not group.completed:
        axes.plot(values, heights, marker, markerfacecolor="none", markeredgecolor=colour)
        return " to ".join(dict.fromkeys([number(values.min()), number(values.max())]))
    median = np.median(values) if median is None else median
    axes.barh(y, median, height, color=colour, alpha=alpha, linewidth=0)
    if len(values) > 1:
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
