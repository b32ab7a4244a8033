"""Requests to stop a command, which is obeyed when; that a run ends with its study; and that
commands leave once their records are written."""

import os
import signal
import subprocess
import sys
import time

import pytest

from experiments.jobs.command import COME_BACK, FOR_GOOD, STARTER_PID, Stop
from tests import processes

# a run that starts for half a minute
BUSY = (
    "import time; from experiments.jobs.command import Stop\n"
    "Stop().listen(); print('listens', flush=True)\n"
    "time.sleep(30); print('outlived its study')"
)


def send(number: int) -> None:
    """To this process, which answers at once."""
    os.kill(os.getpid(), number)


@pytest.fixture
def stop(monkeypatch):
    monkeypatch.delenv(STARTER_PID, raising=False)
    stop = Stop()
    stop.listen()
    return stop


@pytest.mark.parametrize(
    ("request_", "code"), [(signal.SIGTERM, FOR_GOOD), (signal.SIGUSR1, COME_BACK)]
)
def test_a_request_before_the_first_step_ends_at_once(request_, code, stop):
    with pytest.raises(KeyboardInterrupt):
        send(request_)
        for _ in range(1000):  # the thread of SIGUSR1 needs a moment
            time.sleep(0.01)
    assert (stop.code, stop.why) == (code, request_.name)


def test_a_second_ctrl_c_does_not_wait_for_the_boundary(stop, monkeypatch):
    """The first one does, also after another request; what follows within a second is the same, by
    another way."""
    stop.deferred = True
    for number in signal.SIGTERM, signal.SIGINT, signal.SIGINT:
        send(number)
    assert stop.code == FOR_GOOD and stop.why == "SIGTERM"
    later = time.monotonic() + 2
    monkeypatch.setattr(time, "monotonic", lambda: later)
    with pytest.raises(KeyboardInterrupt):
        send(signal.SIGINT)


def test_a_run_does_not_outlive_its_study():
    """The study is killed with -9; what it started gets SIGTERM."""
    study = (
        "import os, subprocess, sys\n"
        f"os.environ[{STARTER_PID!r}] = str(os.getpid())\n"
        f"subprocess.run([sys.executable, '-c', {BUSY!r}])"
    )
    command = [sys.executable, "-c", study]
    with processes.started(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "listens\n"
        process.kill()
        assert process.stdout.read() == ""  # to its end, which is that of the run


# ---- the end ----

LEAVE = (
    "import atexit, time; atexit.register(time.sleep, 600)\n"
    "from experiments.jobs.command import require_single_process, leave\n"
)


@pytest.mark.parametrize(
    ("command", "code", "word"),
    [
        ("3", 3, ""),
        ("1 / 0", 1, "Traceback"),
        ("require_single_process()", 2, "error: "),
        ("(_ for _ in ()).throw(OSError('offline'))", 2, "error: the system: offline"),
    ],
)
def test_a_command_leaves_with_its_exit_code(command, code, word, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "nonsense")
    done = processes.run([sys.executable, "-c", f"{LEAVE}leave(lambda: {command})"], check=False)
    assert done.returncode == code and done.stderr.startswith(word)


@pytest.mark.parametrize("redirection", ["| head -c 1", "> /dev/full"])
def test_output_that_cannot_be_written_changes_no_exit_code(redirection):
    """`pipefail` gives the command's own code."""
    line = f"{LEAVE}leave(lambda: [print('x' * 100) for _ in range(2000)] and 3)"
    command = f'"$0" -c "$1" {redirection}'
    done = processes.run(
        ["bash", "-o", "pipefail", "-c", command, sys.executable, line], check=False
    )
    assert done.returncode == 3 and not done.stderr
