"""Write files whole or not at all, and word a full disk; name, check and lock the folders of runs
and studies."""

import errno
import fcntl
import itertools
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

# What the system answers to a write that does not fit, in words.
FULL = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk quota is used up",
    errno.EFBIG: "the limit on the size of a file (ulimit -f) is reached",
}
PLENTY = 10**9  # free bytes of a disk that is not the full one
RUNS = Path("runs")
AGAIN = "make room, then give the same command"


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
def disk_full(path: Path, needed: int, part: Path | None = None) -> Iterator[None]:
    """Raise `DiskFull` where the system has no room for the `needed` bytes of a file.

    The bytes of `part`, which was begun and is deleted later, count as free.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in FULL:
            raise
        free = free_bytes(path)
        if part and part.exists():
            free += part.stat().st_size
        sizes = f"{path} needs {bytes_word(needed)}, and {bytes_word(free)} are free"
        raise DiskFull(f"{FULL[error.errno]}: {sizes}") from error


def full_disk(error: BaseException | None, folders: Iterable[Path]) -> str | None:
    """Find a full disk among the causes of an error; return a sentence, or None.

    Libraries seldom name the file: then it is in the fullest of `folders`, or in that of temporary
    files. If that has plenty of room, the sentence names no folder.
    """
    fullest = min([*folders, Path(os.environ.get("TMPDIR", "/tmp"))], key=free_bytes)
    while error:
        if isinstance(error, DiskFull):
            return str(error)
        for code, reason in FULL.items():
            if getattr(error, "errno", None) == code or os.strerror(code) in str(error):
                named = getattr(error, "filename", None)
                place = Path(named or fullest)
                free = free_bytes(place)
                if free > PLENTY and not named:
                    return reason
                return f"{reason}: {place} has {bytes_word(free)} free"
        error = error.__cause__ or error.__context__
    return None


def free_bytes(path: Path) -> int:
    """Return the free bytes of the disk of a file, also of one yet to be written."""
    there = next(folder for folder in (path, *path.absolute().parents) if folder.exists())
    return shutil.disk_usage(there).free


def bytes_word(count: int) -> str:
    """Write a number of bytes in decimal units, as disks are sold."""
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count} bytes"


# ---- folders ----


def dated_folder(name: str) -> Path:
    """Name the folder of what starts now: runs/NAME-DATE-TIME."""
    return RUNS / f"{name}-{datetime.now():%Y%m%d-%H%M%S}"


def make_dated_folder(name: str) -> Path:
    """Make the folder runs/NAME-DATE-TIME for this process alone.

    A folder that exists, as of a process that started in the same second, gets no second user: the
    name gets a number. Raises OSError.
    """
    RUNS.mkdir(exist_ok=True)
    dated = dated_folder(name)
    folder = dated
    for number in itertools.count(2):
        with suppress(FileExistsError):
            folder.mkdir()
            return folder
        folder = dated.with_name(f"{dated.name}-{number}")


def make_run_folder(name: str, seed: int) -> Path:
    """Make a folder for a run without --out; name the run's folder in it, laid out as a study's.

    Raises OSError.
    """
    return make_dated_folder(name) / name / f"seed{seed}"


def check_folder(folder: Path, kind: str, *marks: str) -> None:
    """Check a folder: new, empty, or with a `kind` (run or study), known by a file of `marks`.

    Hidden files are nobody's, and folders without files are nothing. Raises `InputError`.
    """
    if folder.is_file():
        raise InputError(f"{folder} is a file: choose another --out")
    names = {path.name for path in folder.glob("[!.]*") if not is_bare(path)}
    if names and names.isdisjoint(marks):
        raise InputError(
            f"{folder} is not empty and holds no unfinished {kind}: choose another --out"
        )


def is_bare(folder: Path) -> bool:
    """True for a folder with no file in it or below, but hidden ones: file systems that delete old
    files leave such folders."""
    below = (name for _, _, names in os.walk(folder) for name in names)
    return os.path.isdir(folder) and all(name.startswith(".") for name in below)


def check_mark(folder: Path, kind: str, mark: str) -> None:
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
