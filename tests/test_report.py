"""The table, from run directories made by hand."""

import json
import re
import shutil

import pytest
from rich.console import Console

from analysis.comparison import answer, compare, cost_by_steps
from analysis.report import main, tables
from analysis.summary import LayoutError, summarize
from tests.make_runs import metrics_lines, write_run


def printed(rows, width=160) -> str:
    console = Console(width=width, record=True, file=open("/dev/null", "w"))
    for view in tables(rows, "baseline", width):
        console.print(view)
    return console.export_text()


def test_row_of_a_run(tmp_path):
    row = summarize(write_run(tmp_path / "a", step_s=0.1, fp8_share=0.5))
    assert row["tokens_per_s"] == pytest.approx(1000) and row["valid_tokens_per_s"] == pytest.approx(500)
    assert row["final_loss"] == pytest.approx(10 - 2.9)  # mean of steps 28 to 30
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
    assert "failed at 12" in said and "failed at step 12 of 30 (the disk is full), so it is not averaged" in said


def test_a_killed_run_is_not_called_running(tmp_path, capsys):
    killed = write_run(tmp_path / "runs" / "killed", seed=1, status="running", lines=[])
    write_run(tmp_path / "runs" / "whole")
    assert main([str(tmp_path / "runs"), "--html", str(tmp_path / "page.html")]) == 0
    said = capsys.readouterr().out
    assert f"{killed}: not ended (running, or killed) at step 0 of 30" in said and "not ended at 0" in said
    assert "running at 0" not in said and ", running<" not in (tmp_path / "page.html").read_text()


def test_steps_that_vary_much_are_named_on_table_and_page(tmp_path, capsys):
    """0.1 s and 0.2 s by turns: quartiles of 500 and 1,000 tokens/s around 667, which are 75 %."""
    write_run(tmp_path / "runs" / "quiet")
    lines = metrics_lines()
    for line in lines[10::2]:
        line["step_s"] = [0.2]
    write_run(tmp_path / "runs" / "shared", seed=1, lines=lines)
    assert main([str(tmp_path / "runs"), "--html", str(tmp_path / "page.html")]) == 0
    sentence = "Steps vary much (IQR), as where something else runs on the machine: baseline seed 1 (75%). Repeat"
    assert sentence in capsys.readouterr().out and sentence in (tmp_path / "page.html").read_text()


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
    assert "Note: " in (said := capsys.readouterr().out) and "b: layout version 2" in said


def test_no_runs_is_an_error(tmp_path, capsys):
    assert main([str(tmp_path)]) == 2
    assert "holds no run" in capsys.readouterr().out


# ---- the answer ----


def study(folder, fp8_step_s=0.08, fp8_warm_up=40.0, loss_shift=0.0, seeds=3, device="cuda"):
    """Three seeds of a compiled baseline at 0.1 s a step and of FP8; each seed's losses are shifted by 0.05.

    The baseline ends at about 10, so that the margin is about 0.025.
    """
    for seed in range(seeds):
        for recipe, step_s, late, shift in (
            ("baseline", 0.1, 0, 0), ("baseline_compiled", 0.1, 0, 0),
            ("tensorwise_fp8_compiled", fp8_step_s, fp8_warm_up, loss_shift + 0.001 * seed),
        ):  # fmt: skip
            lines = metrics_lines(last=200, step_s=step_s)
            for line in lines:
                line["elapsed_s"] += late
                line["losses"] = [loss + 19 + 0.05 * seed + shift for loss in line["losses"]]
                line["loss"] += 19 + 0.05 * seed + shift
            float8 = "tensorwise" if "fp8" in recipe else None
            facts = {"hardware": {"name": "GPU", "type": device}, "float8": float8}
            write_run(folder / f"{recipe}{seed}", recipe, lines=lines, steps=200, seed=seed, **facts)
    return compare(folder)


