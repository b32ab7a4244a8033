"""The published project's logs (course project "FP8 Training", ETH Zurich, May 2025), read as runs.

A log has a line at step 1 and then every five steps: `time_delta` is the seconds since the previous
line, `loss` the last step's, `training_tokens_percentage` the share of tokens that are not padding.
It was written when training had ended. Its MFU is recomputed: under torch.compile the logged one
counts the input embedding as if it were multiplied.
"""

import math
import os
from pathlib import Path

import pandas as pd

from analysis.newest import NothingToShow
from analysis.runs import Run
from analysis.study import Study, StudyError
from experiments.config.recipes import ROOT
from experiments.records.run import (
    NOT_STEADY_STEPS,
    Attempt,
    Git,
    Hardware,
    RunRecord,
    StudyFile,
    Timing,
)
from models.gpus import GPUS

FOLDER = ROOT / os.environ.get("PUBLISHED_LOGS", "published_logs")
# Recipes by the beginning of a log's name
RECIPES = {
    "baseline-compile": "baseline_compiled",
    "fp8-rowwise-compile": "rowwise_fp8_compiled",
    "fp8-tensorwise-compile": "tensorwise_fp8_compiled",
}


def read_published(folder: Path = FOLDER) -> Study:
    """Read the logs of a folder as runs without proof, one a recipe.

    The clock of a log begins with training.

    Raises:
        NothingToShow: there is no log.
        StudyError: a log is not of that project.
    """
    runs = [read_log(file) for file in sorted(folder.rglob("*.jsonl"))]
    if not runs:
        raise NothingToShow(
            f"{folder}: holds no log of the published project (NAME.jsonl). Fetch output/data of "
            "github.com/mak2508/lsai-proj, and start with PUBLISHED_LOGS=FOLDER of it: "
            "PUBLISHED_LOGS=FOLDER make lab"
        )
    return Study(runs, StudyFile(), [], clock_start="training, not with the process")


def read_log(path: Path) -> Run:
    """Read a log as a run. Raises `StudyError`."""
    try:
        lines = pd.read_json(path, lines=True, precise_float=True).set_index("step")
        steps = make_steps(lines)
    except (ValueError, KeyError) as error:
        raise StudyError(f"{path}: is not a log of the published project") from error
    name = path.stem.partition("_2025")[0]  # a time follows
    timing = Timing(time_to_first_step_s=steps["wall_s"][1], startup={}, compile_cache="none")
    attempt = Attempt.model_construct(
        timing=timing,
        host="host unknown",
        start=lines["timestamp"].iloc[0],
        hardware=Hardware.model_construct(type="cuda", name="NVIDIA GH200"),
        peak_flops=GPUS["gh200"],
        packages={},
        git=Git(commit=None, changes=None),
    )
    record = RunRecord.model_construct(
        world_size=1,
        flavor="8B-published",
        parameters=8_053_329_920,
        flops_per_token=51_541_204_992,
        seq_len=4096,
        dataset="of the published project",
        attempts=[attempt],
    )
    return Run(
        recipe=RECIPES.get(name, name),
        seed="",
        path=path,
        ending="completed",
        steps=steps,
        record=record,
        place="host unknown",
    )


def make_steps(lines: pd.DataFrame) -> pd.DataFrame:
    """Make `Run.steps` of a log. A line's seconds are spread evenly over its steps, and all of them
    have its loss, which is the last step's."""
    lines = lines.assign(step_s=lines["time_delta"] / lines.index.diff().fillna(1))
    steps = lines.reindex(range(1, lines.index[-1] + 1)).bfill()
    tokens = steps["tokens_per_second"] * steps["step_s"]
    return steps.assign(
        attempt=1,
        is_steady=steps.index > NOT_STEADY_STEPS,
        in_fp8=True,
        memory_was_short=False,
        data_wait_s=0.0,
        tokens=tokens,
        valid_tokens=tokens * steps["training_tokens_percentage"] / 100,
        lr=lines["learning_rate"],
        wall_s=lines["time_delta"].cumsum(),
        peak_memory_bytes=math.nan,
    )
