"""The published project's logs (course project "FP8 Training", ETH Zurich, May 2025), read as runs.

A log has a line at step 1 and then every few steps: `time_delta` is the seconds since the line
before, `loss` the last step's, `training_tokens_percentage` the share of tokens that are not
padding. It was written when training had ended. Its MFU is recomputed: under torch.compile the
logged one counts the input embedding as if it were multiplied.
"""

import re
from pathlib import Path
from types import SimpleNamespace
from typing import NotRequired

import numpy as np
from pydantic import TypeAdapter
from typing_extensions import TypedDict

from analysis.record import Facts, LayoutError, Run
from analysis.windows import Positive, Step, Value, Windows, of_log, read_lines
from models.flops import flops_per_token, parameters
from models.gpus import GPUS

PEAK = GPUS["gh200"].datasheet
SEQ_LEN = 4096
# The published model: an 8 B Llama with a vocabulary of 131,072 (`8B-published` of models.llama,
# without torch).
MODEL = SimpleNamespace(
    dim=4096, n_layers=32, n_heads=32, n_kv_heads=8, head_dim=128, hidden_dim=14336, vocab_size=131072,
    qk_norm=False, enable_weight_tying=False, fused_projections=False,
)  # fmt: skip
# Median tokens/s of the steady steps of those logs (github.com/mak2508/lsai-proj, output/data), one
# GH200.
TOKENS_PER_S = {
    "baseline": 8151.0,
    "baseline_compiled": 8800.0,
    "rowwise_fp8_compiled": 9315.0,
    "tensorwise_fp8_compiled": 10945.0,
}


class _Line(TypedDict):
    step: Step
    loss: Value
    tokens_per_second: Positive
    time_delta: Positive
    training_tokens_percentage: NotRequired[Value]
    mfu: NotRequired[Value]
    learning_rate: NotRequired[Value]


LINE = TypeAdapter(list[_Line])


def read_published(path: Path) -> Run:
    """One published log. `warm_up_s` and `wall_s` begin with the training loop.

    Raises:
        LayoutError: the file holds no line of one.
    """
    problems: list[str] = []
    lines = {line["step"]: line for line in reversed(read_lines(path, LINE, problems))}
    if not lines:
        needed = "step, loss, tokens_per_second, time_delta"
        raise LayoutError(
            f"{problems[0]}; it is no log of the published project, whose lines have {needed}"
        )
    windows = _windows([lines[step] for step in sorted(lines)])
    recipe = recipe_name(path)
    kind = re.fullmatch("(?:baseline|(rowwise|tensorwise)_fp8)(_compiled)?", recipe)
    facts = Facts(
        recipe=recipe,
        status="completed",
        device="NVIDIA GH200",
        device_type="cuda",
        world_size=1,
        warm_up_s=float(windows["elapsed_s"][0]) if windows["step"][0] == 1 else None,
        wall_s=float(windows["elapsed_s"][-1]),
        peak_bf16=PEAK.bf16,
        peak_fp8=PEAK.fp8,
        peak_source=PEAK.source,
        flops_per_token=flops_per_token(MODEL, SEQ_LEN),
        parameters=parameters(MODEL),
        flavor="8B-published",
        float8=kind and kind[1],
        compiled=kind and kind[2] is not None,
        seq_len=SEQ_LEN,
    )
    return Run(path, "published log", facts, windows, problems, study=path.resolve().parent)


def _windows(lines: list[_Line]) -> Windows:
    """The windows of a log's lines, which are in the order of their steps."""

    def column(name: str) -> np.ndarray:
        return np.array([line.get(name) for line in lines], dtype=float)

    step, rate, seconds = (
        column("step").astype(int),
        column("tokens_per_second"),
        column("time_delta"),
    )
    since = np.diff(step, prepend=0)
    # Steps since the line before, from the tokens done: right also where that line is missing.
    tokens = rate * seconds
    count = np.clip(np.rint(tokens / np.median(tokens / since)), 1, since).astype(int)
    flops = flops_per_token(MODEL, SEQ_LEN)
    return of_log(
        step, count, seconds, loss=column("loss"), lr=column("learning_rate"), tokens_per_s=rate,
        valid_tokens_per_s=rate * column("training_tokens_percentage") / 100, mfu_bf16_peak=rate * flops / PEAK.bf16,
        mfu_fp8_peak=rate * flops / PEAK.fp8, mfu_logged=column("mfu") / 100,
    )  # fmt: skip


def recipe_name(path: Path) -> str:
    """This project's name: `fp8-rowwise-compile_20250525_173352.jsonl`, without its time, is
    rowwise_fp8_compiled."""
    name = re.sub(r"\W+", "_", re.sub(r"_\d{8}_\d{6}$", "", path.stem))
    return re.sub("_compile$", "_compiled", re.sub("^fp8_(rowwise|tensorwise)", r"\1_fp8", name))
