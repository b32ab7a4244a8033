"""Table, page, JSON and notes, from run directories made by hand."""

import json
import re
from io import StringIO

import pytest
from rich.console import Console

from analysis.comparison import compare
from analysis.page import page
from analysis.report import main, tables
from analysis.table import mean_table, rows_of, run_table, trained
from tests.make_runs import metrics_lines, write_run, write_study


def test_a_recipes_line_has_the_means_of_its_completed_runs(tmp_path):
    for seed, step_s in enumerate((0.1, 0.2)):
        write_run(tmp_path / f"{seed}", seed=seed, lines=metrics_lines(step_s=step_s, shift=seed))
    write_run(tmp_path / "failed", lines=metrics_lines(last=5), seed=2, status="failed")
    rows = rows_of(compare(tmp_path))
    (mean,) = mean_table(rows).to_numpy().tolist()
    assert mean[:2] == ["7.600 ± 0.707", "750"] and mean[-1] == "2 of 3 completed"
    assert run_table(rows)["tokens/s"].tolist() == ["1,000", "500", "-"]


def test_what_was_trained_is_said(tmp_path):
    machine = {"name": "H200", "driver": "570.1", "power_limit_w": 350.0, "sm_clock_max_mhz": 1980}
    write_run(tmp_path / "a", flavor="8B-published", parameters=8_050_000_000, world_size=4,
              start="2026-01-02T03:04:05Z", dataset="c4", overlays=["h200"], hardware=machine,
              git={"commit": "0123456789abc", "changes": "1139c175"})  # fmt: skip
    comparison = compare(tmp_path)
    sentence = trained(comparison)
    assert "tokens/s are of all 4 processes together" in page(comparison)
    assert sentence in page(comparison) and sentence == (
        "Trained: model 8B-published; 8.05 B parameters; 30 steps; 100 tokens a step; rows of 50 "
        "tokens; 3 k tokens a run; data c4; overlays h200; seeds: 1; 2026-01-02; commit 012345678 "
        "and changes 1139c175; torch 2.13.0; torchao 0.18.0; torchtitan 0.2.2; driver 570.1; H200; "
        "processes: 4; power limit 350 W; clock up to 1980 MHz."
    )


def test_what_is_wrong_with_a_run_is_named_on_table_and_page(tmp_path, capsys):
    """One run fails, one is killed, and one takes 0.1 s and 0.2 s by turns: its quartiles, 500 and
    1,000 tokens/s, are 75 % apart."""
    runs, page = tmp_path / "runs", tmp_path / "page.html"
    varying = metrics_lines()
    for line in varying[10::2]:
        line["step_s"] = [0.2]
    write_run(runs / "shared", seed=2, lines=varying)
    write_run(runs / "killed", seed=1, status="running", lines=[])
    failed = {"lines": metrics_lines(last=12), "status": "failed", "error": "the disk is full"}
    write_run(runs / "failed", "baseline_compiled", **failed)
    assert main([str(runs), "--html", str(page), "--verbose"]) == 0
    for shown in (capsys.readouterr().out, page.read_text()):
        for words in (
            "failed at 12",
            "failed at step 12 of 30 (the disk is full), so it is not averaged",
            f"{runs}/killed: not ended (running, or killed) at step 0 of 30",
            "not ended at 0",
            "as where something else runs on the machine: baseline seed 2. Repeat such runs",
        ):
            assert words in shown


def test_page_and_json(tmp_path, capsys):
    """The page has the answer before the matrix, its evidence folded, what was trained at the foot,
    and fetches nothing."""
    study, whole, figures = tmp_path / "runs", tmp_path / "page.html", tmp_path / "report.json"
    write_study(study)
    bad = {"status": "failed", "error": "a <b>bad</b> day"}
    write_run(study / "broken", "rowwise_fp8_compiled", **bad)
    assert main([str(study), "--html", str(whole), "--json", str(figures)]) == 0
    html, plain = whole.read_text(), json.loads(figures.read_text())
    order = "Yes: of 2 FP8 recipes tensorwise|over compiled|<svg|rests on|Each run|Trained: "
    places = [html.index(words) for words in order.split("|")]
    assert places == sorted(places) and "3 runs of tensorwise" in html
    assert html.count("<svg") == html.count('aria-label="') == 6
    assert "a &lt;b&gt;bad&lt;/b&gt; day" in html
    assert not re.search(r'(src|href)="http', html)  # nothing is fetched
    assert plain["answer"][0].startswith("Yes") and len(plain["runs"]) == 10
    assert {v["outcome"] for v in plain["verdicts"]} == {"the same"}
    assert main([str(study), "--json", "/nowhere/figures.json"]) == 2
    assert "/nowhere/figures.json: No such file or directory" in capsys.readouterr().out


@pytest.mark.parametrize("width", [80, 120])
def test_nothing_is_cut_off_in_a_narrow_terminal(tmp_path, width):
    write_run(tmp_path / "a", "rowwise_gw_hp_fp8_compiled", step_s=0.001, fp8_share=0.5)
    runs = rows_of(compare(tmp_path))
    console = Console(width=width, record=True, file=StringIO())
    for view in tables(runs.assign(wall_s=12345.6), width):
        console.print(view)
    printed = console.export_text()
    for value in ("rowwise_gw_hp_fp8_compiled", "100,000", "12345.6", "50.0%", "completed"):
        assert value in printed
    assert "…" not in printed
