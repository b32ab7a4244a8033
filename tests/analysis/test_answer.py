"""The answer, from run directories made by hand: each with a truth that a wrong answer would
hide."""

import re
import shutil

import pytest

from analysis.answer import answer
from analysis.comparison import compare, cost_by_steps
from analysis.load import LoadError
from analysis.report import main
from analysis.table import matrix, notes, rows_of
from tests.make_runs import (
    change,
    change_lines,
    metrics_lines,
    plus,
    write_run,
    write_study,
)

FP8 = "tensorwise_fp8_compiled"
BF16 = ("baseline", "baseline_compiled")


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"fp8_step_s": 0.11}, f"No: {FP8} has 0.91 times"),
        ({"loss_shift": 0.5}, f"No: {FP8} has 1.25 times .* ends at a higher loss than baseline"),
        ({"loss_shift": -0.5}, f"Yes: {FP8} has 1.25 times .* It ends at a lower loss after 200"),
        ({"seeds": 1, "loss_shift": 8}, "No verdict from a single run: .* at a far higher loss"),
        ({"device": "cpu"}, "No answer about speed: these runs are from a CPU"),
        ({"fp8_step_s": 0.1}, f"Cannot tell: {FP8} has 1.00 times"),
        ({"fp8_warm_up": -1.0}, f"Yes: {FP8} has 1.25 times .*, and is ahead from the start"),
    ],
)
def test_other_answers(tmp_path, changed, expected):
    assert re.match(expected, answer(compare(write_study(tmp_path, **changed)))[0])


def test_single_runs_get_no_verdict_but_the_command_that_repeats_them(tmp_path):
    for recipe in (*BF16, "x; rm -rf ~"):
        write_run(tmp_path / recipe / "seed0", recipe, float8="x" if ";" in recipe else None)
    (tmp_path / "study.yaml").write_text("overlays: [h200]\noverrides: ['a=[1, 2]']\n")
    first, second = answer(compare(tmp_path))
    assert first.startswith("No verdict from a single run: x; rm -rf ~ has 1.00 times")
    assert second.endswith(
        ": python -m experiments.study baseline baseline_compiled 'x; rm -rf ~' --overlay h200 "
        "--seeds 0,1,2 'a=[1, 2]'"
    )


def test_the_fastest_that_keeps_the_loss_is_the_answer(tmp_path):
    write_study(tmp_path, loss_shift=0.5)
    for seed in range(3):
        shutil.copytree(tmp_path / f"baseline{seed}", tmp_path / f"r{seed}")
    change(tmp_path, "r", recipe="rowwise_fp8_compiled", float8="rowwise")
    change(tmp_path, "r", name="proof.json", fp8_share_of_matmul_flops=0.75)
    change_lines(tmp_path, "r", lambda line, seed: {"step_s": [0.09]} if line["step"] > 10 else {})
    first = answer(compare(tmp_path))[0]
    assert first.startswith("Yes: rowwise_fp8_compiled has 1.11 times") and "the same loss" in first


def test_too_few_steps_say_how_many_it_takes(tmp_path):
    for seed in range(3):
        for recipe in (*BF16, FP8):
            write_run(tmp_path / f"{recipe}{seed}", recipe, steps=12, seed=seed)
    comparison = compare(tmp_path)
    assert answer(comparison)[0].startswith("Too short to answer: a rate takes runs of 30 steps")
    assert matrix(comparison)[1][-1][1:5] == ["too short", "-", "too short", "too short"]


def test_an_answer_has_five_sentences_at_most(tmp_path):
    """The most there can be: a yes for one recipe, a divergence, and a loss that cannot be told."""
    write_study(tmp_path, seeds=4)
    for seed in range(4):
        shutil.copytree(tmp_path / f"{FP8}{seed}", tmp_path / f"r{seed}")
    change(tmp_path, "r", range(4), recipe="rowwise_fp8_compiled")
    change(tmp_path, "r", [0], status="diverged")
    change_lines(tmp_path, "r", plus(0, -0.05, 0, 0.05), range(4))
    sentences = answer(compare(tmp_path))
    assert [sentence.split()[0] for sentence in sentences] == [
        "Yes:",
        "rowwise_fp8_compiled",
        "To",
        '"The',
    ]


