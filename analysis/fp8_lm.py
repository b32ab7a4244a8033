"""FP8-LM's levels beside bf16 (arXiv 2310.18313): what each sends, keeps and loses, from the study
`fp8_lm`."""

from pathlib import Path

import pandas as pd

from analysis.comparison import Comparison
from analysis.rates import completed
from experiments.records.files import read
from experiments.records.run import PROOF, Proof

STUDY = "fp8_lm/levels"  # under results/


def levels(comparison: Comparison) -> pd.DataFrame:
    """One row a recipe: MB that a step sends of weights and of gradients, what of bf16's that is,
    bytes a parameter that training keeps from step to step, and the final loss."""
    rows = {}
    for recipe in comparison.recipes:
        runs = completed(comparison.frames.runs, comparison.frames.runs, recipe)
        weights, gradients = (
            runs[name].iloc[0] / 1e6 for name in ("gathered_bytes", "reduced_bytes")
        )
        proof = read(Path(runs["path"].iloc[0]) / PROOF, Proof)
        rows[recipe] = {
            "weights, MB": weights,
            "gradients, MB": gradients,
            "sent": weights + gradients,
            "bytes a parameter": sum(proof.parameters.bytes_per_parameter.values()),
            "final loss": runs["final_loss"].mean(),
        }
    table = pd.DataFrame.from_dict(rows, orient="index")
    of_bf16 = table["sent"] / table["sent"].get(comparison.baseline) - 1
    table["sent"] = [f"{100 * share:+.0f} %" for share in of_bf16]
    table["difference"] = table["final loss"] - table["final loss"].get(comparison.baseline)
    return table.rename(columns={"sent": "sent, to bf16"})
