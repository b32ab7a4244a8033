"""The published project's logs (course project "FP8 Training", ETH Zurich, May 2025), read as runs.

A log has a line at step 1 and then every few steps: `time_delta` is the seconds since the line
before, `loss` the last step's, `training_tokens_percentage` the share of tokens that are not
padding. It was written when training had ended. Its MFU is recomputed: under torch.compile the
logged one counts the input embedding as if it were multiplied.
"""

import math
import re
from datetime import UTC, datetime
from pathlib import Path

import pandas as pd

from analysis.runs import NUMBERS, Run
from analysis.study import Study, StudyError, StudyFile
from experiments.records.run import NOT_STEADY_STEPS, Git, Hardware, Manifest, Timing
from models.flops import Sizes
from models.gpus import GPUS

PEAK = GPUS["gh200"].datasheet
SEQ_LEN = 4096
FLAVOR = "8B-published"
# What a line has, and what it is called here.
NAMES = {
    "step": "step",
    "loss": "loss",
    "tokens_per_second": "tokens_per_s",
    "time_delta": "seconds",
    "training_tokens_percentage": "valid_share",
    "mfu": "mfu_logged",
    "learning_rate": "lr",
}
# `8B-published` of models.llama, which imports torch
MODEL = Sizes(4096, 32, 32, 8, head_dim=128, hidden_dim=14336, vocab_size=131072)


def read_published(folder: Path) -> Study:
    """Read the logs of a folder as runs without proof, one a recipe.

    The clock of a log begins with training.

    Raises:
        FileNotFoundError: there is no log.
        StudyError: a log is not of that project.
    """
    files = sorted(folder.rglob("*.jsonl"))
    if not files:
        raise FileNotFoundError(
            f"{folder}: holds no log of the published project (NAME.jsonl); set "
            "PUBLISHED_LOGS=folder of its logs"
        )
    runs = [read_log(file) for file in files]
    return Study(runs, StudyFile(), [], clock_start="training, not with the process")


def read_log(path: Path) -> Run:
    """Read a log as a run. Raises `StudyError`."""
    lines = read_lines(path)
    recipe = recipe_name(path)
    kind = re.fullmatch("(?:baseline|(rowwise|tensorwise)_fp8)(_compiled)?", recipe)
    started = re.search(r"_(\d{8}_\d{6})$", path.stem)
    begin = datetime.strptime(started[1] if started else "20250525_000000", "%Y%m%d_%H%M%S")
    manifest = Manifest.model_construct(
        start=begin.replace(tzinfo=UTC),
        recipe=recipe,
        float8=kind and kind[1],
        compiled=bool(kind and kind[2]),
        world_size=1,
        hardware=Hardware.model_construct(type="cuda", name="NVIDIA GH200"),
        peak_flops=PEAK,
        flops_per_token=MODEL.flops_per_token(SEQ_LEN),
        parameters=MODEL.parameters(),
        flavor=FLAVOR,
        seq_len=SEQ_LEN,
        dataset="of the published project",
        overlays=[],
        packages={},
        git=Git(commit=None, changes=None),
        fp8_matmul=None,
        notes=[],
    )
    first = Timing(warm_up_s=lines["seconds"][0], startup={}, compile_cache="none")
    return Run(recipe, "", path, completed=True, ending="completed", steps=steps_of(lines),
               manifest=manifest, timings={0: first}, place="host unknown")  # fmt: skip


def read_lines(path: Path) -> pd.DataFrame:
    """Read the lines of a log, with the number of steps that each stands for (`count`)."""
    try:
        lines = pd.read_json(path, lines=True, precise_float=True)[[*NAMES]].astype(float)
    except (ValueError, KeyError) as error:
        raise StudyError(
            f"{path}: is no log of the published project, whose lines have {', '.join(NAMES)}"
        ) from error
    log = lines.rename(columns=NAMES).astype({"step": int})
    log = log.sort_values("step", ignore_index=True)
    since = log["step"].diff().fillna(log["step"])
    # Steps since the line before, from the tokens done: right also where that line is missing.
    tokens = log["tokens_per_s"] * log["seconds"]
    log["count"] = (tokens / (tokens / since).median()).round().clip(1, since).astype(int)
    return log


def steps_of(lines: pd.DataFrame) -> pd.DataFrame:
    """Make `Run.steps` of lines. A line's seconds are spread over its steps evenly, and its loss,
    which is the last step's, stands for all of them."""
    steps = lines.loc[lines.index.repeat(lines["count"])].reset_index(drop=True)
    back = steps.groupby("step").cumcount(ascending=False)  # steps before the line's own
    elapsed = lines["seconds"].cumsum().repeat(lines["count"]).reset_index(drop=True)
    seconds = steps["seconds"] / steps["count"]
    tokens = steps["tokens_per_s"] * seconds
    table = pd.DataFrame({
        "step": steps["step"] - back, "process": 0, "in_fp8": True,
        "steady": steps["step"] - steps["count"] >= NOT_STEADY_STEPS,
        "loss": steps["loss"], "seconds": seconds, "wait": 0.0,
        "tokens": tokens, "useful": tokens * steps["valid_share"] / 100,
        "lr": steps["lr"].where(back == 0), "elapsed": elapsed.where(back == 0),
        "memory": math.nan, "mfu_logged": steps["mfu_logged"] / 100,
    })  # fmt: skip
    return table.set_index("step").astype(dict.fromkeys(NUMBERS, float))


def recipe_name(path: Path) -> str:
    """This project's name: `fp8-rowwise-compile_20250525_173352.jsonl`, without its time, is
    rowwise_fp8_compiled."""
    name = re.sub(r"\W+", "_", re.sub(r"_\d{8}_\d{6}$", "", path.stem))
    return re.sub("_compile$", "_compiled", re.sub("^fp8_(rowwise|tensorwise)", r"\1_fp8", name))
