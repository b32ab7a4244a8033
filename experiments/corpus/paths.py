"""Check and hash the files named by a recipe, and turn errors of reading them into sentences."""

import hashlib
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from models.errors import InputError

# An error of the tokenizers library, whose class does not derive from Exception
TOKENIZERS_PANIC = "PanicException"


def check_path(key: str, value: str) -> Path:
    """Return the path in a key's value; check access to its file or folder.

    The path is taken letter by letter: no pattern, no `~`. Raises `InputError`.
    """
    path = Path(value)
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError) as error:  # ValueError: a null byte
        raise InputError(f"{key}={value}: {explain_unreadable_path(path, error)}") from error
    is_folder = stat.S_ISDIR(mode)
    if not (is_folder or stat.S_ISREG(mode)):
        raise InputError(f"{key}={value}: is neither a file nor a folder: name another path")
    needed_access = os.R_OK | os.X_OK if is_folder else os.R_OK
    if not os.access(path, needed_access):
        raise InputError(f"{key}={value}: {explain_unreadable_path(path, PermissionError())}")
    return path


def explain_unreadable_path(path: Path, error: Exception) -> str:
    """Say why a path cannot be read, and what to do. Names the first missing folder."""
    if isinstance(error, PermissionError):
        return "you may not read it: ask its owner for permission, or name another path"
    if not isinstance(error, FileNotFoundError | NotADirectoryError):
        return f"{getattr(error, 'strerror', None) or error}: name another path"
    missing = path
    for folder in path.parents:
        if not folder.exists():
            missing = folder
    if missing.is_symlink():
        return f"{missing} is a link to {missing.readlink()}, which does not exist: restore that"
    if missing.parent.is_file():
        return f"{missing.parent} is a file, not a folder: correct the path"
    if path.parts[0].startswith("~"):
        return f"{missing} does not exist: only a shell replaces ~, so write the whole path"
    if path.parts[0].endswith(":"):
        return "is an address, not a path: download the file, and name it"
    return f"{missing} does not exist: correct the path; in a container, mount that folder too"


def hash_files(files: list[Path]) -> str:
    """Hash the files' contents, in their order, with blake2b; about a second per GB."""
    combined_hash = hashlib.blake2b(digest_size=16)
    for path in files:
        status = path.stat()
        combined_hash.update(_hash_file(path, status.st_size, status.st_mtime_ns))
    return combined_hash.hexdigest()


@cache  # until the file changes: recipes of a study share their data
def _hash_file(path: Path, n_bytes: int, changed_ns: int) -> bytes:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "blake2b").digest()


@contextmanager
def explain_read_errors(failure: str, fix: str | Callable[[BaseException], str]) -> Iterator[None]:
    """Turn any error of reading a corpus or a tokenizer into an `InputError`: its `failure`, the
    reason and the `fix`, which may depend on the error.

    Reasons are, for example, a missing network, a wrong name, missing access, a broken file.
    """
    try:
        yield
    except InputError:
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != TOKENIZERS_PANIC:
            raise
        reason = " ".join(str(error).split())  # on one line
        if callable(fix):
            fix = fix(error)
        raise InputError(f"{failure} ({type(error).__name__}: {reason}): {fix}") from error
