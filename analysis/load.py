"""Runs into data frames: `frames = load(["runs/four_way-…"])`.

Reads run directories, logs of the published project and plain torchtitan's TensorBoard folders.
"""

import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa

from analysis.other_logs.published import read_published
from analysis.other_logs.tensorboard import EVENTS, read_tensorboard
from analysis.record import WINDOWS, Run, equally_long, per_step
from analysis.summary import LayoutError, read_run

_FURTHER = ("steps_planned", "tokens_per_step", "world_size", "flops_per_token", "flops_per_token_causal",
            "parameters", "flavor", "float8", "compiled", "attention", "peak_bf16", "peak_fp8", "phases",
            "start")  # fmt: skip
_NOT_NUMBERS = ("run", "path", "source", "recipe", "status", "error", "device", "device_type", "overlays",
                "compile_cache", "fp8_emulated", "fp8_product", "peak_source", "flavor", "float8", "compiled",
                "attention", "phases", "start")  # fmt: skip
_OF_A_RUN_DIRECTORY = {"manifest.json", "recipe.yaml", "metrics.jsonl", "timing.json", "proof.json", "summary.json"}


class LoadError(ValueError):
    """There is nothing to analyse; the message says why."""


@dataclass(frozen=True)
class Frames:
    """What was loaded. Unknown is NaN or None; times in seconds, rates per second over all devices, shares of 1.

    Args:
        runs: one row a run, in the order in which they were started where that is known. `run` identifies it; the
            columns of the final table (`analysis.summary.summarize`); and what they rest on: path, source,
            steps_planned (of runs cut by a study's budget), tokens_per_step, world_size, flops_per_token and
            flops_per_token_causal, parameters, flavor, float8, compiled, attention (whose kernels),
            peak_bf16 and peak_fp8 (FLOP/s), phases (of the warm-up: a dict of seconds), start.
        windows: one row a log window: run, recipe, seed, and the columns of a line of metrics.jsonl
            (`experiments.training.metrics`), where losses, step_s, data_wait_s and not_steady are lists, and
            `elapsed_s` counts on from the earlier attempts of a run that was resumed; `mfu_logged` is what another
            program called its MFU.
        problems: a sentence for each run that is not completed and each file that could not be used.
    """

    runs: pd.DataFrame
    windows: pd.DataFrame
    problems: list[str]


def load(paths: str | Path | Iterable[str | Path]) -> Frames:
    """All runs at or below `paths`.

    Args:
        paths: run directories, the published project's logs (NAME.jsonl), torchtitan's TensorBoard folders, or folders
            that hold such at any depth.

    Raises:
        LoadError: a path does not exist, or nothing at all could be loaded.
    """
    paths = [Path(p) for p in ([paths] if isinstance(paths, str | Path) else paths)]
    if missing := [str(path) for path in paths if not path.exists()]:
        raise LoadError(f"{', '.join(missing)}: no such file or folder")
    problems: list[str] = []
    found: dict[Path, tuple] = {}
    for path in paths:
        before = len(problems)
        sources = list(_find(path, problems))
        if not sources and len(problems) == before:
            problems.append(f"{path}: holds no run")
        for place, read in sources:
            found.setdefault(place.resolve(), (place, read))
    with ThreadPoolExecutor() as pool:
        outcomes = list(pool.map(lambda source: _read(*source), found.values()))
    runs = equally_long([outcome for outcome in outcomes if isinstance(outcome, Run)])
    problems += [said for run in runs for said in run.problems]
    problems += [outcome for outcome in outcomes if not isinstance(outcome, Run)]
    if not runs:
        raise LoadError("; ".join(problems) or "no path was given to load runs from")
    runs.sort(key=lambda run: (run.start is None, run.start or ""))
    parent = Path(os.path.commonpath([run.path.resolve().parent for run in runs]))
    names = [run.path.resolve().relative_to(parent).as_posix() for run in runs]
    return Frames(_runs_frame(runs, names), _windows_frame(runs, names), problems)


def steps(windows: pd.DataFrame) -> pd.DataFrame:
    """One row a step of `Frames.windows`, or of some of its rows.

    Columns: run, recipe, seed, step, loss, seconds, data_wait_s (NaN where the log has no value of that step), steady:
    not among a process's first 10 steps, nor after one that saved a checkpoint.
    """
    lists = ["step", "losses", "step_s", "data_wait_s", "not_steady"]
    columns = per_step(pa.Table.from_pandas(windows[lists], schema=pa.schema([WINDOWS.field(n) for n in lists])))
    owner = windows[["run", "recipe", "seed"]].iloc[columns.pop("window")].reset_index(drop=True)
    order = ["step", "loss", "seconds", "data_wait_s", "steady"]
    return pd.concat([owner, pd.DataFrame(columns)[order]], axis=1)


def _find(path: Path, problems: list[str]) -> Iterator[tuple]:
    """(place, function that reads it) of everything at or below `path` that looks like a run."""
    if path.is_file():
        yield path, read_published
        return

    def unreadable(error: OSError) -> None:
        problems.append(f"{error.filename}: cannot be read ({error.strerror})")

    for folder, folders, files in os.walk(path, onerror=unreadable):
        if not _OF_A_RUN_DIRECTORY.isdisjoint(files):
            folders.clear()  # attempts and tb/ belong to this run
            yield Path(folder), read_run
            continue
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        if any(Path(name).match(EVENTS) for name in files):
            yield Path(folder), read_tensorboard
        yield from ((Path(folder) / name, read_published) for name in sorted(files) if name.endswith(".jsonl"))


def _read(place: Path, read) -> Run | str:
    """The run at `place`, or the sentence that says why there is none."""
    try:
        run = read(place)
        run.row()
    except LayoutError as error:
        return str(error)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        return f"{place}: its records do not fit together ({type(error).__name__}: {error})"
    if not isinstance(run.recipe, str) or not isinstance(run.seed, int | float | None):
        return f"{place}: recipe {run.recipe!r} with seed {run.seed!r} is none"
    return run


def _runs_frame(runs: list[Run], names: list[str]) -> pd.DataFrame:
    rows = [
        {"run": name, "path": str(run.path), "source": run.source}
        | run.row()
        | {column: getattr(run, column) for column in _FURTHER}
        for run, name in zip(runs, names, strict=True)
    ]
    frame = pd.DataFrame(rows, dtype=object)  # or pandas makes a missing text NaN, which is true
    for column in frame.columns.difference(_NOT_NUMBERS):
        frame[column] = pd.to_numeric(frame[column])
    return frame


def _windows_frame(runs: list[Run], names: list[str]) -> pd.DataFrame:
    lengths = [len(run.windows) for run in runs]
    seeds = np.array([np.nan if run.seed is None else run.seed for run in runs])
    owners = {"run": names, "recipe": [run.recipe for run in runs], "seed": seeds}
    index = np.repeat(np.arange(len(runs)), lengths)
    table = pa.table({key: pa.array(values).take(pa.array(index)) for key, values in owners.items()})
    windows = pa.concat_tables([run.windows for run in runs])
    for field in WINDOWS:
        table = table.append_column(field, windows[field.name])
    return table.to_pandas(types_mapper=lambda kind: pd.ArrowDtype(kind) if pa.types.is_list(kind) else None)
