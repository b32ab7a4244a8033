"""Tables of the notebook: what each rung sends, and whether it computes the same."""

import pandas as pd

from analysis.comparison import COMPILED, Comparison
from analysis.tables import proof_table

COMPUTE = "tensorwise_fp8_compiled"
EACH, COMBINED = "tensorwise_fp8_allgather_amax_each", "tensorwise_fp8_allgather"
# Columns of the proof, and of the table.
SENT = {
    "sharded.gathered_bytes": "gathered",
    "sharded.gathered_bytes_expected": "closed_form",
    "sharded.reduced_bytes": "reduced",
    "sharded.all_reduces": "all_reduces",
    "sharded.nccl.seconds": "NCCL, ms",
    "sharded.nccl.exposed_seconds": "NCCL, exposed ms",
}
# Speed over bf16 of Llama 3 70B on 128 H100 (dev-discuss.pytorch.org/t/2359), which does not give
# batch and length.
PUBLISHED = {COMPILED: 1.0, COMPUTE: 1.40, EACH: 1.42, COMBINED: 1.50}


def ladder_bytes(comparison: Comparison) -> pd.DataFrame:
    """List what each rung of several ranks sends in a step: MB as recorded and by closed form.

    Adds the published speed over bf16, and on GPUs the milliseconds in which NCCL kernels ran, and
    in which no other kernel did.
    """
    sent = proof_table(comparison).reindex(columns=SENT).rename(columns=SENT)
    sent[["gathered", "closed_form", "reduced"]] /= 1e6
    sent[["NCCL, ms", "NCCL, exposed ms"]] *= 1e3
    sent["published speed"] = pd.Series(PUBLISHED)
    recorded = sent.dropna(subset="gathered").dropna(axis=1, how="all")
    return recorded.astype({"all_reduces": int})


def same_numbers(comparison: Comparison) -> list[str]:
    """Say of each rung above the first in FP8 whether it computes the same numbers, bit for bit, in
    each recipe's first run.

    With parameters in float32 it does not: a gather in bf16 rounds them first.
    """
    numbers = {}
    for recipe, runs in comparison.study.completed_by_recipe.items():
        logged = runs[0].steps[["loss", "grad_norm"]].dropna()
        numbers[recipe] = {*logged.itertuples(name=None)}
    lines = []
    reference_numbers = numbers[COMPUTE]
    for recipe, recipe_numbers in numbers.items():
        if recipe not in (COMPILED, COMPUTE):
            equal = (
                f"{len(recipe_numbers & reference_numbers)} of {len(recipe_numbers)} log intervals"
            )
            lines.append(f"{recipe}: equal to the last bit in {equal}.")
    return lines
