"""What all figures share: look of a recipe, size and fonts, notes, axes without data, and bytes that do not vary."""

import functools
import io
import textwrap
import zlib
from collections.abc import Callable
from typing import NamedTuple

import matplotlib
import matplotlib.style
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from analysis.comparison import OWN

HALF_PAGE = (5.0, 3.4)  # inches; printed about 3.4 wide
SMALL = 8  # points, the smallest font
GREY = "#666666"
_STYLE = {
    "font.size": 9,
    "axes.labelsize": 9,
    "axes.titlesize": 9,
    "xtick.labelsize": SMALL,
    "ytick.labelsize": SMALL,
    "legend.fontsize": SMALL,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#E4E4E4",
    "grid.linewidth": 0.6,
    "lines.linewidth": 1.6,
    "lines.markersize": 4.5,
    "hatch.linewidth": 0.6,
    "figure.constrained_layout.h_pad": 0.06,
    "svg.fonttype": "path",  # text looks the same whatever fonts a reader has
    "svg.hashsalt": "analysis.plots",
}


class Look(NamedTuple):
    colour: str
    marker: str


# Okabe and Ito's colours, which colour-blind readers tell apart too, without those too pale for a line on white.
_LOOKS = {
    "baseline": Look("#444444", "o"),
    "baseline_compiled": Look("#0072B2", "s"),
    "rowwise_fp8_compiled": Look("#009E73", "^"),
    "tensorwise_fp8_compiled": Look("#D55E00", "D"),
    "rowwise_gw_hp_fp8_compiled": Look("#CC79A7", "v"),
    # of a study that has none of those above but the first
    "puzzle_fp8": Look("#0072B2", "s"),
    "puzzle_fp8_optimizer_last": Look("#009E73", "^"),
    "puzzle_fp8_optimizer_first": Look("#D55E00", "D"),
    "puzzle_bf16_frozen": Look("#CC79A7", "v"),
}
_OTHER_COLOURS = ("#E69F00", "#56B4E9", "#882255", "#999933")
_OTHER_MARKERS = ("P", "X", "*", "p", "h")


def look(recipe: str) -> Look:
    """Colour and marker of a recipe: the same in every figure, for a recipe with a name of its own as well."""
    if recipe in _LOOKS:
        return _LOOKS[recipe]
    number = zlib.crc32(recipe.encode())
    return Look(_OTHER_COLOURS[number % len(_OTHER_COLOURS)], _OTHER_MARKERS[number // 7 % len(_OTHER_MARKERS)])


def name(recipe: str) -> str:
    """A recipe's name for people, on one line."""
    return recipe.replace("_", " ").replace("fp8", "FP8").replace("$", r"\$")


class NoData(Exception):
    """There is nothing to draw; the message says why."""


def require(frame: pd.DataFrame, what: str, *columns: str) -> None:
    """Raises `NoData` unless `frame` has rows, and each column some value. `what` names a row, such as "run"."""
    if frame.empty:
        raise NoData(f"there is no {what}")
    for column in columns:
        if column not in frame:
            raise NoData(f"{column} was not recorded")
        if frame[column].isna().all():
            raise NoData(f"{column} is unknown for every {what}")


def optional(frame: pd.DataFrame, column: str) -> pd.Series:
    """A column that a figure can do without."""
    return frame[column] if column in frame else pd.Series(None, frame.index, dtype=object)


def clock_start(runs: pd.DataFrame) -> str:
    """What `elapsed_s` counts from: logs of other programs do not say when their process began."""
    return "the process" if (optional(runs, "source").fillna(OWN) == OWN).all() else "training, not with the process"


def panel(draw: Callable) -> Callable:
    """Make `draw(axes, ...)`, which returns the line ends to label, say why where there is no data."""

    @functools.wraps(draw)
    def drawn(axes: Axes, *args, **kwargs) -> list:
        try:
            return draw(axes, *args, **kwargs) or []
        except NoData as why:
            axes.set(xticks=[], yticks=[])
            axes.spines[:].set_visible(False)
            text = textwrap.fill(f"no data: {why}", 40)
            axes.text(0.5, 0.5, text, ha="center", va="center", color=GREY, transform=axes.transAxes)
            return []

    return drawn


def styled(plot: Callable[..., Figure]) -> Callable[..., Figure]:
    """Draw with this module's style, whatever the user's settings are, and keep the layout as it comes out."""

    @functools.wraps(plot)
    def drawn(*args, **kwargs) -> Figure:
        with matplotlib.style.context(["default", _STYLE]):
            figure = plot(*args, **kwargs)
            for _ in range(2):  # constrained layout comes to rest in the second pass
                figure.draw_without_rendering()
            figure.set_layout_engine("none")
        return figure

    return drawn


class Plot(Figure):
    """A figure that a notebook shows by itself, and the same way each time."""

    def _repr_png_(self) -> bytes:
        return to_png(self, dpi=110)


def new_figure(size: tuple[float, float] = HALF_PAGE, rows: int = 1, columns: int = 1) -> tuple[Figure, np.ndarray]:
    """A figure without pyplot, and its axes as an array of shape (rows, columns)."""
    figure = Plot(figsize=size, layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False)


def note(axes: Axes, *sentences: str) -> None:
    """Small grey text below the x label, each sentence on lines of its own, no wider than the panel."""
    inches = axes.figure.get_figwidth() / axes.get_gridspec().ncols - 1.15
    width = int(inches * 72 / (0.56 * SMALL))  # the mean character is 0.56 of the font size wide
    axes.annotate(
        "\n".join(textwrap.fill(sentence, width) for sentence in sentences), (0, 0),
        xycoords=(axes.transAxes, axes.xaxis.label), xytext=(0, -3), textcoords="offset points",
        ha="left", va="top", fontsize=SMALL, color=GREY,
    )  # fmt: skip


def thousands(axes: Axes, *which: str) -> None:
    """Write the numbers of the named axes ("x", "y") with thousands separators."""
    for axis in which:
        getattr(axes, f"{axis}axis").set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))


def to_svg(figure: Figure) -> str:
    """The figure as SVG text, the same for the same figure: no date, no random ids."""
    return _saved(figure, format="svg", metadata={"Date": None, "Creator": None}).decode()


def to_png(figure: Figure, dpi: int = 200) -> bytes:
    """The figure as PNG, the same for the same figure. `dpi`: pixels per inch."""
    return _saved(figure, format="png", metadata={"Software": None}, dpi=dpi)


def _saved(figure: Figure, **how) -> bytes:
    file = io.BytesIO()
    with matplotlib.style.context(["default", _STYLE]):
        figure.savefig(file, **how)
    return file.getvalue()
