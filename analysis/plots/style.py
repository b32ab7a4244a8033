"""What all figures share: look of a recipe, sizes and fonts, notes, panels without data, and bytes
that do not vary."""

import functools
import io
import textwrap
import zlib
from collections.abc import Callable
from typing import NamedTuple

import matplotlib
import matplotlib.style
from matplotlib.axes import Axes
from matplotlib.figure import Figure

HALF_PAGE = (5.0, 3.4)  # inches: a figure of one panel
SMALL = 8  # points, the smallest font
GREY = "#666666"
_STYLE = {
    "font.size": 9,
    "axes.labelsize": 9,
    "axes.titlesize": 9,
    "xtick.labelsize": SMALL,
    "ytick.labelsize": SMALL,
    "legend.fontsize": SMALL,
    "legend.frameon": False,
    "legend.labelspacing": 0.3,
    "legend.handlelength": 1.3,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#E4E4E4",
    "grid.linewidth": 0.6,
    "lines.linewidth": 1.6,
    "lines.markersize": 4.5,
    "figure.constrained_layout.h_pad": 0.06,
    "svg.fonttype": "path",  # text looks the same whatever fonts a reader has
    "svg.hashsalt": "analysis.plots",
}


class Look(NamedTuple):
    colour: str
    marker: str


# Okabe and Ito's colours, which colour-blind readers tell apart too, without those too pale for a
# line on white.
_LOOKS = {
    "baseline": Look("#444444", "o"),
    "baseline_compiled": Look("#0072B2", "s"),
    "rowwise_fp8_compiled": Look("#009E73", "^"),
    "tensorwise_fp8_compiled": Look("#D55E00", "D"),
    "rowwise_gw_hp_fp8_compiled": Look("#CC79A7", "v"),
    # of a study that has none of those above but bf16 and tensorwise FP8
    "bf16_fp8_bf16": Look("#009E73", "^"),
    "bf16_then_fp8": Look("#CC79A7", "v"),
    "fp8_then_bf16": Look("#56B4E9", "P"),
    # of a study that has none of those above but the first
    "puzzle_fp8": Look("#0072B2", "s"),
    "puzzle_fp8_optimizer_last": Look("#009E73", "^"),
    "puzzle_fp8_optimizer_first": Look("#D55E00", "D"),
    "puzzle_bf16_frozen": Look("#CC79A7", "v"),
    # likewise
    "float32_optimizer": Look("#0072B2", "s"),
    "float32_parameters": Look("#56B4E9", "P"),
    "fp8_optimizer": Look("#009E73", "^"),
    "fp8_optimizer_bf16_master": Look("#CC79A7", "v"),
    "fp8_optimizer_fp8_master": Look("#D55E00", "D"),
    "fp8_optimizer_fp8_second_moment": Look("#E69F00", "X"),
}
_OTHER_COLOURS = ("#E69F00", "#56B4E9", "#882255", "#999933")
_OTHER_MARKERS = ("P", "X", "*", "p", "h")


def look(recipe: str) -> Look:
    """Colour and marker of a recipe: the same in every figure, for a recipe with a name of its own
    as well."""
    if recipe in _LOOKS:
        return _LOOKS[recipe]
    number = zlib.crc32(recipe.encode())
    return Look(
        _OTHER_COLOURS[number % len(_OTHER_COLOURS)],
        _OTHER_MARKERS[number // 7 % len(_OTHER_MARKERS)],
    )


def name(recipe: str) -> str:
    """A recipe's name for people, on one line."""
    return recipe.replace("_", " ").replace("fp8", "FP8").replace("$", r"\$")


class NoData(Exception):
    """There is nothing to draw; the message says why."""


class Plot(Figure):
    """A figure that a notebook shows by itself, and the same way each time."""

    def _repr_png_(self) -> bytes:
        return to_png(self, dpi=110)


def panels(
    titles: dict[str, Callable[[Axes], None]], size: tuple[float, float], columns: int = 1
) -> Figure:
    """A figure of `size` inches, in this module's style whatever the user's settings are: title to
    what draws below it.

    The layout stays as it comes out, so that saving the figure again gives the same bytes.
    """
    with matplotlib.style.context(["default", _STYLE]):
        figure = Plot(figsize=size, layout="constrained")
        for place, (title, draw) in enumerate(titles.items(), start=1):
            axes = figure.add_subplot(len(titles) // columns, columns, place)
            axes.set_title(title, loc="left", fontweight="bold")
            draw(axes)
        figure.draw_without_rendering()
        figure.get_layout_engine().execute(
            figure
        )  # constrained layout comes to rest in the second pass
        figure.set_layout_engine("none")
    return figure


def plot(draw: Callable[..., None]) -> Callable[..., Figure]:
    """Make `draw(axes, ...)` a function of the other arguments that returns a figure of half a
    page.

    Its attribute `panel` draws into axes. Both say in the panel why there is no data.
    """

    def panel(axes: Axes, *args) -> None:
        try:
            draw(axes, *args)
        except NoData as why:
            axes.set(xticks=[], yticks=[])
            axes.spines[:].set_visible(False)
            text = textwrap.fill(f"no data: {why}", 40)
            axes.text(
                0.5, 0.5, text, ha="center", va="center", color=GREY, transform=axes.transAxes
            )

    @functools.wraps(draw)
    def figure(*args) -> Figure:
        return panels({"": lambda axes: panel(axes, *args)}, HALF_PAGE)

    figure.panel = panel
    return figure


def make_room(axes: Axes, names: int) -> None:
    """Make the figure as high as so many names of recipes beside this panel need, each on up to
    three lines."""
    figure, rows = axes.figure, axes.get_gridspec().nrows
    figure.set_figheight(max(figure.get_figheight(), rows * (1.3 + 0.46 * names)))


def note(axes: Axes, *sentences: str) -> None:
    """Small grey text below the x label, each sentence on lines of its own, no wider than the
    panel."""
    inches = axes.figure.get_figwidth() / axes.get_gridspec().ncols - 1.15
    width = int(inches * 72 / (0.56 * SMALL))  # the mean character is 0.56 of the font size wide
    axes.annotate(
        "\n".join(textwrap.fill(sentence, width) for sentence in sentences), (0, 0),
        xycoords=(axes.transAxes, axes.xaxis.label), xytext=(0, -3), textcoords="offset points",
        ha="left", va="top", fontsize=SMALL, color=GREY,
    )  # fmt: skip


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
