"""The mark by which a job file learns that its job got on."""

from pathlib import Path

import pytest

from experiments.jobs.command import STARTER_PID
from experiments.jobs.progress import PROGRESS_MARK, mark_progress
from tests.make_runs import write_run

RUN = "baseline/seed0"


@pytest.fixture
def in_job(monkeypatch):
    """The process that a job file has started."""
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.delenv(STARTER_PID, raising=False)


def write_file(file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.touch()


def has_mark(folder: Path) -> bool:
    return (folder / PROGRESS_MARK).exists()


@pytest.mark.parametrize("run", ["", RUN])
def test_a_new_checkpoint_is_progress_and_an_old_one_is_not(run, in_job, tmp_path):
    with mark_progress(tmp_path):
        write_file(tmp_path / run / "checkpoint/step-4/.metadata")
    assert has_mark(tmp_path)
    (tmp_path / PROGRESS_MARK).unlink()
    with mark_progress(tmp_path):
        pass
    assert not has_mark(tmp_path)


@pytest.mark.parametrize(("status", "expected"), [("completed", True), ("interrupted", False)])
def test_a_completed_run_is_progress(status, expected, in_job, tmp_path):
    with mark_progress(tmp_path):
        write_run(tmp_path / RUN, status=status)
    assert has_mark(tmp_path) == expected


@pytest.mark.parametrize(
    "file",
    [
        "metrics.jsonl",
        "checkpoint/step-4/0.distcp",  # not whole
        "damaged_checkpoints/step-4/.metadata",
        "run.json",  # torn
    ],
)
def test_what_is_no_progress(file, in_job, tmp_path):
    with mark_progress(tmp_path):
        write_file(tmp_path / RUN / file)
    assert not has_mark(tmp_path)


def test_only_the_process_of_a_job_marks(in_job, tmp_path, monkeypatch):
    checkpoints = tmp_path / "checkpoint"
    monkeypatch.setenv(STARTER_PID, "1")  # a run of a study, or a rank
    with mark_progress(tmp_path):
        write_file(checkpoints / "step-1/.metadata")
    monkeypatch.delenv(STARTER_PID)
    monkeypatch.delenv("SLURM_JOB_ID")
    with mark_progress(tmp_path), mark_progress(None):
        write_file(checkpoints / "step-2/.metadata")
    assert not has_mark(tmp_path)
