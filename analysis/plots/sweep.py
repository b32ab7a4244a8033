"""A sweep's heat map: one quantity of one recipe in every cell."""

import math

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import CenteredNorm, Normalize

from analysis.plots.style import GREY, SMALL, NoData, make_room, plot
from analysis.sweep import Row, Sweep, cells, values

COLUMNS = (
    "training.seq_len"  # the axis that goes to the right, where there is one; the others go down
)
RATIO = "over bf16"


@plot
def heat_map(axes: Axes, sweep: Sweep, quantity: str, recipe: str) -> None:
    """A field a cell, with what the table says of it; grey where nothing was measured.

    Args:
        quantity: a key of `analysis.sweep.values`. Speed-ups are blue where FP8 is faster, red
        where it is slower.
    """
    rows = [row for row in sweep.rows if row.recipe == recipe]
    across = COLUMNS if COLUMNS in sweep.axes else list(sweep.axes)[-1]
    down = list(dict.fromkeys(_names(row, across) for row in rows))
    numbers = np.full((len(down), len(sweep.axes[across])), math.nan)
    for row in rows:
        place = down.index(_names(row, across)), sweep.axes[across].index(row.values[across])
        value = values(row)[quantity]
        numbers[place] = math.nan if value is None else value
        text = cells(row, sweep.opponent)[quantity] if value is not None else _missing(row)
        _write(axes, place, text, value is None)
    if np.isnan(numbers).all():
        raise NoData(f"no completed run of {recipe} has {quantity}")
    # Pale, so that black text can be read: a ratio from red over white at 1 to blue, others from
    # white to blue.
    ratio = quantity == RATIO
    norm = CenteredNorm() if ratio else Normalize(0, 2 * np.nanmax(numbers))
    axes.imshow(
        np.log(numbers) if ratio else numbers,
        cmap="RdBu" if ratio else "Blues",
        norm=norm,
        aspect="auto",
    )
    if ratio:
        norm.halfrange = 2 * max(0.01, np.nanmax(np.abs(np.log(numbers))))
    axes.set_facecolor("#EEEEEE")
    axes.set_xticks(range(numbers.shape[1]), [str(value) for value in sweep.axes[across]])
    axes.set_yticks(range(len(down)), down)
    axes.set(xlabel=across.rpartition(".")[2], ylim=(len(down) - 0.5, -0.5))
    axes.grid(visible=False)
    axes.tick_params(length=0)
    make_room(axes, len(down))


def _names(row: Row, across: str) -> str:
    """A row of the map: the cell's values on all axes but the one that goes to the right."""
    parts = [(key.rpartition(".")[2], value) for key, value in row.values.items() if key != across]
    return (
        ", ".join(value if name == "flavor" else f"{name} {value}" for name, value in parts) or " "
    )


def _missing(row: Row) -> str:
    return "-" if row.rate else row.state.split(",")[0]


def _write(axes: Axes, place: tuple[int, int], text: str, missing: bool) -> None:
    lines = text.replace(" (", "\n(").replace(", ", "\n").replace("needs about ", "needs about\n")
    axes.text(
        place[1],
        place[0],
        lines,
        ha="center",
        va="center",
        fontsize=SMALL,
        color=GREY if missing else "black",
    )
