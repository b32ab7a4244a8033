"""The published project's logs (course project "FP8 Training", ETH Zurich, May 2025), read as runs.

A log has a line at step 1 and then every few steps: `time_delta` is the seconds since the line
before, `loss` the last step's, `training_tokens_percentage` the share of tokens that are not
padding. It was written when training had ended. Its MFU is recomputed: under torch.compile the
logged one counts the input embedding as if it were multiplied.
"""

import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
from pydantic import BaseModel, PositiveFloat, PositiveInt, ValidationError

from analysis.runs import Run, even_windows
from experiments.records.files import RecordError
from models.flops import flops_per_token, parameters
from models.gpus import GPUS

PEAK = GPUS["gh200"].datasheet
SEQ_LEN = 4096
FLAVOR = "8B-published"


def llama_3(
    dim, layers, heads, hidden_dim, head_dim=128, vocab_size=128256, tied=False
) -> SimpleNamespace:
    """Make the arguments of a Llama 3, as models/flops.py reads them without torch."""
    return SimpleNamespace(
        dim=dim, n_layers=layers, n_heads=heads, n_kv_heads=8, head_dim=head_dim,
        hidden_dim=hidden_dim, vocab_size=vocab_size, qk_norm=False, enable_weight_tying=tied,
        fused_projections=False,
    )  # fmt: skip


MODEL = llama_3(4096, 32, 32, 14336, vocab_size=131072)  # `8B-published` of models.llama
# Tokens/s of the mean steady step of those logs (github.com/mak2508/lsai-proj, output/data), one
# GH200.
TOKENS_PER_S = {
    "baseline": 8123.0,
    "baseline_compiled": 8777.0,
    "rowwise_fp8_compiled": 9280.0,
    "tensorwise_fp8_compiled": 10898.0,
}


class Line(BaseModel):
    step: PositiveInt
    loss: float | None
    tokens_per_second: PositiveFloat
    time_delta: PositiveFloat
    training_tokens_percentage: float | None = None
    mfu: float | None = None
    learning_rate: float | None = None


def read_published(path: Path) -> Run:
    """Read one published log. `warm_up_s` and `wall_s` begin with the training loop.

    Raises:
        RecordError: a line is none of such a log.
    """
    try:
        lines = [Line.model_validate_json(line) for line in path.read_bytes().splitlines()]
    except ValidationError as error:
        raise _no_log(path, error.errors()[0]["msg"]) from error
    if not lines:
        raise _no_log(path, "is empty")
    windows = _windows(pd.DataFrame(map(vars, lines)).drop_duplicates("step").sort_values("step"))
    recipe = recipe_name(path)
    facts = {
        "source": "published log",
        "study": str(path.resolve().parent),
        "recipe": recipe,
        "status": "completed",
        "device": "NVIDIA GH200",
        "device_type": "cuda",
        "world_size": 1,
        "wall_s": windows["elapsed_s"].iloc[-1],
        "peak_bf16": PEAK.bf16,
        "peak_fp8": PEAK.fp8,
        "peak_source": PEAK.source,
        "flops_per_token": flops_per_token(MODEL, SEQ_LEN),
        "parameters": parameters(MODEL),
        "flavor": FLAVOR,
        "seq_len": SEQ_LEN,
    }
    kind = re.fullmatch("(?:baseline|(rowwise|tensorwise)_fp8)(_compiled)?", recipe)
    if kind:
        facts |= {"float8": kind[1], "compiled": kind[2] is not None}
    if windows["step"][0] == 1:
        facts["warm_up_s"] = windows["elapsed_s"][0]
    return Run(path, facts, windows)


def _no_log(path: Path, reason: str) -> RecordError:
    return RecordError(
        f"{path}: {reason}; it is no log of the published project, whose lines have step, loss, "
        "tokens_per_second, time_delta"
    )


def _windows(log: pd.DataFrame) -> pd.DataFrame:
    """Make `Run.windows` of a log's lines, which are in the order of their steps."""
    step, rate, seconds = (
        log[name].to_numpy() for name in ("step", "tokens_per_second", "time_delta")
    )
    since = np.diff(step, prepend=0)
    # Steps since the line before, from the tokens done: right also where that line is missing.
    tokens = rate * seconds
    count = np.clip(np.rint(tokens / np.median(tokens / since)), 1, since).astype(int)
    return even_windows(
        step,
        count,
        seconds,
        loss=log["loss"].to_numpy(float),
        lr=log["learning_rate"].to_numpy(float),
        tokens_per_s=rate,
        valid_tokens_per_s=rate * log["training_tokens_percentage"].to_numpy(float) / 100,
        mfu_logged=log["mfu"].to_numpy(float) / 100,
    )


def recipe_name(path: Path) -> str:
    """This project's name: `fp8-rowwise-compile_20250525_173352.jsonl`, without its time, is
    rowwise_fp8_compiled."""
    name = re.sub(r"\W+", "_", re.sub(r"_\d{8}_\d{6}$", "", path.stem))
    return re.sub("_compile$", "_compiled", re.sub("^fp8_(rowwise|tensorwise)", r"\1_fp8", name))
