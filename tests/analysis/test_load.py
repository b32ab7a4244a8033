"""Frames from run directories, whole and damaged ones; logs of other programs are in
test_load_logs.py."""

import json
import shutil
import time

import numpy as np
import pandas as pd
import pytest

from analysis.load import LoadError, load, steps
from analysis.runs import summarize
from tests.make_runs import (
    FLOPS,
    change_json,
    metrics_lines,
    write_published,
    write_resumed_run,
    write_run,
    write_tensorboard,
)


def test_runs_at_any_depth_each_once_with_the_row_of_the_final_table(tmp_path):
    a = write_run(tmp_path / "study" / "baseline" / "seed0", start="2026-01-02")
    facts = {
        "start": "2026-01-01T10:00:00.000+00:00", "flavor": "cpu", "parameters": 7, "compiled": True,
        "git": {"commit": "abc", "diff": "+1"}, "packages": {"torch": "2.13.0", "torchao": "0.18.0"},
        "data": "stdlib-1f", "hardware": {"name": "H200", "type": "cuda", "driver": "580.1", "power_limit_w": "700.00",
                                          "sm_clock_max_mhz": "[N/A]"},
    }  # fmt: skip
    b = write_run(
        tmp_path / "other" / "fp8" / "seed1",
        "tensorwise_fp8_compiled",
        seed=1,
        fp8_share=0.5,
        **facts,
    )
    frames = load([tmp_path / "study", a, str(tmp_path)])
    assert frames.problems == []
    assert frames.runs["run"].tolist() == ["other/fp8/seed1", "study/baseline/seed0"]
    for run, (_, row) in zip((b, a), frames.runs.iterrows(), strict=True):
        known = {key: value for key, value in summarize(run).items() if value is not None}
        assert {key: row[key] for key in known} == known
    expected = {
        "source": "run directory", "path": str(b), "seed": 1, "flavor": "cpu", "compiled": True, "tokens_per_step": 100,
        "peak_bf16": 1e9, "flops_per_token": FLOPS, "phases": {"import": 4.0, "first_step": 1.0}, "commit": "abc",
        "code": "abc and changes 4bee5343", "torch": "2.13.0", "torchao": "0.18.0",
        "torchtitan": None, "driver": "580.1",
        "power_limit_w": 700, "dataset": "python_stdlib", "data": "stdlib-1f", "seq_len": 50, "batch": 2,
        "tokens": 3000, "date": "2026-01-01", "float8": "tensorwise",
    }  # fmt: skip
    assert frames.runs.iloc[0][list(expected)].to_dict() == expected
    assert frames.runs["sm_clock_max_mhz"].isna().all()
    manifest = json.loads(
        (b / "manifest.json").read_text()
    )  # a summary is made before its manifest is written
    assert summarize(b, manifest | {"status": "failed"})["status"] == "failed"


def test_windows_and_steps(tmp_path):
    write_run(tmp_path / "a", lines=metrics_lines(window=5))
    write_run(tmp_path / "b", seed=1)
    frames = load(tmp_path)
    window = frames.windows[frames.windows["run"] == "a"].iloc[2]
    assert (window["step"], window["recipe"], window["seed"], window["grad_norm"]) == (
        15,
        "baseline",
        0,
        1.0,
    )
    assert window["elapsed_s"] == pytest.approx(4 + 10 + 0.5) and window[
        "tokens_per_s"
    ] == pytest.approx(1000)
    assert (
        window["losses"] == pytest.approx((8.9, 8.8, 8.7, 8.6, 8.5)) and window["not_steady"] == ()
    )
    assert np.isnan(window["mfu_mixed_peak"]) and np.isnan(window["mfu_logged"])
    per_step = steps(frames.windows)
    pd.testing.assert_frame_equal(  # the same steps, however many a window holds
        per_step[per_step["run"] == "a"].drop(columns=["run", "seed"]).reset_index(drop=True),
        per_step[per_step["run"] == "b"].drop(columns=["run", "seed"]).reset_index(drop=True),
    )
    assert per_step["step"].tolist() == 2 * list(range(1, 31))
    assert per_step.loc[~per_step["steady"], "step"].tolist() == 2 * list(range(1, 11))
    assert per_step.iloc[29].drop(["run", "recipe"]).tolist() == pytest.approx(
        [0, 30, 7.0, 0.1, 0.001, True]
    )
    some = frames.windows[(frames.windows["seed"] == 1) & (frames.windows["step"] > 28)]
    assert steps(some)["step"].tolist() == [29, 30]


