"""A study within a time budget: it ends in time, with equally many steps.

That stopped runs go on is shown in test_launcher.py (after a signal), and what a later budget
begins in test_sweep.py.
"""

import math
from unittest.mock import Mock

import pytest

from analysis.comparison import compare
from analysis.table import notes, rows_of, status
from experiments import study
from experiments.jobs import shares
from experiments.jobs.shares import Shares
from models import device
from tests.make_runs import metrics_lines, write_run
from tests.runs import SMALL, lines_of, manifest_of, run_study


@pytest.fixture
def clock(monkeypatch):
    """The time, as a list of one number."""
    now = [1000.0]
    monkeypatch.setattr(shares.time, "monotonic", lambda: now[0])
    return now


def test_each_run_has_the_same_share_of_what_is_left(clock):
    share = Shares(seconds=400, places=1, end_s=5)
    assert share.until(waiting=3) == 1000 + 100 - 5
    clock[0] = 1040.0  # the first stopped early
    assert share.until(waiting=2) == 1040 + 120 - 5
    assert Shares(seconds=400, places=4).until(waiting=3) == Shares(seconds=400, places=4).until(
        waiting=0
    )


def test_a_run_stops_at_the_fewest_steps_of_those_before_it(clock):
    share = Shares(seconds=400, places=1)
    assert not share.spent(until=2000, step=10**6)
    share.ended(step=0, asked_at=999)  # it did not get past its warm-up
    assert share.fewest == math.inf
    share.ended(step=300, asked_at=970)
    assert share.spent(until=2000, step=300) and not share.spent(until=2000, step=299)
    assert share.end_s == 30 and share.until(waiting=0) == 1400 - 30 and not share.over
    clock[0] = 1371.0
    assert share.over


def test_runs_are_compared_over_the_steps_that_all_have_made(tmp_path):
    keys = {"status": "interrupted", "study_budget_s": 600.0, "steps": 1000}
    for recipe, ends in (
        ("baseline", (10, 20, 30, 40)),
        ("tensorwise_fp8_compiled", (10, 20, 30, 33)),
    ):
        lines = [
            metrics_lines(last=end, window=end - begin)[-1]
            for begin, end in zip((0, *ends), ends, strict=False)
        ]
        for line in lines:
            line["elapsed_s"] = 4.0 + line["step"]
        write_run(tmp_path / recipe, recipe, lines=lines, **keys)
    comparison = compare([tmp_path])
    rows = rows_of(comparison)
    assert [status(row) for row in rows] == ["30 of 1000"] * 2
    assert [(row["steps"], row["wall_s"], row["final_loss"]) for row in rows] == [
        (30, 34.0, pytest.approx(7.1))
    ] * 2
    assert comparison.frames.problems == []
    assert any("over their first 30 of 1,000 steps" in line for line in notes(rows))


def test_runs_that_were_stopped_otherwise_are_left_as_they_are(tmp_path):
    write_run(tmp_path / "a", steps=1000, lines=metrics_lines(last=30), status="interrupted")
    write_run(tmp_path / "b", "baseline_compiled")
    assert [status(row) for row in rows_of(compare([tmp_path], "baseline_compiled"))] == [
        "interrupted at 30",
        "completed",
    ]


@pytest.mark.slow
def test_a_study_ends_within_its_budget_with_equally_many_steps(tmp_path, monkeypatch):
    """The budget counts from the start of the process, which here is that of the tests."""
    monkeypatch.setattr(study, "write_page", Mock())  # which would draw figures for seconds
    out, names, since_start = (
        tmp_path / "study",
        ["baseline", "baseline_compiled"],
        device.seconds_since_process_start,
    )
    keys = [
        *SMALL,
        "training.seq_len=64",
        "compile.enable=false",
        "checkpoint.enable=true",
        "training.steps=2000",
    ]
    end = since_start() + 42
    code, printed = run_study(*names, "--overlay", "cpu", "--out", out, *keys, "--budget", end)
    assert code == 75, printed
    made = [lines_of(out / name / "seed0")[-1]["step"] for name in names]
    assert 10 < min(made) <= max(made) < 2000 and printed.count(f"{min(made)} of 2000") == 2, (
        printed
    )
    manifest = manifest_of(out / "baseline/seed0")
    assert manifest["error"] == f"stopped after step {made[0]} by SIGUSR1, a checkpoint was saved"
    assert manifest["study_budget_s"] > 0 and since_start() < end
