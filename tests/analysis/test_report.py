"""Tables, page, JSON and command line, from run directories made by hand."""

import json
import re

import pytest

from analysis.comparison import compare
from analysis.report import main
from analysis.study import read_study
from analysis.tables import cost_table
from tests.analysis.planted import FP8, study
from tests.make_runs import write_run


@pytest.fixture
def report(tmp_path, capsys):
    """Report on a study; returns what is printed, and the JSON."""

    def call(folder, *words) -> tuple[str, dict]:
        file = tmp_path / "report.json"
        assert main([*map(str, (folder, "--json", file, *words))]) == 0
        return capsys.readouterr().out, json.loads(file.read_text())

    return call


def test_a_row_a_recipe_and_a_row_a_run(tmp_path, report):
    """Of 4,096 tokens in 0.5 s and 1 s the geometric mean is 5,793 tokens/s. The final loss is that
    of the last tenth of the steps."""
    changes = [
        {"losses": {"to": 9.0, "steps": [1, 27]}},
        {"runs": ["B/0"], "seconds": {"to": 0.5}, "losses": {"to": 7.1, "steps": [28, 30]}},
        {"runs": ["B/1"], "seconds": {"to": 1.0}, "losses": {"to": 8.1, "steps": [28, 30]}},
        {"runs": ["B/2"], "made": 5, "status": "failed"},
    ]
    printed, found = report(study(tmp_path, "B", steps=30, changes=changes), "--verbose")
    assert re.search(r"baseline +2 of 3 +5,793 .* 7\.600 ", printed)
    assert re.search(r"\n +1 +8\.100 +4,096 ", printed)
    assert "baseline/seed2 (failed, step 5)" in printed
    assert [run["tokens_per_s"] for run in found["runs"]] == pytest.approx([8192, 4096, None])


def test_cost_of_a_run_of_n_steps(tmp_path):
    """14 s to the end of the first step, then 0.1 s a step within the runs' 200 and beyond."""
    run = {"seconds": {"to": 0.1}, "warm_up": 14.0}
    written = study(tmp_path, recipes="C", seeds=[0], start_spread=0.0, steps=200, changes=[run])
    hours = cost_table(compare(read_study(written)), [100, 10_000])
    seconds = (3600 * hours["baseline_compiled"]).to_dict()
    assert seconds == pytest.approx({100: 14 + 9.9, 10_000: 14 + 999.9})


def test_page_and_json(tmp_path, report):
    """The page has the answer, what was trained, the table, figures and what they rest on; it
    fetches nothing. What looks like markup is none. The answer is first in the JSON."""
    page, bad = tmp_path / "page.html", {"status": "failed", "error": "a <b>bad</b> [red] day"}
    folder = study(tmp_path, "BCRT", steps=200, changes=[bad | {"runs": ["R/1"]}])
    printed, found = report(folder, "--html", page, "--verbose")
    html, answer = page.read_text(), found["answer"]
    places = [
        html.index(words) for words in ("<h1>", "<p>", "Trained: ", "<table", "<svg", "<details")
    ]
    assert places == sorted(places)
    assert all(
        fact in html for fact in ("8.05 B", "200 steps of 4,096", "NVIDIA H200", "2026-03-02")
    )
    assert html.count("<svg") == html.count('aria-label="') == 6
    assert "a &lt;b&gt;bad&lt;/b&gt; [red] day" in html
    assert "a <b>bad</b> [red] day" in printed
    assert not re.search(r'(src|href)="http', html)  # nothing is fetched
    assert [*found][0] == "answer" and len(found["runs"]) == 12
    assert (answer["outcome"], answer["recipe"], answer["reasons"]) == ("yes", FP8, [])
    assert answer["low"] < answer["ratio"] < answer["high"]


def test_how_many_runs_would_tell_is_said(tmp_path, report):
    noisy = [{"runs": ["T/0"], "seconds": {"by": 0.25}}, {"runs": ["T/1"], "speed": 1.5}]
    printed, found = report(study(tmp_path, seeds=[0, 1], changes=noisy))
    assert found["answer"]["outcome"] == "cannot_tell"
    assert re.search(r"about \d+ runs of each", printed)


@pytest.mark.parametrize("words", ["runs --json /nowhere/x.json", "runs --reference x"])
def test_bad_input_is_a_sentence(tmp_path, fails, monkeypatch, words):
    monkeypatch.chdir(tmp_path)
    write_run(tmp_path / "runs")
    fails(main, *words.split())


def test_the_reference_may_be_named(tmp_path, report):
    """That a study has a baseline of its own, planted.yaml has."""
    folder = study(tmp_path, "BC", seeds=[0], steps=40)
    assert report(folder)[1]["reference"] == "baseline_compiled"
    assert report(folder, "--reference", "baseline")[1]["reference"] == "baseline"


def test_without_a_reference_there_is_no_answer(tmp_path, report):
    """The page has figures without data."""
    folder = study(tmp_path, steps=40, changes=[{"runs": ["C/*"], "status": "failed"}])
    _, found = report(folder, "--html", tmp_path / "page.html")
    assert found["answer"]["outcome"] == "no_reference" and found["answer"]["ratio"] is None
