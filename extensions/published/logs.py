"""The published project's logs (course project "FP8 Training", ETH Zurich, May 2025), read as runs.

A log has a line at step 1 and then every five steps: `time_delta` is the seconds since the line
before, `loss` the last step's, `training_tokens_percentage` the share of tokens that are not
padding. It was written when training had ended. Its MFU is recomputed: under torch.compile the
logged one counts the input embedding as if it were multiplied.
"""

import math
from pathlib import Path

import pandas as pd

from analysis.newest import NothingToShow
from analysis.runs import NUMBERS, Run
from analysis.study import Study, StudyError, StudyFile
from experiments.records.run import NOT_STEADY_STEPS, Git, Hardware, Manifest, Timing
from models.flops import Sizes
from models.gpus import GPUS

SEQ_LEN = 4096
# `8B-published` of models.llama, which imports torch
MODEL = Sizes(4096, 32, 32, 8, head_dim=128, hidden_dim=14336, vocab_size=131072)
# What a log's name begins with, and what its run is called here.
RECIPES = {
    "baseline-compile": "baseline_compiled",
    "fp8-rowwise-compile": "rowwise_fp8_compiled",
    "fp8-tensorwise-compile": "tensorwise_fp8_compiled",
}


def read_published(folder: Path) -> Study:
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
        lines = pd.read_json(path, lines=True, precise_float=True).astype({"step": int})
        steps = steps_of(lines)
    except (ValueError, KeyError) as error:
        raise StudyError(f"{path}: is no log of the published project") from error
    name = path.stem.partition("_2025")[0]  # its time follows
    recipe = RECIPES.get(name, name)
    manifest = Manifest.model_construct(
        start=lines["timestamp"][0],
        recipe=recipe,
        float8=recipe.partition("_fp8")[0] if "_fp8" in recipe else None,
        compiled=recipe.endswith("_compiled"),
        world_size=1,
        hardware=Hardware.model_construct(type="cuda", name="NVIDIA GH200"),
        peak_flops=GPUS["gh200"],
        flops_per_token=MODEL.flops_per_token(SEQ_LEN),
        parameters=MODEL.parameters(),
        flavor="8B-published",
        seq_len=SEQ_LEN,
        dataset="of the published project",
        overlays=[],
        packages={},
        git=Git(commit=None, changes=None),
        fp8_matmul=None,
        notes=[],
    )
    first = Timing(time_to_first_step_s=steps["seconds"][1], startup={}, compile_cache="none")
    return Run(recipe, "", path, ending="completed", steps=steps,
               manifest=manifest, timings=[first], place="host unknown")  # fmt: skip


def steps_of(lines: pd.DataFrame) -> pd.DataFrame:
    """Make `Run.steps` of a log's lines. A line's seconds are spread over its steps evenly, and its
    loss, which is the last step's, stands for all of them."""
    lines["count"] = lines["step"].diff().fillna(1).astype(int)
    lines["elapsed"] = lines["time_delta"].cumsum()
    steps = lines.loc[lines.index.repeat(lines["count"])]
    steps.index = pd.RangeIndex(1, len(steps) + 1, name="step")
    logged = steps["step"] == steps.index
    seconds = steps["time_delta"] / steps["count"]
    tokens = steps["tokens_per_second"] * seconds
    table = pd.DataFrame({
        "process": 0, "in_fp8": True,
        "steady": steps["step"] - steps["count"] >= NOT_STEADY_STEPS,
        "loss": steps["loss"], "seconds": seconds, "wait": 0.0,
        "tokens": tokens, "useful": tokens * steps["training_tokens_percentage"] / 100,
        "lr": steps["learning_rate"].where(logged), "elapsed": steps["elapsed"].where(logged),
        "memory": math.nan, "mfu_logged": steps["mfu"] / 100,
    })  # fmt: skip
    return table.astype(dict.fromkeys(NUMBERS, float))
