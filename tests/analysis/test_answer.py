"""The answer, from run directories made by hand: each with a truth that a wrong answer would
hide."""

import shutil

import pytest

from analysis.answer import answer
from analysis.comparison import compare, cost_by_steps
from analysis.load import LoadError
from analysis.report import main
from analysis.table import notes
from tests.make_runs import (
    change,
    change_lines,
    write_run,
    write_study,
)

FP8 = "tensorwise_fp8_compiled"
BF16 = ("baseline", "baseline_compiled")


def test_single_runs_get_no_verdict_but_the_command_that_repeats_them(tmp_path):
    for recipe in (*BF16, "x; rm -rf ~"):
        write_run(tmp_path / recipe / "seed0", recipe, float8="x" if ";" in recipe else None)
    (tmp_path / "study.yaml").write_text("overlays: [h200]\noverrides: ['a=[1, 2]']\n")
    first, *_, second = answer(compare(tmp_path))
    assert first.startswith("No verdict from a single run: x; rm -rf ~ has 1.00 times")
    assert second.endswith(
        ": python -m experiments.study baseline baseline_compiled 'x; rm -rf ~' --overlay h200 "
        "--seeds 0,1,2 'a=[1, 2]'"
    )


def test_the_fastest_that_keeps_the_loss_is_the_answer(tmp_path):
    write_study(tmp_path, loss_shift=0.5)
    for seed in range(3):
        shutil.copytree(tmp_path / f"baseline_compiled{seed}", tmp_path / f"r{seed}")
        resolved = tmp_path / f"r{seed}" / "recipe.yaml"
        resolved.write_text(resolved.read_text().replace("null", '"rowwise"'))
    change(tmp_path, "r", recipe="rowwise_fp8_compiled", float8="rowwise")
    proof = {"recipe_name": "rowwise", "fp8_share_of_matmul_flops": 0.75, "gemm_flops": {}}
    change(tmp_path, "r", name="proof.json", **proof)

    def faster(line, seed):
        rates = {"tokens_per_s": 100 / 0.09, "valid_tokens_per_s": 50 / 0.09, "step_s": [0.09]}
        rates["elapsed_s"] = line["elapsed_s"] - 0.01 * (line["step"] - 10)
        return {"losses": [line["losses"][0] + 0.001]} | (rates if line["step"] > 10 else {})

    change_lines(tmp_path, "r", faster)
    first = answer(compare(tmp_path))[0]
    assert first.startswith("Yes: of 2 FP8 recipes rowwise_fp8_compiled has 1.11 times")
    assert "It ends at the same loss" in first


def test_what_is_no_comparison_of_fp8_with_bf16_gives_no_answer(tmp_path):
    write_study(tmp_path / "study")
    said = "No answer: it needs completed runs in FP8, and of {}."
    assert answer(compare(tmp_path / "study", FP8)) == [said.format(FP8)]
    assert answer(compare(list((tmp_path / "study").glob(f"{FP8}*")))) == [said.format(BF16[0])]
    write_run(tmp_path / "bf16" / "a")
    assert answer(compare(tmp_path / "bf16")) == [said.format(BF16[0])]


# ---- what may be compared ----


@pytest.mark.parametrize(
    ("other", "sentence"),
    [
        (
            {"git": {"commit": "0a", "changes": "1f"}},
            "commit: 0a (baseline seed 0); 0a and changes",
        ),
        ({"hardware": {"power_limit_w": 700.0}}, "(W): unknown (baseline seed 0); 700 (baseline_"),
        (
            {"proves": {"attention": "cudnn"}},
            "attention kernels: flash (baseline seed 0); cudnn (baseline_compiled",
        ),
        ({"data": None}, "data: stdlib-2e (baseline seed 0); unknown (baseline_compiled"),
    ],
)
def test_what_runs_do_not_share_is_named(tmp_path, other, sentence):
    facts = {"data": "stdlib-2e", "git": {"commit": "0a"}}
    write_run(tmp_path / "a", **facts)
    write_run(tmp_path / "b", "baseline_compiled", **facts | other)
    assert any(sentence in note for note in notes(compare(tmp_path)))


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


def test_a_study_is_compared_with_its_own_baseline(tmp_path):
    """Wherever it is opened: by its folder, by its runs, and where no recipe is called baseline."""
    for name in ("first", "second_in_bf16", "baseline_compiled"):
        write_run(tmp_path / name / "seed0", name)
    assert compare(tmp_path).opponent == "baseline_compiled"
    (tmp_path / "study.yaml").write_text("baseline: first\n")
    for paths in (tmp_path, [tmp_path / "first", tmp_path / "second_in_bf16"]):
        assert compare(paths).opponent == "first" and "second_in_bf16" in compare(paths).verdicts
    assert "first" in compare(tmp_path, "second_in_bf16").verdicts
    with pytest.raises(LoadError, match="no completed run of --baseline bogus"):
        compare(tmp_path, "bogus")
    (tmp_path / "study.yaml").write_text("baseline: [1]\n")
    with pytest.raises(LoadError, match="study.yaml: .*baseline"):
        compare(tmp_path)
    (tmp_path / "study.yaml").write_text("baseline: bogus\n")
    assert (
        "no completed run of bogus: nothing is compared with it"
        in compare(tmp_path).frames.problems
    )
