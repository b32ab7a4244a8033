"""Processes that tests start: each has a time limit, and its process group ends with it, with the
test, and with a test run that is killed."""

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


@contextmanager
def started(command: list, **keys) -> Iterator[subprocess.Popen]:
    """A process of its own group, from the project's folder; `keys` are those of
    `subprocess.Popen`."""
    with_us = ["setpriv", "--pdeathsig", "KILL", *map(str, command)]
    process = subprocess.Popen(with_us, start_new_session=True, **{"cwd": ROOT, **keys})
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):  # none of the group is left
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def run(
    command: list, seconds: float = 120, check: bool = True, **keys
) -> subprocess.CompletedProcess[str]:
    """What a process prints, once it has ended. Raises `subprocess.TimeoutExpired`, and
    AssertionError for `check`."""
    with started(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **keys
    ) as process:
        out, errors = process.communicate(timeout=seconds)
    assert not check or process.returncode == 0, out + errors
    return subprocess.CompletedProcess(command, process.returncode, out, errors)
