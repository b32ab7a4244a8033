"""The table, from run directories made by hand."""

import json

import pytest
from make_runs import write_run
from rich.console import Console

from analysis.report import find_runs, main, tables
from analysis.summary import LayoutError, summarize


def printed(rows, width=160) -> str:
    console = Console(width=width, record=True, file=open("/dev/null", "w"))
    for view in tables(rows, "baseline", width):
        console.print(view)
    return console.export_text()


def test_row_of_a_run(tmp_path):
    row = summarize(write_run(tmp_path / "a", step_s=0.1, fp8_share=0.5))
    assert row["tokens_per_s"] == pytest.approx(1000) and row["valid_tokens_per_s"] == pytest.approx(500)
    assert row["final_loss"] == pytest.approx(10 - 2.55)  # mean of steps 21 to 30
    assert row["mfu_bf16_peak"] == pytest.approx(1.0) and row["mfu_fp8_peak"] == pytest.approx(0.5)
    assert row["mfu_mixed_peak"] == pytest.approx(0.75)  # half of the FLOPs at twice the peak
    assert (row["warm_up_s"], row["peak_memory_bytes"]) == (5.0, 30 * 2**20)
    assert row["wall_s"] == pytest.approx(4 + 10 + 2) and row["wall_s_without_warm_up"] == pytest.approx(11)
    assert row["data_wait_share"] == pytest.approx(0.01)


def test_ratios_are_to_the_run_of_the_same_seed(tmp_path):
    rows = [
        summarize(write_run(tmp_path / f"{name}{seed}", name, step_s=s, seed=seed))
        for name, seed, s in [
            ("baseline", 0, 0.2), ("baseline_compiled", 0, 0.1), ("tensorwise_fp8_compiled", 0, 0.08),
            ("baseline", 1, 0.4), ("tensorwise_fp8_compiled", 1, 0.1),
        ]
    ]  # fmt: skip
    tensorwise = [line.split() for line in printed(rows).splitlines() if "tensorwise" in line]
    assert tensorwise[0][5:7] == ["2.50", "1.25"]
    assert tensorwise[1][5:7] == ["4.00", "-"]


def test_unfinished_and_failed_runs_are_in_the_table_and_say_so(tmp_path, capsys):
    write_run(tmp_path / "a")
    write_run(tmp_path / "b", "tensorwise_fp8_compiled", steps=12, status="failed", error="the disk is full")
    manifest = json.loads((tmp_path / "b" / "manifest.json").read_text()) | {"steps": 30}
    (tmp_path / "b" / "manifest.json").write_text(json.dumps(manifest))
    assert main([str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "failed at 12" in said and "tensorwise_fp8_compiled seed 0: the disk is full" in said


@pytest.mark.parametrize("missing", ["timing.json", "proof.json", "metrics.jsonl"])
def test_missing_records_leave_gaps_not_errors(tmp_path, missing):
    run = write_run(tmp_path / "a")
    (run / missing).unlink()
    assert "-" in printed([summarize(run)])


def test_torn_last_line_is_left_out(tmp_path):
    run = write_run(tmp_path / "a", steps=20)
    with open(run / "metrics.jsonl", "a") as file:
        file.write('{"step": 21, "loss')
    assert summarize(run)["steps"] == 20


def test_another_layout_is_named_and_left_out(tmp_path, capsys):
    write_run(tmp_path / "a")
    newer = write_run(tmp_path / "b", layout_version=2)
    with pytest.raises(LayoutError, match="layout version 2"):
        summarize(newer)
    assert main([str(tmp_path)]) == 0
    assert "not in the table" in (said := capsys.readouterr().out) and "b: layout version 2" in said.replace("\n", "")


def test_no_runs_is_an_error(tmp_path, capsys):
    assert main([str(tmp_path)]) == 2
    assert "no run directories below" in capsys.readouterr().out


def test_earlier_attempts_are_not_runs_but_their_time_counts(tmp_path):
    run = write_run(tmp_path / "a")
    write_run(run / "attempt1", steps=11, status="running")
    assert find_runs([tmp_path]) == [run]
    row = summarize(run)
    assert row["wall_s"] == pytest.approx(16 + (4 + 10 + 0.1)) and row["warm_up_s"] == 10


@pytest.mark.parametrize("width", [80, 120])
def test_nothing_is_cut_off_in_a_narrow_terminal(tmp_path, width):
    row = summarize(write_run(tmp_path / "a", "rowwise_gw_hp_fp8_compiled", step_s=0.001, fp8_share=0.5))
    said = printed([row | {"wall_s": 12345.6}], width)
    for value in ("rowwise_gw_hp_fp8_compiled", "100,000", "12345.6", "50.0%", "completed"):
        assert value in said
    assert "…" not in said
