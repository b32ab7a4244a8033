"""Who owns which parameters, and whose loss follows which."""

import pandas as pd

from analysis.comparison import BASELINE, Comparison
from analysis.losses import verdict
from analysis.table import proofs

FIRST, FROZEN = "puzzle_fp8_optimizer_first", "puzzle_bf16_frozen"
NEAR = 0.1  # of what frozen weights cost: losses as near as this are one


def ownership(comparison: Comparison) -> pd.DataFrame:
    """Count parameter tensors by what the optimizer does with them, and the elements it owns."""
    table = proofs(comparison).filter(regex=r"^parameters\.[a-z_]+$")
    table.columns = table.columns.str.removeprefix("parameters.")
    listed = table.select_dtypes(object).columns
    table[listed] = table[listed].map(len)
    return table


def answer(comparison: Comparison) -> list[str]:
    """Write what the runs show, the answer first, then a sentence a recipe.

    The runs explain the report if every recipe ends near the run whose optimizer steps the same
    weights: bf16, or bf16 with the others' orphans frozen.
    """
    runs, first = comparison.completed, proofs(comparison)
    if not {BASELINE, FIRST, FROZEN} <= runs.keys():
        return [f"No answer: it needs completed runs of {BASELINE}, {FIRST} and {FROZEN}."]
    lost = first.loc[FROZEN, "parameters.frozen"]
    near = NEAR * verdict(runs[FROZEN], runs[BASELINE]).difference
    said = (
        "At batch 1 on one device FP8 learns as bf16 does, unless its optimizer was built before a "
        "conversion that replaces the weights: then it learns as bf16 does with these frozen."
    )
    facts = []
    for recipe, orphans in first["parameters.orphans"].drop([BASELINE, FROZEN]).items():
        alike = FROZEN if orphans == lost else BASELINE
        apart = verdict(runs[recipe], runs[alike]).difference
        if abs(apart) > near:
            said = (
                f"These runs do not explain the report: not all end within {near:.4f} of another."
            )
        facts.append(
            f"{recipe}: its optimizer lacks {len(orphans)} weights; its final loss differs by "
            f"{apart:+.4f} from {alike}'s."
        )
    return [said, *facts]
