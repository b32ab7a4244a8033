"""The processes of a run: ranks that start and end together; and a real run of them."""

import os
import signal
import sys
import time

import pytest
from torch.distributed.elastic.multiprocessing import PContext

from experiments.jobs.command import EXIT_FAILED, StopRequest
from experiments.records.run import last_interval
from experiments.run import main
from extensions.sharded import launcher
from extensions.sharded.tests import forked
from tests import processes
from tests.runs import TINY, attempt_of, losses_of, proof_of

# `meet` returns once both ranks have called it
STAND_IN = """import os, signal, sys, time
from pathlib import Path

def meet():
    files = [Path(__file__).with_name(rank) for rank in ("0", "1")]
    files[int(os.environ["RANK"])].touch()
    while not all(file.exists() for file in files):
        time.sleep(0.01)

"""


@pytest.fixture
def run_two(tmp_path, monkeypatch, capfd):
    """Runs some lines of Python as two ranks; returns the exit code and what was printed."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    def run(lines: str) -> tuple[int, str]:
        (tmp_path / "stand_in.py").write_text(f"{STAND_IN}{lines}")
        rendezvous = launcher.meet(1, None, 60)
        code = launcher.launch(["stand_in"], 2, rendezvous, StopRequest())
        return code, capfd.readouterr().err

    return run


NAMES = ["RANK", "LOCAL_RANK", "WORLD_SIZE", "OMP_NUM_THREADS"]


def test_each_rank_is_told_of_the_others_and_of_its_share(run_two, monkeypatch):
    """Whatever variables of ranks this process has. The output of the rank that failed follows."""
    monkeypatch.setenv("RANK", "7")
    monkeypatch.setattr(launcher, "list_visible_gpus", lambda: [None])
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    code, said = run_two(
        f"print(*map(os.environ.get, {NAMES}), file=sys.stderr)\n"
        "meet()\n"
        "sys.exit(int(os.environ['RANK']))"
    )
    first, title, second, *_ = said.splitlines()
    assert (code, first, second) == (1, "0 0 2 4", "1 1 2 4") and "rank 1" in title


def test_a_run_that_takes_more_gpus_than_are_here_is_refused(monkeypatch, fails):
    monkeypatch.setattr(launcher, "list_visible_gpus", lambda: ["0"])
    keys = ["baseline", "--overlay", "cpu", "sharded.processes=2"]
    assert "takes 2 GPUs, and 1 are here" in fails(main, *keys)


@pytest.mark.parametrize("dies", ["SIGKILL", "SIGSEGV"])
def test_a_killed_rank_ends_the_others_although_they_wait_for_it(dies, run_two, monkeypatch):
    monkeypatch.setattr(PContext.close, "__defaults__", (None, 0.3))  # else after 30 s
    code, said = run_two(
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "meet()\n"
        f"if os.environ['RANK'] == '1': os.kill(os.getpid(), signal.{dies})\n"
        "time.sleep(60)"
    )
    assert code == EXIT_FAILED and f"rank 1 was killed by {dies}" in said


def test_ranks_that_fail_alike_are_one_failure(run_two):
    code, said = run_two(
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "print('why', file=sys.stderr)\n"
        "meet()\n"
        "if os.environ['RANK'] == '0': time.sleep(0.3)\n"
        "sys.exit(2)"
    )
    assert (code, said) == (2, "why\n")


@pytest.mark.slow
def test_a_run_of_two_processes_is_stopped_and_goes_on(tmp_path):
    """FP8 under FSDP over gloo, gathered in FP8. The run gets SIGUSR1 once it trains."""
    steps, recipe = 6, "tensorwise_fp8_allgather"
    keys = [*TINY, "compile.enable=false", "checkpoint.enable=true", f"training.steps={steps}"]
    keys += ["sharded.processes=2", "metrics.enable_tensorboard=false"]
    run = tmp_path / "run"
    command = [sys.executable, "-m", "experiments.run", recipe, "--overlay", "cpu", *keys]
    with processes.started([*command, "--out", run], stdout=sys.stderr) as process:
        deadline = time.monotonic() + 120
        while not last_interval(run):
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.05)
        process.send_signal(signal.SIGUSR1)
        assert process.wait(timeout=120) == 75
    assert "by SIGUSR1, a checkpoint was saved" in attempt_of(run)["error"]
    forked.train(tmp_path, {"run": (recipe, keys)})
    assert len(losses_of(run)) == steps
    sent = proof_of(run).sharded
    assert (sent["gathered_bytes"], sent["reduced_bytes"]) == (12_591_616, 20_980_736)
    assert sent["all_reduces"] < 10  # one of all scales, not one a layer
