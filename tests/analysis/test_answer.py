"""The answer, from run directories made by hand."""

import json
import re
import shutil

import pytest

from analysis.comparison import answer, compare, cost_by_steps
from analysis.report import main
from tests.make_runs import metrics_lines, write_run, write_study


def test_yes(tmp_path):
    """0.02 s a step pay 40 s back after 2,000 steady steps; the first ten are as slow in both."""
    first, *facts = answer(compare(write_study(tmp_path)))
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
    assert answer(compare(write_study(tmp_path, **changed)))[0].startswith(expected)


def test_the_loss_is_told_from_its_sign(tmp_path):
    assert answer(compare(write_study(tmp_path, loss_shift=-0.5)))[0].endswith("It ends at a lower loss.")


def test_the_fastest_that_keeps_the_loss_is_the_answer(tmp_path):
    write_study(tmp_path, loss_shift=0.5)
    for seed in range(3):
        lines = [json.loads(line) for line in (tmp_path / f"baseline{seed}" / "metrics.jsonl").read_text().splitlines()]
        faster = [line | {"step_s": [0.09 if line["step"] > 10 else 1.0]} for line in lines]
        write_run(tmp_path / f"rowwise{seed}", "rowwise_fp8_compiled", lines=faster, steps=200, seed=seed)
    first, *facts = answer(compare(tmp_path))
    assert first.startswith("Yes: rowwise_fp8_compiled has 1.11 times") and first.endswith("the same loss.")
    assert any("tensorwise_fp8_compiled ends at a higher loss" in fact for fact in facts)


@pytest.mark.parametrize(("lost", "expected"), [((3,), "1 of 4"), ((0, 1, 2, 3), "4 of 4")])
def test_divergence_is_no_yes(tmp_path, lost, expected):
    write_study(tmp_path, seeds=4)
    for seed in lost:
        manifest = tmp_path / f"tensorwise_fp8_compiled{seed}" / "manifest.json"
        manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"status": "diverged"}))
    said = f"tensorwise_fp8_compiled diverged in {expected} seeds, where bf16 did not."
    first, *facts = answer(compare(tmp_path))
    assert first == f"Not as it is: {said}" and facts[0] == said


def test_a_baseline_in_fp8_gives_no_answer(tmp_path):
    write_study(tmp_path)
    first, *facts = answer(compare(tmp_path, "tensorwise_fp8_compiled"))
    assert first == "No answer: it needs completed runs in FP8, and in bf16 those of the baseline."
    for recipe in ("baseline", "baseline_compiled"):
        for seed in range(3):
            shutil.rmtree(tmp_path / f"{recipe}{seed}")
    write_run(tmp_path / "rowwise", "rowwise_fp8_compiled", steps=200, lines=metrics_lines(last=200))
    assert answer(compare(tmp_path, "tensorwise_fp8_compiled"))[0] == first


def test_divergence_is_told_from_any_run_in_bf16(tmp_path):
    """Only the compiled baseline completed the seed: the divergence counts all the same."""
    write_study(tmp_path, seeds=1)
    shutil.rmtree(tmp_path / "baseline0")
    manifest = tmp_path / "tensorwise_fp8_compiled0" / "manifest.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"status": "diverged"}))
    assert answer(compare(tmp_path))[0].startswith("Not as it is: tensorwise_fp8_compiled diverged in 1 of 1 seeds")


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
    write_study(tmp_path)
    path = tmp_path / "tensorwise_fp8_compiled0" / "metrics.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    lines = lines[:100] if spoil == "truncated" else [*lines[:-1], lines[-1] | {"loss": None, "losses": [None]}]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    comparison = compare(tmp_path)
    assert comparison.rates["tensorwise_fp8_compiled"].runs == 2
    assert comparison.verdicts["tensorwise_fp8_compiled"].seeds == 2
    assert any("tensorwise_fp8_compiled0" in problem for problem in comparison.frames.problems)


def test_runs_of_different_studies_are_not_compared(tmp_path, capsys):
    write_study(tmp_path / "one")
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
    write_study(tmp_path / "two")
    assert main([str(tmp_path / "one"), str(tmp_path / "two")]) == 2
    assert "have the same recipe and seed" in capsys.readouterr().out


def test_cost_of_a_run_of_n_steps(tmp_path):
    """Measured within the runs, and 0.1 s a step beyond their 200: 14 s for the first 10 steps, then steady."""
    hours = cost_by_steps(compare(write_study(tmp_path, seeds=1)), [100, 10_000])["baseline_compiled"]
    assert hours[100] * 3600 == pytest.approx(14 + 90 * 0.1) and hours[10_000] * 3600 == pytest.approx(14 + 999)


def test_published_rates_are_marked_beside_runs_of_the_published_model(tmp_path):
    write_run(tmp_path / "ours" / "a", "baseline", flavor="8B-published")
    write_run(tmp_path / "small" / "a", "baseline", flavor="cpu")
    assert compare(tmp_path / "ours").published == {"baseline": 8151.0}
    assert compare(tmp_path / "small").published is None


def test_no_fp8_no_answer(tmp_path):
    write_run(tmp_path / "a")
    assert answer(compare(tmp_path))[0].startswith("No answer: it needs completed runs in FP8")
