"""Tables, page, JSON and command line, from run directories made by hand."""

import json
import re

import pytest

from analysis.answer import answer, limits
from analysis.comparison import compare
from analysis.report import main
from analysis.study import read_study
from analysis.table import cost_by_steps, recipe_table, run_table
from tests.analysis.planted import study
from tests.make_runs import write_run

FP8 = "tensorwise_fp8_compiled"


def test_a_row_a_recipe_and_a_row_a_run(tmp_path):
    """Of 4,096 tokens in 0.5 s and 1 s the geometric mean is 5,793 tokens/s. The final loss is that
    of the last tenth of the steps."""
    changes = [
        {"losses": {"to": 9.0, "steps": [1, 27]}},
        {"runs": ["B/0"], "seconds": {"to": 0.5}, "losses": {"to": 7.1, "steps": [28, 30]}},
        {"runs": ["B/1"], "seconds": {"to": 1.0}, "losses": {"to": 8.1, "steps": [28, 30]}},
        {"runs": ["B/2"], "made": 5, "status": "failed"},
    ]
    comparison = compare(read_study(study(tmp_path, "B", steps=30, changes=changes)))
    row = recipe_table(comparison).loc["baseline"]
    assert row["tokens/s"] == "5,793" and row["final loss"] == "7.600" and row["runs"] == "2 of 3"
    assert run_table(comparison)["tokens/s"].tolist() == ["8,192", "4,096", "-"]
    assert run_table(comparison)["status"].iloc[-1] == "failed, step 5"
    [line] = limits(comparison)
    assert "seed2 (failed, step 5)" in line


def test_cost_of_a_run_of_n_steps(tmp_path):
    """14 s to the end of the first step, then 0.1 s a step within the runs' 200 and beyond."""
    run = {"seconds": {"to": 0.1}, "warm_up": 14.0}
    written = study(tmp_path, recipes="C", seeds=[0], start_spread=0.0, steps=200, changes=[run])
    hours = cost_by_steps(compare(read_study(written)), [100, 10_000])
    seconds = (3600 * hours["baseline_compiled"]).to_dict()
    assert seconds == pytest.approx({100: 14 + 9.9, 10_000: 14 + 999.9})


def test_page_and_json(tmp_path, capsys):
    """The page has the answer, what was trained, the table, figures and what they rest on; it
    fetches nothing. What looks like markup is none. The answer is first in the JSON."""
    page, figures = tmp_path / "page.html", tmp_path / "report.json"
    bad = {"runs": ["R/1"], "status": "failed", "error": "a <b>bad</b> [red] day"}
    folder = study(tmp_path, recipes="BCRT", steps=200, changes=[bad])
    assert main([str(folder), "--html", str(page), "--json", str(figures), "--verbose"]) == 0
    html, found, printed = page.read_text(), json.loads(figures.read_text()), capsys.readouterr()
    places = [
        html.index(words) for words in ("<h1>", "<p>", "Trained: ", "<table", "<svg", "<details")
    ]
    assert places == sorted(places)
    assert all(
        fact in html for fact in ("8.05 B", "200 steps of 4,096", "NVIDIA H200", "2026-03-02")
    )
    assert html.count("<svg") == html.count('aria-label="') == 6
    assert "a &lt;b&gt;bad&lt;/b&gt; [red] day" in html
    assert "a <b>bad</b> [red] day" in printed.out
    assert not re.search(r'(src|href)="http', html)  # nothing is fetched
    answer = found["answer"]
    assert [*found][0] == "answer" and len(found["runs"]) == 12
    assert (answer["outcome"], answer["recipe"], answer["reasons"]) == ("yes", FP8, [])
    assert answer["low"] < answer["ratio"] < answer["high"]


def test_how_many_runs_would_tell_is_said(tmp_path):
    noisy = [{"runs": ["T/0"], "seconds": {"by": 0.25}}, {"runs": ["T/1"], "speed": 1.5}]
    comparison = compare(read_study(study(tmp_path, seeds=[0, 1], changes=noisy)))
    assert comparison.best.outcome == "cannot_tell"
    assert f"about {comparison.best.speed.runs_needed} runs of each" in answer(comparison)[1]


@pytest.mark.parametrize("words", ["nowhere", "runs --json /nowhere/x.json", "runs --reference x"])
def test_bad_input_is_a_sentence(tmp_path, fails, monkeypatch, words):
    monkeypatch.chdir(tmp_path)
    write_run(tmp_path / "runs")
    fails(main, *words.split())


def test_the_reference_may_be_named(tmp_path):
    """That a study has a baseline of its own, planted.yaml has."""
    for name in ("baseline", "baseline_compiled"):
        write_run(tmp_path / name / "seed0", name)
    study = read_study(tmp_path)
    assert "baseline" in compare(study).findings
    assert "baseline_compiled" in compare(study, "baseline").findings


def test_without_a_reference_there_is_no_answer(tmp_path):
    failed = {"runs": ["C/*"], "status": "failed"}
    folder, report = study(tmp_path, steps=40, changes=[failed]), tmp_path / "report.json"
    assert main([str(folder), "--html", str(tmp_path / "page.html"), "--json", str(report)]) == 0
    found = json.loads(report.read_text())["answer"]
    assert found["outcome"] == "no_reference" and found["ratio"] is None
