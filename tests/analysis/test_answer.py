"""The answer, from run directories made by hand: each with a truth that a wrong answer would
hide."""

import json
import re
import shutil

import numpy as np
import pytest

from analysis.answer import answer, details
from analysis.comparison import compare, cost_by_steps
from analysis.report import main
from analysis.table import matrix
from tests.make_runs import (
    change,
    change_lines,
    metrics_lines,
    plus,
    write_lines,
    write_published,
    write_run,
    write_study,
)

FP8 = "tensorwise_fp8_compiled"


def cells(folder) -> dict[str, dict[str, str]]:
    """The matrix: recipe to column to cell."""
    columns, lines = matrix(compare(folder))
    return {line[0]: dict(zip(columns, line, strict=True)) for line in lines}


def test_yes(tmp_path):
    """0.02 s a step pay 40 s back after 2,000 steady steps; the first ten are as slow in both."""
    comparison = compare(write_study(tmp_path))
    first, *rest = answer(comparison)
    assert first.startswith(f"Yes: {FP8} has 1.25 times the tokens/s of baseline_compiled")
    assert re.search(
        "and would be ahead from about step 2,01[01], warm-up included, beyond these runs", first
    )
    assert first.endswith("It ends at the same loss after 200 steps.")
    (worth,) = rest
    assert (
        "0.25 %" in worth
        and "9 % of the compute" in worth
        and "2203.15556" in worth
        and "2412.19437" in worth
    )
    assert any("3 seeds, difference +0.0010" in fact for fact in details(comparison))
    row = cells(tmp_path)[FP8]
    assert (row["over compiled bf16"], row["loss after 200 steps"]) == (
        "1.25 (1.25 to 1.25)",
        "the same",
    )
    assert row["pays back"].startswith("from about step 2,01") and row["FP8 proof"] == "75%"


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"fp8_step_s": 0.11}, f"No: {FP8} has 0.91 times"),
        (
            {"loss_shift": 0.5},
            f"No: {FP8} has 1.25 times .* but it ends at a higher loss than baseline",
        ),
        (
            {"loss_shift": -0.5},
            f"Yes: {FP8} has 1.25 times .* It ends at a lower loss after 200 steps.$",
        ),
        ({"seeds": 2}, f"For speed, yes: {FP8} has 1.25 times"),
        ({"device": "cpu"}, "No answer about speed: these runs are from a CPU"),
        ({"fp8_step_s": 0.1}, f"Cannot tell: {FP8} has 1.00 times"),
        ({"fp8_warm_up": -1.0}, f"Yes: {FP8} has 1.25 times .*, and is ahead from the start"),
    ],
)
def test_other_answers(tmp_path, changed, expected):
    assert re.match(expected, answer(compare(write_study(tmp_path, **changed)))[0])


def test_single_runs_get_no_verdict_but_the_command_that_repeats_them(tmp_path):
    folder = write_study(tmp_path / "study", seeds=1)
    first, second = answer(compare(folder))
    assert first.startswith(
        f"No verdict from one run each: {FP8} has 1.25 times the tokens/s of baseline_compiled, and"
    )
    assert second.endswith(
        f": python -m experiments.study baseline baseline_compiled {FP8} --seeds 0,1,2"
    )
    assert cells(folder)[FP8]["over compiled bf16"] == "1.25, one run"
    for run in folder.iterdir():
        (folder / run.name.rstrip("0")).mkdir()
        run.rename(folder / run.name.rstrip("0") / "seed0")
    (folder / "study.yaml").write_text(
        "overlays: [h200]\noverrides: ['model.flavor=cpu', 'a=[1, 2]']\n"
    )
    assert answer(compare(folder))[1].endswith(
        "--overlay h200 --seeds 0,1,2 model.flavor=cpu 'a=[1, 2]'"
    )


def test_processes_that_differ_are_no_yes(tmp_path):
    """Equal recipes whose processes differ by 10 %: a single pair would be told apart, and three
    are not."""
    random = np.random.default_rng(3)
    for seed in range(3):
        for recipe in ("baseline", "baseline_compiled", FP8):
            step_s = 0.1 * np.exp(0.1 * random.normal())
            write_run(
                tmp_path / f"{recipe}{seed}",
                recipe,
                step_s=step_s,
                steps=60,
                seed=seed,
                fp8_share=0.75,
            )
    first, second, _ = answer(compare(tmp_path))
    assert first.startswith(f"Cannot tell: {FP8} has ") and "95 % interval" in first
    assert re.search(
        r"To tell would take (about|more than) \d+ runs of each recipe for a ratio of", second
    )


