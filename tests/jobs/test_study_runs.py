"""A study's runs: side by side, each on its GPU, on after a failure. Stand-ins train in their
place; tests/jobs/test_study.py has real ones."""

import os
import re
import signal
import time
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch

from analysis import report
from experiments import study
from experiments.jobs import runner
from experiments.jobs.command import EXIT_BAD_INPUT, EXIT_STOPPED, StopRequest
from experiments.jobs.durations import COMPILATION_HINT, Workload
from experiments.jobs.runner import RunProcess, run_all
from models.errors import PYTHON
from tests.runs import attempt_of, call, lines_of

NAMES = ["baseline", "baseline_compiled"]
EAGER = Workload("baseline")


@pytest.fixture
def start(tmp_path, monkeypatch):
    """Start a study of stand-ins in a folder; gives exit code and output."""
    monkeypatch.setattr(runner, "RUN_MODULE", "tests.jobs.stand_in")
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    monkeypatch.setattr(report, "write_page", Mock(return_value=""))  # which would draw for seconds
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("STEP_S", "0.01")
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    return partial(call, study.main, *NAMES, "--overlay", "cpu", "--out", tmp_path / "study")


def test_a_failure_stops_no_other_run_and_the_study_goes_on_later(start, tmp_path, monkeypatch):
    """Side by side: each run has a GPU, and a folder to compile in that is gone afterwards. A line
    says how far each run is."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,7")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(runner, "PROGRESS_INTERVAL_S", 0.0)
    monkeypatch.setenv("FAILING", "baseline")
    out = tmp_path / "study"
    code, printed = start("training.steps=90")
    assert code == 1 and f"{PYTHON} -m experiments.study {out}" in printed
    assert "baseline seed 0: failed: error: no compiler" in printed
    assert f"(log: {out}/baseline/seed0/log.txt)" in printed
    line = r"baseline_compiled seed 0: step \d+/90  loss .*  all runs: 0:0\d:\d+ left"
    assert re.search(line, printed), printed
    assert printed.count(COMPILATION_HINT) == 1
    assert printed.rindex("started on GPU") < printed.index("completed at step 90")
    assert printed.count("baseline_compiled seed 0: there is no whole checkpoint") == 1

    monkeypatch.delenv("FAILING")
    monkeypatch.setenv("SLURM_JOB_ID", "7")  # a job's Python is not found where jobs are submitted
    code, printed = call(study.main, out)
    assert code == 0 and f"complete already: {out}/baseline_compiled/seed0" in printed
    assert f"sbatch launch/alps_fp8.sbatch {out} --seeds 3" in printed
    assert (
        f"rsync -a --exclude checkpoint CLUSTER:{out} runs/ && make lab RUNS=runs/study" in printed
    )
    assert ".venv/bin/python" not in printed
    ran = [attempt_of(out / name / "seed0") for name in NAMES]
    assert [attempt["hardware"]["visible_devices"] for attempt in ran] == ["4", "7"]
    caches = {path.read_text() for path in out.rglob("caches")}
    assert len(caches) == 2 and not any(Path(folder).exists() for folder in caches)


def test_a_second_ctrl_c_ends_the_runs_within_their_step(start, tmp_path, monkeypatch):
    run, sent = tmp_path / "study/baseline/seed0", []

    def insist(seconds, sleep=time.sleep):
        """In place of the runner's pause: Ctrl-C once the run listens, and again after a second."""
        sleep(1.2 if sent else 0.05)
        if (run / "run.json").exists() and len(sent) < 2:
            sent.append(signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setenv("STEP_S", "60")
    monkeypatch.setattr(runner.time, "sleep", insist)
    code, printed = start()
    assert code == EXIT_STOPPED and printed.count("interrupted") == 1
    assert not lines_of(run)  # its step was not waited for
    assert not Path((run / "caches").read_text()).exists()


def test_a_run_that_is_stopped_before_it_listens_was_not_killed(tmp_path, capsys):
    run = RunProcess("a", tmp_path, "", 9, EAGER)
    (tmp_path / "log.txt").touch()
    run.cache_folder = Mock()
    run.process = Mock(poll=lambda: -signal.SIGTERM)
    assert run.poll_and_report() and "killed by SIGTERM" in capsys.readouterr().out
    runner._send_signal([run], signal.SIGTERM)
    assert run.poll_and_report() and "killed" not in capsys.readouterr().out


def test_a_run_that_cannot_start_stops_no_other(tmp_path, capsys):
    (tmp_path / "file").touch()
    runs = [RunProcess("a", tmp_path / "file/run", "", 9, EAGER) for _ in range(2)]
    run_all(runs, StopRequest(), {})
    assert [run.exit_code for run in runs] == [EXIT_BAD_INPUT] * 2
    assert capsys.readouterr().out.count("a: failed: [Errno 20] Not a directory") == 2


def test_steps_are_counted_anew_where_a_run_begins_again(tmp_path, monkeypatch):
    """Of a run without checkpoints 40 steps were on record, and none is now."""
    monkeypatch.setattr(runner, "RUN_MODULE", "platform")  # which ends at once
    monkeypatch.setattr(runner, "PROGRESS_INTERVAL_S", 0.0)
    run = RunProcess("a", tmp_path / "run", "", 90, EAGER, steps_before=40)
    run_all([run], StopRequest(), {})
    assert (run.exit_code, run.steps_before) == (0, 0)


@pytest.mark.parametrize(
    ("visible", "count", "found"),
    [
        (None, 2, ["0", "1"]),
        ("GPU-1,GPU-2", 2, ["GPU-1", "GPU-2"]),
        ("0,1", 0, [None]),
        ("", 0, [None]),
    ],
)
def test_gpus_are_those_that_are_visible_and_there(visible, count, found, monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    assert runner.list_visible_gpus() == found


@pytest.mark.parametrize(
    ("machine", "line", "near"),
    [
        ("aarch64", "exit 0", ["numactl", "--cpunodebind=2", "--membind=2"]),
        ("aarch64", "exit 1", []),  # as in a container whose memory may not be chosen
        ("x86_64", "exit 0", []),
    ],
)
def test_on_grace_hopper_a_run_keeps_to_the_cores_and_memory_of_its_gpu(
    machine, line, near, program, tmp_path, monkeypatch
):
    """Four memory nodes with cores, and the memory of four GPUs as nodes without."""
    for number in range(8):
        (tmp_path / f"node{number}").mkdir()
        (tmp_path / f"node{number}/cpulist").write_text("0-71\n" if number < 4 else "\n")
    program("numactl", line)
    monkeypatch.setattr(runner, "MEMORY_NODES", tmp_path)
    monkeypatch.setattr("platform.machine", lambda: machine)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,2,1,0")
    assert runner.find_numa_command("2") == near
