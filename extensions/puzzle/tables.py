"""Who owns which parameters, and whose loss follows which."""

import pandas as pd

from analysis.comparison import BASELINE, Comparison
from analysis.losses import verdict
from analysis.table import proofs

FROZEN = "puzzle_bf16_frozen"
NEAR = 0.1  # of what frozen weights cost: losses as near as this are one


def ownership(comparison: Comparison) -> pd.DataFrame:
    """Count parameter tensors by what the optimizer does with them.

    `owned` is the optimizer's share of all elements.
    """
    table = proofs(comparison).filter(regex=r"^parameters\.[a-z_]+$")
    table.columns = table.columns.str.removeprefix("parameters.")
    sizes = {recipe: runs[0].manifest.parameters for recipe, runs in comparison.completed.items()}
    owned = table.pop("elements_in_optimizer") / pd.Series(sizes)
    listed = table.select_dtypes(object).columns
    table[listed] = table[listed].map(len)
    return table.assign(owned=owned.round(3))


def answer(comparison: Comparison) -> list[str]:
    """Write what the runs show, the answer first, then a sentence a recipe.

    The runs explain the report if every recipe ends near the run whose optimizer steps the same
    weights: bf16, or bf16 with the others' orphans frozen.
    """
    runs, first = comparison.completed, proofs(comparison)
    if not {BASELINE, FROZEN} <= runs.keys():
        return [f"No answer: it needs completed runs of {BASELINE} and of {FROZEN}."]
    lost = first.loc[FROZEN, "parameters.frozen"]
    gap = verdict(runs[FROZEN], runs[BASELINE]).difference
    orphans = first["parameters.orphans"].drop([BASELINE, FROZEN])
    explained, facts = lost in orphans.tolist(), []
    for recipe, missing in orphans.items():
        alike = FROZEN if missing == lost else BASELINE
        apart = verdict(runs[recipe], runs[alike]).difference
        explained &= abs(apart) < NEAR * gap
        facts.append(f"{recipe}: its optimizer lacks {len(missing)} weights; its final loss "
                     f"differs by {apart:+.4f} from {alike}'s.")  # fmt: skip
    if not explained:
        return ["These runs do not explain the report. How near each ends to its like:", *facts]
    never_stepped = 1 - ownership(comparison)["owned"][FROZEN]
    return [
        "At batch 1 on one device FP8 learns as bf16 does: its final loss differs from bf16's "
        "by less than a tenth of what frozen weights cost.",
        "It does not where the optimizer was built before a conversion that replaces the weights: "
        f"then {len(lost)} of them, {never_stepped:.0%} of all parameters, are never "
        "stepped, and the loss is as high as with frozen weights in bf16.",
        *facts,
    ]
