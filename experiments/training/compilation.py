"""Check what torch.compile needs of this machine: a compiler, and folders for its kernels.

Without the check a run would fail after minutes of compilation.
"""

import errno
import mmap
import os
import re
import shutil
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from sysconfig import get_paths

import torch

from experiments.jobs.runner import CACHE_VARIABLES
from models import device
from models.errors import InputError

CACHE_BYTES = 128 << 20 if device.TYPE == "cuda" else 32 << 20
"""Free space for a run's kernels; they were seen to take 7 to 65 MB on a GPU, 9 MB on a CPU."""
TEMPORARY_BYTES = 16 << 20
"""Free space for the compiler's intermediate files."""
FULL = (errno.ENOSPC, errno.EDQUOT)
UNQUOTED = r"[\s'\"\\]"
"""Letters at which torch splits its compiler's command, whose paths it does not quote."""
UNSUPPORTED = (errno.EOPNOTSUPP, errno.EINVAL, errno.ENODEV)  # by some file systems


def check_compilation(caches: Iterable[str] = ()) -> None:
    """Check what compiling a model takes. Raises `InputError`.

    Args:
        caches: the folders for kernels, if not those of this process's variables.
    """
    check_compiler()
    torch_folder = torch.__path__[0]
    if re.search(UNQUOTED, torch_folder):
        raise InputError(
            f"a compiled model needs torch in a path without spaces or quotes, and torch is in "
            f"{torch_folder}: move the repository to a path without them and run `make install` "
            "there, or run the recipe `baseline`, which is not compiled"
        )
    for folder in caches or named_caches():
        check_folder(Path(folder), CACHE_BYTES, is_loaded=True)
    for folder in temporary_folders():
        check_folder(Path(folder), TEMPORARY_BYTES)


def named_caches() -> list[str]:
    """List the folders named by this process's variables."""
    return [os.environ[name] for name in CACHE_VARIABLES if os.environ.get(name)]


def temporary_folders() -> set[str]:
    """List the folders for temporary files: Python takes another one where TMPDIR is full, and the
    compiler does not."""
    folders = {tempfile.gettempdir()}
    chosen = os.environ.get("TMPDIR")
    if chosen and os.access(chosen, os.W_OK | os.X_OK):
        folders.add(chosen)
    return folders


def check_compiler() -> None:
    """Check for what inductor compiles with. Raises `InputError`.

    On a CPU that is a C++ compiler; on a GPU Triton's launchers take a C compiler and Python's
    headers.
    """
    missing, compilers = None, [os.environ.get("CXX", "g++")]
    if device.TYPE == "cuda":
        compilers = [os.environ["CC"]] if "CC" in os.environ else ["gcc", "clang"]
        if not Path(get_paths("posix_prefix")["include"], "Python.h").exists():
            missing = "Python.h (package python3-dev or python3-devel)"
    if not any(shutil.which(compiler.split(" ")[0]) for compiler in compilers):
        missing = f"the compiler `{compilers[0]}`"
    if missing:
        raise InputError(
            f"a compiled model needs {missing}, which is not here: install it, name another "
            "compiler in the environment variable CC (on a CPU: CXX), or run the recipe "
            "`baseline`, which is not compiled"
        )


def check_folder(folder: Path, size: int, is_loaded: bool = False) -> None:
    """Check a folder for compiled code. Raises `InputError`.

    Args:
        folder: if it is not there yet, the nearest folder above it is checked.
        size: bytes that must be free.
        is_loaded: the code is loaded from there.
    """
    reason = None
    existing = folder.absolute()
    while not existing.exists():
        existing = existing.parent
    try:
        with tempfile.TemporaryFile(dir=existing) as file:
            _allocate(file.fileno(), size)
            if is_loaded and not _is_executable(file.fileno()):
                reason = "code cannot be loaded from there: its file system is mounted noexec"
    except OSError as error:
        reason = error.strerror
        if error.errno in FULL:
            reason = f"no space for {size >> 20} MiB ({reason})"
    if re.search(UNQUOTED, str(folder.absolute())):
        reason = "the compiler cannot read a path with spaces or quotes"
    if reason:
        raise InputError(
            f"a compiled model needs the folder {folder}: {reason}. Set the environment variable "
            f"{_variable(folder)} to another folder"
        )


def _allocate(file: int, size: int) -> None:
    """Take space for a file. Raises OSError if there is none, or no more for this user."""
    try:
        os.posix_fallocate(file, 0, size)
    except OSError as error:
        if error.errno not in UNSUPPORTED:
            raise
        os.write(file, bytes(mmap.PAGESIZE))


def _is_executable(file: int) -> bool:
    """Tell if a file's content can be mapped as code, as the loader of libraries does."""
    with suppress(PermissionError):
        mmap.mmap(file, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_EXEC).close()
        return True
    return False


def _variable(folder: Path) -> str:
    """Name the variable to set for another folder."""
    for name in CACHE_VARIABLES:
        if os.environ.get(name) == str(folder):
            return name
    return "TMPDIR"
