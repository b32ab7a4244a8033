"""Output folders of runs, studies and benches: named, checked, and locked while in use."""

import fcntl
import logging
import os
from datetime import datetime
from pathlib import Path
from typing import TextIO

from experiments.records.run import LOG
from models.errors import InputError


def dated_folder(name: str) -> Path:
    """Name the folder of what starts now: runs/NAME-DATE-TIME."""
    return Path("runs") / f"{name}-{datetime.now():%Y%m%d-%H%M%S}"


def new_folder(path: Path) -> Path:
    """Make a folder that nobody else has: `path`, or `path`-2 if another starts in the same second.

    Raises `InputError` if it cannot be made.
    """
    new, count = path, 1
    while True:
        try:
            new.mkdir(parents=True)
            return new
        except FileExistsError:
            count += 1
            new = path.with_name(f"{path.name}-{count}")
        except OSError as error:
            raise InputError(f"{path}: {error.strerror}: choose another --out") from None


def check_folder(folder: Path, kind: str, *marks: str) -> None:
    """Check that a `kind` (run, study, bench) may be written to `folder`; write nothing.

    The folder is new, empty, or holds an unfinished one, which has one of the files `marks`.
    Hidden files and a log are nobody's. Raises `InputError`.
    """
    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK):
        raise InputError(f"{folder} cannot be written, because of {existing}: choose another --out")
    if existing != folder:
        return
    names = {path.name for path in folder.iterdir() if path.name[0] != "."} - {LOG}
    if names and names.isdisjoint(marks):
        raise InputError(
            f"{folder} is not empty and holds no unfinished {kind}: choose another --out"
        )


def claim_folder(folder: Path, kind: str, *marks: str) -> TextIO:
    """Check a folder as `check_folder`, make it if it is missing, and lock it until the returned
    file is closed or the process ends.

    Raises `InputError`, also if another process has locked it.
    """
    check_folder(folder, kind, *marks)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return lock_file(folder / ".lock", wait=False)
    except BlockingIOError:
        raise InputError(
            f"{folder} is being written by another {kind} that is alive: choose another --out, or "
            "wait for it"
        ) from None
    except OSError as error:
        raise InputError(f"{folder}: {error.strerror}: choose another --out") from None


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
