"""How a command ends: its exit code, its sentence about bad input, and how its process leaves.

The two codes of commands that were interrupted are in experiments/jobs/signals.py.
"""

import errno
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


class _Output:
    """A text stream whose failures raise nothing: `error` keeps the last one."""

    def __init__(self, stream):
        self._stream = stream or open(os.devnull, "w")  # None: the shell closed it (`>&-`)
        self._stream.reconfigure(errors="backslashreplace")  # a locale may lack a letter
        self.error: OSError | None = None

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except OSError as error:
            self.error = error
            return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError as error:
            self.error = error

    def __getattr__(self, name: str):
        return getattr(self._stream, name)


def leave(command: Callable[[], int]) -> NoReturn:
    """Do a command's work, and end the process with its exit code, without the interpreter's clean-up.

    The clean-up can wait for 300 s for inductor's pool of compile workers (pytorch issue 162199), and with several
    ranks gloo sometimes aborts in it. The pool ends by itself once its pipe is closed. Output that cannot be written
    (a closed pipe, a full disk) changes nothing about the work and its exit code.
    """
    sys.stdout, sys.stderr = output, _ = _Output(sys.stdout), _Output(sys.stderr)
    try:
        code = command()
    except SystemExit as end:  # argparse's, after --help and after bad arguments
        code = int(end.code or 0)
    except Exception:
        sys.excepthook(*sys.exc_info())
        code = FAILED
    logging.shutdown()
    sys.stdout.flush()
    if output.error and output.error.errno != errno.EPIPE:
        print(f"standard output could not be written: {output.error.strerror}", file=sys.stderr)
    sys.stderr.flush()
    os._exit(code)
