"""Frames from run directories, whole and damaged ones; logs of other programs are in
test_load_logs.py."""

import numpy as np
import pandas as pd
import pytest

from analysis.load import LoadError, load
from tests.make_runs import (
    FLOPS,
    change_json,
    metrics_lines,
    phases,
    write_published,
    write_resumed_run,
    write_run,
    write_tensorboard,
)


def test_runs_at_any_depth_each_once(tmp_path):
    a = write_run(tmp_path / "study" / "baseline" / "seed0", start="2026-01-02T00:00:00Z")
    facts = {"git": {"commit": "abc", "changes": "1f"}, "data": "stdlib-1f", "compiled": True,
             "hardware": {"driver": "580.1", "power_limit_w": 700.0}}  # fmt: skip
    name = "tensorwise_fp8_compiled"
    b = write_run(tmp_path / "other" / "fp8" / "seed1", name, seed=1, fp8_share=0.7, **facts)
    frames = load([tmp_path / "study", a, str(tmp_path)])
    assert frames.problems == []
    assert frames.runs["run"].tolist() == ["other/fp8/seed1", "study/baseline/seed0"]
    expected = {
        "source": "run directory", "path": str(b), "recipe": name, "seed": 1, "compiled": True,
        "float8": "tensorwise", "code": "abc and changes 1f",
        "torch": "2.13.0", "date": "2026-01-01", "driver": "580.1", "power_limit_w": 700,
        "data": "stdlib-1f", "seq_len": 50, "peak_bf16": 1e9,
        "flops_per_token": FLOPS,
        "tokens_per_step": 100,
        "tokens": 3000, "peak_memory_bytes": 30 * 2**20,
        "warm_up_s": 5.0,
        "wall_s": 4 + 10 + 2, "wall_s_without_warm_up": 11,
        "tokens_per_s": 1000, "valid_share": 0.5, "step_s": 0.1, "clock_s": 0.1,
        "final_loss": 10 - 2.9,  # the mean of steps 28 to 30
        "mfu_bf16_peak": 1.0, "mfu_fp8_peak": 0.5,
        "mfu_mixed_peak": 0.65,  # 70 % of the FLOPs at twice the peak
    }  # fmt: skip
    assert frames.runs.iloc[0][list(expected)].to_dict() == pytest.approx(expected)
    assert frames.runs["phases"][0] == {"import": 4.0, "first_step": 1.0, "compile": 0.5}
    assert frames.runs["sm_clock_max_mhz"].isna().all()


def test_windows_and_steps(tmp_path):
    write_run(tmp_path / "a", lines=metrics_lines(window=5))
    write_run(tmp_path / "b", seed=1)
    frames = load(tmp_path)
    window = frames.windows[frames.windows["run"] == "a"].iloc[2]
    assert window[["step", "recipe", "seed", "grad_norm"]].tolist() == [15, "baseline", 0, 1.0]
    assert window[["elapsed_s", "tokens_per_s"]].tolist() == pytest.approx([14.5, 1000])
    assert window["losses"] == pytest.approx([8.9, 8.8, 8.7, 8.6, 8.5])
    assert np.isnan(window["mfu_mixed_peak"])
    by_step = frames.steps
    a, b = (
        by_step[by_step["run"] == run].drop(columns=["run", "seed"]).reset_index(drop=True)
        for run in "ab"
    )
    pd.testing.assert_frame_equal(a, b)  # the same steps, however many a window holds
    assert by_step["step"].tolist() == 2 * list(range(1, 31))
    assert by_step.loc[~by_step["steady"], "step"].tolist() == 2 * list(range(1, 11))
    numbers = ["seed", "step", "loss", "seconds", "steady"]
    assert by_step.iloc[29][numbers].tolist() == pytest.approx([0, 30, 7.0, 0.1, True])


# ---- resumed runs ----


def test_time_of_earlier_attempts_is_added(tmp_path):
    """The first process ended at 4 + 10 + 1.5 s; the second took over 20 steps and logged steps 21
    to 40."""
    run = write_resumed_run(tmp_path / "run")

    def check():
        frames = load(run)
        elapsed = frames.windows.set_index("step")["elapsed_s"]
        expected = [4 + 10 + 1, 15.5 + 4 + 1, 15.5 + 4 + 10 + 1]
        assert elapsed[[20, 21, 40]].tolist() == pytest.approx(expected)
        assert frames.runs["wall_s"][0] == pytest.approx(elapsed[40])
        not_steady = frames.steps.query("not steady")["step"].tolist()
        assert frames.problems == [] and not_steady == [*range(1, 11), *range(21, 31)]

    check()
    assert load(run).runs["warm_up_s"].tolist() == [10]
    change_json(run / "manifest.json", attempt=3)
    with pytest.raises(LoadError, match="attempt2/manifest.json: No such file"):
        load(run)
    # an attempt that logged nothing of its own: no time twice
    write_run(run / "attempt2", lines=metrics_lines(last=25)[:20], status="running")
    check()


# ---- what a log shows ----


@pytest.mark.parametrize(("status", "last"), [("running", 12), ("failed", 0)])
def test_runs_that_are_not_completed_are_there_and_named(tmp_path, status, last):
    lines = metrics_lines(last=last)
    run = write_run(tmp_path / "run", status=status, lines=lines, error="the disk is full")
    for name in ("proof.json", "metrics.jsonl", "timing.json") if last == 0 else ("proof.json",):
        (run / name).unlink()
    frames = load(tmp_path)
    assert frames.runs[["status", "steps"]].values.tolist() == [[status, last]]
    assert frames.runs["final_loss"].notna().tolist() == [last > 0]
    assert len(frames.windows) == len(frames.steps) == last
    (problem,) = frames.problems
    assert problem.startswith(f"{run}: ") and f"{last} of 30 (the disk is full)" in problem


