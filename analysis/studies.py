"""Tables of single studies: what a notebook shows beside the comparison that all studies share.

Each part names its study. A row is a recipe unless a docstring says otherwise.
"""

import numpy as np
import pandas as pd
import yaml

from analysis.break_even import wall_times
from analysis.comparison import Comparison
from analysis.newest import ROOT
from analysis.runs import Run
from models.flops import Sizes


def first_runs(comparison: Comparison) -> dict[str, Run]:
    """Choose each recipe's first completed run."""
    return {recipe: runs[0] for recipe, runs in comparison.completed.items()}


def proofs(comparison: Comparison) -> pd.DataFrame:
    """Put what each recipe's first run proved into a row; columns as `parameters.orphans`."""
    first = first_runs(comparison)
    rows = [run.proof.model_dump() for run in first.values()]
    return pd.json_normalize(rows, max_level=2).set_index(pd.Index([*first]))


def cost_by_steps(comparison: Comparison, lengths: list[int]) -> pd.DataFrame:
    """Average the wall hours of a run of each length (rows) by recipe (columns), the first step
    (compile) included: measured within the runs, and beyond them as the mean steady step."""
    hours = {recipe: wall_times(runs, np.array(lengths)).mean(axis=0) / 3600
             for recipe, runs in comparison.completed.items()}  # fmt: skip
    return pd.DataFrame(hours, index=pd.Index(lengths, name="steps"))


# ---- sweep: a benchmark of FP8 on four B200, its figures read against one another ----


def llama_3(dim, layers, heads, hidden_dim, head_dim=128, vocab_size=128256, tied=False) -> Sizes:
    """Give the sizes of a Llama 3."""
    return Sizes(dim, layers, heads, 8, head_dim, hidden_dim, vocab_size, enable_weight_tying=tied)


B200 = yaml.safe_load((ROOT / "results" / "published_b200.yaml").read_text())


def b200_pairs() -> pd.DataFrame:
    """List what others measured of dense models on a B200: FP8's speed over bf16's."""
    file = ROOT / "extensions" / "decide" / "speedups.yaml"
    content = yaml.load(file.read_text(encoding="utf-8"), Loader=yaml.CSafeLoader)
    table = pd.DataFrame(content["pairs"]).query("gpu == 'B200' and kind == 'dense'")
    table["over bf16"] = table["ratio"].fillna(table["fp8"] / table["bf16"]).round(3)
    return table.set_index("model")[["scaling", "gpus", "over bf16", "fairness", "source"]]


B200_MODELS = {
    "llama3.2-1B": llama_3(2048, 16, 32, 8192, head_dim=64, tied=True),
    "llama3.1-8B": llama_3(4096, 32, 32, 14336),
}


def b200_tflops() -> pd.DataFrame:
    """Turn tokens/s on one GPU into FLOPs, a row a model, beside the printed ones."""
    table = pd.DataFrame.from_dict(B200["tflops"], orient="index")
    table["TFLOP/s"] = table["tokens/s"] * _flops_per_token(2048) / 1e12
    table["without attention"] = table["tokens/s"] * _flops_per_token(0) / 1e12
    return table.round(0)


def b200_lengths() -> pd.DataFrame:
    """Predict tokens/s by length, over those at 2,048, if a FLOP took as long at each length.

    A row a model; the benchmark prints halves.
    """
    per_token = pd.DataFrame({length: _flops_per_token(length) for length in B200["lengths"]})
    table = (1 / per_token).mul(_flops_per_token(2048), axis="index")
    table.loc["printed"] = B200["lengths"]
    return table.round(2)


def _flops_per_token(length: int) -> pd.Series:
    """Count FLOPs by model."""
    return pd.Series(B200_MODELS).map(lambda args: args.flops_per_token(length))
