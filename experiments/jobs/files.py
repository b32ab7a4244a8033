"""Folders and files of a run: locked while they are in use, and never left torn by a process that
is killed."""

import fcntl
import itertools
import json
import logging
import os
from argparse import ArgumentTypeError
from contextlib import suppress
from pathlib import Path

from models.errors import InputError


def out_directory(text: str) -> Path:
    """The folder that a command line names. Raises ArgumentTypeError for an empty name, as of an
    unset variable."""
    if not text.strip():
        raise ArgumentTypeError("expected a folder, got an empty name")
    return Path(text)


def new_folder(path: Path) -> Path:
    """Make a folder that nobody else has: `path`, or `path`-2, -3 ... when others start within the
    same second.

    Raises `InputError` where it cannot be made.
    """
    try:
        for ending in itertools.chain([""], map("-{}".format, itertools.count(2))):
            with suppress(FileExistsError):
                new = path.with_name(path.name + ending)
                new.mkdir(parents=True)
                return new
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}: choose another --out") from None


def lock(folder: Path, user: str) -> int:
    """Lock a folder, made if it is missing, until the descriptor that this returns is closed or the
    process ends.

    Raises `InputError` if another `user` (run or study) has locked it, or it cannot be written.
    """
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file: choose another --out")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise InputError(f"{folder}: {error.strerror}: choose another --out") from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise InputError(
            f"{folder} is being written by another {user} that is alive: choose another --out, or wait for it"
        ) from None
    except OSError as error:  # some parallel file systems are mounted without locks
        logging.getLogger().warning(
            f"{folder}: {error.strerror}: nothing keeps a second {user} out of it"
        )
    return descriptor


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


def read_json(path: Path) -> dict:
    """Contents of a JSON file, empty if it is missing, torn, or a pipe, which reading would wait
    for."""
    try:
        content = json.loads(path.read_bytes()) if path.is_file() else {}
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def read_metrics(path: Path) -> list[dict]:
    """Lines of a metrics.jsonl, in order; torn ones are left out."""
    return list(
        filter(None, map(_window, path.read_bytes().splitlines() if path.is_file() else []))
    )


def _window(text: bytes) -> dict:
    """A line of a metrics.jsonl; empty if it is none."""
    with suppress(ValueError, RecursionError):
        line = json.loads(text)
        if isinstance(line, dict) and isinstance(line.get("step"), int):
            return line
    return {}


def read_last_line(path: Path) -> dict:
    """Last whole line of a metrics.jsonl, empty if there is none yet; cheap on a long file."""
    try:
        with open(path if path.is_file() else os.devnull, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - 65536))
            whole = [line for line in file.read().split(b"\n")[:-1] if line]
    except OSError:
        return {}
    line = _window(whole[-1]) if whole else {}
    return line if line.keys() >= {"step", "loss", "tokens_per_s"} else {}
