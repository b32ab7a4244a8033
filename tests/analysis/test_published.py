"""The published project's logs, read as runs without proof."""

import json

import pytest

from analysis.answer import outcome
from analysis.comparison import compare
from analysis.other_logs import published
from analysis.speed import mfu, tokens_per_s
from analysis.study import StudyError
from models.llama import FLAVORS
from tests.make_runs import write_lines, write_published
from tests.runs import PUBLISHED_LOGS, needs_published_logs


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
