"""How a command ends: its exit code, its sentence about bad input, and how its process leaves.

The two codes of commands that were interrupted are in experiments/jobs/signals.py.
"""

import errno
import io
import logging
import os
import sys
from collections.abc import Callable
from typing import NoReturn

from rich.console import Console
from rich.markup import escape

from models.errors import InputError

COMPLETED, FAILED, BAD_INPUT, DIVERGED = 0, 1, 2, 3


def complain(error: Exception | str) -> int:
    """Print what is wrong with the input; the exit code."""
    Console(stderr=True, soft_wrap=True, highlight=False).print(
        f"[red]error:[/] {escape(str(error))}"
    )
    return BAD_INPUT


class _Output(io.FileIO):
    """A file whose failures raise nothing: `error` keeps the last one."""

    error: OSError | None = None

    def write(self, data) -> int:
        try:
            return super().write(data)
        except OSError as error:
            self.error = error
            return len(data)


def _without_failures(stream) -> io.TextIOWrapper:
    descriptor = (
        stream.fileno() if stream else os.open(os.devnull, os.O_WRONLY)
    )  # None: the shell closed it (`>&-`)
    output = io.BufferedWriter(_Output(descriptor, "w", closefd=False))
    encoding, errors = stream and stream.encoding, "backslashreplace"  # a locale may lack a letter
    return io.TextIOWrapper(output, encoding, errors, line_buffering=True)


def leave(command: Callable[[], int]) -> NoReturn:
    """Do a command's work, and end the process with its exit code, without the interpreter's
    clean-up.

    The clean-up can wait for 300 s for inductor's pool of compile workers (pytorch issue 162199),
    and with several ranks gloo sometimes aborts in it. The pool ends by itself once its pipe is
    closed. Output that cannot be written (a closed pipe, a full disk) changes nothing about the
    work and its exit code.
    """
    sys.stdout, sys.stderr = map(_without_failures, (sys.stdout, sys.stderr))
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
    error = sys.stdout.buffer.raw.error
    if error and error.errno != errno.EPIPE:
        print(f"standard output could not be written: {error.strerror}", file=sys.stderr)
    sys.stderr.flush()
    os._exit(code)