def test_the_fastest_that_keeps_the_loss_is_the_answer(tmp_path):
    write_study(tmp_path, loss_shift=0.5)
    for seed in range(3):
        lines = [
            json.loads(line)
            for line in (tmp_path / f"baseline{seed}" / "metrics.jsonl").read_text().splitlines()
        ]
        faster = [line | {"step_s": [0.09 if line["step"] > 10 else 1.0]} for line in lines]
        write_run(
            tmp_path / f"r{seed}",
            "rowwise_fp8_compiled",
            lines=faster,
            steps=200,
            seed=seed,
            fp8_share=0.75,
        )
    comparison = compare(tmp_path)
    first = answer(comparison)[0]
    assert first.startswith("Yes: rowwise_fp8_compiled has 1.11 times") and "the same loss" in first
    assert any(f"{FP8} ends at a higher loss" in fact for fact in details(comparison))


def test_logs_that_end_early_are_not_averaged(tmp_path):
    write_study(tmp_path / "ours")
    path = tmp_path / "ours" / f"{FP8}0" / "metrics.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:100]))
    comparison = compare(tmp_path / "ours")
    assert comparison.rates[FP8].runs == comparison.verdicts[FP8].seeds == 2
    write_published(tmp_path / "logs" / "baseline.jsonl", seconds=[2.5] * 201)
    write_published(tmp_path / "logs" / f"{FP8}.jsonl", seconds=[2.0] * 87)  # 430 of 1000 steps
    assert compare(tmp_path / "logs").recipes == ["baseline"]


@pytest.mark.parametrize("steps", [1, 12])
def test_too_few_steps_say_how_many_it_takes(tmp_path, steps):
    for seed in range(3):
        for recipe in ("baseline", "baseline_compiled", FP8):
            write_run(tmp_path / f"{recipe}{seed}", recipe, steps=steps, seed=seed, fp8_share=0.75)
    assert answer(compare(tmp_path)) == [
        "Too short to answer: a rate takes runs of 30 steps or more."
    ]
    row = cells(tmp_path)[FP8]
    assert (row["tokens/s"], row[f"loss after {steps} steps"]) == ("too short", "too short")


def test_an_answer_has_five_sentences_at_most(tmp_path):
    """The most there can be: a yes for one recipe, a divergence, and a loss that cannot be told."""
    write_study(tmp_path, seeds=4)
    for seed in range(4):
        shutil.copytree(tmp_path / f"{FP8}{seed}", tmp_path / f"r{seed}")
    change(tmp_path, "r", range(4), recipe="rowwise_fp8_compiled")
    change(tmp_path, "r", [0], status="diverged")
    change_lines(tmp_path, "r", plus(0, -0.05, 0, 0.05), range(4))
    sentences = answer(compare(tmp_path))
    assert [s.split(":")[0].split(" ")[0] for s in sentences] == [
        "Yes",
        "rowwise_fp8_compiled",
        "To",
        '"The',
    ]
    assert len(re.findall(r"\.(?= [A-Z]|$)", "\n".join(sentences), re.M)) <= 5


def test_a_baseline_in_fp8_gives_no_answer(tmp_path):
    write_study(tmp_path)
    said = ["No answer: it needs completed runs in FP8, and in bf16 those of the baseline."]
    assert answer(compare(tmp_path, FP8)) == said
    for recipe in ("baseline", "baseline_compiled"):
        for seed in range(3):
            shutil.rmtree(tmp_path / f"{recipe}{seed}")
    assert answer(compare(tmp_path)) == said
    write_run(tmp_path / "bf16" / "a")
    assert answer(compare(tmp_path / "bf16")) == said


def test_compilation_is_not_credited_to_fp8(tmp_path):
    for recipe, step_s in (("baseline", 0.1), (FP8, 0.08)):
        write_run(tmp_path / recipe, recipe, step_s=step_s, steps=60, compiled="compiled" in recipe)
    assert answer(compare(tmp_path))[0].startswith(f"No answer on FP8 alone: {FP8} has 1.25 times")


# What may be compared


GPU = {
    "name": "GPU",
    "type": "cuda",
    "driver": "570.1",
    "power_limit_w": 350.0,
    "memory_bytes": 1,
    "threads": 1,
}
BUILD = {"torch": "2.13.0", "torchao": "0.18.0"}
SAME = {"hardware": GPU, "packages": BUILD, "git": {"commit": "0a", "changes": None}}
DOUBLE = [line | {"tokens_per_s": 2 * line["tokens_per_s"]} for line in metrics_lines()]
OTHER_RATE = [line | {"lr": 1e-2} for line in metrics_lines()]
OTHER_POWER = (
    "The runs differ in power limit (W): 350 (baseline seed 0); 700 (baseline_compiled seed 0)."
)


