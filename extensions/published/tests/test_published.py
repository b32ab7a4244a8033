"""The published project's logs, read as runs without proof."""

import json
import os
from pathlib import Path

import pytest

from analysis import plots
from analysis.answer import outcome
from analysis.comparison import compare
from analysis.speed import mfu, tokens_per_s
from analysis.study import StudyError
from extensions.published import logs as published
from models.llama import FLAVORS
from tests.make_runs import write_lines
from tests.processes import ROOT

PUBLISHED_LOGS = Path(os.environ.get("PUBLISHED_LOGS") or ROOT / "published_logs")
needs_published_logs = pytest.mark.skipif(
    not PUBLISHED_LOGS.is_dir(),
    reason="needs the published logs: set PUBLISHED_LOGS to a copy of output/data of "
    "github.com/mak2508/lsai-proj",
)


def write_published(path, seconds=(30.0, 4.0, 5.0, 2.5, 2.5, 2.5)) -> Path:
    """Write a log of the published project: a line at step 1, then every 5, of 4,096 tokens a step
    of which a fifth are not padding; `seconds` since the line before."""
    lines, step = [], 0
    for number, duration in enumerate(seconds):
        count = 1 if number == 0 else 4 if number == 1 else 5
        step += count
        rate = count * 4096 / duration
        lines.append({"timestamp": "2025-05-25 10:16:09", "step": step, "loss": 12 - step / 100,
                      "tokens_per_second": rate, "training_tokens_per_second": rate / 5,
                      "training_tokens_percentage": 20.0, "mfu": 50.0, "tflops": 500.0,
                      "learning_rate": 5e-5, "time_delta": duration})  # fmt: skip
    write_lines(path, lines)
    return path


def test_a_log_is_a_run(tmp_path):
    log = write_published(tmp_path / "fp8-tensorwise-compile_20250525_173352.jsonl")
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    lines[1]["training_tokens_percentage"] = 45.0  # of 4 of its 25 steps; 20 % of the others
    write_lines(log, lines)
    run = published.read_log(log)
    assert run.recipe == "tensorwise_fp8_compiled" and run.completed
    assert run.steps.index.tolist() == list(range(1, 26))
    assert run.steps["seconds"].tolist() == [30.0] + [1.0] * 9 + [0.5] * 15
    assert run.steps["elapsed"].dropna().tolist() == [30, 34, 39, 41.5, 44, 46.5]
    assert run.steps["steady"].sum() == 15
    useful = run.steps["useful"].sum() / run.steps["tokens"].sum()
    assert useful == pytest.approx(0.2 + 0.25 * 4 / 25)


@pytest.mark.parametrize(
    ("name", "recipe"),
    [("baseline", "baseline"), ("baseline-compile", "baseline_compiled"),
     ("fp8-rowwise-compile", "rowwise_fp8_compiled"), ("flash-attn-fa3", "flash_attn_fa3")],
)  # fmt: skip
def test_the_projects_own_names_are_this_projects_recipes(tmp_path, name, recipe):
    assert published.recipe_name(tmp_path / f"{name}_20250525_173352.jsonl") == recipe


def test_logs_compare_as_single_runs_and_steps_that_are_missing_are_not_timed(tmp_path):
    for name, seconds in (("baseline-compile", 2.5), ("fp8-tensorwise-compile", 2.0)):
        write_published(tmp_path / f"{name}.jsonl", seconds=[30.0, *[seconds] * 40])
    log = tmp_path / "baseline-compile.jsonl"
    lines = log.read_bytes().splitlines(keepends=True)
    log.write_bytes(b"".join([*lines[:3], *lines[4:]]))
    comparison = compare(published.read_published(tmp_path))
    assert outcome(comparison) == "single_run"
    assert comparison.best.speed.ratio.mean == pytest.approx(1.25)
    assert 13 not in comparison.completed["baseline_compiled"][0].steps.index
    for draw in (plots.lead, plots.first_step):
        assert "starts with training, not with the process" in draw(comparison).alternative


def test_what_is_no_log_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError):
        published.read_published(tmp_path)
    (tmp_path / "other.jsonl").write_text("{}")
    with pytest.raises(StudyError, match="other.jsonl"):
        published.read_published(tmp_path)


def test_flops_are_those_of_the_published_size(tmp_path):
    run = published.read_log(write_published(tmp_path / "baseline.jsonl", [30, *[2.5] * 9]))
    per_token = FLAVORS["8B-published"].flops_per_token(4096)
    assert tokens_per_s(run) == pytest.approx(8192)
    assert mfu(run) == pytest.approx(8192 * per_token / 989e12)
    assert run.manifest.parameters == FLAVORS["8B-published"].parameters()


@needs_published_logs
def test_published_figures():
    comparison = compare(published.read_published(PUBLISHED_LOGS))
    runs = {recipe: of[0] for recipe, of in comparison.completed.items()}
    assert [round(tokens_per_s(run)) for run in runs.values()] == [8123, 8777, 9280, 10898]
    assert [round(mfu(run), 3) for run in runs.values()] == [0.423, 0.457, 0.484, 0.568]
    assert [round(run.steps["elapsed"].max(), 1) for run in runs.values()] == [
        504.7, 503.0, 575.1, 478.3,
    ]  # fmt: skip
    steps = {recipe: finding.break_even.step for recipe, finding in comparison.findings.items()}
    assert steps["tensorwise_fp8_compiled"] == 728 and steps["rowwise_fp8_compiled"] == 3851
