"""Define `InputError`, the one kind of error for the user to fix, and commands that fix it."""

import re
import shlex
import sys
from collections.abc import Iterable
from pathlib import Path

VENV_FOLDER = Path(__file__).resolve().parents[1] / ".venv"


def name_python() -> str:
    """Name this Python for a command in the repository's folder.

    Returns `.venv/bin/python`, or the path of another Python, as of a container without .venv.
    """
    if VENV_FOLDER.exists() and VENV_FOLDER.samefile(sys.prefix):
        return ".venv/bin/python"
    return shlex.quote(sys.executable)


PYTHON = name_python()
"""This Python, at the beginning of each command that a message prints."""

REINSTALL = "rm -r .venv && make install"
"""Makes the environment anew, with the torch that this machine's driver can use."""


def explain_missing_package(error: ImportError) -> str:
    """Say which Python has the package, or how to install it."""
    if (VENV_FOLDER / "installed").exists() and not VENV_FOLDER.samefile(sys.prefix):
        return (
            f"this Python, {sys.executable}, lacks a package ({error}): run the command with "
            f"{shlex.quote(str(VENV_FOLDER / 'bin/python'))}"
        )
    return (
        f"the installed packages are not whole ({error}): `{REINSTALL}`, on a cluster in the "
        "container of its jobs"
    )


class InputError(ValueError):
    """Bad input: the message says what is wrong and how to fix it.

    It is one sentence, or one line per fault.
    """


def format_name_patterns(names: Iterable[str]) -> str:
    """List module names in a sentence, with a pattern for the blocks' numbers:
    `layers.*.attention.wq, output`."""
    return ", ".join(sorted({re.sub(r"[.][0-9]+[.]", ".*.", name) for name in names}))