# ---- resumed runs ----


def test_time_of_earlier_attempts_is_added(tmp_path):
    """The first process ended at 4 + 10 + 1.5 s; the second took over 20 steps and logged steps 21
    to 40."""
    run = write_resumed_run(tmp_path / "run")

    def check():
        frames = load(run)
        assert frames.problems == [] and len(frames.runs) == 1
        elapsed = frames.windows.set_index("step")["elapsed_s"]
        assert elapsed[[20, 21, 40]].tolist() == pytest.approx(
            [4 + 10 + 1, 15.5 + 4 + 1, 15.5 + 4 + 10 + 1]
        )
        assert frames.runs["wall_s"][0] == pytest.approx(elapsed[40])
        assert steps(frames.windows).query("not steady")["step"].tolist() == [
            *range(1, 11),
            *range(21, 31),
        ]

    check()
    assert load(run).runs["warm_up_s"].tolist() == [10]
    change_json(run / "manifest.json", attempt=3)
    assert load(run).problems == [
        f"{run}/attempt2: missing, so the times of that attempt are not counted"
    ]
    write_run(
        run / "attempt2", lines=metrics_lines(last=25)[:20]
    )  # it logged nothing of its own: no time twice
    check()


# ---- what a log shows ----


@pytest.mark.parametrize("last", [12, 0])  # a run may fail before its first step
@pytest.mark.parametrize("status", ["running", "interrupted", "diverged", "failed"])
def test_runs_that_are_not_completed_are_there_and_named(tmp_path, status, last):
    run = write_run(
        tmp_path / "run", status=status, lines=metrics_lines(last=last), error="the disk is full"
    )
    for name in ("proof.json", "metrics.jsonl", "timing.json") if last == 0 else ("proof.json",):
        (run / name).unlink()
    frames = load(tmp_path)
    assert frames.runs[["status", "steps", "error"]].values.tolist() == [
        [status, last, "the disk is full"]
    ]
    assert frames.runs["final_loss"].notna().tolist() == [last > 0]
    assert len(frames.windows) == len(steps(frames.windows)) == last
    word = (
        "not ended (running, or killed)" if status == "running" else status
    )  # a killed run cannot write that it was
    where = f"at step {last} of 30 (the disk is full)"
    assert frames.problems == [f"{run}: {word} {where}, so it is not averaged with others"]


@pytest.mark.parametrize("loss", [None, float("nan"), float("inf")])
def test_a_log_that_ends_on_a_loss_that_is_not_finite_has_diverged(tmp_path, loss):
    lines = metrics_lines()
    lines[-1] |= {"loss": loss, "losses": [loss], "grad_norm": loss}
    run = write_run(tmp_path / "run", lines=lines)
    frames = load(run)
    assert frames.runs["status"].tolist() == ["diverged"] and frames.runs["final_loss"].isna().all()
    assert frames.problems == [
        f"{run}: its loss is not finite by step 30: it counts as diverged, although its log says completed"
    ]
    assert (
        np.isnan(steps(frames.windows)["loss"].iloc[-1])
        and steps(frames.windows)["loss"].notna().sum() == 29
    )
    lines[2] |= {"losses": [loss]}
    frames = load(write_run(tmp_path / "early", lines=[*lines[:-1], metrics_lines()[-1]]))
    assert (
        frames.runs["status"].tolist() == ["completed"]
        and "not finite by step 3" in frames.problems[0]
    )


def drifting(step):
    seconds = 0.1 * (1 + 0.3 * (step - 1) / 299)
    return {"step_s": [seconds], "tokens_per_s": 100 / seconds}