@pytest.mark.parametrize(("in_fp8", "share"), [({1: False, 28: True}, 0.1), ({1: True}, 1)])
def test_a_run_that_was_stopped_is_in_fp8_as_far_as_it_came(tmp_path, in_fp8, share):
    """After 30 of 1,000 steps, by the budget of its study."""
    stopped = {"steps": 1000, "status": "interrupted", "study_budget_s": 60.0}
    proves = {"phases": phases(in_fp8)}
    lines = metrics_lines()
    write_run(tmp_path / "run", lines=lines, fp8_share=0.8, proves=proves, **stopped)
    row = load(tmp_path).runs.iloc[0]
    assert row[["fp8_share_of_steps", "fp8_share"]].tolist() == pytest.approx([share, 0.8 * share])
    assert row[["status", "steps_asked", "steps_planned"]].tolist() == ["completed", 30, 1000]


def test_a_step_time_that_drifts_is_named(tmp_path):
    lines, seconds = metrics_lines(last=300), np.linspace(0.1, 0.13, 300)
    for line, step_s in zip(lines, seconds, strict=True):
        line |= {"step_s": [step_s], "tokens_per_s": 100 / step_s}
    run = write_run(tmp_path / "run", lines=lines, steps=300)
    (problem,) = load(run).problems
    assert problem.startswith(f"{run}: its step time drifts: ")


@pytest.mark.parametrize("jumps_at", [1, 20])
def test_wall_times_of_a_clock_that_jumps_are_not_used(tmp_path, jumps_at):
    late = metrics_lines()
    for line in late[jumps_at - 1 :]:
        line["elapsed_s"] += 3600
    run = write_run(tmp_path / "late", lines=late)
    write_run(tmp_path / "sound", seed=1)
    frames = load(tmp_path)
    (problem,) = frames.problems
    assert problem.startswith(f"{run}: its clock jumps by +3,600 s by step {jumps_at}")
    unknown = frames.runs.set_index("run")[["wall_s", "wall_s_without_warm_up"]].isna()
    assert unknown.all(axis=1).to_dict() == {"late": True, "sound": False}
    assert frames.windows.groupby("run")["elapsed_s"].count().to_dict() == {"late": 0, "sound": 30}
    assert frames.runs["tokens_per_s"].tolist() == pytest.approx([1000, 1000])


# ---- records that do not fit ----


@pytest.mark.parametrize(
    ("name", "damage", "field"),
    [("manifest.json", {"layout_version": 1}, "layout_version"),
     ("proof.json", {"fp8_share_of_matmul_flops": 7.5}, "fp8_share_of_matmul_flops"),
     ("attempt1/timing.json", {"warm_up_s": "a day"}, "warm_up_s"),
     ("metrics.jsonl", b"\xff\x00{]\n" * 9, "JSON"),
     ("metrics.jsonl", b'{"step": 1}\n', "line 1.elapsed_s"),
     ("timing.json", None, "No such file")],
)  # fmt: skip
def test_a_run_with_a_record_that_does_not_fit_is_named_and_counts(tmp_path, name, damage, field):
    write_run(tmp_path / "sound", seed=1)
    file = write_resumed_run(tmp_path / "damaged") / name
    if damage is None:
        file.unlink()
    elif isinstance(damage, bytes):
        file.write_bytes(damage)
    else:
        change_json(file, **damage)
    frames = load(tmp_path)
    (problem,) = frames.problems
    assert problem.startswith(f"{file}: ") and field in problem and "\n" not in problem
    assert frames.runs[["recipe", "status"]].to_numpy().tolist() == [
        ["baseline", "completed"], ["baseline", "unreadable"]]  # fmt: skip
    assert set(frames.steps["run"]) == {"sound"}


def test_a_torn_last_line_is_none(tmp_path):
    run = write_run(tmp_path / "run", lines=metrics_lines(last=20))
    with open(run / "metrics.jsonl", "a") as file:
        file.write('{"step": 21, "los')
    frames = load(run)
    assert frames.runs[["status", "steps"]].values.tolist() == [["short", 20]]
    (problem,) = frames.problems
    assert problem.startswith(f"{run}: short, its log ends at step 20 of 30")


def test_many_problems_of_a_kind_are_summarised(tmp_path):
    write_run(tmp_path / "sound")
    for number in range(130):
        (tmp_path / f"damaged{number}").mkdir()
        (tmp_path / f"damaged{number}" / "manifest.json").write_text("null" if number % 2 else "{")
    frames = load(tmp_path)
    assert len(frames.problems) == 8 and len(frames.runs) == 131
    assert frames.problems[-1].startswith("62 more runs or files have the same problem")


def test_what_is_no_run_is_named_beside_those_that_are(tmp_path):
    write_run(tmp_path / "run")
    write_published(tmp_path / "published" / "baseline_compiled.jsonl")
    write_tensorboard(tmp_path / "titan")
    empty = tmp_path / "empty"
    empty.mkdir()
    (tmp_path / "questions.jsonl").write_text('{"question": "?"}\n')
    frames = load([tmp_path, empty])
    assert sorted(frames.runs["run"]) == ["published/baseline_compiled.jsonl", "run", "titan"]
    text = "\n".join(frames.problems)
    assert f"{empty}: holds no run" in text and f"{tmp_path}/questions.jsonl" in text
    assert len(frames.problems) == 3  # and how the TensorBoard's run ended
    missing = [tmp_path, tmp_path / "nowhere"]
    for paths, sentence in ((missing, "nowhere"), ([], "no path"), (empty, "holds no run")):
        with pytest.raises(LoadError, match=sentence):
            load(paths)
