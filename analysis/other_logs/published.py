"""The published project's logs (course project "FP8 Training", ETH Zurich, May 2025), read as runs.

A log has a line at step 1 and then every few steps: `time_delta` is the seconds since the line
before, `loss` the last step's, `training_tokens_percentage` the share of tokens that are not
padding. It was written when training had ended. Its MFU is recomputed: under torch.compile the
logged one counts the input embedding as if it were multiplied.
"""

import math
import re
from pathlib import Path

import pandas as pd

from analysis.other_logs.log import make_run
from analysis.runs import Run
from experiments.records.files import RecordError
from models.flops import Sizes, flops_per_token, parameters
from models.gpus import GPUS

PEAK = GPUS["gh200"].datasheet
SEQ_LEN = 4096
FLAVOR = "8B-published"
# What a line has, and what `make_run` calls it.
NAMES = {
    "step": "step",
    "loss": "loss",
    "tokens_per_second": "tokens_per_s",
    "time_delta": "seconds",
    "training_tokens_percentage": "valid_share",
    "mfu": "mfu_logged",
    "learning_rate": "lr",
}


def llama_3(dim, layers, heads, hidden_dim, head_dim=128, vocab_size=128256, tied=False) -> Sizes:
    """Give the sizes of a Llama 3."""
    return Sizes(dim, layers, heads, 8, head_dim, hidden_dim, vocab_size, enable_weight_tying=tied)


MODEL = llama_3(4096, 32, 32, 14336, vocab_size=131072)  # `8B-published` of models.llama
# Tokens/s of the mean steady step of those logs (github.com/mak2508/lsai-proj, output/data), one
# GH200.
TOKENS_PER_S = {
    "baseline": 8123.0,
    "baseline_compiled": 8777.0,
    "rowwise_fp8_compiled": 9280.0,
    "tensorwise_fp8_compiled": 10898.0,
}


def read_published(path: Path) -> Run:
    """Read one published log. `warm_up_s` and `wall_s` begin with the training loop.

    Raises:
        RecordError: a line is none of such a log.
    """
    try:
        lines = pd.read_json(path, lines=True, precise_float=True)[[*NAMES]].astype(float)
    except (ValueError, KeyError) as error:
        raise RecordError(
            f"{path}: is no log of the published project, whose lines have {', '.join(NAMES)}"
        ) from error
    recipe = recipe_name(path)
    facts = {
        "source": "published log",
        "study": str(path.resolve().parent),
        "recipe": recipe,
        "status": "completed",
        "device": "NVIDIA GH200",
        "device_type": "cuda",
        "world_size": 1,
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
    return make_run(path, _log(lines.rename(columns=NAMES)), facts)


def _log(lines: pd.DataFrame) -> pd.DataFrame:
    """Work out what `make_run` needs of lines that are named as it does."""
    log = lines.astype({"step": int}).sort_values("step", ignore_index=True)
    since = log["step"].diff().fillna(log["step"])
    # Steps since the line before, from the tokens done: right also where that line is missing.
    tokens = log["tokens_per_s"] * log["seconds"]
    log["count"] = (tokens / (tokens / since).median()).round().clip(1, since).astype(int)
    log[["valid_share", "mfu_logged"]] /= 100
    log["valid_tokens_per_s"] = log["tokens_per_s"] * log["valid_share"]
    return log.assign(data_wait=math.nan)


def recipe_name(path: Path) -> str:
    """This project's name: `fp8-rowwise-compile_20250525_173352.jsonl`, without its time, is
    rowwise_fp8_compiled."""
    name = re.sub(r"\W+", "_", re.sub(r"_\d{8}_\d{6}$", "", path.stem))
    return re.sub("_compile$", "_compiled", re.sub("^fp8_(rowwise|tensorwise)", r"\1_fp8", name))
