"""The processes of a run: ranks that start and end together; and a real study of them.

tests/messages.txt has variables of ranks that are half set or nonsense.
"""

import os
import signal
import sys
import time

import pytest

from experiments.jobs import process
from experiments.records.files import last_window, read
from experiments.records.run import Manifest, Proof
from extensions.sharded import ranks as sharded_ranks
from extensions.sharded.collectives import Collectives
from extensions.sharded.ranks import Ranks, is_rank
from models.errors import InputError
from tests import processes
from tests.runs import TINY, losses_of, run_study

SRUN = {"SLURM_STEP_NUM_TASKS": "8", "SLURM_PROCID": "5", "SLURM_LOCALID": "1"}
TORCHRUN = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1"}
MEETING = {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}


@pytest.mark.parametrize(
    ("variables", "expected"),
    [(SRUN | MEETING, (8, "1")), (TORCHRUN | MEETING, (2, "1"))],
)
def test_ranks(variables, expected, monkeypatch):
    environment = dict(variables)
    monkeypatch.setattr("os.environ", environment)
    assert is_rank(expected[0]) and environment["LOCAL_RANK"] == expected[1]
    with pytest.raises(InputError, match="sharded.processes"):
        is_rank(5)


def test_a_process_that_nobody_started_as_a_rank_starts_them(monkeypatch):
    monkeypatch.setattr("os.environ", {})
    assert is_rank(1) and not is_rank(2)


@pytest.fixture
def ranks(tmp_path, monkeypatch):
    """Starts two ranks that run some lines of Python, and waits for their end."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)

    def start(line: str, gpus: tuple = ((0, None),)) -> Ranks:
        (tmp_path / "stand_in.py").write_text(f"import os, sys, time\n{line}")
        found = {"PYTHONPATH": str(tmp_path)}
        return Ranks(["stand_in"], tmp_path / "log.txt", list(gpus), found, 2)

    return start


def end(ranks: Ranks) -> int:
    """The exit code."""
    deadline = time.monotonic() + 30
    while ranks.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert all(processes.ends(rank.child.pid) for rank in ranks.ranks)
    return ranks.returncode


NAMES = [
    "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "CUDA_VISIBLE_DEVICES",
    "OMP_NUM_THREADS", "TORCHELASTIC_USE_AGENT_STORE", "MASTER_PORT",
]  # fmt: skip


def test_each_rank_is_told_of_the_others_and_of_its_share(ranks, tmp_path, monkeypatch):
    """Whatever variables of ranks this process has, as where a study is started by torchrun."""
    for name in NAMES[:4]:
        monkeypatch.setenv(name, "7")
    monkeypatch.setattr(process, "gpus", lambda: ["4", "5", "6", "7"])
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    told = (
        f"print(*map(os.environ.get, {NAMES}), file=sys.stderr)\nsys.exit(int(os.environ['RANK']))"
    )
    started = ranks(told, [(2, "6"), (3, "7")])
    assert end(started) == 1 and started.culprit == "rank 1 "
    log = tmp_path / "log.txt"
    rank_0, rank_1 = log.read_text().strip(), started.last_words()
    port = rank_0.split()[-1]
    assert rank_0 == f"0 0 2 2 6,7 2 False {port}" and rank_1 == f"1 1 2 2 6,7 2 False {port}"
    assert log.read_text().startswith(f"{rank_0}\n----") and log.read_text().endswith(rank_1 + "\n")


def test_a_killed_rank_ends_the_others_although_they_wait_for_it(ranks, monkeypatch):
    monkeypatch.setattr(sharded_ranks, "GRACE_S", 0.3)
    started = ranks("time.sleep(60)")
    started.ranks[0].child.send_signal(signal.SIGSTOP)
    started.ranks[1].child.kill()
    assert end(started) == -signal.SIGKILL and started.culprit == "rank 1 "
    assert started.last_words().startswith("see ")


def test_ranks_that_fail_alike_are_one_failure(ranks):
    started = ranks("print('error: why', file=sys.stderr)\nsys.exit(2)")
    assert end(started) == 2 and not started.culprit and started.last_words() == "error: why"


def test_a_second_ctrl_c_ends_ranks_that_hang(ranks, tmp_path, monkeypatch):
    monkeypatch.setattr(process, "GRACE_S", 0.3)
    started = ranks(
        "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "print('listens', file=sys.stderr, flush=True)\ntime.sleep(60)"
    )
    while not (tmp_path / "log.txt").read_text():
        time.sleep(0.02)
    started.send_signal(signal.SIGINT)
    assert end(started)


@pytest.mark.slow
def test_a_study_of_two_processes_is_stopped_and_goes_on_as_if_it_had_not_been(tmp_path, run_here):
    """FP8 under FSDP over gloo, gathered in FP8. The study gets SIGUSR1 once it trains."""
    steps = 8
    recipe = ["tensorwise_fp8_allgather", "--overlay", "cpu"]
    short = [*TINY, "compile.enable=false", "checkpoint.enable=true", f"training.steps={steps}",
             "checkpoint.interval=100"]  # fmt: skip
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    folder = stopped / "tensorwise_fp8_allgather/seed0"
    command = [sys.executable, "-m", "experiments.study", *recipe, "--out", stopped, *short]
    with processes.started(command, stdout=sys.stderr) as process:
        deadline = time.monotonic() + 120
        while not (window := last_window(folder)) or window.step < 2:
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.05)
        process.send_signal(signal.SIGUSR1)
        assert process.wait(timeout=120) == 75
    assert "by SIGUSR1, a checkpoint was saved" in read(folder / "manifest.json", Manifest).error
    code, said = run_study(stopped)
    assert code == 0, said
    assert run_here(*recipe, "--out", whole, *short) == 0
    assert losses_of(folder) == losses_of(whole) and len(losses_of(whole)) == steps
    proof = read(whole / "proof.json", Proof)
    assert proof.fp8_share_of_matmul_flops == pytest.approx(0.75)
    sent = Collectives.model_validate(proof.sharded)
    assert sent.gathered_bytes == sent.gathered_bytes_expected == 12_591_616  # in bf16 18,883,072
    assert sent.reduced_bytes == sent.reduced_bytes_expected == 20_980_736
    assert sent.all_reduces < 10  # one of all scales, not one a layer
    window = last_window(whole)
    assert window.tokens_per_s == pytest.approx(2 * 64 / window.step_s[0], rel=1e-4)
