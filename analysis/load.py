"""Runs into data frames: `frames = load(["runs/four_way-…"])`.

Reads run directories, logs of the published project and plain torchtitan's TensorBoard folders.
"""

import fnmatch
import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np
import pandas as pd

from analysis.other_logs.published import read_published
from analysis.other_logs.tensorboard import EVENTS, named_folder, read_tensorboard
from analysis.record import Facts, LayoutError, Run, equally_long, printable, with_verdict
from analysis.runs import read_run
from analysis.windows import join, per_step

_OF_A_RUN_DIRECTORY = {
    "manifest.json",
    "recipe.yaml",
    "metrics.jsonl",
    "timing.json",
    "proof.json",
    "summary.json",
}
# Columns that are no numbers.
_TEXT = {"run", "path", "source", "date", "code"} | {
    name
    for name, fact in Facts.model_fields.items()
    if re.search(r"\b(str|bool)\b", str(fact.annotation))
}
_NAMED, _ALIKE = 3, 10  # how many of more than so many problems that are alike are named


class LoadError(ValueError):
    """There is nothing to analyse; the message says why."""


@dataclass(frozen=True)
class Frames:
    """What was loaded. Unknown is NaN or None; times in seconds, rates per second over all devices,
    shares of 1.

    Args:
        runs: one row a run, in the order in which they were started where that is known. `run`
        identifies it, `path`
            is where it is; both, as all names, are printable. Then what was recorded
            (`analysis.record.Facts`), and

            status: completed, running, interrupted, failed, diverged (also where the loss is not
            finite at the end of
                a log that says completed), short (its log ends before the last step, or before the
                longest log of the same folder)
            steps, tokens, date: the last step, the tokens until then, the day of the start
            final_loss: mean over the last tenth of the steps
            tokens_per_step, batch: tokens and sequences per step
            tokens_per_s, tokens_per_s_q1, tokens_per_s_q3, valid_tokens_per_s: median over the
            steady steps and its
                quartiles, padding included; without padding
            fp8_share: of the linear layers' FLOPs, over all steps of the run: less than its proof's
            where there are
                phases in bf16
            data_wait_share: of the steady steps' time
            mfu_bf16_peak, mfu_fp8_peak, mfu_mixed_peak: of that median; mfu_logged: what another
            program called its MFU wall_s, wall_s_without_warm_up: None also where the run's clock
            does not fit its step times peak_memory_bytes
        windows: one row a log window: run, recipe, seed, and `analysis.windows.COLUMNS`, of which
        losses, step_s,
            data_wait_s and not_steady are tuples. `elapsed_s` counts on from the earlier attempts
            of a run that was resumed, and is NaN where wall_s is None because of the clock.
        problems: a sentence for each run that is not completed, each file that could not be used,
        and each thing in a
            log that makes its figures doubtful.
    """

    runs: pd.DataFrame
    windows: pd.DataFrame
    problems: list[str]


def load(paths: str | Path | Iterable[str | Path]) -> Frames:
    """All runs at or below `paths`.

    Args:
        paths: run directories, the published project's logs (NAME.jsonl), torchtitan's TensorBoard
        folders, or folders
            that hold such at any depth.

    Raises:
        LoadError: a path does not exist, or nothing at all could be loaded.
    """
    paths = [Path(p) for p in ([paths] if isinstance(paths, str | Path) else paths)]
    if missing := [str(path) for path in paths if not path.exists()]:
        raise LoadError(printable(f"{', '.join(missing)}: no such file or folder"))
    unreadable: list[str] = []
    runs = [
        run
        for read, places in _sources(paths, unreadable)
        for run in _read(read, places, unreadable)
    ]
    runs = [with_verdict(run) for run in _of_full_length(equally_long(runs))]
    problems = _summarized(
        [printable(p) for run in runs for p in run.problems] + [*map(printable, unreadable)]
    )
    if not runs:
        raise LoadError("; ".join(problems) or "no path was given to load runs from")
    runs.sort(key=lambda run: (run.facts.start is None, run.facts.start or ""))
    parent = Path(os.path.commonpath([run.path.resolve().parent for run in runs]))
    names = [printable(run.path.resolve().relative_to(parent).as_posix()) for run in runs]
    return Frames(_runs_frame(runs, names), _windows_frame(runs, names), problems)


