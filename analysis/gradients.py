"""Gradients in FP8: how exactly they are added up over ranks, what ranks send, and what it does to
the loss."""

import json
from pathlib import Path

import pandas as pd

from analysis.newest import ROOT

STUDY = "fp8_lm/gradients"  # under results/
SUMS = ROOT / "results" / STUDY / "sums.json"  # by experiments/benchmark_gradient_sums.py
BF16, FP8 = "baseline_compiled", "fp8_gradients"
# Its ways to add up, for people.
WAYS = {
    "block": "in float32, a scale for 256 values",
    "tensor": "in float32, one scale",
    "best": "in FP8, best factor in hindsight",
    "auto": "in FP8, automatic scaling by mu",
    "pre": "in FP8, scaled before (1/ranks)",
    "post": "in FP8, scaled after",
}


def sums(path: Path = SUMS) -> pd.DataFrame:
    """One row a number of ranks and way to add up, with the columns that the benchmark
    describes."""
    return pd.DataFrame(json.loads(path.read_text())["sums"])


def decibels(path: Path = SUMS) -> pd.DataFrame:
    """Signal to noise in dB: a way to add up a row, a number of ranks a column."""
    table = sums(path).pivot(index="how", columns="ranks", values="snr_db")
    return table.loc[[*WAYS]].rename(index=WAYS)


def sent(runs: pd.DataFrame) -> pd.DataFrame:
    """MB of weights and of gradients that a step sends, by recipe, and the times fewer of gradients
    than in bf16."""
    table = runs.groupby("recipe", sort=False)[["gathered_bytes", "reduced_bytes"]].max() / 1e6
    table.columns = ["weights, MB", "gradients, MB"]
    return table.assign(fewer=table.loc[BF16, "gradients, MB"] / table["gradients, MB"])


def apart(windows: pd.DataFrame) -> str:
    """How far single steps of the paired runs come apart at most, in nats per token."""
    losses = {
        recipe: {(row.seed, row.step): row.loss for row in rows.itertuples()}
        for recipe, rows in windows.groupby("recipe")
    }
    shared = losses[BF16].keys() & losses[FP8].keys()
    largest, (seed, step) = max((abs(losses[FP8][key] - losses[BF16][key]), key) for key in shared)
    where = f"at step {step} of seed {seed:.0f}"
    return f"In {len(shared)} log windows the losses differ by at most {largest:.4f}, {where}."
