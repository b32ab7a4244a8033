"""Figure of the study of scalings: loss and signal to noise over bytes."""

import pandas as pd
from matplotlib.axes import Axes

from analysis.plots.style import Plot, finding, note, panels, plot

MARKERS = "osD^vPX"
COLOURS = ["#D55E00", "#E69F00", "#009E73", "#999933", "#0072B2", "#CC79A7", "#882255"]


def scalings(found: pd.DataFrame) -> Plot:
    """Draw loss difference and signal to noise over bytes; `found` as from
    `analysis.scalings.table`."""
    return panels([(losses_by_bytes, found), (snr_by_bytes, found)], (11, 3.8), columns=2)


@plot
def losses_by_bytes(axes: Axes, found: pd.DataFrame) -> None:
    """Draw each scaling's final loss less the baseline's, with its interval."""
    below = found["difference"] - found["low"]
    above = found["high"] - found["difference"]
    _draw(axes, found, "difference", below, above)
    axes.axhline(0, color="black", linewidth=0.8)
    axes.set_ylabel("loss − loss of bf16\n(nats per token)")
    finding(axes, f"No loss is further than {found['difference'].abs().max():.4f} from bf16's")
    note(axes, "Bars: the verdicts' intervals over seeds.")


@plot
def snr_by_bytes(axes: Axes, found: pd.DataFrame) -> None:
    """Draw each scaling's median signal to noise late in the run, down to the worst matmul's."""
    _draw(axes, found, "dB, late", found["dB, late"] - found["dB, least"], 0 * found["dB, late"])
    axes.set_ylabel("signal to noise of a matmul (dB)")
    names = [f"{name}, 2^{power:.0f}" for name, power in found["breaks at 2^"].items()]
    axes.legend(names, fontsize="x-small", loc="upper left", bbox_to_anchor=(1, 1))
    least, most = found["dB, late"].agg(["min", "max"])
    finding(axes, f"On a run's tensors all keep {least:.0f} to {most:.0f} dB")
    note(
        axes, "Median of all layers' matmuls, down to the worst. 2^n: outliers that break the loss."
    )


def _draw(axes: Axes, found: pd.DataFrame, column: str, below: pd.Series, above: pd.Series) -> None:
    """Draw a marker and a bar a scaling; those of the same bytes stand beside one another."""
    places = found["bytes an element"] + 0.0007 * found.groupby("bytes an element").cumcount()
    for name, marker, colour in zip(found.index, MARKERS, COLOURS, strict=False):
        reach = [[below[name]], [above[name]]]
        look = {"fmt": marker, "color": colour, "capsize": 3}
        axes.errorbar(places[name], found[column][name], yerr=reach, label=name, **look)
    axes.set_xlabel("bytes an element, scales too")
