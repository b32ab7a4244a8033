"""How near to its limits was FP8?"""

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.plots.style import NoData, panels, plot

_QUANTITIES = {"flushed": "share of values that become 0", "amax": "largest absolute value"}
_MARKERS = "osD^vPX*"


def fp8_ranges(ranges: pd.DataFrame) -> Figure:
    """Flushed shares and largest values by step, of weights and of their gradients; of the first
    FP8 run with any.

    Args:
        ranges: see `analysis.fp8_ranges.fp8_ranges`.
    """
    first = ranges[ranges["run"] == ranges["run"].iloc[0]] if len(ranges) else ranges
    titles = {
        f"{tensor.capitalize()}s: {words}": lambda axes, tensor=tensor, quantity=quantity: (
            group_lines.panel(
                axes, first[(first["tensor"] == tensor) & (first["quantity"] == quantity)], quantity
            )
        )
        for tensor in ("weight", "gradient")
        for quantity, words in _QUANTITIES.items()
    }
    return panels(titles, (10, 6.4), columns=2)


@plot
def group_lines(axes: Axes, values: pd.DataFrame, quantity: str) -> None:
    """One line a group of layers."""
    if values.empty:
        raise NoData("no run kept FP8's ranges")
    for marker, (group, line) in zip(_MARKERS, values.groupby("group"), strict=False):
        axes.plot(line["step"], line["value"], marker=marker, label=group.rpartition(".")[2])
    if quantity == "amax":
        axes.set_yscale("log")
        axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
    else:
        axes.set_ylim(0, max(1e-4, 1.1 * values["value"].max()))
        axes.ticklabel_format(axis="y", style="scientific", scilimits=(0, 0))
    axes.set_xlabel(f"step of {values['run'].iloc[0].replace('$', '')}")