def test_yes(tmp_path):
    """0.02 s a step pay 40 s back after 2,000 steady steps; the first ten are as slow in both."""
    first, *facts = answer(study(tmp_path))
    assert first.startswith("Yes: tensorwise_fp8_compiled has 1.25 times the tokens/s of baseline_compiled")
    assert re.search("and would be ahead from about step 2,01[01], warm-up included, beyond these runs", first)
    assert first.endswith("It ends at the same loss.")
    assert any("3 seeds, difference +0.0010" in fact for fact in facts)


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"fp8_step_s": 0.11}, "No: tensorwise_fp8_compiled has 0.91 times"),
        ({"loss_shift": 0.5}, "Not as it is: tensorwise_fp8_compiled has 1.25 times"),
        ({"seeds": 1}, "For speed, yes: tensorwise_fp8_compiled has 1.25 times"),
        ({"device": "cpu"}, "No answer about speed: these runs are from a CPU"),
        ({"fp8_step_s": 0.1}, "Cannot tell: tensorwise_fp8_compiled has 1.00 times"),
        (
            {"fp8_warm_up": -1.0},
            "Yes: tensorwise_fp8_compiled has 1.25 times the tokens/s of baseline_compiled, and is "
            "ahead from the start",
        ),
    ],
)
def test_other_answers(tmp_path, changed, expected):
    assert answer(study(tmp_path, **changed))[0].startswith(expected)


def test_the_loss_is_told_from_its_sign(tmp_path):
    assert answer(study(tmp_path, loss_shift=-0.5))[0].endswith("It ends at a lower loss.")


def test_the_fastest_that_keeps_the_loss_is_the_answer(tmp_path):
    study(tmp_path, loss_shift=0.5)
    for seed in range(3):
        lines = [json.loads(line) for line in (tmp_path / f"baseline{seed}" / "metrics.jsonl").read_text().splitlines()]
        faster = [line | {"step_s": [0.09 if line["step"] > 10 else 1.0]} for line in lines]
        write_run(tmp_path / f"rowwise{seed}", "rowwise_fp8_compiled", lines=faster, steps=200, seed=seed)
    first, *facts = answer(compare(tmp_path))
    assert first.startswith("Yes: rowwise_fp8_compiled has 1.11 times") and first.endswith("the same loss.")
    assert any("tensorwise_fp8_compiled ends at a higher loss" in fact for fact in facts)


@pytest.mark.parametrize(("lost", "expected"), [((3,), "1 of 4"), ((0, 1, 2, 3), "4 of 4")])
def test_divergence_is_no_yes(tmp_path, lost, expected):
    study(tmp_path, seeds=4)
    for seed in lost:
        manifest = tmp_path / f"tensorwise_fp8_compiled{seed}" / "manifest.json"
        manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"status": "diverged"}))
    said = f"tensorwise_fp8_compiled diverged in {expected} seeds, where bf16 did not."
    first, *facts = answer(compare(tmp_path))
    assert first == f"Not as it is: {said}" and facts[0] == said


def test_a_baseline_in_fp8_gives_no_answer(tmp_path):
    study(tmp_path)
    first, *facts = answer(compare(tmp_path, "tensorwise_fp8_compiled"))
    assert first == "No answer: it needs completed runs in FP8, and in bf16 those of the baseline."
    for recipe in ("baseline", "baseline_compiled"):
        for seed in range(3):
            shutil.rmtree(tmp_path / f"{recipe}{seed}")
    write_run(tmp_path / "rowwise", "rowwise_fp8_compiled", steps=200, lines=metrics_lines(last=200))
    assert answer(compare(tmp_path, "tensorwise_fp8_compiled"))[0] == first


def test_divergence_is_told_from_any_run_in_bf16(tmp_path):
    """Only the compiled baseline completed the seed: the divergence counts all the same."""
    study(tmp_path, seeds=1)
    shutil.rmtree(tmp_path / "baseline0")
    manifest = tmp_path / "tensorwise_fp8_compiled0" / "manifest.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"status": "diverged"}))
    assert answer(compare(tmp_path))[0].startswith("Not as it is: tensorwise_fp8_compiled diverged in 1 of 1 seeds")


