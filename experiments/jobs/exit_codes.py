"""How a command ends: its exit code, its sentence about bad input, and how its process leaves.

The two codes of commands that were interrupted are in experiments/jobs/signals.py.
"""

import io
import logging
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn

from rich.console import Console
from rich.markup import escape

from models.errors import InputError

COMPLETED, FAILED, BAD_INPUT, DIVERGED = 0, 1, 2, 3


def complain(error: Exception | str) -> int:
    """Print what is wrong with the input; returns the exit code."""
    console = Console(stderr=True, soft_wrap=True, highlight=False)
    console.print(f"[red]error:[/] {escape(str(error))}")
    return BAD_INPUT


class _Output(io.FileIO):
    """A file whose failures raise nothing: a closed pipe ends no training."""

    def write(self, data) -> int:
        with suppress(OSError):
            return super().write(data)
        return len(data)


def leave(command: Callable[[], int]) -> NoReturn:
    """Do a command's work, and end the process with its exit code, without the interpreter's
    clean-up.

    The clean-up can wait for 300 s for inductor's pool of compile workers (pytorch issue 162199),
    and with several ranks gloo sometimes aborts in it. The pool ends by itself once its pipe is
    closed.
    """
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        output = io.BufferedWriter(_Output(stream.fileno(), "w", closefd=False))
        # "backslashreplace": a locale may lack a letter
        text = io.TextIOWrapper(output, stream.encoding, "backslashreplace", line_buffering=True)
        setattr(sys, name, text)
    try:
        code = command()
    except InputError as error:
        code = complain(error)
    except SystemExit as end:  # argparse's, after --help and after bad arguments
        code = int(end.code or 0)
    except Exception:
        sys.excepthook(*sys.exc_info())
        code = FAILED
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
