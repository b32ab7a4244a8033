"""Write files whole or not at all, and word a full disk; name, check and lock the folders of runs
and studies."""

import errno
import fcntl
import logging
import os
import shlex
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import TextIO

from models.errors import InputError

DISK_FULL_REASONS = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk quota is used up",
    errno.EFBIG: "the limit on the size of a file (ulimit -f) is reached",
}
"""What the system answers to a write that does not fit, in words."""
AMPLE_BYTES = 10**9
"""A disk with more free bytes is not the full one."""
RUNS_FOLDER = Path("runs")
RETRY_HINT = "make room, then give the same command"


def write_whole(path: Path, content: str) -> None:
    """Write a file, whole or not at all. Raises OSError, `DiskFull` among them."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    encoded = content.encode()
    try:
        with disk_full(path, len(encoded), part):
            part.write_bytes(encoded)
            part.replace(path)
    finally:  # on a full disk, what was written takes room from other records
        part.unlink(missing_ok=True)


# ---- full disks ----


class DiskFull(OSError):
    """A file does not fit; the message names it, and says how much is free."""


@contextmanager
def disk_full(path: Path, needed_bytes: int, part: Path | None = None) -> Iterator[None]:
    """Raise `DiskFull` where the system has no room for the needed bytes of a file.

    The bytes of `part`, which was begun and is deleted later, count as free.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in DISK_FULL_REASONS:
            raise
        free_bytes = find_free_bytes(path)
        if part and part.exists():
            free_bytes += part.stat().st_size
        raise DiskFull(
            f"{DISK_FULL_REASONS[error.errno]}: {path} needs {format_bytes(needed_bytes)}, and "
            f"{format_bytes(free_bytes)} are free"
        ) from error


def describe_full_disk(error: BaseException | None, folders: Iterable[Path] = ()) -> str | None:
    """Find a full disk among the causes of an error; return a sentence, or None.

    Libraries seldom name the file: then it is in the fullest of `folders`, or in that of temporary
    files. If that has plenty of room, the sentence names no folder.
    """
    while error:
        if isinstance(error, DiskFull):
            return str(error)
        for code, reason in DISK_FULL_REASONS.items():
            if getattr(error, "errno", None) == code or os.strerror(code) in str(error):
                return _name_full_disk(reason, getattr(error, "filename", None), folders)
        error = error.__cause__ or error.__context__
    return None


def _name_full_disk(reason: str, file: str | None, folders: Iterable[Path]) -> str:
    """Add the full disk's folder to the reason, and its free bytes."""
    if file:
        return f"{reason}: {file} has {format_bytes(find_free_bytes(Path(file)))} free"
    temporary_folder = Path(os.environ.get("TMPDIR", "/tmp"))
    fullest_folder = min([*folders, temporary_folder], key=find_free_bytes)
    free_bytes = find_free_bytes(fullest_folder)
    if free_bytes > AMPLE_BYTES:
        return reason
    return f"{reason}: {fullest_folder} has {format_bytes(free_bytes)} free"


def find_free_bytes(path: Path) -> int:
    """Return the free bytes of the disk of a file, also of one yet to be written."""
    existing_path = path.absolute()
    while not existing_path.exists():
        existing_path = existing_path.parent
    return shutil.disk_usage(existing_path).free


def format_bytes(count: int) -> str:
    """Write a number of bytes in decimal units, as disks are sold."""
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count} bytes"


# ---- folders ----


def name_dated_folder(name: str) -> Path:
    """Name the folder of what starts now: runs/NAME-DATE-TIME."""
    return RUNS_FOLDER / f"{name}-{datetime.now():%Y%m%d-%H%M%S}"


def make_dated_folder(name: str) -> Path:
    """Make the folder runs/NAME-DATE-TIME, which no other process uses.

    If another process has made it in the same second, the name gets a number. Raises OSError.
    """
    RUNS_FOLDER.mkdir(exist_ok=True)
    dated_folder = name_dated_folder(name)
    folder = dated_folder
    number = 1
    while True:
        with suppress(FileExistsError):
            folder.mkdir()
            return folder
        number += 1
        folder = dated_folder.with_name(f"{dated_folder.name}-{number}")


def make_run_folder(name: str, seed: int) -> Path:
    """Make a folder for a run without --out; name the run's folder in it, laid out as a study's.

    Raises OSError.
    """
    return make_dated_folder(name) / name / f"seed{seed}"


def check_folder(folder: Path, kind: str, *marks: str) -> None:
    """Check a folder: it is new, or empty, or holds a `kind` (run or study), known by a file of
    `marks`. Hidden files do not count, nor do folders without files. Raises `InputError`.
    """
    if folder.is_file():
        raise InputError(f"{folder} is a file: choose another --out")
    names = {path.name for path in folder.glob("[!.]*") if not is_bare(path)}
    if names and names.isdisjoint(marks):
        raise InputError(
            f"{folder} is not empty and holds no unfinished {kind}: choose another --out"
        )


def is_bare(folder: Path) -> bool:
    """Tell if a folder and those below it have no files, or hidden ones only: file systems that
    delete old files leave such folders."""
    for _, _, names in os.walk(folder):
        if not all(name.startswith(".") for name in names):
            return False
    return os.path.isdir(folder)


def refuse_folder_without(folder: Path, kind: str, mark: str) -> None:
    """Refuse to resume a folder that lacks the file of a `kind` (run or study). Raises
    `InputError`."""
    if is_bare(folder):
        raise InputError(
            f"{folder} holds no files: if a file system has deleted them, start the {kind} again "
            f"by its name, with --out {shlex.quote(str(folder))}"
        )
    if os.path.isdir(folder):  # unlike Path.is_dir, for names of any length
        raise InputError(
            f"{folder} holds no {mark}, so it is not the folder of a {kind}: name another"
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

    Raises OSError; without `wait`, BlockingIOError if another process holds it.
    """
    file = open(path, "a")  # noqa: SIM115  # the caller closes it
    try:
        operation = fcntl.LOCK_EX
        if not wait:
            operation |= fcntl.LOCK_NB
        fcntl.flock(file, operation)
    except BlockingIOError:
        file.close()
        raise
    except OSError as error:  # some parallel file systems are mounted without locks
        logging.getLogger().warning(
            f"{path.parent}: {error.strerror}: nothing keeps a second process out of it"
        )
    return file
