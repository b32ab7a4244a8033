"""Which of AdamW's states bear few bits: the study `precision_decoupling` beside FP8-LM's (arXiv
2310.18313)."""

from pathlib import Path

import pandas as pd
import yaml

from analysis.comparison import Comparison
from analysis.rates import completed
from experiments.records.files import read
from experiments.records.run import PROOF, Proof

STUDY = "precision_decoupling"
PAPER = {  # what its table 6 and figure 8 say of the loss
    "fp8_optimizer": "equal",
    "fp8_optimizer_bf16_master": "slightly higher",
    "fp8_optimizer_fp8_master": "higher",
    "fp8_optimizer_fp8_second_moment": "diverges",
}
NEAR = 0.1  # nats per token: beside a loss that differs by more, the others would be one line


def near(comparison: Comparison) -> dict[str, pd.DataFrame]:
    """Of `comparison.differences` those that end near 0, whose lines one figure can tell apart."""
    verdicts = comparison.verdicts
    return {
        r: frame
        for r, frame in comparison.differences.items()
        if abs(verdicts[r].difference) < NEAR
    }


def states(comparison: Comparison) -> pd.DataFrame:
    """One row a recipe: dtypes of what training keeps, bytes a parameter of it as measured, and the
    final loss.

    Bytes are those of the tensors in memory after the first step, scales included and gradients
    not. The loss is a mean over completed runs, and so is its difference to the baseline's.
    """
    runs, rows = comparison.frames.runs, {}
    for recipe in comparison.recipes:
        of_recipe = completed(runs, runs, recipe)
        path = Path(of_recipe["path"].iloc[0])
        keys = yaml.safe_load((path / "recipe.yaml").read_text())
        parameters = keys["training"]["dtype"]
        dtypes = keys["optimizer"]["states"]
        kept = read(path / PROOF, Proof).parameters.bytes_per_parameter
        rows[recipe] = {
            "parameters": parameters,
            "first moment": dtypes["first_moment"] or parameters,
            "second moment": dtypes["second_moment"] or parameters,
            "master weights": dtypes["master_weights"] or "none",
            "bytes": sum(kept.values()),
            "final loss": of_recipe["final_loss"].mean(),
        }
    table = pd.DataFrame.from_dict(rows, orient="index").replace({"float8_e4m3fn": "E4M3"})
    table["difference"] = table["final loss"] - table["final loss"].get(comparison.baseline)
    table["FP8-LM"] = [PAPER.get(recipe, "") for recipe in table.index]
    return table
