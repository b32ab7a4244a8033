"""Tables of the notebook: optimizer states, gradients, and all levels together."""

import json
from pathlib import Path

import pandas as pd

from analysis.comparison import Comparison
from analysis.plots.bars import measure_completed_runs
from analysis.tables import proof_table


def final_losses(comparison: Comparison) -> pd.DataFrame:
    """Average each recipe's final loss, and say how far that is from the reference's."""
    losses = measure_completed_runs(comparison).groupby(level=0)["final_loss"].mean()
    differences = losses - losses[comparison.reference]
    return pd.DataFrame({"final loss": losses, "difference": differences})


def bytes_per_parameter(comparison: Comparison) -> pd.Series:
    """Add up the bytes a parameter that stay in memory from step to step: weights and states.

    They were measured from the tensors in memory after the first step, scales included.
    """
    return proof_table(comparison).filter(like="bytes_per_parameter").sum(axis=1)


# ---- precision_decoupling: which of AdamW's states bear few bits ----

DTYPES = {
    "training.dtype": "parameters",
    "fp8_lm.states.first_moment": "first moment",
    "fp8_lm.states.second_moment": "second moment",
    "fp8_lm.states.master_weights": "master weights",
}
# What the paper's table 6 and figure 8 say of the loss.
FP8_LM_LOSS = {
    "fp8_optimizer": "equal",
    "fp8_optimizer_bf16_master": "slightly higher",
    "fp8_optimizer_fp8_master": "higher",
    "fp8_optimizer_fp8_second_moment": "diverges",
}


def optimizer_states(comparison: Comparison) -> pd.DataFrame:
    """List the dtypes of weights and states, their measured bytes a parameter, and the loss."""
    facts = {recipe: runs[0].facts for recipe, runs in comparison.study.completed_by_recipe.items()}
    table = pd.DataFrame(facts, [*DTYPES]).T.rename(columns=DTYPES)
    table = table.replace("float8_e4m3fn", "E4M3")
    for moment in ("first moment", "second moment"):  # of torch's AdamW, as the parameters
        table[moment] = table[moment].fillna(table["parameters"])
    table["bytes"] = bytes_per_parameter(comparison)
    table = table.join(final_losses(comparison))
    table["FP8-LM"] = pd.Series(FP8_LM_LOSS)
    return table.fillna({"master weights": "none", "FP8-LM": ""})


# ---- gradients, optimizer states and all-gather in FP8, compared to bf16 ----

SUMS = Path(__file__).parent / "results/gradients/sums.json"
# Names for people of the methods of gradient_sums.py
METHODS = {
    "block": "in float32, a scale for 256 values",
    "tensor": "in float32, one scale",
    "best": "in FP8, best factor in hindsight",
    "auto": "in FP8, automatic scaling by mu",
    "pre": "in FP8, scaled before (1/ranks)",
    "post": "in FP8, scaled after",
}


def levels(comparison: Comparison) -> pd.DataFrame:
    """List what each recipe sends in a step, and how much less than bf16; the bytes in memory; the
    loss."""
    columns = {"sharded.gathered_bytes": "weights, MB", "sharded.reduced_bytes": "gradients, MB"}
    table = proof_table(comparison)[[*columns]].rename(columns=columns) / 1e6
    total_mb = table.sum(axis=1)
    change = total_mb / total_mb[comparison.reference] - 1
    table["sent, to bf16"] = change.map("{:+.0%}".format)
    table["bytes a parameter"] = bytes_per_parameter(comparison)
    return table.join(final_losses(comparison))


def gradient_sums() -> pd.DataFrame:
    """Read how exact sums of FP8 gradients are, in dB: a row a number of ranks, a column a
    method."""
    sums = pd.DataFrame(json.loads(SUMS.read_text())["sums"])
    table = sums.pivot(index="ranks", columns="how", values="snr_db")
    return table[list(METHODS)].rename(columns=METHODS)
