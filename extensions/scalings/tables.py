"""Loss, and signal to noise, of each scaling of FP8."""

import json
from pathlib import Path

import numpy as np
import pandas as pd

from analysis.comparison import Comparison

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
    is_broken = ~(excess_loss - excess_loss.iloc[0] < 0.01)  # NaN is broken too
    return np.log2(is_broken.idxmax().where(is_broken.any()))