def steps(windows: pd.DataFrame) -> pd.DataFrame:
    """One row a step of `Frames.windows`, or of some of its rows.

    Columns: run, recipe, seed, step, loss, seconds, data_wait_s (NaN where the log has no value of
    that step), steady: not among a process's first 10 steps, nor after one that saved a checkpoint,
    and its seconds are known.
    """
    columns = per_step(windows)
    owner = windows[["run", "recipe", "seed"]].iloc[columns.pop("window")].reset_index(drop=True)
    order = ["step", "loss", "seconds", "data_wait_s", "steady"]
    return pd.concat([owner, pd.DataFrame(columns)[order]], axis=1)


def _sources(paths: list[Path], problems: list[str]) -> list[tuple[Callable, list[Path]]]:
    """(function that reads it, its places) of everything at or below `paths` that looks like a run,
    each once.

    Event folders of one training belong together: each of its processes has written one.
    """
    sources: dict[Path, tuple[Callable, dict[Path, Path]]] = {}
    for path in paths:
        before = len(problems)
        found = list(_walk(path, problems))
        if not found and len(problems) == before:
            problems.append(f"{path}: holds no run")
        for read, place in found:
            key = named_folder(place) if read is read_tensorboard else place.resolve()
            sources.setdefault(key, (read, {}))[1].setdefault(place.resolve(), place)
    return [(read, list(places.values())) for read, places in sources.values()]


def _walk(path: Path, problems: list[str]) -> Iterator[tuple[Callable, Path]]:
    """(function that reads it, place) of everything at or below `path` that looks like a run, or a
    part of one."""
    if path.is_file():
        yield read_published, path
        return

    def unreadable(error: OSError) -> None:
        problems.append(f"{error.filename}: cannot be read ({error.strerror})")

    for folder, folders, files in os.walk(path, onerror=unreadable):
        if not _OF_A_RUN_DIRECTORY.isdisjoint(files):
            folders.clear()  # attempts and tb/ belong to this run
            yield read_run, Path(folder)
            continue
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        if fnmatch.filter(files, EVENTS):
            yield read_tensorboard, Path(folder)
        yield from (
            (read_published, Path(folder) / name)
            for name in sorted(files)
            if name.endswith(".jsonl")
        )


def _read(read: Callable, places: list[Path], problems: list[str]) -> list[Run]:
    """The runs at `places`; `problems` says why there is none."""
    try:
        return read(places) if read is read_tensorboard else [read(places[0])]
    except LayoutError as error:
        problems.append(str(error))
    except (ArithmeticError, AttributeError, LookupError, OSError, TypeError, ValueError) as error:
        problems.append(
            f"{places[0]}: its records do not fit together ({type(error).__name__}: {error})"
        )
    return []


def _of_full_length(runs: list[Run]) -> list[Run]:
    """`runs`, of which logs of other programs ask for as many steps as the longest log of their
    folder has."""
    longest: dict[Path | None, int] = {}
    for run in runs:
        longest[run.study] = max(run.steps, longest.get(run.study, 0))
    shorter = [run.study is not None and run.steps < longest[run.study] for run in runs]
    return [
        run.changed(steps_asked=longest[run.study]) if s else run
        for run, s in zip(runs, shorter, strict=True)
    ]


def _summarized(problems: list[str]) -> list[str]:
    """`problems`, of which only the first few are there that say the same of many runs, and how
    many more there are."""
    alike: dict[str, list[str]] = defaultdict(list)
    for problem in problems:
        reason = problem.rsplit("/", 1)[-1].partition(": ")[2]  # without the run's place
        alike[re.sub(r"[\d.,]+", "#", reason)].append(problem)
    for group in alike.values():
        if len(group) > _ALIKE:
            group[_NAMED:] = [
                f"{len(group) - _NAMED:,} more runs or files have the same problem as {group[0]}"
            ]
    return list(chain.from_iterable(alike.values()))


def _runs_frame(runs: list[Run], names: list[str]) -> pd.DataFrame:
    rows = [
        {"run": name, "path": printable(str(run.path)), "source": run.source} | run.row()
        for run, name in zip(runs, names, strict=True)
    ]
    frame = pd.DataFrame(rows, dtype=object)  # or pandas makes a missing text NaN, which is true
    return frame.assign(
        **{column: pd.to_numeric(frame[column]) for column in frame.columns.difference(_TEXT)}
    )


def _windows_frame(runs: list[Run], names: list[str]) -> pd.DataFrame:
    owners = {
        "run": np.array(names, dtype=object),
        "recipe": np.array([run.facts.recipe for run in runs], dtype=object),
        "seed": np.array([run.facts.seed for run in runs], dtype=float),
    }
    counts = [len(run.windows["step"]) for run in runs]
    repeated = {name: np.repeat(values, counts) for name, values in owners.items()}
    return pd.DataFrame(repeated | join([run.windows for run in runs]))
