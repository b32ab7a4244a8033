"""Tables, page, JSON and command line, from run directories made by hand."""

import json
import re

import pytest

from analysis.answer import answer, limits, trained
from analysis.comparison import compare
from analysis.report import main
from analysis.study import read_study
from analysis.table import cost_by_steps, recipe_table, run_table
from tests.analysis.planted import study
from tests.make_runs import change, metrics_lines, write_run, write_study

FP8 = "tensorwise_fp8_compiled"


def test_a_row_a_recipe_and_a_row_a_run(tmp_path):
    """0.1 s and 0.2 s a step: 1,000 and 500 tokens/s, the geometric mean of which is 707."""
    for seed, step_s in enumerate((0.1, 0.2)):
        write_run(tmp_path / f"{seed}", seed=seed, lines=metrics_lines(step_s=step_s, shift=seed))
    write_run(tmp_path / "failed", lines=metrics_lines(last=5), seed=2, status="failed")
    comparison = compare(read_study(tmp_path))
    row = recipe_table(comparison).loc["baseline"]
    assert row["tokens/s"] == "707" and row["final loss"] == "7.600" and row["runs"] == "2 of 3"
    assert run_table(comparison)["tokens/s"].tolist() == ["1,000", "500", "-"]
    assert run_table(comparison)["status"].iloc[-1] == "failed, step 5"
    [line] = limits(comparison)
    assert "seed2 (failed, step 5)" in line


def test_cost_of_a_run_of_n_steps(tmp_path):
    """Measured within the runs, and 0.1 s a step beyond their 200: 14 s for the first 10 steps,
    then steady."""
    comparison = compare(read_study(write_study(tmp_path, seeds=1)))
    hours = cost_by_steps(comparison, [100, 10_000])
    seconds = (3600 * hours["baseline_compiled"]).to_dict()
    assert seconds == pytest.approx({100: 14 + 90 * 0.1, 10_000: 14 + 999})


def test_what_was_trained_is_said(tmp_path):
    facts = {"flavor": "8B-published", "parameters": 8_050_000_000, "world_size": 4}
    facts |= {"start": "2026-01-02T03:04:05Z", "git": {"commit": "0123456789abc"}}
    write_run(tmp_path / "a", hardware={"name": "H200"}, **facts)
    said = trained(compare(read_study(tmp_path)))
    for words in ("8.05 B", "30 steps of 100", "rows of 50", "4 H200", "2026-01-02", "012345678"):
        assert words in said


def test_page_and_json(tmp_path, capsys):
    """The page has the answer and what was trained before the table, its evidence folded, and
    fetches nothing. What looks like markup is none."""
    folder, whole, figures = tmp_path / "runs", tmp_path / "page.html", tmp_path / "report.json"
    write_study(folder)
    bad = {"status": "failed", "error": "a <b>bad</b> [red] day"}
    write_run(folder / "broken", "rowwise_fp8_compiled", **bad)
    assert main([str(folder), "--html", str(whole), "--json", str(figures), "--verbose"]) == 0
    html, found, printed = whole.read_text(), json.loads(figures.read_text()), capsys.readouterr()
    order = "<h1>|<p>|Trained: |<h2>|over compiled|<h2>Figures|<svg|<h2>Evidence|rests on|Each run"
    places = [html.index(words) for words in order.split("|")]
    assert places == sorted(places)
    assert "prefers-color-scheme: dark" in html and 'name="viewport"' in html
    assert html.count("<svg") == html.count('aria-label="') == 6
    assert "a &lt;b&gt;bad&lt;/b&gt; [red] day" in html
    assert "a <b>bad</b> [red] day" in printed.out
    assert not re.search(r'(src|href)="http', html)  # nothing is fetched
    assert found["answer"]["recipe"] == FP8 and len(found["runs"]) == 10
    assert found["answer"]["ratio"] == pytest.approx(1.25)
    assert [finding["loss"]["word"] for finding in found["findings"] if finding["recipe"] == FP8]


def test_how_many_runs_would_tell_is_said(tmp_path):
    noisy = study(tmp_path / "b05_two_seeds_noisy", seeds=2, start_spread=0.08)
    comparison = compare(read_study(noisy))
    assert comparison.best.outcome == "cannot_tell"
    assert f"about {comparison.best.speed.runs_needed} runs of each" in answer(comparison)[1]


def test_bad_input_is_a_sentence(tmp_path, fails):
    write_study(tmp_path / "runs", seeds=1)
    for arguments in (
        [str(tmp_path / "nowhere")],
        [str(tmp_path / "runs"), "--json", "/nowhere/figures.json"],
        [str(tmp_path / "runs"), "--reference", "bogus"],
    ):
        fails(main, *arguments)


def test_a_study_is_compared_with_its_own_baseline(tmp_path):
    for name in ("first", "second_in_bf16", "baseline_compiled"):
        write_run(tmp_path / name / "seed0", name)
    assert compare(read_study(tmp_path)).reference == "baseline_compiled"
    (tmp_path / "study.yaml").write_text("baseline: first\n")
    study = read_study(tmp_path)
    assert compare(study).reference == "first" and "second_in_bf16" in compare(study).findings
    assert "first" in compare(study, "second_in_bf16").findings


def test_without_a_reference_there_is_no_answer(tmp_path):
    write_study(tmp_path)
    change(tmp_path, "baseline_compiled", status="failed")
    report = tmp_path / "report.json"
    arguments = ["--html", str(tmp_path / "page.html"), "--json", str(report)]
    assert main([str(tmp_path), *arguments]) == 0
    found = json.loads(report.read_text())["answer"]
    assert found["outcome"] == "no_reference" and found["ratio"] is None