DOUBTS = {  # what is other about the line of a step, None for no such line: how the sentence begins, the rate
    "step times that are missing, not finite or not above 0 are left out: 1 of 300, the first is that of step 150": (
        lambda step: {"step_s": [None]} if step == 150 else {}, 1000),
    "step times that are missing, not finite or not above 0 are left out: 2 of 300, the first is that of step 50": (
        lambda step: {"step_s": [-0.1]} if step in (50, 51) else {}, 1000),
    "steps missing from its log: 50 (101 to 150)": (lambda step: None if 100 < step <= 150 else {}, 1000),
    "its step time drifts: ": (drifting, drifting(155)["tokens_per_s"]),
}  # fmt: skip


@pytest.mark.parametrize("sentence", DOUBTS)
def test_what_makes_a_rate_doubtful_is_named(tmp_path, sentence):
    changed, rate = DOUBTS[sentence]
    lines = [
        line | new for line in metrics_lines(last=300) if (new := changed(line["step"])) is not None
    ]
    run = write_run(tmp_path / "run", lines=lines, steps=300)
    frames = load(run)
    (problem,) = frames.problems
    assert problem.startswith(f"{run}: {sentence}")
    assert frames.runs["tokens_per_s"][0] == pytest.approx(rate, rel=0.001)
    assert steps(frames.windows).query("steady")["seconds"].min() > 0
    assert frames.runs["status"].tolist() == ["completed"]


@pytest.mark.parametrize("jumps_at", [1, 20])
def test_wall_times_of_a_clock_that_jumps_are_not_used(tmp_path, jumps_at):
    late = [
        line | {"elapsed_s": line["elapsed_s"] + 3600 * (line["step"] >= jumps_at)}
        for line in metrics_lines()
    ]
    run = write_run(tmp_path / "late", lines=late)
    write_run(tmp_path / "sound", seed=1)
    frames = load(tmp_path)
    (problem,) = frames.problems
    assert problem.startswith(
        f"{run}: its clock jumps by +3,600 s by step {jumps_at}, which its step times do not"
    )
    assert frames.runs[["wall_s", "wall_s_without_warm_up"]].isna().all(axis=1).tolist() == [
        True,
        False,
    ]
    assert frames.windows.groupby("run")["elapsed_s"].count().to_dict() == {"late": 0, "sound": 30}
    assert frames.runs["tokens_per_s"].tolist() == pytest.approx([1000, 1000])


# ---- places ----


def test_what_is_no_run_is_named_beside_those_that_are(tmp_path):
    write_run(tmp_path / "run")
    write_published(tmp_path / "published" / "baseline_compiled.jsonl")
    write_tensorboard(tmp_path / "titan")
    newer, poor, empty = (tmp_path / name for name in ("newer", "poor", "empty"))
    write_run(newer, layout_version=2)
    (write_run(poor) / "manifest.json").write_text('{"layout_version": 1, "recipe": null}')
    empty.mkdir()
    (tmp_path / "questions.jsonl").write_text('{"question": "?"}\n')
    frames = load([tmp_path, empty])
    assert frames.runs["run"].tolist() == ["published/baseline_compiled.jsonl", "run", "titan"]
    assert frames.runs["seed"].fillna(-1).tolist() == [-1, 0, -1]
    assert frames.windows.groupby("run", sort=False)["step"].max().tolist() == [25, 30, 50]
    text = "\n".join(frames.problems)
    assert f"{newer}: layout version 2" in text and f"{empty}: holds no run" in text
    assert f"{poor}: its manifest.json lacks recipe, seed, status" in text
    assert (
        f"{tmp_path}/questions.jsonl" in text and len(frames.problems) == 5
    )  # and how the TensorBoard's run ended
    for paths, sentence in (([tmp_path, tmp_path / "nowhere"], "nowhere: no such file or folder"), ([], "no path"),
                            (empty, "empty: holds no run"), (newer, "layout version 2")):  # fmt: skip
        with pytest.raises(LoadError, match=sentence):
            load(paths)


def test_200_runs_of_1000_windows_are_loaded_in_5_seconds(tmp_path):
    write_run(tmp_path / "run0", lines=metrics_lines(last=1000), steps=1000)
    for number in range(1, 200):
        shutil.copytree(tmp_path / "run0", tmp_path / f"run{number}")
    start = time.process_time()  # which other processes do not slow down much
    assert len(load(tmp_path).windows) == 200_000 and time.process_time() - start < 5
