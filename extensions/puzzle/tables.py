"""Who owns which parameters, and whose loss follows which."""

import pandas as pd

from analysis.comparison import BASELINE, Comparison
from analysis.losses import verdict
from analysis.notebook_tables import proofs

FROZEN = "puzzle_bf16_frozen"


def ownership(comparison: Comparison) -> pd.DataFrame:
    """Count parameter tensors by what the optimizer does with them, and the elements it owns."""
    table = proofs(comparison).filter(regex=r"^parameters\.[a-z_]+$")
    table.columns = table.columns.str.removeprefix("parameters.")
    listed = table.select_dtypes(object).columns
    table[listed] = table[listed].map(len)
    return table


def ends(comparison: Comparison) -> pd.DataFrame:
    """Count the weights that no optimizer steps, and say how far each recipe's final loss is from
    bf16's, and from bf16's with frozen weights."""
    runs = comparison.study.completed
    table = ownership(comparison)[["orphans", "frozen"]]
    for reference in (BASELINE, FROZEN):
        apart = {recipe: verdict(own, runs[reference]).difference for recipe, own in runs.items()}
        table[f"final loss minus {reference}'s"] = pd.Series(apart)
    return table
