"""What each scaling of FP8 costs and keeps: the study's losses beside the figures of
experiments/benchmarks/scalings.py."""

import json
from pathlib import Path

import pandas as pd

from analysis import newest
from analysis.comparison import Comparison

SNR = newest.ROOT / "results" / "scalings" / "snr.json"
RECIPES = {
    "tensorwise": "tensorwise_fp8_compiled",
    "tensorwise, e4m3 gradients": "scaling_tensorwise_e4m3_gradients",
    "rowwise": "rowwise_fp8_compiled",
    "rowwise, e5m2 gradients": "scaling_rowwise_e5m2_gradients",
    "blockwise": "scaling_blockwise",
    "mxfp8": "scaling_mxfp8",
    "mxfp8_ocp": "scaling_mxfp8_ocp",
}


def table(comparison: Comparison, path: Path = SNR) -> pd.DataFrame:
    """Read a row a scaling: bytes an element; median dB of the matmuls in the first and the last
    step that was looked at, and the least of any matmul; the power of two at which outliers break
    the loss; and the final loss over the baseline's with its interval, NaN without runs."""
    record = json.loads(path.read_text())
    rows = pd.DataFrame(record["matmuls"])
    by_step = rows.pivot_table("snr_db", "scaling", "step", "median", sort=False)
    found = pd.DataFrame({"bytes an element": rows.groupby("scaling")["bytes_an_element"].mean()})
    found = found.loc[by_step.index]
    found["dB, early"], found["dB, late"] = by_step.iloc[:, 0], by_step.iloc[:, -1]
    found["dB, least"] = rows.groupby("scaling")["snr_db"].min()
    found["breaks at 2^"] = pd.Series(record["breaks_at_power_of_2"])
    losses = {name: comparison.verdicts.get(recipe) for name, recipe in RECIPES.items()}
    for column in ("difference", "low", "high"):
        found[column] = pd.Series({name: getattr(of, column, None) for name, of in losses.items()})
    return found


def stress(path: Path = SNR) -> pd.DataFrame:
    """Read the loss over that without rounding: a row a factor of the outliers, a column a
    scaling."""
    rows = pd.DataFrame(json.loads(path.read_text())["stress"])
    rows["gained"] = rows["loss"] - rows["exact_loss"]
    return rows.pivot(index="factor", columns="scaling", values="gained")[list(RECIPES)]
