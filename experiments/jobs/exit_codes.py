"""How the commands end: their exit codes, what is said of bad input, and how a process is left.

The two codes of commands that were interrupted are in experiments/jobs/signals.py."""

import logging
import os
import sys
from collections.abc import Callable
from typing import NoReturn

from rich.console import Console
from rich.markup import escape

COMPLETED, FAILED, BAD_INPUT, DIVERGED = 0, 1, 2, 3


def complain(error: Exception | str) -> int:
    """Print what is wrong with the input; the exit code."""
    Console(stderr=True, soft_wrap=True, highlight=False).print(f"[red]error:[/] {escape(str(error))}")
    return BAD_INPUT


def leave(command: Callable[[], int]) -> NoReturn:
    """Do a command's work, and end the process with its exit code, without the interpreter's clean-up.

    That can wait for 300 s for inductor's pool of compile workers (pytorch issue 162199), and of several ranks now and
    then gloo aborts in it. The pool ends by itself once its pipe is closed.
    """
    try:
        code = command()
    except Exception:
        sys.excepthook(*sys.exc_info())
        code = FAILED
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:  # a full disk, a pipe that nobody reads any more: what was said has not arrived
            code = code or FAILED
    os._exit(code)
