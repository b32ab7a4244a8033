"""Who owns which parameters, and whose loss follows which."""

import pandas as pd

from analysis.comparison import BASELINE, Comparison
from analysis.losses import verdict
from analysis.table import first_runs, proofs

FROZEN = "puzzle_bf16_frozen"
FOLLOWS = 0.1  # a loss follows one of two others if it is nearer to it by at least this factor


def ownership(comparison: Comparison) -> pd.DataFrame:
    """Count parameter tensors by what the optimizer does with them.

    `owned` is the optimizer's share of all elements.
    """
    table = proofs(comparison).filter(regex=r"^parameters\.[a-z_]+$")
    table.columns = table.columns.str.removeprefix("parameters.")
    sizes = {recipe: run.manifest.parameters for recipe, run in first_runs(comparison).items()}
    owned = table.pop("elements_in_optimizer") / pd.Series(sizes)
    listed = table.select_dtypes(object).columns
    table[listed] = table[listed].map(len)
    return table.assign(owned=owned.round(3))


def answer(comparison: Comparison) -> list[str]:
    """Write what the runs show, the answer first, then a sentence a recipe.

    The runs explain the report if every recipe whose optimizer owns all parameters follows the
    baseline, and the recipe with orphans follows the run that has these orphans frozen.
    """
    done, first = comparison.completed, proofs(comparison)
    if not {BASELINE, FROZEN} <= {*first.index}:
        return [f"No answer: it needs completed runs of {BASELINE} and of {FROZEN}."]
    lost = first.loc[FROZEN, "parameters.frozen"]
    orphans = first["parameters.orphans"].drop([BASELINE, FROZEN])
    explained, facts = lost in orphans.tolist(), []
    for recipe, missing in orphans.items():
        to_bf16 = verdict(done[recipe], done[BASELINE]).difference
        to_frozen = verdict(done[recipe], done[FROZEN]).difference
        facts.append(
            f"{recipe}: its optimizer lacks {len(missing)} weights; its final loss differs by "
            f"{to_bf16:+.4f} from that of {BASELINE}, by {to_frozen:+.4f} from that of {FROZEN}."
        )
        near, far = (to_frozen, to_bf16) if missing else (to_bf16, to_frozen)
        explained &= missing in ([], lost) and abs(near) < FOLLOWS * abs(far)
    if not explained:
        return ["These runs do not explain the report. Whose loss follows which:", *facts]
    never_stepped = 1 - ownership(comparison)["owned"][FROZEN]
    return [
        "At batch 1 on one device FP8 learns as bf16 does: its final loss is at least ten times "
        "nearer to that of bf16 than to that of bf16 with frozen weights.",
        "It does not where the optimizer was built before a conversion that replaces the weights: "
        f"then {len(lost)} of them, {never_stepped:.0%} of all parameters, are never "
        "stepped, and the loss is that of bf16 with them frozen.",
        *facts,
    ]