def test_runs_of_another_learning_rate_are_not_compared(tmp_path, capsys):
    write_run(tmp_path / "a")
    write_run(tmp_path / "b", "baseline_compiled", lines=[line | {"lr": 1e-2} for line in metrics_lines()])
    assert main([str(tmp_path)]) == 2
    assert "differ in their learning rate (at step 1: 0.001, 0.01)" in capsys.readouterr().out


def test_lines_out_of_order_or_twice_are_sorted_and_said(tmp_path, capsys):
    whole, odd = metrics_lines(), metrics_lines()
    write_run(tmp_path / "whole", lines=whole)
    write_run(tmp_path / "odd", "baseline_compiled", lines=[*odd[::-1], odd[3]])
    assert main([str(tmp_path)]) == 0
    assert "its steps are out of order or repeated" in capsys.readouterr().out
    rows = [summarize(tmp_path / name) for name in ("whole", "odd")]
    assert rows[0]["final_loss"] == rows[1]["final_loss"] and rows[0]["tokens_per_s"] == rows[1]["tokens_per_s"]


def test_compilation_is_not_credited_to_fp8(tmp_path):
    for recipe, step_s in (("baseline", 0.1), ("tensorwise_fp8_compiled", 0.08)):
        write_run(tmp_path / recipe, recipe, step_s=step_s, steps=60, compiled="compiled" in recipe)
    assert answer(compare(tmp_path))[0].startswith("No answer on FP8 alone: tensorwise_fp8_compiled has 1.25 times")


def test_noise_is_no_answer(tmp_path):
    """A rate that differs from run to run as much as between the recipes."""
    for seed, step_s in enumerate((0.08, 0.1, 0.12)):
        for recipe, factor in (("baseline_compiled", 1.0), ("baseline", 1.0), ("tensorwise_fp8_compiled", 0.97)):
            write_run(tmp_path / f"{recipe}{seed}", recipe, step_s=step_s * factor, steps=60, seed=seed)
    assert answer(compare(tmp_path))[0].startswith("Cannot tell: tensorwise_fp8_compiled has 1.0")


@pytest.mark.parametrize("spoil", ["truncated", "not finite"])
def test_a_completed_run_whose_log_is_not_whole_counts_for_nothing(tmp_path, spoil):
    study(tmp_path)
    path = tmp_path / "tensorwise_fp8_compiled0" / "metrics.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    lines = lines[:100] if spoil == "truncated" else [*lines[:-1], lines[-1] | {"loss": None, "losses": [None]}]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    comparison = compare(tmp_path)
    assert comparison.rates["tensorwise_fp8_compiled"].runs == 2
    assert comparison.verdicts["tensorwise_fp8_compiled"].seeds == 2
    assert any("tensorwise_fp8_compiled0" in problem for problem in comparison.frames.problems)


def test_runs_of_different_studies_are_not_compared(tmp_path, capsys):
    study(tmp_path / "one")
    write_run(tmp_path / "other", hardware={"name": "another GPU", "type": "cuda"})
    assert main([str(tmp_path)]) == 2
    assert "differ in device (GPU, another GPU)" in capsys.readouterr().out
    write_run(tmp_path / "small", steps=30)
    write_run(tmp_path / "large", "baseline_compiled", overlays=["fp32_master"])
    assert main([str(tmp_path / "small"), str(tmp_path / "large")]) == 2
    assert "differ in overlays (none, fp32_master)" in capsys.readouterr().out
    double = [line | {"tokens_per_s": 2 * line["tokens_per_s"]} for line in metrics_lines()]
    write_run(tmp_path / "double", "baseline_compiled", lines=double)
    assert main([str(tmp_path / "small"), str(tmp_path / "double")]) == 2
    assert "differ in tokens_per_step (100.0, 200.0)" in capsys.readouterr().out
    study(tmp_path / "two")
    assert main([str(tmp_path / "one"), str(tmp_path / "two")]) == 2
    assert "have the same recipe and seed" in capsys.readouterr().out


def test_a_baseline_that_is_not_there_is_an_error(tmp_path, capsys):
    study(tmp_path)
    assert main([str(tmp_path), "--baseline", "bogus"]) == 2
    assert "no completed run of --baseline bogus; there are baseline, " in capsys.readouterr().out


