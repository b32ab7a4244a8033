"""A benchmark of FP8 on four B200 (results/published_b200.yaml), read again: its figures against
one another."""

from types import SimpleNamespace

import pandas as pd
import yaml

from analysis.newest import ROOT
from models.flops import flops_per_token
from models.gpus import GPUS

PUBLISHED = yaml.safe_load((ROOT / "results" / "published_b200.yaml").read_text())
LENGTHS = (2048, 4096, 8192)
_SHARED = {"n_kv_heads": 8, "vocab_size": 128256, "qk_norm": False, "fused_projections": False}
MODELS = {
    "llama3.2-1B": SimpleNamespace(dim=2048, n_layers=16, n_heads=32, head_dim=64, hidden_dim=8192,
                                   enable_weight_tying=True, **_SHARED),
    "llama3.1-8B": SimpleNamespace(dim=4096, n_layers=32, n_heads=32, head_dim=128, hidden_dim=14336,
                                   enable_weight_tying=False, **_SHARED),
}  # fmt: skip


def scaling() -> pd.DataFrame:
    """A row for each end of the range on four GPUs: what its tokens/s make of the speed-up and of
    the efficiency."""
    by_gpus = PUBLISHED["tokens_per_s"]["llama3.2-1B"]
    (one,) = by_gpus[1]
    rows = [
        {"tokens/s on 4": rate, "of 4 x 1 GPU": 4 * one, "speed-up": rate / one, "printed speed-up": speed_up,
         "efficiency": rate / (4 * one), "printed efficiency": efficiency}
        for rate, speed_up, efficiency in zip(
            by_gpus[4], PUBLISHED["speed_up_on_4"], PUBLISHED["efficiency_on_4"], strict=True
        )
    ]  # fmt: skip
    return pd.DataFrame(rows).round(3)


def mfu() -> pd.DataFrame:
    """A row for each MFU that it computes: of its peaks, which are sparse, and of the dense
    ones."""
    rows = []
    for entry in PUBLISHED["mfu"]:
        precision, tflops = entry["precision"], entry["tflops"]
        dense = getattr(GPUS["b200"].datasheet, precision) / 1e12
        row = {"precision": precision, "TFLOP/s": tflops, "its peak": PUBLISHED["peaks"][precision]}
        rows.append(
            row
            | {
                "printed": entry["printed"],
                "dense peak": dense,
                "of the dense peak": tflops / dense,
            }
        )
    return pd.DataFrame(rows).round(3)


def tflops() -> pd.DataFrame:
    """A row a model: the FLOPs that its tokens/s on one GPU are, at rows of 2,048, and those that
    it prints."""
    rows = {}
    for model, args in MODELS.items():
        (rate,), (low, high) = PUBLISHED["tokens_per_s"][model][1], PUBLISHED["tflops"][model]
        rows[model] = {
            "tokens/s": rate,
            "TFLOP/s": rate * flops_per_token(args, LENGTHS[0]) / 1e12,
            "without attention": rate * flops_per_token(args, 0) / 1e12,
            "printed": f"{low} to {high}",
        }
    return pd.DataFrame.from_dict(rows, orient="index").round(0)


def lengths() -> pd.DataFrame:
    """A row a model: tokens/s at each length over those at 2,048, if a FLOP took as long at each;
    it prints halves."""
    rows = {
        model: {
            length: flops_per_token(args, LENGTHS[0]) / flops_per_token(args, length)
            for length in LENGTHS
        }
        for model, args in MODELS.items()
    }
    return pd.DataFrame.from_dict(
        rows | {"printed": dict(zip(LENGTHS, (1, 0.5, 0.25), strict=True))}, orient="index"
    ).round(2)
