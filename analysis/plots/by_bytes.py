"""Figure of the study of scalings: loss and signal to noise over bytes."""

import pandas as pd
from matplotlib.axes import Axes

from analysis.plots.style import Plot, finding, note, panels, plot

MARKERS = "osD^vPX"


def scalings(found: pd.DataFrame) -> Plot:
    """Draw loss difference and signal to noise over bytes; `found` as from
    `analysis.scalings.table`."""
    return panels([(losses_by_bytes, found), (snr_by_bytes, found)], (10, 3.8), columns=2)


@plot
def losses_by_bytes(axes: Axes, found: pd.DataFrame) -> None:
    """Draw each scaling's final loss less the baseline's, with its interval."""
    found = found.dropna(subset="difference")
    for marker, (name, row) in zip(MARKERS, found.iterrows(), strict=False):
        reach = [[row["difference"] - row["low"]], [row["high"] - row["difference"]]]
        place = [row["bytes an element"]], [row["difference"]]
        axes.errorbar(*place, yerr=reach, fmt=marker, label=name, capsize=3)
    axes.axhline(0, color="black", linewidth=0.8)
    axes.set(xlabel="bytes an element, scales too", ylabel="loss − loss of bf16 (nats per token)")
    axes.legend(fontsize="small")
    largest = found["difference"].abs().max()
    finding(axes, f"No final loss is further than {largest:.4f} from that of bf16")
    note(axes, "Bars: 90 % interval over seeds.")


@plot
def snr_by_bytes(axes: Axes, found: pd.DataFrame) -> None:
    """Draw each scaling's median signal to noise late in the run, down to the worst matmul's."""
    for marker, (name, row) in zip(MARKERS, found.iterrows(), strict=False):
        down = [[row["dB, late"] - row["dB, least"]], [0]]
        place = [row["bytes an element"]], [row["dB, late"]]
        axes.errorbar(*place, yerr=down, fmt=marker, label=name, capsize=3)
        axes.annotate(f" 2^{row['breaks at 2^']:.0f}", (place[0][0], place[1][0]))
    axes.set(xlabel="bytes an element, scales too", ylabel="signal to noise of a matmul (dB)")
    least, most = found["dB, late"].agg(["min", "max"])
    finding(axes, f"On tensors of a run all scalings keep {least:.0f} to {most:.0f} dB")
    note(axes, "Median of all layers' matmuls, down to the worst one. 2^n: outliers that break it.")
