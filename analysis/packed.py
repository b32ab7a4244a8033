"""Read the runs of a study that is kept in two files, as in results/.

    runs.jsonl      a `PackedRun` a line
    steps.parquet   a row a step of each run: `log_table` of its metrics.jsonl, and `run`

`python -m tools.pack_results` writes them. They hold what the analysis reads of run directories.
"""

import io
from pathlib import Path

import pandas as pd

from analysis.runs import COLUMNS, Run, make_run, parse_yaml
from experiments.records.run import (
    PACKED_RUNS,
    Environment,
    Record,
    RecordError,
    RunRecord,
    read_if_there,
)

PACKED_STEPS = "steps.parquet"
LARGEST = 1e39  # number in a log


class PackedRun(Record):
    """The records of a run besides its steps: a line of runs.jsonl."""

    folder: str  # that the run had in its study
    record: RunRecord
    recipe: str  # the text of recipe.yaml
    environments: dict[str, Environment]  # by the name of the file


def read_packed_runs(folder: Path) -> list[Run]:
    """Read the runs of a kept study. Raises `RecordError` if one of its two files does not fit."""
    steps = read_steps(folder / PACKED_STEPS)
    runs = []
    for packed in read_packed_records(folder):
        log = steps[steps["run"] == packed.folder].drop(columns="run")
        path = folder / packed.folder
        recipe = parse_yaml(packed.recipe.encode(), path)
        runs.append(make_run(path, packed.record, log, recipe, packed.environments))
    return runs


def read_packed_records(folder: Path) -> list[PackedRun]:
    """Read runs.jsonl. Raises `RecordError`."""
    path = folder / PACKED_RUNS
    lines = (read_if_there(path) or b"").splitlines()
    return [PackedRun.parse(line, f"{path}: line {n}") for n, line in enumerate(lines, 1)]


def read_steps(path: Path) -> pd.DataFrame:
    """Read steps.parquet. Raises `RecordError`."""
    try:
        steps = pd.read_parquet(io.BytesIO(read_if_there(path) or b""))
        steps = steps.astype({"run": str} | COLUMNS)
    except (ValueError, KeyError, OSError) as error:
        raise RecordError(f"{path}: holds no steps of runs: {error}") from error
    if (steps.select_dtypes("number").abs() > LARGEST).any(axis=None):
        raise RecordError(f"{path}: holds numbers that no run has")
    return steps
