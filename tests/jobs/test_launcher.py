"""Runs of several processes: ranks that end together, and a study of them that is stopped and goes
on."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from experiments import run, study
from experiments.jobs import launcher, placement
from experiments.jobs.launcher import Ranks
from models import device
from tests import processes
from tests.runs import TINY, lines_of, losses_of, manifest_of, run_study

ALLGATHER = ["tensorwise_fp8_allgather", "--processes", "2", "--overlay", "cpu"]
STEPS = 12
SHORT = [
    *TINY,
    "compile.enable=false",
    "checkpoint.enable=true",
    f"training.steps={STEPS}",
    "checkpoint.interval=100",
]


@pytest.fixture
def ranks(tmp_path, monkeypatch):
    """Starts two ranks that run a line of Python."""

    def start(line: str, gpus: list) -> Ranks:
        def python(arguments, gpu, place, environment, stdout, stderr):
            variables = {
                name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"
            } | environment
            command = [sys.executable, "-c", f"import os, sys, time; {line}"]
            return subprocess.Popen(
                command, env=variables, stdout=stdout, stderr=stderr, start_new_session=True
            )

        monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
        monkeypatch.setattr(placement, "start", python)
        return Ranks([], gpus, 2, {}, tmp_path / "log.txt")

    return start


def end(ranks: Ranks) -> int:
    """The exit code."""
    deadline = time.monotonic() + 30
    while (code := ranks.poll()) is None:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert all(processes.ends(child.pid) for child in ranks.children)
    return code


def test_each_rank_is_told_of_the_others_and_of_its_share(ranks, tmp_path, monkeypatch):
    monkeypatch.setattr(placement, "gpus", lambda: ["4", "5", "6", "7"])
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    names = "RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE CUDA_VISIBLE_DEVICES OMP_NUM_THREADS MASTER_PORT".split()
    told = (
        f"print(*map(os.environ.get, {names}), file=sys.stderr); sys.exit(int(os.environ['RANK']))"
    )
    started = ranks(told, [(2, "6"), (3, "7")])
    assert end(started) == 1 and started.first == 1
    log = tmp_path / "log.txt"
    rank_0, rank_1 = log.read_text().strip(), started.last_words()
    port = rank_0.split()[-1]
    assert rank_0 == f"0 0 2 2 6,7 2 {port}" and rank_1 == f"1 1 2 2 6,7 2 {port}"
    assert (
        log.read_text() == f"{rank_0}\n---- output of rank 1, which failed first ----\n{rank_1}\n"
    )


def test_a_killed_rank_ends_the_others_although_they_wait_for_it(ranks, monkeypatch):
    monkeypatch.setattr(launcher, "GRACE_S", 0.3)
    started = ranks("time.sleep(60)", [(0, None)])
    started.children[1].kill()
    assert end(started) == -signal.SIGKILL and started.first == 1
    assert started.last_words().startswith("see ")


def test_signals_reach_all_ranks(ranks):
    started = ranks("time.sleep(60)", [(0, None)])
    started.send_signal(signal.SIGTERM)
    assert end(started) == -signal.SIGTERM


def test_a_second_ctrl_c_ends_ranks_that_hang(ranks, tmp_path, monkeypatch):
    monkeypatch.setattr(launcher, "GRACE_S", 0.3)
    started = ranks("print('listens', file=sys.stderr, flush=True); time.sleep(60)", [(0, None)])
    while not (tmp_path / "log.txt").read_text():  # once Python has taken over SIGINT
        time.sleep(0.02)
    started.send_signal(signal.SIGSTOP)
    started.send_signal(signal.SIGINT)
    assert end(started) < 0


@pytest.mark.parametrize(("command", "more"), [(run, []), (run, ["--dry-run"]), (study, [])])
def test_more_processes_than_gpus_are_refused(command, more, fails, tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    arguments = [
        "baseline",
        "--overlay",
        "cpu",
        "--processes",
        "3",
        "--out",
        tmp_path / "out",
        *more,
    ]
    assert "a run of 3 processes needs 3 GPUs, and 2 are here" in fails(command.main, *arguments)
    assert not (tmp_path / "out").exists()


def test_bad_input_is_refused_before_any_rank_is_started(fails, tmp_path, monkeypatch):
    """A model that the machine cannot hold, and folders that hold something else: nothing is
    written into them."""
    monkeypatch.setattr(run, "start_ranks", None)
    two = ["baseline", "--overlay", "cpu", "--processes", "2", "--out"]
    huge = ["model.flavor=llama3.1-8B", "training.seq_len=131072", "training.local_batch_size=64"]
    assert "the run needs about" in fails(run.main, *two, tmp_path / "new", *huge)
    assert not (tmp_path / "new").exists()
    (tmp_path / "thesis.tex").touch()
    assert "holds files and is no run directory" in fails(run.main, *two, tmp_path)
    (tmp_path / "manifest.json").write_text('{"status": "completed", "world_size": 2}')
    assert "holds a completed run" in fails(run.main, *two, tmp_path)
    (tmp_path / "manifest.json").write_text('{"status": "interrupted", "world_size": 3}')
    assert "an unfinished run of 3 processes, and this one has 2" in fails(run.main, *two, tmp_path)
    assert not (tmp_path / "log.txt").exists()


@pytest.mark.parametrize(
    ("command", "sentence"),
    [(run, "has started 4: leave --processes out"), (study, "start one study without torchrun")],
)
def test_processes_that_torchrun_has_started_are_not_started_again(
    command, sentence, fails, monkeypatch
):
    started = {
        "RANK": "1",
        "LOCAL_RANK": "1",
        "WORLD_SIZE": "4",
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": "29500",
    }
    for name, value in started.items():
        monkeypatch.setenv(name, value)
    assert sentence in fails(command.main, "baseline", "--overlay", "cpu", "--processes", "2")


def test_processes_on_a_cpu_share_its_peak(monkeypatch):
    monkeypatch.setattr(device, "TYPE", "cpu")
    monkeypatch.setenv(device.MEASURED_PEAK, "8e9")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert device.peak.__wrapped__().bf16 == 4e9


@pytest.mark.slow
def test_a_study_of_two_processes_is_stopped_and_goes_on_as_if_it_had_not_been(tmp_path, run_here):
    """FP8 under FSDP over gloo, gathered in FP8. The study gets SIGUSR1 once it trains."""
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    directory = stopped / "tensorwise_fp8_allgather/seed0"
    command = [sys.executable, "-m", "experiments.study", *ALLGATHER, "--out", stopped, *SHORT]
    with processes.started(command, stdout=subprocess.DEVNULL) as process:
        until_trains(directory, process)
        process.send_signal(signal.SIGUSR1)
        assert process.wait(timeout=120) == 75
    assert "by SIGUSR1, a checkpoint was saved" in manifest_of(directory)["error"]
    code, said = run_study(stopped)
    assert code == 0 and "2 processes on " in said, said
    assert run_here(*ALLGATHER, "--out", whole, *SHORT) == 0
    assert losses_of(directory) == losses_of(whole) and len(losses_of(whole)) == STEPS
    manifest, proof = (
        json.loads((whole / f"{name}.json").read_text()) for name in ("manifest", "proof")
    )
    assert manifest["world_size"] == 2 and proof["fp8_share_of_matmul_flops"] == pytest.approx(0.75)
    sent = proof["collectives"]
    assert (
        sent["gathered_bytes"] == sent["gathered_bytes_expected"] == 12_591_616
    )  # in bf16 18,883,072
    assert sent["reduced_bytes"] == sent["reduced_bytes_expected"] == 20_980_736
    assert (
        sent["all_reduces"] == 7
    )  # of the norm, the loss, requests to stop, and one of all scales
    last = lines_of(whole)[-1]
    assert last["tokens_per_s"] == pytest.approx(2 * 64 / last["step_s"][0], rel=1e-4)


def until_trains(run: Path, process: subprocess.Popen) -> None:
    deadline = time.monotonic() + 120
    while len(lines_of(run)) < 3:
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)
