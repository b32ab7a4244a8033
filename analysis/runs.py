"""Read a run directory: how the run was made (`facts`), and what its steps took (`steps`).

Times are in seconds, shares of 1.
"""

import math
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from experiments.records import run as records
from experiments.records.files import RecordError, read, read_if_there, read_windows

MIN_STEPS = 30  # of a final loss: its last tenth is then the mean of three steps
NUMBERS = ["loss", "seconds", "wait", "tokens", "useful", "lr", "elapsed", "memory"]
COLUMNS = {"process": int, "steady": bool, "in_fp8": bool} | dict.fromkeys(NUMBERS, float)


@dataclass(eq=False)
class Run:
    """A run, or one that was planned and left no record.

    Args:
        seed: as text, so that a folder that cannot be read has one too; empty if none was set.
        path: its directory; None where there is none.
        completed: it made all its steps, or as many as the study's time budget allowed.
        ending: how it ended, without numbers, so that equal causes are equal texts.
        earlier: how earlier attempts ended that nobody had stopped.
        facts: all that is recorded of how it was made, the resolved recipe's too, by key.path.
        place: host and GPU; a GPU is its UUID where that is recorded, else its number.
        steps: indexed by step. `process`: the number of the attempt; `steady`: the step counts for
            a rate; `in_fp8`: it is in FP8; `wait`: seconds of waiting for data; `useful`:
            tokens that are not padding; `memory`: bytes. `lr` and `elapsed` are known where a log
            window ends. `elapsed` counts all attempts, their starts included.
        timings: by process, of those that came as far as their first step.
    """

    recipe: str
    seed: str
    path: Path | None = None
    completed: bool = False
    ending: str = "left no record"
    earlier: list[str] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    place: str = ""
    steps: pd.DataFrame = field(default_factory=lambda: NO_STEPS)
    manifest: records.Manifest | None = None
    timings: dict[int, records.Timing] = field(default_factory=dict)
    proof: records.Proof | None = None

    @property
    def name(self) -> str:
        return f"{self.recipe}/seed{self.seed}" if self.seed else self.recipe

    @property
    def length(self) -> int:
        """The last step of the log."""
        return int(self.steps.index[-1]) if len(self.steps) else 0

    @property
    def final_loss(self) -> float:
        return last_tenth(self.steps["loss"]).mean()

    @property
    def fp8_share(self) -> float:
        """The share of the matmul FLOPs that ran in FP8, over all steps: NaN without proof, 0 if
        FP8 was emulated."""
        if not self.proof:
            return math.nan
        if self.proof.emulated:
            return 0.0
        return (self.proof.fp8_share_of_matmul_flops or 0.0) * self.steps["in_fp8"].mean()


def read_run(path: Path) -> Run:
    """Read a run directory. Raises `RecordError` if a record is missing or does not fit."""
    manifest = read(path / records.MANIFEST, records.Manifest)
    attempts = [path / records.ATTEMPT.format(number) for number in range(1, manifest.attempt)]
    earlier = [ending(read(folder / records.MANIFEST, records.Manifest)) for folder in attempts]
    completed, ended = manifest.status == "completed", ending(manifest)
    read_last = read if completed else read_if_there
    proof = read_last(path / records.PROOF, records.Proof)
    timings = [read_if_there(folder / records.TIMING, records.Timing) for folder in attempts]
    timings.append(read_last(path / records.TIMING, records.Timing))
    logs = [read_windows(folder / records.METRICS) for folder in [*attempts, path]]
    steps = steps_table(logs, proof.stretches if proof else {})
    if completed and max(steps.index, default=0) < manifest.steps:
        completed, ended = False, "too short a log"
    began = {process: timing for process, timing in enumerate(timings) if timing}
    hardware = manifest.hardware
    # Slurm may call every GPU of a host 0, so a UUID says more.
    gpu = hardware.uuid or hardware.visible_devices
    return Run(
        recipe=manifest.recipe,
        seed=str(manifest.seed),
        path=path,
        completed=completed or (ended == "interrupted" and manifest.study_budget_s is not None),
        ending=ended,
        earlier=[how for how in earlier if how != "interrupted"],
        place=f"host {manifest.host}, GPU {gpu}" if gpu else f"host {manifest.host}",
        steps=steps,
        manifest=manifest,
        timings=began,
        proof=proof,
        facts=flat(manifest.model_dump())
        | read_recipe(path / records.RECIPE)
        | {
            "tokens_per_step": f"{steps['tokens'].median():.0f}",
            "hardware.memory_bytes": f"{hardware.memory_bytes:.1e}",  # drivers keep a little of it
            "attention": proof and proof.attention,
            "compile_cache": next((timing.compile_cache for timing in began.values()), None),
        },
    )