@pytest.mark.parametrize(
    ("other", "refused", "sentence"),
    [
        (
            {"hardware": GPU | {"name": "another GPU"}},
            True,
            "differ in device (GPU, another GPU) and cannot be",
        ),
        (
            {"packages": BUILD | {"torch": "2.11.0"}},
            True,
            "differ in torch (2.13.0, 2.11.0) and cannot be",
        ),
        (
            {"packages": BUILD | {"torchao": "0.17.0"}},
            True,
            "differ in torchao (0.18.0, 0.17.0) and cannot be",
        ),
        ({"overlays": ["fp32_master"]}, True, "differ in overlays (none, fp32_master)"),
        ({"lines": DOUBLE}, True, "differ in tokens_per_step (100.0, 200.0)"),
        ({"lines": OTHER_RATE}, True, "differ in their learning rate (at step 1: 0.001, 0.01)"),
        (
            {"git": {"commit": "0b", "changes": None}},
            False,
            "The runs differ in commit: 0a (baseline seed 0); 0b",
        ),
        (
            {"hardware": GPU | {"driver": "580.2"}},
            False,
            "The runs differ in driver: 570.1 (baseline seed 0); 580.2",
        ),
        ({"hardware": GPU | {"power_limit_w": 700.0}}, False, OTHER_POWER),
    ],
)
def test_runs_of_another_study_build_or_machine_are_refused_or_named(
    tmp_path, capsys, other, refused, sentence
):
    write_run(tmp_path / "a", **SAME)
    write_run(tmp_path / "b", "baseline_compiled", **SAME | other)
    assert main([str(tmp_path)]) == (2 if refused else 0)
    assert sentence in capsys.readouterr().out


def test_a_seed_of_two_studies_is_refused(tmp_path, capsys):
    for name in ("one", "two"):
        write_run(tmp_path / name)
    assert main([str(tmp_path)]) == 2
    assert "have the same recipe and seed" in capsys.readouterr().out


def test_names_are_shown_as_names(tmp_path, capsys):
    """What looks like markup is none."""
    write_study(tmp_path)
    change(tmp_path, FP8, recipe="x <b>[red]")
    assert main([str(tmp_path), "--html", str(tmp_path / "page.html")]) == 0
    printed, page = capsys.readouterr().out, (tmp_path / "page.html").read_text()
    assert "x <b>[red]" in printed and "x &lt;b&gt;[red]" in page


def test_logs_without_a_common_step_get_a_sentence(tmp_path, capsys):
    """One log has the first half of the steps alone, the other the second."""
    for recipe, kept in (("baseline", range(501)), (FP8, range(501, 1001))):
        path = write_published(tmp_path / recipe / f"{recipe}.jsonl", seconds=[2.5] * 201)
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        write_lines(path, [line for line in lines if line["step"] in kept])
    assert main([str(tmp_path), "--html", str(tmp_path / "page.html")]) == 0
    printed = capsys.readouterr().out
    assert (
        f"The wall times of {FP8} and baseline cannot be compared: they have no timed step in common."
        in printed
    )
    assert (
        f"The losses of {FP8} and baseline cannot be compared: no seed was completed with both"
        in printed
    )


# The rest of what is compared


def test_cost_of_a_run_of_n_steps(tmp_path):
    """Measured within the runs, and 0.1 s a step beyond their 200: 14 s for the first 10 steps,
    then steady."""
    hours = cost_by_steps(compare(write_study(tmp_path, seeds=1)), [100, 10_000])[
        "baseline_compiled"
    ]
    assert hours[100] * 3600 == pytest.approx(14 + 90 * 0.1) and hours[
        10_000
    ] * 3600 == pytest.approx(14 + 999)


def test_published_rates_are_marked_beside_runs_of_the_published_model(tmp_path):
    write_run(tmp_path / "ours" / "a", "baseline", flavor="8B-published")
    write_run(tmp_path / "small" / "a", "baseline", flavor="cpu")
    assert compare(tmp_path / "ours").published == {"baseline": 8151.0}
    assert compare(tmp_path / "small").published is None


def test_a_study_is_compared_with_its_own_baseline(tmp_path, capsys):
    """Wherever it is opened: by its folder, by its runs, and where no recipe is called baseline."""
    for seed in range(3):
        for name in ("first", "second_in_bf16", "baseline_compiled"):
            write_run(tmp_path / name / f"seed{seed}", name, seed=seed)
    assert compare(tmp_path).baseline == "baseline_compiled"
    (tmp_path / "study.yaml").write_text("baseline: first\n")
    for paths in (tmp_path, [tmp_path / "first", tmp_path / "second_in_bf16"]):
        assert compare(paths).baseline == "first" and "second_in_bf16" in compare(paths).verdicts
    assert main([str(tmp_path), "--baseline", "second_in_bf16"]) == 0
    assert "first ends at the same loss as second_in_bf16" in capsys.readouterr().out
    assert main([str(tmp_path), "--baseline", "bogus"]) == 2
    assert (
        "no completed run of --baseline bogus; there are baseline_compiled, first"
        in capsys.readouterr().out
    )
    (tmp_path / "study.yaml").write_text("baseline: bogus\n")
    assert "no completed run of bogus: losses are not compared" in compare(tmp_path).frames.problems
