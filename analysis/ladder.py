"""The ladder to FP8 all-gather: what each rung sends, and whether its numbers are those of the rung
before."""

import math
from pathlib import Path

import pandas as pd

from analysis.comparison import COMPILED, Comparison, in_order
from analysis.rates import completed
from experiments.records.files import read
from experiments.records.run import PROOF, Proof

STUDY = "allgather_ladder"
COMPUTE = "tensorwise_fp8_compiled"
EACH, COMBINED = "tensorwise_fp8_allgather_amax_each", "tensorwise_fp8_allgather"
RUNGS = {
    COMPILED: "bf16",
    COMPUTE: "FP8 products, gathered in bf16",
    EACH: "gathered in FP8, an all-reduce for each scale",
    COMBINED: "one all-reduce for all scales",
    f"{COMBINED}_ctas_16": "NCCL on at most 16 multiprocessors",
    f"{COMBINED}_ctas_8": "NCCL on at most 8 multiprocessors",
}
# Speed over bf16 of Llama 3 70B on 128 H100 (dev-discuss.pytorch.org/t/2359), which does not give
# batch and length.
PUBLISHED = {COMPUTE: 1.40, EACH: 1.42, COMBINED: 1.50}

NCCL = {"ms": "seconds", "exposed ms": "exposed_seconds"}


def sent(runs: pd.DataFrame) -> pd.DataFrame:
    """One row a rung, by the proof of its first completed run: MB in a step as recorded and by
    closed form, and calls.

    And, of GPUs, milliseconds in which NCCL kernels ran, and in which no other kernel did.
    """
    rows = {}
    for recipe in filter(RUNGS.get, in_order(runs["recipe"])):
        for run in completed(runs, runs, recipe).head(1).itertuples():
            collectives = read(Path(run.path) / PROOF, Proof).collectives
            found = collectives.model_dump() if collectives else {}
            rows[recipe] = {
                "rung": RUNGS[recipe],
                "gathered": found.get("gathered_bytes", math.nan) / 1e6,
                "closed_form": found.get("gathered_bytes_expected", math.nan) / 1e6,
                "reduced": found.get("reduced_bytes", math.nan) / 1e6,
                "all_reduces": found.get("all_reduces"),
                **{
                    f"NCCL, {key}": 1e3 * found["nccl"][seconds]
                    for key, seconds in NCCL.items()
                    if found.get("nccl")
                },
            }
    return pd.DataFrame.from_dict(rows, orient="index")


def same_numbers(windows: pd.DataFrame) -> list[str]:
    """A sentence for each FP8 rung above the first: whether its losses and gradient norms are that
    one's, bit for bit.

    With parameters in float32 it is not: a gather in bf16 rounds them first.
    """
    logs = {
        recipe: {(row.seed, row.step): (row.losses, row.grad_norm) for row in rows.itertuples()}
        for recipe, rows in windows.groupby("recipe", sort=False)
    }
    lines = []
    for recipe in [rung for rung in RUNGS if rung in logs and rung not in (COMPILED, COMPUTE)]:
        shared = logs.get(COMPUTE, {}).keys() & logs[recipe].keys()
        equal = sum(logs[COMPUTE][key] == logs[recipe][key] for key in shared)
        lines.append(f"{recipe}: equal to the last bit in {equal} of {len(shared)} log windows.")
    return lines


def speed_ups(comparison: Comparison) -> dict[str, float]:
    """Speed of each rung over bf16, by the mean steady step; NaN where runs are too short."""
    found = {a: gain.ratio for (a, b), gain in comparison.speed_ups.items() if b == COMPILED}
    return {
        rung: 1.0 if rung == COMPILED else found[rung]
        for rung in RUNGS
        if rung in {COMPILED, *found}
    }
