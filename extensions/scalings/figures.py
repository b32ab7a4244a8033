"""Figures of scalings; their tables are in tables.py."""

import pandas as pd
from matplotlib.axes import Axes

from analysis.plots.style import Plot, finding, legend_beside, note, panels, plot

MARKERS = "osD^vPX"
COLOURS = ["#D55E00", "#E69F00", "#009E73", "#999933", "#0072B2", "#CC79A7", "#882255"]


def losses_and_noise(found: pd.DataFrame) -> Plot:
    """Draw loss difference and signal to noise over bytes; `found` as from
    `tables.costs_and_keeps`."""
    return panels([(losses_by_bytes, found), (snr_by_bytes, found)], (11, 3.8), columns=2)


@plot
def losses_by_bytes(axes: Axes, found: pd.DataFrame) -> None:
    """Draw each scaling's final loss less the baseline's, with its interval."""
    _draw_by_bytes(axes, found, found["difference"], found["low"], found["high"])
    axes.axhline(0, color="black", linewidth=0.8)
    axes.set_ylabel("loss − loss of bf16\n(nats per token)")
    finding(axes, f"No loss is further than {found['difference'].abs().max():.4f} from bf16's")
    note(axes, "Bars: the verdicts' intervals over seeds.")


@plot
def snr_by_bytes(axes: Axes, found: pd.DataFrame) -> None:
    """Draw each scaling's median signal to noise late in the run, down to the worst matmul's."""
    late = found["dB, late"]
    _draw_by_bytes(axes, found, late, found["dB, least"], late)
    axes.set_ylabel("signal to noise of a matmul (dB)")
    names = found.index + found["breaks at 2^"].map(", 2^{:.0f}".format)
    legend_beside(axes, labels=[*names])
    finding(axes, f"On a run's tensors all keep {late.min():.0f} to {late.max():.0f} dB")
    text = "Median of all layers' matmuls, down to the worst. 2^n: outliers that break the loss."
    note(axes, text)


def _draw_by_bytes(
    axes: Axes, found: pd.DataFrame, values: pd.Series, low: pd.Series, high: pd.Series
) -> None:
    """Draw a marker and a bar a scaling; those of the same bytes stand beside one another."""
    places = found["bytes an element"] + 0.0007 * found.groupby("bytes an element").cumcount()
    table = pd.DataFrame({"x": places, "y": values, "below": values - low, "above": high - values})
    for (x, y, below, above), marker, colour in zip(
        table.to_numpy(), MARKERS, COLOURS, strict=False
    ):
        axes.errorbar(x, y, [[below], [above]], fmt=marker, color=colour, capsize=3)
    axes.set_xlabel("bytes an element, scales too")
