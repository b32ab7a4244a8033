"""Runs as groups, windows as curves, and labels at the ends of lines."""

import textwrap
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from scipy.optimize import isotonic_regression

from analysis.comparison import in_order
from analysis.plots.style import SMALL, Look, NoData, look, name, require

_LINE_HEIGHT = 1.3  # of the font size
_LABEL_WIDTH = 15  # characters; names break into lines of it
_POINTS = 400  # of a line: more than its pixels would only make pages large


def in_lines(text: str) -> str:
    """A label broken into short lines."""
    return textwrap.fill(text, _LABEL_WIDTH)


@dataclass(frozen=True)
class Group:
    """Runs that belong together: a recipe's completed ones, or its others of one status (those only side by side)."""

    recipe: str
    status: str
    runs: pd.DataFrame

    @property
    def completed(self) -> bool:
        return self.status == "completed"

    @property
    def look(self) -> Look:
        return look(self.recipe)

    @property
    def label(self) -> str:
        """The name in short lines, with the status unless it is completed."""
        return in_lines(name(self.recipe) + ("" if self.completed else f" ({self.status})"))


def groups(runs: pd.DataFrame) -> list[Group]:
    """Groups of `runs`, the known recipes first, and of each recipe the completed runs first. Raises `NoData`."""
    require(runs, "run", "run", "recipe", "status")
    found = []
    for recipe in in_order(runs["recipe"]):
        statuses = runs[runs["recipe"] == recipe].groupby("status", dropna=False)
        found += sorted((Group(recipe, str(s), r) for s, r in statuses), key=lambda g: (not g.completed, g.status))
    return found


def curves(runs: pd.DataFrame, windows: pd.DataFrame, column: str) -> list[tuple[Group, pd.DataFrame]]:
    """`column` of each group's runs, as frames of shape (steps, runs); of completed runs the steps that all have.

    Raises:
        NoData: there is nothing finite to draw.
    """
    require(windows, "log window", "run", "step", column)
    found = []
    for group in groups(runs):
        of_group = windows[windows["run"].isin(group.runs["run"])]
        frame = of_group.pivot(index="step", columns="run", values=column).astype(float)
        frame = frame.replace([np.inf, -np.inf], np.nan).dropna(how="any" if group.completed else "all")
        if not frame.empty:
            found.append((group, frame))
    if not found:
        raise NoData(f"no run has a log window with a {column}")
    return found


def thinned(frame: pd.DataFrame) -> pd.DataFrame:
    """At most `_POINTS` rows of a frame, evenly chosen, the last among them."""
    return frame.iloc[np.unique(np.linspace(0, len(frame) - 1, min(len(frame), _POINTS)).round().astype(int))]


class LineEnd(NamedTuple):
    """Where a line ends (data coordinates), and what is to be written there."""

    x: float
    y: float
    text: str
    colour: str


def draw_curves(axes: Axes, group: Group, frame: pd.DataFrame, stagger: float = 0.0, **line) -> list[LineEnd]:
    """Completed runs: their mean, and a band from the smallest to the largest. Others: a dashed line each.

    Args:
        frame: (steps, runs), see `curves`.
        stagger: fraction of the distance between markers that they are shifted by, so that equal curves show theirs.
        line: further properties of the lines.
    """
    colour, marker = group.look
    if not group.completed:
        for run in frame:
            kept = thinned(frame[run].dropna())
            axes.plot(kept.index, kept, color=colour, **line | {"linestyle": "--", "linewidth": 1.0})
        return [LineEnd(kept.index[-1], kept.iloc[-1], group.label, colour)]
    frame = thinned(frame)
    mean, every = frame.mean(axis=1), max(1, len(frame) // 6)
    marks = {"marker": marker, "markevery": (int(stagger * every), every), "markeredgecolor": "white"}
    axes.plot(mean.index, mean, color=colour, **marks | {"markeredgewidth": 0.5} | line)
    if frame.shape[1] > 1:
        axes.fill_between(frame.index, frame.min(axis=1), frame.max(axis=1), color=colour, alpha=0.12, linewidth=0)
    return [LineEnd(mean.index[-1], mean.iloc[-1], group.label, colour)]


def label_ends(axes: Axes, ends: list[LineEnd]) -> None:
    """Write the labels into the right margin, as near to their lines as they can be without touching each other.

    Call it last: limits and layout must be final. The heights that are nearest to the wanted ones, in the sense of
    least squares, with a label's height between neighbours, are an isotonic regression.
    """
    if not ends:
        return
    axes.set(xlim=axes.get_xlim(), ylim=axes.get_ylim())
    axes.figure.draw_without_rendering()
    to_axes = axes.transData + axes.transAxes.inverted()
    ends = sorted(ends, key=lambda end: to_axes.transform((end.x, end.y))[1])
    wanted = np.array([to_axes.transform((end.x, end.y))[1] for end in ends])
    points = axes.get_window_extent().height * 72 / axes.figure.dpi
    heights = np.array([(end.text.count("\n") + 1) * SMALL * _LINE_HEIGHT for end in ends]) / points
    offsets = np.concatenate([[0.0], np.cumsum((heights[1:] + heights[:-1]) / 2)])
    placed = isotonic_regression(wanted - offsets).x
    lowest, highest = heights[0] / 2, 1.0 - heights[-1] / 2 - offsets[-1]
    placed = np.clip(placed, lowest, max(lowest, highest)) + offsets
    for end, height in zip(ends, placed, strict=True):
        axes.annotate(
            end.text, (end.x, end.y), xytext=(1.04, height), textcoords="axes fraction", annotation_clip=False,
            color=end.colour, fontsize=SMALL, va="center", linespacing=1.0,
            arrowprops={"arrowstyle": "-", "color": end.colour, "linewidth": 0.5, "shrinkA": 1, "shrinkB": 0,
                        "relpos": (0, 0.5), "alpha": 0.7},
        )  # fmt: skip