def test_what_is_no_comparison_of_fp8_with_bf16_gives_no_answer(tmp_path):
    write_study(tmp_path / "study")
    said = ["No answer: it needs completed runs in FP8, and in bf16 those of the baseline."]
    assert answer(compare(tmp_path / "study", FP8)) == said
    assert answer(compare(list((tmp_path / "study").glob(f"{FP8}*")))) == said
    write_run(tmp_path / "bf16" / "a")
    assert answer(compare(tmp_path / "bf16")) == said
    for recipe, step_s in (("baseline", 0.1), (FP8, 0.08)):
        facts = {"step_s": step_s, "steps": 60, "compiled": "compiled" in recipe}
        write_run(tmp_path / "eager" / recipe, recipe, **facts)
    first = answer(compare(tmp_path / "eager"))[0]
    assert first.startswith(f"No answer on FP8 alone: {FP8} has 1.25 times")


# ---- what may be compared ----

DOUBLE = [line | {"tokens_per_s": 2 * line["tokens_per_s"]} for line in metrics_lines()]
OTHER_RATE = [line | {"lr": 1e-2} for line in metrics_lines()]


@pytest.mark.parametrize(
    ("other", "refused", "sentence"),
    [
        ({"hardware": {"name": "TPU"}}, True, "differ in device (GPU, TPU) and cannot"),
        ({"packages": {"torch": "2.11.0"}}, True, "differ in torch (2.13.0, 2.11.0)"),
        ({"overlays": ["fp32_master"]}, True, "differ in overlays ([], ['fp32_master'])"),
        ({"data": "stdlib-1f"}, True, "differ in data (stdlib-2e, stdlib-1f)"),
        ({"lines": DOUBLE}, True, "differ in tokens_per_step (100.0, 200.0)"),
        ({"lines": OTHER_RATE}, True, "differ in their learning rate (at step 1: 0.001, 0.01)"),
        ({"recipe": "baseline"}, True, "have the same recipe and seed"),
        ({"git": {"changes": "1f"}}, False, "in commit: 0a (baseline seed 0); 0a and changes 1f"),
        ({"hardware": {"power_limit_w": 700.0}}, False, "(W): unknown (baseline seed 0); 700 (b"),
    ],
)
def test_runs_of_another_study_build_or_machine_are_refused_or_named(
    tmp_path, other, refused, sentence
):
    facts = {"data": "stdlib-2e", "git": {"commit": "0a"}}
    write_run(tmp_path / "a", **facts)
    other["git"] = facts["git"] | other.get("git", {})
    write_run(tmp_path / "b", **{"recipe": "baseline_compiled"} | facts | other)
    if refused:
        with pytest.raises(LoadError, match=re.escape(sentence)):
            compare(tmp_path)
    else:
        assert any(sentence in note for note in notes(rows_of(compare(tmp_path))))


def test_names_are_shown_as_names(tmp_path, capsys):
    """What looks like markup is none."""
    write_study(tmp_path, seeds=1)
    change(tmp_path, FP8, [0], recipe="x <b>[red]")
    assert main([str(tmp_path), "--html", str(tmp_path / "page.html")]) == 0
    assert "x <b>[red]" in capsys.readouterr().out
    assert "x &lt;b&gt;[red]" in (tmp_path / "page.html").read_text()


def test_cost_of_a_run_of_n_steps(tmp_path):
    """Measured within the runs, and 0.1 s a step beyond their 200: 14 s for the first 10 steps,
    then steady."""
    hours = cost_by_steps(compare(write_study(tmp_path, seeds=1)), [100, 10_000])
    seconds = (3600 * hours["baseline_compiled"]).to_dict()
    assert seconds == pytest.approx({100: 14 + 90 * 0.1, 10_000: 14 + 999})


def test_published_rates_are_marked_beside_runs_of_the_published_model(tmp_path):
    write_run(tmp_path / "ours" / "a", "baseline", flavor="8B-published")
    write_run(tmp_path / "small" / "a", "baseline", flavor="cpu")
    assert compare(tmp_path / "ours").published == {"baseline": 8151.0}
    assert compare(tmp_path / "small").published is None


def test_a_study_is_compared_with_its_own_baseline(tmp_path):
    """Wherever it is opened: by its folder, by its runs, and where no recipe is called baseline."""
    for name in ("first", "second_in_bf16", "baseline_compiled"):
        write_run(tmp_path / name / "seed0", name)
    assert compare(tmp_path).baseline == "baseline_compiled"
    (tmp_path / "study.yaml").write_text("baseline: first\n")
    for paths in (tmp_path, [tmp_path / "first", tmp_path / "second_in_bf16"]):
        assert compare(paths).baseline == "first" and "second_in_bf16" in compare(paths).verdicts
    assert "first" in compare(tmp_path, "second_in_bf16").verdicts
    with pytest.raises(LoadError, match="no completed run of --baseline bogus"):
        compare(tmp_path, "bogus")
    (tmp_path / "study.yaml").write_text("baseline: bogus\n")
    assert "no completed run of bogus: losses are not compared" in compare(tmp_path).frames.problems
