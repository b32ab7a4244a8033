"""Requests to stop: which is obeyed when, and that a run ends with its study."""

import os
import signal
import subprocess
import sys
import time

import pytest
from rich.console import Console

from experiments.jobs import placement, runner
from experiments.jobs.runner import Run, run_all
from experiments.jobs.signals import FOR_GOOD, STUDY_PID, Stop
from tests import processes

# a run within a step that lasts for a minute
BUSY = (
    "import time; from experiments.jobs.signals import Stop; s = Stop(); s.listen(); s.deferred = {}; print(flush=True)"
    "\ntime.sleep(60)"
)


def send(number: int) -> None:
    """To this process, and wait for it to be answered."""
    os.kill(os.getpid(), number)
    time.sleep(0.2)


@pytest.fixture
def stop(monkeypatch):
    monkeypatch.delenv(STUDY_PID, raising=False)
    stop = Stop()
    stop.listen()
    return stop


def test_a_request_before_the_first_step_ends_at_once(stop):
    with pytest.raises(KeyboardInterrupt):
        send(signal.SIGTERM)
    assert (stop.code, stop.why) == (FOR_GOOD, "SIGTERM")


def test_a_second_ctrl_c_does_not_wait_for_the_boundary(stop):
    """The first one does, also after another request; what follows within a second is the same, by
    another way."""
    stop.deferred = True
    for number in signal.SIGTERM, signal.SIGINT, signal.SIGINT:
        send(number)
    assert stop.code == FOR_GOOD and stop.why == "SIGTERM"
    time.sleep(1)
    with pytest.raises(KeyboardInterrupt):
        send(signal.SIGINT)


def test_a_second_ctrl_c_on_a_study_ends_its_runs_at_once(stop, tmp_path, monkeypatch):
    """The run gets SIGTERM for the first and waits for its step; the study's own second one reaches
    it as SIGINT."""
    monkeypatch.setattr(placement, "gpus", lambda: [None])
    started = []

    def start(arguments, gpu, place, environment, stdout, stderr):
        variables = os.environ | environment | {STUDY_PID: str(os.getpid())}
        command = [sys.executable, "-c", BUSY.format(True)]
        child = subprocess.Popen(
            command, env=variables, stdout=subprocess.PIPE, stderr=stderr, start_new_session=True
        )
        started.append((child.stdout.readline(), variables["TORCHINDUCTOR_CACHE_DIR"]))
        os.kill(os.getpid(), signal.SIGINT)
        return child

    def insist(seconds, calls=[], sleep=time.sleep):  # noqa: B006
        """In place of the runner's pause: the second Ctrl-C comes in its second one."""
        calls.append(seconds)
        sleep(1.2)
        if len(calls) == 2:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(runner, "set_by_user", lambda variable: False)
    monkeypatch.setattr(placement, "start", start)
    monkeypatch.setattr(runner.time, "sleep", insist)
    begin, run = time.monotonic(), Run("a", tmp_path / "a", [])
    assert run_all([run], Console(), stop) == [-signal.SIGINT]
    assert time.monotonic() - begin < 30 and not os.path.exists(started[0][1])


def test_a_run_does_not_outlive_its_study():
    """The study is killed with -9; what it started gets SIGTERM."""
    parent = (
        "import os, subprocess, sys\n"
        f"os.environ[{STUDY_PID!r}] = str(os.getpid())\n"
        f"child = subprocess.Popen([sys.executable, '-c', {BUSY.format(False)!r}], stdout=subprocess.PIPE)\n"
        "child.stdout.readline(); print(child.pid, flush=True); child.wait()"
    )
    with processes.started(
        [sys.executable, "-c", parent], stdout=subprocess.PIPE, text=True
    ) as process:
        child_pid = int(process.stdout.readline())
        process.kill()
        process.wait()
        assert processes.ends(child_pid)
