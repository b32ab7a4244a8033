"""Records as files: written whole or not at all, read strictly."""

import os
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from pydantic import TypeAdapter, ValidationError

from experiments.records.run import METRICS, Record, Window

AnyRecord = TypeVar("AnyRecord", bound=Record)
_WINDOWS = TypeAdapter(list[Window])


class RecordError(ValueError):
    """A record is missing or does not fit its model; the message names file and field."""


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file, whole or not at all. Raises OSError."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        part.write_bytes(content if isinstance(content, bytes) else content.encode())
        part.replace(path)
    except OSError:
        with suppress(OSError):
            part.unlink()
        raise


def write(path: Path, record: Record) -> None:
    """Write a record as JSON. Raises OSError."""
    write_whole(path, record.model_dump_json(indent=2) + "\n")


def read(path: Path, model: type[AnyRecord]) -> AnyRecord:
    """Read a record. Raises `RecordError`."""
    try:
        return model.model_validate_json(_content(path))
    except ValidationError as error:
        raise RecordError(f"{path}: {_first_problem(error)}") from error


def read_if_there(path: Path, model: type[AnyRecord]) -> AnyRecord | None:
    """Read a record that a run may have ended too early to write. Raises `RecordError` if it does
    not fit."""
    return read(path, model) if path.exists() else None


def append(path: Path, window: Window) -> None:
    """Add a line to metrics.jsonl, whole or not at all. Raises OSError, for example on a full
    disk."""
    line = (window.model_dump_json(exclude_defaults=True) + "\n").encode()
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    size = os.fstat(descriptor).st_size
    try:
        written = os.write(descriptor, line)
        os.write(descriptor, line[written:])  # raises where the disk filled up within the line
    except OSError:
        os.ftruncate(descriptor, size)
        raise
    finally:
        os.close(descriptor)


def read_windows(path: Path) -> list[Window]:
    """Read metrics.jsonl: no windows if it is missing, without a torn last line. Raises
    `RecordError`."""
    lines = _content(path).splitlines(keepends=True) if path.exists() else []
    if lines and not lines[-1].endswith(b"\n"):
        lines.pop()
    try:
        windows = _WINDOWS.validate_json(b"[" + b",".join(lines) + b"]")
    except ValidationError as error:
        raise RecordError(f"{path}: {_first_problem(error, 'line')}") from error
    steps = [window.step for window in windows]
    if steps != sorted(set(steps)):
        raise RecordError(f"{path}: step: the steps of its lines do not ascend")
    return windows


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise RecordError(f"{path}: {error.strerror}") from error


def last_window(folder: Path) -> Window | None:
    """Read the newest whole line of a run's metrics.jsonl, cheaply; None before the first one."""
    with suppress(OSError, ValueError), open(folder / METRICS, "rb") as file:
        end = file.seek(0, os.SEEK_END)
        size = 4096
        while True:
            file.seek(max(0, end - size))
            lines = file.read(min(size, end)).split(b"\n")
            if len(lines) > 2 or size >= end:
                return Window.model_validate_json(lines[-2]) if len(lines) > 1 else None
            size *= 4
    return None


def _first_problem(error: ValidationError, number: str = "") -> str:
    """The first of pydantic's errors as `field: reason`; the index of a list of lines as `line
    3`."""
    problem = error.errors(include_url=False)[0]
    place = [str(part) for part in problem["loc"]]
    if number and place:
        place[0] = f"{number} {int(place[0]) + 1}"
    return f"{'.'.join(place) or 'content'}: {problem['msg']}"
