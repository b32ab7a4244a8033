"""Commands leave as soon as their records are written, whatever a library would still wait for."""

import subprocess
import sys

import pytest

from tests import processes
from tests.processes import ROOT

NEVER_CLEANED_UP = "import atexit, runpy, time; atexit.register(time.sleep, 600); "


@pytest.mark.parametrize(
    ("command", "code", "sentence"),
    [
        ("recipe list", 0, "tensorwise_fp8_compiled"),
        ("data prepare baselin", 2, "did you mean"),
        ("study baselin", 2, "did you mean"),
        ("bench baselin", 2, "did you mean"),
        pytest.param(
            "profiling.worker nowhere.yaml record.json", 1, "error:", marks=pytest.mark.slow
        ),
    ],
)
def test_commands_do_not_wait_for_the_interpreters_clean_up(command, code, sentence):
    module, *arguments = command.split()
    line = f"import sys; sys.argv = ['it', *{arguments}]; runpy.run_module('experiments.{module}', run_name='__main__')"
    done = processes.run([sys.executable, "-c", NEVER_CLEANED_UP + line], check=False)
    assert done.returncode == code and sentence in done.stdout + done.stderr


@pytest.mark.parametrize(
    "path", sorted(ROOT.glob("experiments/[a-z]*.py")), ids=lambda path: path.stem
)
def test_every_command_leaves_so(path):
    assert 'if __name__ == "__main__":\n    leave(' in path.read_text()


@pytest.mark.parametrize(
    ("command", "code", "sentence"),
    [("1 / 0", 1, "ZeroDivisionError"), ("number('X', 0)", 2, "X is 'nonsense'")],
)
def test_a_command_that_raises_says_why_and_leaves(command, code, sentence, monkeypatch):
    monkeypatch.setenv("X", "nonsense")
    imports = (
        "from experiments.jobs.exit_codes import leave; from experiments.jobs.ranks import number; "
    )
    done = processes.run(
        [sys.executable, "-c", f"{NEVER_CLEANED_UP}{imports}leave(lambda: {command})"], check=False
    )
    assert (
        done.returncode == code
        and sentence in done.stderr
        and ("Traceback" in done.stderr) == (code == 1)
    )


@pytest.mark.parametrize(
    "redirection", ["> /dev/full", ">&-", "| head -c 1", "> /dev/full 2> /dev/full"]
)
def test_output_that_cannot_be_written_changes_no_exit_code(redirection):
    """Also where much is printed after a pipe has closed. `pipefail` gives the command's own
    code."""
    line = (
        "import logging, sys; from rich.console import Console; from experiments.jobs.exit_codes import leave\n"
        "def command():\n"
        "    for _ in range(2000):\n"
        "        print('x' * 100); Console().print('x')\n"
        "    logging.basicConfig(stream=sys.stdout, level=20); logging.info('x' * 9999)\n"
        "    return 3\n"
        "leave(command)"
    )
    done = processes.run(
        ["bash", "-o", "pipefail", "-c", f'"$0" -c "$1" {redirection}', sys.executable, line],
        check=False,
    )
    assert done.returncode == 3 and "Error" not in done.stderr and "Traceback" not in done.stderr


POOL = """
import signal, sys, time
from torch._inductor.async_compile import AsyncCompile, _pool_set
from experiments.jobs.exit_codes import leave

def command():
    AsyncCompile.warm_pool()
    AsyncCompile.wakeup()
    while not AsyncCompile.use_process_pool():
        time.sleep(0.05)
    pool = next(iter(_pool_set)).process
    workers = open(f"/proc/{pool.pid}/task/{pool.pid}/children").read()
    print(pool.pid, workers, end="")
    if sys.argv[1] == "hangs":
        pool.send_signal(signal.SIGSTOP)
    return 0

leave(command)
"""


@pytest.mark.slow
@pytest.mark.parametrize("pool", ["hangs", "works"])
def test_the_compile_pool_is_not_waited_for_and_ends(pool, monkeypatch):
    """pytorch issue 162199: at a regular end, a pool that does not answer is waited for, for 300
    s."""
    monkeypatch.setenv("TORCHINDUCTOR_COMPILE_THREADS", "2")
    with processes.started(
        [sys.executable, "-c", POOL, pool], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.wait(120) == 0
        workers = [int(pid) for pid in process.stdout.read().split()]
        assert len(workers) >= 2 and (pool == "hangs" or all(map(processes.ends, workers)))