def ending(manifest: records.Manifest) -> str:
    """Say how a process ended: its status, and the last line of its error without numbers."""
    if manifest.status == "running":
        return "running or killed"
    if manifest.status == "failed" and manifest.error:
        message = manifest.error.strip().splitlines()[-1]
        return f"failed: {re.sub('0x[0-9a-f]+|[0-9]+', '#', message)[:100]}"
    return manifest.status


def read_recipe(path: Path) -> dict[str, Any]:
    """Read a resolved recipe by key.path; empty where there is none."""
    if not path.exists():
        return {}
    try:
        return flat(read_yaml(path))
    except (OSError, ValueError, AttributeError, yaml.YAMLError) as error:
        raise RecordError(f"{path}: is no recipe") from error


def read_yaml(path: Path) -> Any:
    """Read a YAML file by libyaml, which takes a tenth of the time of Python's parser."""
    return yaml.load(path.read_bytes(), yaml.CSafeLoader)


def flat(sections: dict, prefix: str = "") -> dict[str, Any]:
    """Turn sections within sections into key.path: value."""
    found = {}
    for key, value in sections.items():
        if isinstance(value, dict):
            found |= flat(value, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = value
    return found


# ---- steps ----


def steps_table(
    logs: list[list[records.Window]], stretches: dict[str, records.Stretch]
) -> pd.DataFrame:
    """Make `Run.steps` of the logs of all attempts."""
    in_fp8 = {int(first): stretch.in_fp8 for first, stretch in stretches.items()}
    rows, known, before = {}, set(), 0.0
    for process, windows in enumerate(logs):
        took = 0.0
        for window in windows:
            # A log begins with the windows that it took over from the attempt before.
            if (window.step, window.elapsed_s) not in known:
                known.add((window.step, window.elapsed_s))
                took = window.elapsed_s
                # A killed process loses its last steps; the next one makes them again.
                rows |= rows_of(window, process, before)
        before += took
    table = pd.DataFrame.from_dict(rows, orient="index", columns=[*COLUMNS]).sort_index()
    for first in sorted(in_fp8):
        table.loc[first:, "in_fp8"] = in_fp8[first]
    return table.astype(COLUMNS).rename_axis("step")


def rows_of(window: records.Window, process: int, before: float) -> dict[int, tuple]:
    """Make a row of `COLUMNS` for each step of a log window; `before` are the seconds that earlier
    attempts took."""
    seconds = sum(window.step_s)
    tokens = window.tokens_per_s * seconds / len(window.step_s)
    useful = window.valid_tokens_per_s * seconds / len(window.step_s)
    rows, step = {}, window.step - len(window.step_s)
    for of_step in zip(window.losses, window.step_s, window.data_wait_s, strict=True):
        step += 1
        logged = window.lr, before + window.elapsed_s
        if step < window.step:
            logged = None, None
        steady = step not in window.not_steady
        rest = tokens, useful, *logged, window.peak_memory_bytes
        rows[step] = process, steady, True, *of_step, *rest
    return rows


def last_tenth(steps: pd.DataFrame | pd.Series) -> pd.DataFrame | pd.Series:
    """Choose the last tenth of the steps, whose mean loss is the final loss: long enough to average
    batches out, and short enough to be the run's end."""
    return steps.tail(max(1, len(steps) // 10))


NO_STEPS = steps_table([], {})
