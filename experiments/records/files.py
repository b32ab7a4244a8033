"""Records as files: written whole or not at all, read strictly; and their folders: named, checked,
and locked while in use."""

import fcntl
import logging
import os
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import TextIO, TypeVar

from pydantic import ValidationError

from experiments.records.run import METRICS, Record, Window
from models.errors import InputError

AnyRecord = TypeVar("AnyRecord", bound=Record)


class RecordError(ValueError):
    """A record is missing or does not fit its model; the message names file and field."""


def write_whole(path: Path, content: str) -> None:
    """Write a file, whole or not at all. Raises OSError."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        part.write_text(content, encoding="utf-8")
        part.replace(path)
    finally:  # on a full disk, what was written takes room from other records
        part.unlink(missing_ok=True)


def write(path: Path, record: Record) -> None:
    """Write a record as JSON. Raises OSError."""
    write_whole(path, record.model_dump_json(indent=2) + "\n")


def append(path: Path, window: Window) -> None:
    """Add a line to metrics.jsonl at once; a full disk tears at most this last line. Raises
    OSError."""
    with open(path, "a", encoding="utf-8") as file:
        file.write(line(window))


def line(window: Window) -> str:
    """Write a window as a line of metrics.jsonl."""
    return window.model_dump_json(exclude_defaults=True) + "\n"


def read(path: Path, model: type[AnyRecord]) -> AnyRecord:
    """Read a record. Raises `RecordError`."""
    try:
        return _validated(model, path.read_bytes(), str(path))
    except OSError as error:
        raise RecordError(f"{path}: {error.strerror}") from error


def read_if_there(path: Path, model: type[AnyRecord]) -> AnyRecord | None:
    """Read a record that a run may have ended too early to write. Raises `RecordError` if it does
    not fit."""
    return read(path, model) if path.exists() else None


def read_windows(path: Path) -> list[Window]:
    """Read metrics.jsonl: no windows if it is missing, without a torn last line. Raises
    `RecordError`."""
    content = path.read_bytes() if path.exists() else b""
    lines = content.split(b"\n")[:-1]
    windows = [_validated(Window, line, f"{path}: line {n}") for n, line in enumerate(lines, 1)]
    steps = [window.step for window in windows]
    if steps != sorted(set(steps)):
        raise RecordError(f"{path}: step: the steps of its lines do not ascend")
    return windows


def _validated(model: type[AnyRecord], content: bytes, place: str) -> AnyRecord:
    try:
        return model.model_validate_json(content)
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        field = ".".join(map(str, problem["loc"])) or "content"
        message = problem["msg"].removeprefix("Value error, ")
        raise RecordError(f"{place}: {field}: {message}") from error


def last_window(folder: Path) -> Window | None:
    """Read the newest whole line of a run's metrics.jsonl; None before the first one."""
    with suppress(OSError, ValueError, IndexError):
        line = (folder / METRICS).read_bytes().rsplit(b"\n", 2)[-2]
        return Window.model_validate_json(line)
    return None


def last_step(folder: Path) -> int:
    """Read the last step on record; 0 before the first one."""
    window = last_window(folder)
    return window.step if window else 0


# ---- folders of runs and studies ----


def dated_folder(name: str) -> Path:
    """Name the folder of what starts now: runs/NAME-DATE-TIME."""
    return Path("runs") / f"{name}-{datetime.now():%Y%m%d-%H%M%S}"


def run_folder(name: str, seed: int) -> Path:
    """Name the folder of a run without --out, laid out as a study's."""
    return dated_folder(name) / name / f"seed{seed}"


def check_folder(folder: Path, kind: str, *marks: str) -> None:
    """Check that a folder is new, empty, or holds an unfinished `kind` (run or study), which has
    one of the files `marks`.

    Hidden files are nobody's. Raises `InputError`.
    """
    if folder.is_file():
        raise InputError(f"{folder} is a file: choose another --out")
    names = {path.name for path in folder.glob("[!.]*")}
    if names and names.isdisjoint(marks):
        raise InputError(
            f"{folder} is not empty and holds no unfinished {kind}: choose another --out"
        )


def lock_folder(folder: Path, kind: str) -> TextIO:
    """Make a folder if it is missing, and lock it until the returned file is closed or the process
    ends.

    Raises `InputError` if another process has locked it, and OSError.
    """
    folder.mkdir(parents=True, exist_ok=True)
    try:
        return lock_file(folder / ".lock", wait=False)
    except BlockingIOError:
        raise InputError(
            f"{folder} is being written by another {kind} that is alive: choose another --out, or "
            "wait for it"
        ) from None


def lock_file(path: Path, wait: bool) -> TextIO:
    """Lock a file, made if it is missing, until the returned file is closed or the process ends.

    Raises OSError; BlockingIOError if another process holds it and this one is not to `wait`.
    """
    file = open(path, "a")  # noqa: SIM115  # the caller closes it
    try:
        fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise
    except OSError as error:  # some parallel file systems are mounted without locks
        logging.getLogger().warning(
            f"{path.parent}: {error.strerror}: nothing keeps a second process out of it"
        )
    return file
