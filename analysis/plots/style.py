"""What all figures share: the look of a recipe, panels, notes, and bytes that do not vary.

Fonts, sizes and grids are in style.mplstyle.
"""

import functools
import io
import textwrap
import zlib
from collections.abc import Callable, Sequence
from typing import NamedTuple

import matplotlib.style
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

HALF_PAGE = (5.0, 3.4)  # inches: a figure of one panel
SMALL = 8  # points, the smallest font
GREY = "#666666"
STYLE = ["default", "analysis.plots.style"]


class Look(NamedTuple):
    colour: str
    marker: str


# Okabe and Ito's colours, which colour-blind readers tell apart too, without those too pale for a
# line on white.
BLACK, BLUE, GREEN = Look("#444444", "o"), Look("#0072B2", "s"), Look("#009E73", "^")
RED, PINK, SKY = Look("#D55E00", "D"), Look("#CC79A7", "v"), Look("#56B4E9", "P")
ORANGE = Look("#E69F00", "X")
# Recipes with the same look are of different studies.
LOOKS = {
    "baseline": BLACK,
    "baseline_compiled": BLUE,
    "rowwise_fp8_compiled": GREEN,
    "tensorwise_fp8_compiled": RED,
    "rowwise_gw_hp_fp8_compiled": PINK,
    "bf16_fp8_bf16": GREEN,
    "bf16_then_fp8": PINK,
    "fp8_then_bf16": SKY,
    "puzzle_fp8": BLUE,
    "puzzle_fp8_optimizer_last": GREEN,
    "puzzle_fp8_optimizer_first": RED,
    "puzzle_bf16_frozen": PINK,
    "float32_optimizer": BLUE,
    "float32_parameters": SKY,
    "fp8_optimizer": GREEN,
    "fp8_optimizer_bf16_master": PINK,
    "fp8_optimizer_fp8_master": RED,
    "fp8_optimizer_fp8_second_moment": ORANGE,
}
OTHER_COLOURS, OTHER_MARKERS = ("#E69F00", "#56B4E9", "#882255", "#999933"), "PX*ph"


def look(recipe: str) -> Look:
    """Choose colour and marker of a recipe: the same in every figure, also for a user's recipe."""
    digest = zlib.crc32(recipe.encode())
    colour = OTHER_COLOURS[digest % len(OTHER_COLOURS)]
    return LOOKS.get(recipe, Look(colour, OTHER_MARKERS[digest // 7 % len(OTHER_MARKERS)]))


def name(recipe: str) -> str:
    """Write a recipe's name for people, on one line."""
    return recipe.replace("_", " ").replace("fp8", "FP8").replace("$", r"\$")


def short_name(recipe: str) -> str:
    """Break a recipe's name into lines that fit beside a panel."""
    return textwrap.fill(name(recipe), 15)


def number(value: float) -> str:
    """Write three significant digits, or all before the point."""
    digits = 0 if value == 0 else max(0, 2 - int(np.floor(np.log10(abs(value)))))
    return f"{value:,.{digits}f}"


class NoData(Exception):
    """There is nothing to draw; the message says why."""


class Plot(Figure):
    """A figure that a notebook shows by itself, and the same way each time."""

    def _repr_png_(self) -> bytes:
        return to_png(self, dpi=110)


def panels(
    draws: dict[str, Sequence], size: tuple[float, float] = HALF_PAGE, columns: int = 1
) -> Figure:
    """Draw a figure of several panels.

    The layout stays as it comes out, so that saving the figure again gives the same bytes.

    Args:
        draws: title of a panel to what draws it: a function of this package, and its arguments.
        size: in inches.
    """
    with matplotlib.style.context(STYLE):
        figure = Plot(figsize=size, layout="constrained")
        for place, (title, (draw, *arguments)) in enumerate(draws.items(), start=1):
            axes = figure.add_subplot(len(draws) // columns, columns, place)
            axes.set_title(title, loc="left", fontweight="bold")
            try:
                draw.on(axes, *arguments)
            except NoData as why:
                axes.set_axis_off()
                text = textwrap.fill(f"no data: {why}", 40)
                axes.text(0.5, 0.5, text, ha="center", color=GREY, transform=axes.transAxes)
        figure.draw_without_rendering()
        # constrained layout comes to rest in the second pass
        figure.get_layout_engine().execute(figure)
        figure.set_layout_engine("none")
    return figure


def plot(draw: Callable[..., None]) -> Callable[..., Figure]:
    """Make `draw(axes, ...)` a function of the other arguments that returns a figure.

    Its attribute `on`, which `panels` calls, is `draw`.
    """

    @functools.wraps(draw)
    def figure(*arguments) -> Figure:
        return panels({"": (figure, *arguments)})

    figure.on = draw
    return figure


def make_room(axes: Axes, names: int) -> None:
    """Make the figure as high as so many names beside this panel need, up to three lines each."""
    figure, rows = axes.figure, axes.get_gridspec().nrows
    figure.set_figheight(max(figure.get_figheight(), rows * (1.3 + 0.46 * names)))


def note(axes: Axes, text: str) -> None:
    """Write small grey text below the x label, no wider than the panel."""
    inches = axes.figure.get_figwidth() / axes.get_gridspec().ncols - 1.15
    width = int(inches * 72 / (0.56 * SMALL))  # the mean character is 0.56 of the font size wide
    below = (axes.transAxes, axes.xaxis.label)
    axes.annotate(
        textwrap.fill(text, width),
        (0, 0),
        (0, -3),
        xycoords=below,
        textcoords="offset points",
        va="top",
        fontsize=SMALL,
        color=GREY,
    )


def legend_beside(axes: Axes, **how) -> None:
    """Write the names of lines on the right, in their colours."""
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1), labelcolor="linecolor", **how)


def to_svg(figure: Figure) -> str:
    """Save a figure as SVG text, the same for the same figure: no date, no random ids."""
    return _saved(figure, format="svg", metadata={"Date": None, "Creator": None}).decode()


def to_png(figure: Figure, dpi: int = 200) -> bytes:
    """Save a figure as PNG, the same for the same figure. `dpi`: pixels per inch."""
    return _saved(figure, format="png", metadata={"Software": None}, dpi=dpi)


def _saved(figure: Figure, **how) -> bytes:
    file = io.BytesIO()
    with matplotlib.style.context(STYLE):
        figure.savefig(file, **how)
    return file.getvalue()
