"""The figures of a benchmark of FP8 on four B200, read against one another."""

import pandas as pd
import yaml

from extensions.sweep.cells import HERE
from models.flops import Sizes

B200 = yaml.safe_load((HERE / "published_b200.yaml").read_text())
# Of models.llama's FLAVORS, which import torch.
MODELS = {
    "llama3.2-1B": Sizes(2048, 16, 32, 8, 64, 8192, 128256, enable_weight_tying=True),
    "llama3.1-8B": Sizes(4096, 32, 32, 8, 128, 14336, 128256),
}


def tflops() -> pd.DataFrame:
    """Turn tokens/s on one GPU into FLOPs, a row a model, beside the printed ones."""
    table = pd.DataFrame.from_dict(B200["tflops"], orient="index")
    table["TFLOP/s"] = table["tokens/s"] * flops_per_token(2048) / 1e12
    table["without attention"] = table["tokens/s"] * flops_per_token(0) / 1e12
    return table.round(0)


def lengths() -> pd.DataFrame:
    """Predict tokens/s by length, over those at 2,048, if a FLOP took as long at each length.

    A row a model; the benchmark prints halves.
    """
    per_token = pd.DataFrame({length: flops_per_token(length) for length in B200["lengths"]})
    table = (1 / per_token).mul(flops_per_token(2048), axis="index")
    table.loc["printed"] = B200["lengths"]
    return table.round(2)


def flops_per_token(length: int) -> pd.Series:
    """Count FLOPs by model."""
    return pd.Series(MODELS).map(lambda sizes: sizes.flops_per_token(length))
