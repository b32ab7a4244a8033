"""Check what torch.compile needs of this machine: a compiler, and folders for its kernels.

Without the check a run would fail after minutes of compilation. Folders with quotes in their names
are refused, and for a CPU folders with spaces too: see `UNREADABLE_CHARACTERS`.
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
from experiments.records.files import DISK_FULL_REASONS
from models import device
from models.errors import InputError

CACHE_BYTES = 128 << 20 if device.TYPE == "cuda" else 32 << 20
"""Free space for a run's kernels; they were seen to take 7 to 65 MB on a GPU, 9 MB on a CPU."""
TEMPORARY_BYTES = 16 << 20
"""Free space for the compiler's intermediate files."""
UNREADABLE_CHARACTERS = {"cpu": r"[\s'\"\\]", "cuda": '"'}
"""Characters that no path may have, by device. torch does not quote paths for the C++ compiler of a
CPU, whose command is split at them. Triton hands each path to its compilers as an argument of its
own, but writes the path of a kernel's source between double quotes into the code for ptxas. With
torch 2.11 on a stand-in for a GPU, recipes in FP8 compiled in folders with a space, a tab, a single
quote and a backslash."""
UNSUPPORTED_CODES = (errno.EOPNOTSUPP, errno.EINVAL, errno.ENODEV)
"""The answers of file systems that cannot reserve space."""


def check_compilation(cache_folders: Iterable[str] = ()) -> None:
    """Check what compiling a model takes. Raises `InputError`.

    Args:
        cache_folders: for kernels, if not those of this process's variables.
    """
    check_compiler()
    torch_folder = torch.__path__[0]
    if re.search(UNREADABLE_CHARACTERS[device.TYPE], torch_folder):
        raise InputError(
            f"a compiled model needs torch in a path without spaces or quotes, and torch is in "
            f"{torch_folder}: move the repository to a path without them and run `make install` "
            "there, or run the recipe `baseline`, which is not compiled"
        )
    if not cache_folders:
        cache_folders = [os.environ[name] for name in CACHE_VARIABLES if os.environ.get(name)]
    for folder in cache_folders:
        check_code_folder(Path(folder), CACHE_BYTES, loads_code=True)
    for folder in list_temporary_folders():
        check_code_folder(Path(folder), TEMPORARY_BYTES)


def list_temporary_folders() -> set[str]:
    """List the folders for temporary files: Python takes another one where TMPDIR is full, and the
    compiler does not."""
    folders = {tempfile.gettempdir()}
    chosen_folder = os.environ.get("TMPDIR")
    if chosen_folder and os.access(chosen_folder, os.W_OK | os.X_OK):
        folders.add(chosen_folder)
    return folders


def check_compiler() -> None:
    """Check for what inductor compiles with. Raises `InputError`.

    On a CPU that is a C++ compiler; on a GPU Triton's launchers take a C compiler and Python's
    headers.
    """
    missing = None
    if device.TYPE == "cpu":
        compilers = [os.environ.get("CXX", "g++")]
    elif "CC" in os.environ:
        compilers = [os.environ["CC"]]
    else:
        compilers = ["gcc", "clang"]
    headers = Path(get_paths("posix_prefix")["include"], "Python.h")
    if device.TYPE == "cuda" and not headers.exists():
        missing = "Python.h (package python3-dev or python3-devel)"
    if not any(shutil.which(compiler.split(" ")[0]) for compiler in compilers):
        missing = f"the compiler `{compilers[0]}`"
    if missing:
        raise InputError(
            f"a compiled model needs {missing}, which is not here: install it, name another "
            "compiler in the environment variable CC (on a CPU: CXX), or run the recipe "
            "`baseline`, which is not compiled"
        )


def check_code_folder(folder: Path, size: int, loads_code: bool = False) -> None:
    """Check a folder for compiled code. Raises `InputError`.

    Args:
        folder: if it is missing, the nearest folder above it is checked.
        size: bytes that must be free.
        loads_code: libraries are loaded from the folder.
    """
    reason = None
    existing_folder = folder.absolute()
    while not existing_folder.exists():
        existing_folder = existing_folder.parent
    try:
        with tempfile.TemporaryFile(dir=existing_folder) as file:
            _allocate(file.fileno(), size)
            if loads_code and not _is_executable(file.fileno()):
                reason = "code cannot be loaded from there: its file system is mounted noexec"
    except OSError as error:
        reason = error.strerror
        if error.errno in DISK_FULL_REASONS:
            reason = f"no space for {size >> 20} MiB ({reason})"
    if re.search(UNREADABLE_CHARACTERS[device.TYPE], str(folder.absolute())):
        reason = "the compiler cannot read a path with spaces or quotes"
    if reason:
        raise InputError(
            f"a compiled model needs the folder {folder}: {reason}. Set the environment variable "
            f"{_name_variable(folder)} to another folder"
        )


def _allocate(file: int, size: int) -> None:
    """Take space for a file. Raises OSError if there is none, or no more for this user."""
    try:
        os.posix_fallocate(file, 0, size)
    except OSError as error:
        if error.errno not in UNSUPPORTED_CODES:
            raise
        os.write(file, bytes(mmap.PAGESIZE))


def _is_executable(file: int) -> bool:
    """Tell if a file's content can be mapped as code, as the loader of libraries does."""
    with suppress(PermissionError):
        mmap.mmap(file, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_EXEC).close()
        return True
    return False


def _name_variable(folder: Path) -> str:
    """Name the variable to set for another folder."""
    for name in CACHE_VARIABLES:
        if os.environ.get(name) == str(folder):
            return name
    return "TMPDIR"
