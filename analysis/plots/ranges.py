"""How near to its limits was FP8?"""

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.plots.style import name, new_figure, note, panel, require, styled

_QUANTITIES = {"flushed": "share of values that become 0", "amax": "largest absolute value"}
_MARKERS = "osD^vPX*"


@styled
def fp8_ranges(ranges: pd.DataFrame) -> Figure:
    """Flushed shares and largest values by step, of weights and of their gradients; of the first FP8 run with any.

    Args:
        ranges: see `analysis.fp8_ranges.fp8_ranges`.
    """
    figure, axes = new_figure((10, 6.4), rows=2, columns=2)
    first = ranges[ranges["run"] == ranges["run"].iloc[0]] if len(ranges) else ranges
    for row, tensor in zip(axes, ("weight", "gradient"), strict=True):
        for place, quantity in zip(row, _QUANTITIES, strict=True):
            draw_ranges(place, first, tensor, quantity)
    handles, labels = axes[0, 0].get_legend_handles_labels()
    if handles:
        figure.legend(handles, labels, loc="outside upper center", ncols=len(labels), frameon=False)
        note(axes[1, 0], f"{name(first['recipe'].iloc[0])}, one run.")
    return figure


@panel
def draw_ranges(axes: Axes, ranges: pd.DataFrame, tensor: str, quantity: str) -> None:
    """One line a group of layers."""
    shown = ranges[(ranges["tensor"] == tensor) & (ranges["quantity"] == quantity)]
    require(shown, "look at FP8's ranges", "value")
    for marker, (group, line) in zip(_MARKERS, shown.groupby("group"), strict=False):
        axes.plot(line["step"], line["value"], marker=marker, label=group.rpartition(".")[2])
    if quantity == "amax":
        axes.set_yscale("log")
    else:
        axes.set_ylim(0, max(1e-4, 1.1 * shown["value"].max()))
    axes.set(xlabel="step", ylabel=f"{_QUANTITIES[quantity]}, {tensor}s")
