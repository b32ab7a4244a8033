"""Tables and figures of the notebook: loss, and signal to noise, of each scaling."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from analysis import plots
from analysis.comparison import Comparison
from analysis.plots.style import GREY, PanelDrawing, Plot, find_look, write_headline, write_legend

SNR = Path(__file__).with_name("results") / "snr.json"  # of signal_to_noise.py
SCALINGS = {
    "tensorwise": "tensorwise_fp8_compiled",
    "tensorwise, e4m3 gradients": "scaling_tensorwise_e4m3_gradients",
    "rowwise": "rowwise_fp8_compiled",
    "rowwise, e5m2 gradients": "scaling_rowwise_e5m2_gradients",
    "blockwise": "scaling_blockwise",
    "mxfp8": "scaling_mxfp8",
    "mxfp8_ocp": "scaling_mxfp8_ocp",
    "nvfp4": "scaling_nvfp4",
}
# Of the figures: the others lie on one of these lines, or between two.
DRAWN = ["tensorwise", "rowwise", "blockwise", "mxfp8", "nvfp4"]
BROKEN_LOSS = 0.01  # above a scaling's own loss without stress


def scaling_table(comparison: Comparison) -> pd.DataFrame:
    """List the signal to noise and the loss of each scaling, a row a scaling.

    Columns: median dB of each of a layer's matmuls, without stress; the powers of two at which
    outliers, and features that SwiGLU grows, break the loss; and the final loss over the baseline's
    with its interval, NaN without runs.
    """
    rows = pd.DataFrame(json.loads(SNR.read_text())["stress"])
    unstressed = rows[(rows["stress"] == "outliers") & (rows["factor"] == 1)].set_index("scaling")
    table = unstressed["snr_db"].apply(pd.Series).add_prefix("dB, ").reindex(SCALINGS)
    table["breaks at 2^"] = find_breaks(stress("outliers")["lost"])
    table["SwiGLU breaks at 2^"] = find_breaks(stress("swiglu")["lost"])
    for column in ("difference", "low", "high"):
        values = {}
        for recipe, comparison_result in comparison.results.items():
            values[recipe] = getattr(comparison_result.loss, column)
        table[column] = pd.Series(SCALINGS).map(values)
    return table


def stress(name: str) -> pd.DataFrame:
    """Read what a stress does, a row a factor: for each scaling the loss over the loss of the same
    model without rounding, `lost`, and the median dB of the outputs of its layers, `dB`."""
    rows = pd.DataFrame(json.loads(SNR.read_text())["stress"])
    rows["dB"] = rows["snr_db"].str["output"]
    rows = rows[rows["stress"] == name].pivot(index="factor", columns="scaling")
    return rows.reindex(columns=[*SCALINGS], level="scaling")


def find_breaks(excess_loss: pd.DataFrame) -> pd.Series:
    """Find, as a power of two, the smallest factor at which a scaling loses 0.01 or more above its
    loss without stress; NaN if there is none."""
    is_broken = ~(excess_loss - excess_loss.iloc[0] < BROKEN_LOSS)  # NaN is broken too
    return np.log2(is_broken.idxmax().where(is_broken.any()))


# ---- figures ----


def draw_stress() -> Plot:
    """Draw the loss of each scaling by the factor of both stresses."""
    panels = [
        (excess_loss, "outliers", "factor of the outliers"),
        (excess_loss, "swiglu", "factor of w1 and w3 of the aligned features"),
    ]
    return plots.draw_panels(panels, (10, 3.6), columns=2)


@PanelDrawing
def excess_loss(axes: Axes, name: str, factor_text: str) -> None:
    """Draw each scaling's loss above the exact one by a stress's factor."""
    table = stress(name)["lost"][DRAWN]
    lines = draw_lines(axes, table)
    axes.axhline(BROKEN_LOSS, color=GREY, linewidth=0.8)
    # Linear below the loss that counts as broken: it may be negative there
    axes.set_yscale("symlog", linthresh=BROKEN_LOSS)
    axes.set_ylim(-BROKEN_LOSS, 1.5 * table.max(axis=None))
    axes.set(xlabel=factor_text, ylabel="loss above the exact loss")
    breaks = find_breaks(table).sort_values(kind="stable")
    first, last = (find_look(SCALINGS[each]).name for each in (breaks.index[0], breaks.index[-1]))
    write_headline(
        axes,
        f"{first} breaks first, at 2^{breaks.iloc[0]:.0f}; {last} last, at 2^{breaks.iloc[-1]:.0f}",
    )
    if axes.get_subplotspec().is_last_col():
        write_legend(axes, lines, [line.get_label() for line in lines])


@PanelDrawing
def signal_to_noise(axes: Axes, name: str) -> None:
    """Draw each scaling's signal to noise by a stress's factor."""
    lines = draw_lines(axes, stress(name)["dB"][DRAWN])
    axes.axhline(20, color=GREY, linewidth=0.8)
    axes.set(xlabel="factor of w1 and w3 of the aligned features", ylabel="signal to noise, dB")
    write_headline(axes, "w2's output: at 20 dB the error is a tenth")
    write_legend(axes, lines, [line.get_label() for line in lines])


def draw_lines(axes: Axes, table: pd.DataFrame) -> list:
    """Draw a line a scaling over the factors, in the look of its recipe."""
    lines = []
    for scaling, values in table.items():
        look = find_look(SCALINGS[scaling])
        (line,) = axes.plot(
            values.index, values, color=look.colour, marker=look.marker, label=look.name
        )
        lines.append(line)
    axes.set_xscale("log", base=2)
    return lines
