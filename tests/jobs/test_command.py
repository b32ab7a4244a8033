"""Requests to stop a command, which is obeyed when; that a run ends with its study; and that
commands leave once their records are written."""

import os
import signal
import subprocess
import sys
import time

import pytest

from experiments.jobs.command import (
    EXIT_RESUME,
    EXIT_STOPPED,
    STARTER_PID,
    CommandLine,
    StopRequest,
)
from tests import processes

# a run that starts for half a minute
BUSY = (
    "import time; from experiments.jobs.command import StopRequest\n"
    "StopRequest().listen(); print('listens', flush=True)\n"
    "time.sleep(30); print('outlived its study')"
)


def send(number: int) -> None:
    """To this process, which answers at once."""
    os.kill(os.getpid(), number)


@pytest.fixture
def stop(monkeypatch):
    monkeypatch.delenv(STARTER_PID, raising=False)
    stop = StopRequest()
    stop.listen()
    return stop


@pytest.mark.parametrize(
    ("request_", "code"), [(signal.SIGTERM, EXIT_STOPPED), (signal.SIGUSR1, EXIT_RESUME)]
)
def test_a_request_before_the_first_step_ends_at_once(request_, code, stop):
    with pytest.raises(KeyboardInterrupt):
        send(request_)
        for _ in range(1000):  # the thread of SIGUSR1 needs a moment
            time.sleep(0.01)
    assert (stop.exit_code, stop.signal_name) == (code, request_.name)


def test_a_second_ctrl_c_does_not_wait_for_the_boundary(stop, monkeypatch):
    """The first one does, also after another request; what follows within a second is the same, by
    another way."""
    stop.waits_for_step_end = True
    for number in signal.SIGTERM, signal.SIGINT, signal.SIGINT:
        send(number)
    assert stop.exit_code == EXIT_STOPPED and stop.signal_name == "SIGTERM"
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
    "from experiments.jobs.command import exit_with, require_single_process\n"
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
    done = processes.run(
        [sys.executable, "-c", f"{LEAVE}exit_with(lambda: {command})"], check=False
    )
    assert done.returncode == code and done.stderr.startswith(word)


@pytest.mark.parametrize("redirection", ["| head -c 1", "> /dev/full"])
def test_output_that_cannot_be_written_changes_no_exit_code(redirection):
    """`pipefail` gives the command's own code."""
    line = f"{LEAVE}exit_with(lambda: [print('x' * 100) for _ in range(2000)] and 3)"
    command = f'"$0" -c "$1" {redirection}'
    done = processes.run(
        ["bash", "-o", "pipefail", "-c", command, sys.executable, line], check=False
    )
    assert done.returncode == 3 and not done.stderr


@pytest.mark.parametrize(("second", "count"), [("training.steps=9", 1), ("training.steps=5", 0)])
def test_a_key_that_is_given_twice_is_told(second, count, caplog):
    parser = CommandLine("experiments.run", "")
    parser.add_recipe()
    parser.parse_arguments(["baseline", "training.steps=5", second])
    assert caplog.text.count(f"{second} counts") == count
