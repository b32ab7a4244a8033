"""Who owns which parameters, and whose loss follows which."""

from dataclasses import replace

import pandas as pd

from analysis.comparison import BASELINE, Comparison
from analysis.losses import compare_final_losses
from analysis.tables import proof_table

FROZEN = "puzzle_bf16_frozen"


def ownership(comparison: Comparison) -> pd.DataFrame:
    """Count parameter tensors by what the optimizer does with them, and the elements it owns."""
    table = proof_table(comparison).filter(regex=r"^parameters\.[a-z_]+$")
    table.columns = table.columns.str.removeprefix("parameters.")
    name_lists = table.select_dtypes(object).columns
    table[name_lists] = table[name_lists].map(len)
    return table


def select_learning_recipes(comparison: Comparison) -> Comparison:
    """Leave out the recipes whose converted weights no optimizer steps: frozen, or orphans."""
    table = ownership(comparison)
    results = {}
    for name, result in comparison.results.items():
        if name in table.index and not table.loc[name, ["orphans", "frozen"]].any():
            results[name] = result
    return replace(comparison, results=results)


def final_losses(comparison: Comparison) -> pd.DataFrame:
    """Count the weights that no optimizer steps; compare each recipe's final loss to bf16's, and to
    bf16's with frozen weights."""
    completed = comparison.study.completed_by_recipe
    table = ownership(comparison)[["orphans", "frozen"]]
    for reference in (BASELINE, FROZEN):
        differences = {}
        for recipe, runs in completed.items():
            differences[recipe] = compare_final_losses(runs, completed[reference]).difference
        table[f"final loss minus {reference}'s"] = pd.Series(differences)
    return table
