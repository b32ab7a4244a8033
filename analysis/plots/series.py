"""Runs as groups, their log windows as curves, and lines by step with their names beside."""

import textwrap
from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from analysis.comparison import in_order
from analysis.plots.style import NoData, look, make_room, name

_POINTS = 400  # of a line: more than its pixels would only make pages large


@dataclass(frozen=True)
class Group:
    """Runs that belong together: a recipe's completed ones, or its others of one status (those only
    side by side)."""

    recipe: str
    status: str
    runs: pd.DataFrame

    @property
    def completed(self) -> bool:
        return self.status == "completed"

    @property
    def label(self) -> str:
        """The name in short lines, with the status unless it is completed."""
        return short_lines(name(self.recipe) + ("" if self.completed else f" ({self.status})"))


def short_lines(text: str) -> str:
    return textwrap.fill(text, 15)


def groups(runs: pd.DataFrame) -> list[Group]:
    """Groups of `runs`, the known recipes first, and of each recipe the completed runs first."""
    ordered = []
    for recipe in in_order(runs["recipe"]):
        statuses = runs[runs["recipe"] == recipe].groupby("status")
        ordered += sorted(
            (Group(recipe, s, r) for s, r in statuses), key=lambda g: (not g.completed, g.status)
        )
    return ordered


def curves(
    runs: pd.DataFrame, windows: pd.DataFrame, column: str
) -> list[tuple[Group, pd.DataFrame]]:
    """`column` of each group's runs, as frames of shape (steps, runs); of completed runs the steps
    that all have.

    Raises:
        NoData: there is nothing finite to draw.
    """
    frames = []
    for group in groups(runs):
        of_group = windows[windows["run"].isin(group.runs["run"])]
        frame = of_group.pivot(index="step", columns="run", values=column)
        frame = frame.dropna(how="any" if group.completed else "all")
        if not frame.empty:
            frames.append((group, frame))
    if not frames:
        raise NoData(f"no log window has {column}")
    return frames


def thinned(values):
    """At most `_POINTS` rows of a frame, or values of a series, evenly chosen, the last among
    them."""
    return values.iloc[
        np.linspace(0, len(values) - 1, min(len(values), _POINTS)).round().astype(int)
    ]


def draw_curves(
    axes: Axes, group: Group, frame: pd.DataFrame, stagger: float | None = None
) -> None:
    """Completed runs: their mean, and a band from the smallest to the largest. Others: a dashed
    line each.

    Args:
        frame: (steps, runs), see `curves`.
        stagger: see `draw_line`.
    """
    if group.completed:
        middle, low, high = frame.mean(axis=1), frame.min(axis=1), frame.max(axis=1)
        draw_line(
            axes, group.recipe, pd.DataFrame({"middle": middle, "low": low, "high": high}), stagger
        )
        return
    for place, run in enumerate(frame.dropna(axis=1, how="all")):
        line, label = thinned(frame[run].dropna()), "_" if place else group.label
        axes.plot(
            line.index,
            line,
            color=look(group.recipe).colour,
            linestyle="--",
            linewidth=1.0,
            label=label,
        )


def draw_line(axes: Axes, recipe: str, frame: pd.DataFrame, stagger: float | None = None) -> None:
    """A line in the recipe's colour in its band.

    Args:
        frame: columns middle, low, high, by step; low and high may be NaN.
        stagger: if given there are markers, shifted by this part of their distance: equal curves
        show each other's.
    """
    frame = thinned(frame)
    colour, marker = look(recipe)
    every = max(1, len(frame) // 6)
    marks = (
        {"marker": marker, "markevery": (int(stagger * every), every)}
        if stagger is not None
        else {}
    )
    axes.plot(frame.index, frame["middle"], color=colour, label=short_lines(name(recipe)), markeredgecolor="white",
              markeredgewidth=0.5, **marks)  # fmt: skip
    if not frame["low"].equals(frame["high"]):
        axes.fill_between(
            frame.index, frame["low"], frame["high"], color=colour, alpha=0.15, linewidth=0
        )


def finish(axes: Axes, y_label: str) -> None:
    """Labels of axes by step, and the names of the lines on the right, in the order in which they
    end."""
    axes.set(xlabel="step", ylabel=y_label)
    axes.margins(x=0)
    axes.xaxis.set_major_formatter("{x:,.10g}")
    axes.yaxis.set_major_formatter("{x:,.10g}")
    lines = [line for line in axes.lines if not line.get_label().startswith("_")]
    lines.sort(key=lambda line: line.get_ydata()[-1], reverse=True)
    make_room(axes, len(lines))
    axes.legend(handles=lines, loc="upper left", bbox_to_anchor=(1, 1), labelcolor="linecolor")
