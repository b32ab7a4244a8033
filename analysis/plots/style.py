"""Draw what all figures share: looks of recipes, panels, headlines, notes.

Fonts, sizes and grids are in style.mplstyle, the looks of recipes in looks.yaml and
extensions/*/looks.yaml. The same figure is saved with the same bytes each time.
"""

import functools
import io
import math
import textwrap
import zlib
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from typing import NamedTuple

import matplotlib.style
import yaml
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.gridspec import GridSpec
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D

from experiments.config.recipes import ROOT

HALF_PAGE = (5.0, 3.4)  # inches: a figure of one panel
FONT = 9  # points
SMALL_FONT = 8  # points
GREY = "#666666"
NOTE = "note"  # the id of each note in a figure
STYLE = ["default", "analysis.plots.style"]

# How recipes look that are not in looks.yaml.
OTHER_LOOKS = list(product(["#E69F00", "#56B4E9", "#882255", "#999933"], "PX*ph"))
LOOKS: dict[str, dict] = {}
for file in [Path(__file__).with_name("looks.yaml"), *ROOT.glob("extensions/*/looks.yaml")]:
    LOOKS |= yaml.safe_load(file.read_text())


class Look(NamedTuple):
    """How a recipe looks, and what it is called, in every figure."""

    name: str
    colour: str
    marker: str


def find_look(recipe: str) -> Look:
    """Look up how a recipe looks. A recipe without an entry has its file's name, and a colour and a
    marker that depend on the name."""
    if recipe in LOOKS:
        return Look(**LOOKS[recipe])
    name = recipe.replace("_", " ").replace("fp8", "FP8").replace("$", r"\$")
    number = zlib.crc32(recipe.encode())  # the same in each process, unlike hash()
    colour, marker = OTHER_LOOKS[number % len(OTHER_LOOKS)]
    return Look(name, colour, marker)


def full_name(recipe: str) -> str:
    """Look up what a recipe is called, on one line."""
    return find_look(recipe).name


def short_name(recipe: str) -> str:
    """Break a recipe's name into lines to fit beside a panel."""
    return textwrap.fill(full_name(recipe), 17)


def format_number(value: float) -> str:
    """Write three significant digits of a positive number, or all digits before the point."""
    digits = 2 - math.floor(math.log10(value))
    return f"{value:,.{max(0, digits)}f}"


class NoData(Exception):
    """There is nothing to draw; the message says why."""


class Plot(Figure):
    """A figure that a notebook shows as it is."""

    @property
    def is_empty(self) -> bool:
        """True if no panel has data."""
        return not any(axes.axison for axes in self.axes)

    @property
    def alternative(self) -> str:
        """The text of the figure, for readers who cannot see it: headlines and notes."""
        texts = []
        for axes in self.axes:
            texts.append(axes.get_title("left"))
            for note in axes.texts:
                if note.get_gid() == NOTE:
                    texts.append(note.get_text())
        sentences = []
        for text in texts:
            words = text.split()  # without line breaks
            if words:
                sentences.append(" ".join(words).removesuffix("."))
        return ". ".join(sentences) + "."

    def _repr_png_(self) -> tuple[bytes, dict]:
        """Show the figure in a notebook, 100 pixels wide for each inch."""
        return to_png(self), {"width": int(100 * self.get_figwidth())}


class PanelDrawing:
    """A function of `arguments` that draws a figure of one panel.

    Args:
        draw: draws the panel: a function of axes and `arguments`. Raises `NoData`.
    """

    def __init__(self, draw: Callable[..., None]) -> None:
        functools.update_wrapper(self, draw)
        self.draw = draw

    def __call__(self, *arguments) -> Plot:
        return draw_panels([(self, *arguments)])


def draw_panels(
    panels: list[Sequence], size: tuple[float, float] = HALF_PAGE, columns: int = 1
) -> Plot:
    """Draw a figure of several panels.

    Args:
        panels: of each panel the `PanelDrawing`, and its arguments.
        size: in inches.
        columns: of panels; the number of panels is a multiple.
    """
    with matplotlib.style.context(STYLE):
        layout = ConstrainedLayoutEngine()
        figure = Plot(figsize=size, layout=layout)
        for place, (drawing, *arguments) in enumerate(panels, start=1):
            axes = figure.add_subplot(len(panels) // columns, columns, place)
            try:
                drawing.draw(axes, *arguments)
            except NoData as reason:
                axes.clear()
                axes.set_axis_off()
                text = textwrap.fill(f"no data: {reason}", 40)
                axes.text(0.5, 0.5, text, ha="center", color=GREY, transform=axes.transAxes)
        # The layout is fixed after its second pass, which changes little. Otherwise each time that
        # the figure is saved would be one more pass, with other bytes.
        figure.draw_without_rendering()
        layout.execute(figure)
        figure.set_layout_engine("none")
    return figure


def find_grid(axes: Axes) -> tuple[Figure, GridSpec]:
    """Find the figure of a panel, and the grid of the figure's panels."""
    figure = axes.get_figure(root=True)
    grid = axes.get_gridspec()
    if figure is None or grid is None:
        raise ValueError("these axes are not a panel of a figure")
    return figure, grid


def set_height(axes: Axes, text_lines: int) -> None:
    """Make the figure as high as the lines of text beside this panel need."""
    figure, grid = find_grid(axes)
    panel_height = 1.3 + 0.155 * text_lines  # inches
    figure.set_figheight(max(figure.get_figheight(), grid.nrows * panel_height))


def write_headline(axes: Axes, text: str, pad: float = 6) -> None:
    """Write the headline of a panel: what the panel shows, `pad` points above it."""
    text = _wrap_text(axes, text.removesuffix("."), 0.68)
    axes.set_title(text, loc="left", fontweight="bold", pad=pad)


def write_note(axes: Axes, text: str) -> None:
    """Write a note below the x label, no wider than the panel."""
    axes.annotate(
        _wrap_text(axes, text, 0.5),
        (0, 0),
        (0, -3),
        xycoords=(axes.transAxes, axes.xaxis.label),
        textcoords="offset points",
        va="top",
        fontsize=SMALL_FONT,
        color=GREY,
        gid=NOTE,
    )


def _wrap_text(axes: Axes, text: str, character_width: float) -> str:
    """Break text into lines as wide as the panel.

    Args:
        character_width: of the mean character, as a share of the font's size.
    """
    figure, grid = find_grid(axes)
    width = figure.get_figwidth() / grid.ncols - 1.1  # inches, without labels beside the panel
    return textwrap.fill(text, int(width * 72 / (character_width * FONT)))


def write_legend(axes: Axes, lines: list[Line2D], labels: list[str]) -> None:
    """Write the names of lines on the right, in their colours."""
    axes.legend(lines, labels, loc="upper left", bbox_to_anchor=(1, 1), labelcolor="linecolor")


def to_svg(figure: Figure) -> str:
    """Save a figure as an SVG element, the same for the same figure: no date, no random ids."""
    text = _save(figure, format="svg", metadata={"Date": None, "Creator": None}).decode()
    return text[text.index("<svg") :]  # without the XML declaration


def to_png(figure: Figure, dpi: int = 200) -> bytes:
    """Save a figure as PNG, the same for the same figure. `dpi`: pixels per inch."""
    return _save(figure, format="png", metadata={"Software": None}, dpi=dpi)


def _save(figure: Figure, **options) -> bytes:
    file = io.BytesIO()
    with matplotlib.style.context(STYLE):
        figure.savefig(file, **options)
    return file.getvalue()
