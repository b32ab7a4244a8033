"""Commands leave as soon as their records are written, whatever a library would still wait for."""

import os
import signal
import subprocess
import sys

import pytest

from tests import processes

LEAVE = (
    "import atexit, time; atexit.register(time.sleep, 600)\n"
    "from experiments.jobs.command import leave\n"
    "from experiments.jobs.ranks import number\n"
)


@pytest.mark.parametrize(
    ("command", "code", "word"),
    [
        ("3", 3, ""),
        ("1 / 0", 1, "Traceback"),
        ("number('X')", 2, "error: "),
        ("exec('raise SystemExit(2)')", 2, ""),
    ],
)
def test_a_command_leaves_with_its_exit_code(command, code, word, monkeypatch):
    monkeypatch.setenv("X", "nonsense")
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


POOL = """
import signal, sys, time
from torch._inductor.async_compile import AsyncCompile, _pool_set
from experiments.jobs.command import leave

def command():
    AsyncCompile.warm_pool()
    AsyncCompile.wakeup()
    while not AsyncCompile.use_process_pool():
        time.sleep(0.05)
    pool = next(iter(_pool_set)).process
    workers = open(f"/proc/{pool.pid}/task/{pool.pid}/children").read()
    print(pool.pid, workers, end="")
    pool.send_signal(signal.SIGSTOP)
    return 0

leave(command)
"""


@pytest.mark.slow
def test_the_compile_pool_is_not_waited_for_and_ends(monkeypatch):
    """pytorch issue 162199: at a regular end, a pool that does not answer is waited for, for 300
    s."""
    monkeypatch.setenv("TORCHINDUCTOR_COMPILE_THREADS", "2")
    command = [sys.executable, "-c", POOL]
    with processes.started(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.wait(120) == 0
        pool, *workers = map(int, process.stdout.read().split())
        os.kill(pool, signal.SIGCONT)
        assert workers and all(map(processes.ends, [pool, *workers]))
