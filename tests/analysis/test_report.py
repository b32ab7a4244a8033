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
from tests.make_runs import metrics_lines, write_run

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
    assert "seed 2 (failed, step 5)" in line


def test_cost_of_a_run_of_n_steps(tmp_path):
    """14 s to the end of the first step, then 0.1 s a step within the runs' 200 and beyond."""
    run = {"seconds": {"to": 0.1}, "warm_up": 14.0}
    written = study(tmp_path, recipes="C", seeds=1, steps=200, changes=[run])
    hours = cost_by_steps(compare(read_study(written)), [100, 10_000])
    seconds = (3600 * hours["baseline_compiled"]).to_dict()
    assert seconds == pytest.approx({100: 14 + 9.9, 10_000: 14 + 999.9})


def test_what_was_trained_is_said(tmp_path):
    facts = {"flavor": "8B-published", "parameters": 8_050_000_000, "world_size": 4}
    facts |= {"start": "2026-01-02T03:04:05Z", "git": {"commit": "0123456789abc"}}
    write_run(tmp_path / "a", hardware={"name": "H200"}, **facts)
    said = trained(compare(read_study(tmp_path)))
    for words in ("8.05 B", "30 steps of 100", "rows of 50", "4 H200", "2026-01-02", "012345678"):
        assert words in said


def test_page_and_json(tmp_path, capsys):
    """The page has the answer before the table, the table before figures and what they rest on, and
    fetches nothing. What looks like markup is none. The answer is first in the JSON."""
    page, figures = tmp_path / "page.html", tmp_path / "report.json"
    bad = {"runs": ["R/1"], "status": "failed", "error": "a <b>bad</b> [red] day"}
    folder = study(tmp_path, recipes="BCRT", steps=200, changes=[bad])
    assert main([str(folder), "--html", str(page), "--json", str(figures), "--verbose"]) == 0
    html, found, printed = page.read_text(), json.loads(figures.read_text()), capsys.readouterr()
    places = [html.index(words) for words in ("<h1>", "<p>", "<table", "<svg", "<details")]
    assert places == sorted(places)
    assert html.count("<svg") == html.count('aria-label="') == 6
    assert "a &lt;b&gt;bad&lt;/b&gt; [red] day" in html
    assert "a <b>bad</b> [red] day" in printed.out
    assert not re.search(r'(src|href)="http', html)  # nothing is fetched
    answer = found["answer"]
    assert [*found][0] == "answer" and len(found["runs"]) == 12
    assert (answer["outcome"], answer["recipe"], answer["reasons"]) == ("yes", FP8, [])
    assert answer["low"] < answer["ratio"] < answer["high"]


def test_how_many_runs_would_tell_is_said(tmp_path):
    noisy = study(tmp_path / "b05_two_seeds_noisy", seeds=2, start_spread=0.08)
    comparison = compare(read_study(noisy))
    assert comparison.best.outcome == "cannot_tell"
    assert f"about {comparison.best.speed.runs_needed} runs of each" in answer(comparison)[1]


@pytest.mark.parametrize("words", ["nowhere", "runs --json /nowhere/x.json", "runs --reference x"])
def test_bad_input_is_a_sentence(tmp_path, fails, monkeypatch, words):
    monkeypatch.chdir(tmp_path)
    write_run(tmp_path / "runs")
    fails(main, *words.split())


def test_a_study_is_compared_with_its_own_baseline(tmp_path):
    for name in ("first", "second_in_bf16", "baseline_compiled"):
        write_run(tmp_path / name / "seed0", name)
    assert compare(read_study(tmp_path)).reference == "baseline_compiled"
    (tmp_path / "study.yaml").write_text("baseline: first\n")
    study = read_study(tmp_path)
    assert compare(study).reference == "first" and "second_in_bf16" in compare(study).findings
    assert "first" in compare(study, "second_in_bf16").findings


def test_without_a_reference_there_is_no_answer(tmp_path):
    failed = {"runs": ["C/*"], "status": "failed"}
    folder, report = study(tmp_path, steps=40, changes=[failed]), tmp_path / "report.json"
    assert main([str(folder), "--html", str(tmp_path / "page.html"), "--json", str(report)]) == 0
    found = json.loads(report.read_text())["answer"]
    assert found["outcome"] == "no_reference" and found["ratio"] is None
