"""Frames from run directories, whole and damaged ones; logs of other programs are in test_load_logs.py."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from analysis import benchmark_load
from analysis.load import LoadError, load, steps
from analysis.runs import summarize
from tests.make_runs import (
    FLOPS,
    metrics_lines,
    write_published,
    write_resumed_run,
    write_run,
    write_tensorboard,
)


def append(path, text):
    path.write_bytes(path.read_bytes() + text)


def test_runs_at_any_depth_each_once_with_the_row_of_the_final_table(tmp_path):
    a = write_run(tmp_path / "study" / "baseline" / "seed0", start="2026-01-02")
    b = write_run(tmp_path / "other" / "tensorwise_fp8_compiled" / "seed1", "tensorwise_fp8_compiled", seed=1,
                  fp8_share=0.5, start="2026-01-01", flavor="cpu", parameters=7, compiled=True,
                  float8="tensorwise")  # fmt: skip
    frames = load([tmp_path / "study", a, str(tmp_path)])
    assert frames.problems == []
    assert frames.runs["run"].tolist() == ["other/tensorwise_fp8_compiled/seed1", "study/baseline/seed0"]
    for run, (_, row) in zip((b, a), frames.runs.iterrows(), strict=True):
        expected = summarize(run)
        assert {key: row[key] for key in expected} == expected
    row = frames.runs.iloc[0]
    assert (row["source"], row["path"], row["seed"], row["flavor"]) == ("run directory", str(b), 1, "cpu")
    assert (row["tokens_per_step"], row["peak_bf16"], row["flops_per_token"]) == (100, 1e9, FLOPS)
    assert row["phases"] == {"import": 4.0, "first_step": 1.0} and row["compiled"] is True


def test_windows_and_steps(tmp_path):
    write_run(tmp_path / "a", lines=metrics_lines(window=5))
    write_run(tmp_path / "b", seed=1)
    frames = load(tmp_path)
    window = frames.windows[frames.windows["run"] == "a"].iloc[2]
    assert (window["step"], window["recipe"], window["seed"], window["grad_norm"]) == (15, "baseline", 0, 1.0)
    assert window["elapsed_s"] == pytest.approx(4 + 10 + 0.5) and window["tokens_per_s"] == pytest.approx(1000)
    assert list(window["losses"]) == pytest.approx([8.9, 8.8, 8.7, 8.6, 8.5]) and list(window["not_steady"]) == []
    assert np.isnan(window["mfu_mixed_peak"]) and np.isnan(window["mfu_logged"])
    per_step = steps(frames.windows)
    pd.testing.assert_frame_equal(  # the same steps, however many a window holds
        per_step[per_step["run"] == "a"].drop(columns=["run", "seed"]).reset_index(drop=True),
        per_step[per_step["run"] == "b"].drop(columns=["run", "seed"]).reset_index(drop=True),
    )
    assert per_step["step"].tolist() == 2 * list(range(1, 31))
    assert per_step.loc[~per_step["steady"], "step"].tolist() == 2 * list(range(1, 11))
    assert per_step.iloc[29].drop(["run", "recipe"]).tolist() == pytest.approx([0, 30, 7.0, 0.1, 0.001, True])
    some = frames.windows[(frames.windows["seed"] == 1) & (frames.windows["step"] > 28)]
    assert steps(some)["step"].tolist() == [29, 30]


def test_time_of_earlier_attempts_is_added(tmp_path):
    """The first process ended at 4 + 10 + 1.5 s; the second took over 20 steps and logged steps 21 to 40."""
    frames = load(write_resumed_run(tmp_path / "run"))
    assert frames.problems == [] and len(frames.runs) == 1
    elapsed = frames.windows.set_index("step")["elapsed_s"]
    assert elapsed[20] == pytest.approx(4 + 10 + 1)
    assert elapsed[21] == pytest.approx(15.5 + 4 + 1) and elapsed[40] == pytest.approx(15.5 + 4 + 10 + 1)
    row = frames.runs.iloc[0]
    assert row["wall_s"] == pytest.approx(elapsed[40]) and row["warm_up_s"] == 10
    assert steps(frames.windows).query("not steady")["step"].tolist() == [*range(1, 11), *range(21, 31)]


def test_attempt_that_logged_nothing_of_its_own_adds_no_time_twice(tmp_path):
    run = write_resumed_run(tmp_path / "run")
    manifest = json.loads((run / "manifest.json").read_text()) | {"attempt": 3}
    (run / "manifest.json").write_text(json.dumps(manifest))
    assert load(run).problems == [f"{run}/attempt2: missing, so the times of that attempt are not counted"]
    write_run(run / "attempt2", lines=metrics_lines(last=25)[:20])
    frames = load(run)
    assert frames.problems == []
    assert frames.runs["wall_s"].tolist() == pytest.approx([15.5 + 4 + 10 + 1])
    assert frames.windows["elapsed_s"].iloc[-1] == pytest.approx(15.5 + 4 + 10 + 1)


FILES = ["manifest.json", "recipe.yaml", "metrics.jsonl", "timing.json", "proof.json", "summary.json", "log.txt",
         "tb/events.out.tfevents.1.host.1.0", "attempt1/manifest.json", "attempt1/metrics.jsonl",
         "attempt1/timing.json", "attempt1/proof.json"]  # fmt: skip
DAMAGE = {
    "deleted": Path.unlink,
    "emptied": lambda path: path.write_bytes(b""),
    "cut off": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "garbage": lambda path: path.write_bytes(b"\xff\x00{]\n\x80" * 9),
}


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("name", FILES)
def test_a_damaged_file_is_named_or_harmless(tmp_path, name, damage):
    write_run(tmp_path / "sound", seed=1)
    hurt = write_resumed_run(tmp_path / "hurt")
    before = load(tmp_path)
    DAMAGE[damage](hurt / name)
    after = load(tmp_path)
    if before.runs.equals(after.runs) and before.windows.equals(after.windows):
        assert after.problems == []
    else:
        assert any(str(hurt) in problem and name in problem for problem in after.problems), after.problems
        assert after.runs.query("seed == 1")["tokens_per_s"].tolist() == pytest.approx([1000])
        assert len(after.windows.query("seed == 1")) == 30


def test_files_that_the_figures_rest_on_are_missed(tmp_path):
    """The test above would pass if nothing were read."""
    for name in ("manifest.json", "metrics.jsonl", "timing.json", "proof.json"):
        run = write_run(tmp_path / name / "run")
        (run / name).unlink()
        write_run(tmp_path / name / "sound")
        (problem,) = load(tmp_path / name).problems
        assert problem.startswith(str(run)) and name in problem


@pytest.mark.parametrize(
    "line", [b'{"step": 21, "elapsed_s": 4', b"[1]", b'{"step": "x"}', b'{"step": 21, "loss": 3.0}', b"null"]
)
def test_unusable_lines_are_left_out_and_the_others_used(tmp_path, line):
    lines = metrics_lines()
    run = write_run(tmp_path / "run", lines=lines[:20])
    append(run / "metrics.jsonl", line + b"\n")
    append(run / "metrics.jsonl", "".join(json.dumps(line) + "\n" for line in lines[21:]).encode())
    frames = load(run)
    assert frames.problems == [f"{run}/metrics.jsonl: 1 of 30 lines cannot be read (line 21) and left out"]
    assert frames.windows["step"].tolist() == [*range(1, 21), *range(22, 31)]
    assert frames.runs["tokens_per_s"].tolist() == pytest.approx([1000])


def test_cut_off_last_line_and_missing_end(tmp_path):
    run = write_run(tmp_path / "run", lines=metrics_lines(last=20))
    append(run / "metrics.jsonl", b'{"step": 21, "los')
    cut, short = load(run).problems
    assert cut == f"{run}/metrics.jsonl: the last line is cut off (line 21) and left out"
    assert short == f"{run}/metrics.jsonl: ends at step 20 of 30 although the run is completed"


@pytest.mark.parametrize(
    ("name", "key"), [("timing.json", "warm_up_s"), ("proof.json", "fp8_flops"), ("proof.json", "parameters")]
)
def test_a_record_of_another_type_is_named_and_the_others_used(tmp_path, name, key):
    run = write_run(tmp_path / "run")
    path = run / name
    path.write_text(json.dumps(json.loads(path.read_text()) | {key: "a day"}))
    frames = load(run)
    (problem,) = frames.problems
    assert problem.startswith(f"{path}: {key} is of another type")
    assert frames.runs["tokens_per_s"].tolist() == pytest.approx([1000])


@pytest.mark.parametrize("status", ["running", "interrupted", "diverged", "failed"])
def test_runs_that_are_not_completed_are_there_and_named(tmp_path, status):
    run = write_run(tmp_path / "run", status=status, steps=30, lines=metrics_lines(last=12), error="the disk is full")
    (run / "proof.json").unlink()
    frames = load(tmp_path)
    assert frames.runs[["status", "steps", "error"]].values.tolist() == [[status, 12, "the disk is full"]]
    assert len(frames.windows) == 12
    word = "not ended (running, or killed)" if status == "running" else status  # a killed run cannot write that it was
    assert frames.problems == [f"{run}: {word} at step 12 of 30 (the disk is full), so it is not averaged with others"]


def test_run_that_failed_before_its_first_step(tmp_path):
    run = write_run(tmp_path / "run", status="failed", error="no data")
    for name in ("metrics.jsonl", "timing.json", "proof.json"):
        (run / name).unlink()
    frames = load(tmp_path)
    assert frames.problems == [f"{run}: failed at step 0 of 30 (no data), so it is not averaged with others"]
    assert frames.runs["final_loss"].isna().all() and frames.windows.empty and steps(frames.windows).empty


def test_losses_that_were_not_finite(tmp_path):
    lines = metrics_lines(last=12)
    lines[-1] |= {"loss": None, "losses": [None], "grad_norm": None}
    frames = load(write_run(tmp_path / "run", status="diverged", lines=lines))
    assert frames.runs["final_loss"].isna().all()
    assert np.isnan(steps(frames.windows)["loss"].iloc[-1]) and steps(frames.windows)["loss"].notna().sum() == 11


def test_what_is_no_run_is_named_beside_those_that_are(tmp_path):
    write_run(tmp_path / "sound")
    newer = write_run(tmp_path / "newer", layout_version=2)
    poor = write_run(tmp_path / "poor")
    (poor / "manifest.json").write_text('{"layout_version": 1, "recipe": "baseline"}')
    empty = tmp_path / "empty"
    empty.mkdir()
    (tmp_path / "questions.jsonl").write_text('{"question": "?"}\n')
    frames = load([tmp_path, empty])
    assert frames.runs["run"].tolist() == ["sound"]
    text = "\n".join(frames.problems)
    assert f"{newer}: layout version 2" in text and f"{empty}: holds no run" in text
    assert f"{poor}: its manifest.json lacks seed, status" in text
    assert f"{tmp_path}/questions.jsonl" in text and len(frames.problems) == 4


def test_nothing_to_load_is_an_error(tmp_path):
    with pytest.raises(LoadError, match="nowhere: no such file or folder"):
        load([write_run(tmp_path / "run"), tmp_path / "nowhere"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(LoadError, match="empty: holds no run"):
        load(tmp_path / "empty")
    with pytest.raises(LoadError, match="layout version 7"):
        load(write_run(tmp_path / "newer", layout_version=7))
    with pytest.raises(LoadError, match="no path"):
        load([])


def test_all_sources_at_once(tmp_path):
    write_run(tmp_path / "ours")
    write_published(tmp_path / "theirs" / "baseline_compiled.jsonl")
    write_tensorboard(tmp_path / "titan")
    frames = load(tmp_path)
    assert frames.runs["run"].tolist() == ["ours", "theirs/baseline_compiled.jsonl", "titan"]
    assert frames.runs["seed"].fillna(-1).tolist() == [0, -1, -1]
    assert frames.windows.groupby("run", sort=False)["step"].max().tolist() == [30, 25, 50]


def test_benchmark_loads_what_it_makes(monkeypatch, capsys):
    monkeypatch.setattr(benchmark_load, "RUNS", 5)
    monkeypatch.setattr(benchmark_load, "WINDOWS", 20)
    assert benchmark_load.main() == 0
    assert capsys.readouterr().out.startswith("5 runs, 100 windows")