def test_a_file_that_cannot_be_written_is_an_error(tmp_path, capsys):
    study(tmp_path / "runs")
    assert main([str(tmp_path / "runs"), "--json", "/nowhere/figures.json"]) == 2
    assert "/nowhere/figures.json: No such file or directory" in capsys.readouterr().out


@pytest.mark.parametrize("wrong", [{"steps": None}, {"hardware": None}, {"seed": "one"}, {"recipe": None}])
def test_records_that_make_no_sense_are_named(tmp_path, wrong):
    study(tmp_path)
    odd = write_run(tmp_path / "odd", seed=7) / "manifest.json"
    odd.write_text(json.dumps(json.loads(odd.read_text()) | wrong))
    comparison = compare(tmp_path)
    assert "baseline" in comparison.recipes and any("odd" in problem for problem in comparison.frames.problems)


def test_cost_of_a_run_of_n_steps(tmp_path):
    """Measured within the runs, and 0.1 s a step beyond their 200: 14 s for the first 10 steps, then steady."""
    hours = cost_by_steps(study(tmp_path, seeds=1), [100, 10_000])["baseline_compiled"]
    assert hours[100] * 3600 == pytest.approx(14 + 90 * 0.1) and hours[10_000] * 3600 == pytest.approx(14 + 999)


def test_published_rates_are_marked_beside_runs_of_the_published_model(tmp_path):
    write_run(tmp_path / "ours" / "a", "baseline", flavor="8B-published")
    write_run(tmp_path / "small" / "a", "baseline", flavor="cpu")
    assert compare(tmp_path / "ours").published == {"baseline": 8151.0}
    assert compare(tmp_path / "small").published is None


def test_a_study_is_compared_with_its_own_baseline(tmp_path, capsys):
    for seed in range(3):
        for name in ("first", "second_in_fp8"):
            lines = metrics_lines()
            lines[-1]["losses"] = [7 + seed / 100]
            write_run(tmp_path / name / f"seed{seed}", name, seed=seed, lines=lines)
    (tmp_path / "study.yaml").write_text("baseline: first\n")
    assert main([str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "No answer: it needs completed runs in FP8" in said
    assert "second_in_fp8 ends at the same loss as first" in said
    assert main([str(tmp_path), "--baseline", "second_in_fp8"]) == 0
    assert "first ends at the same loss as second" in capsys.readouterr().out


def test_no_fp8_no_answer(tmp_path):
    write_run(tmp_path / "a")
    assert answer(compare(tmp_path))[0].startswith("No answer: it needs completed runs in FP8")


def test_page_and_json(tmp_path, capsys):
    study(tmp_path / "runs")
    write_run(tmp_path / "runs" / "broken", "rowwise_fp8_compiled", status="failed", error="a <b>bad</b> day")
    page, figures = tmp_path / "page.html", tmp_path / "report.json"
    assert main([str(tmp_path / "runs"), "--html", str(page), "--json", str(figures)]) == 0
    html, plain = page.read_text(), json.loads(figures.read_text())
    assert html.index("Yes: tensorwise") < html.index("<table>") < html.index("<svg")
    assert html.count("<svg") == 9 and "a &lt;b&gt;bad&lt;/b&gt; day" in html
    assert not re.search(r'(src|href)="http', html)  # nothing is fetched
    assert plain["answer"][0].startswith("Yes") and len(plain["runs"]) == 10
    assert {v["outcome"] for v in plain["verdicts"]} == {"the same"}


@pytest.mark.parametrize("width", [80, 120])
def test_nothing_is_cut_off_in_a_narrow_terminal(tmp_path, width):
    row = summarize(write_run(tmp_path / "a", "rowwise_gw_hp_fp8_compiled", step_s=0.001, fp8_share=0.5))
    said = printed([row | {"wall_s": 12345.6}], width)
    for value in ("rowwise_gw_hp_fp8_compiled", "100,000", "12345.6", "50.0%", "completed"):
        assert value in said
    assert "…" not in said
