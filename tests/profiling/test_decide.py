"""Should this training be in FP8? The data set, the prediction of what was measured, and the
command's answers."""

import json
import re
import shlex

import numpy as np
import pandas as pd
import pytest
import yaml

from experiments import decide, run
from experiments.profiling import fit, pairs
from models.errors import InputError
from models.gpus import CHIPS, GPUS
from tests.processes import ROOT


@pytest.fixture
def ask(capsys):
    """Ask the command; returns its answer from JSON."""

    def call(words: str) -> dict:
        assert decide.main([*shlex.split(words), "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    return call


# ---- the data set and the time model ----


def test_every_pair_is_named_once_and_has_both_figures_or_their_ratio():
    found = pairs.read()
    assert len({pair.name for pair in found}) == len(found) > 200
    assert all(0.4 < pair.speed_up < 2.5 for pair in found)
    entry = found[0].model_dump(exclude_unset=True)
    for wrong in ({"fp8": None}, {"ratio": 1.2}, {"fairness": "fine"}, {"gpux": "H100"}):
        with pytest.raises(ValueError, match=next(iter(wrong)).split("x")[0]):
            pairs.Pair(**entry | wrong)
    # the README's are among them
    measured = {round(pair.speed_up, 6) for pair in found}
    for entry in yaml.safe_load((ROOT / "results/published.yaml").read_text()):
        bf16, *others = entry["tokens_per_s"].values()
        assert measured >= {round(rate / bf16, 6) for rate in others}, entry["name"]


def test_doubtful_pairs_and_other_questions_calibrate_nothing():
    fitted = set(fit.published()["name"])
    others = [p.name for p in pairs.read() if p.fairness == "doubtful" or p.kind != "dense"]
    assert fitted.isdisjoint(others)
    # 8 to 128 GPUs are one observation
    assert sum(name.startswith("dgxc_2411_8b") for name in fitted) == 1


def test_the_page_has_the_parameters_and_the_errors_of_left_out_groups():
    """Most lie inside the range, and torchao's are right on average."""
    page, fitted = (ROOT / "docs/decide.md").read_text(), fit.fitted()
    for name, value in zip(fit.PARAMETERS, fitted.parameters, strict=True):
        assert re.search(rf"\| {name}: .* \| {value:.2f} \|", page)
    rows = fitted.rows.assign(inside=fitted.inside())
    for stack, of in rows.groupby("stack"):
        error, inside = of["error"], of["inside"].mean()
        figures = f"{inside:.0%} | {error.mean():+.1%} | {error.abs().mean():.1%}"
        width = np.expm1(fit.half_width(error))
        assert f"| {stack} | {len(of)} | {figures} | ±{width:.1%} |" in page
        assert inside > 0.75 and width < 0.13


# ---- answers ----


def test_the_published_study_asked_again(ask):
    """It overtook at step 728, compiled as one graph."""
    asked = "8B-published --gpu 'NVIDIA GH200 120GB' compile.scope=model --price 2 --steps"
    answer = ask(f"{asked} 1000")
    assert answer["verdict"] == "MEASURE FIRST"
    assert answer["nearest"]["name"] == "course_gh200_tensorwise"
    assert answer["step_s"]["bf16"] == pytest.approx(4096 / 8800, rel=0.05)
    overtakes = answer["overtakes_at_step"]
    assert overtakes["high"] < 728 < overtakes["low"]
    assert overtakes["expected"] == pytest.approx(728, rel=0.1)
    assert answer["cost"]["in bf16"] == 2 * answer["hours"]["in bf16"]
    assert ask(f"{asked} 300")["verdict"] == "NO"
    assert ask(f"{asked} 3k")["verdict"] == "YES"
    assert ask(f"{asked} 300 --first-step 0")["verdict"] == "YES"


@pytest.mark.parametrize(
    ("words", "verdict", "why"),
    [
        ("8B --gpu h100-sxm --gpus 8 --seq-len 8192 --tokens 100B", "YES", "save"),
        ("70B --gpu h100 --gpus 256 --seq-len 8192", "YES", "save"),
        ("8B --gpu a100 --gpus 8 --steps 1M", "NO", "no FP8 units"),
        ("8B --gpu h100 --gpus 8 --steps 10", "NO", "too few"),
        ("1B --gpu h100 --seq-len 512 'model.sizes={dim: 512}'", "NO", "launches"),
        ("8B --gpu rtx-5090", "DOES NOT FIT", "--gpus 4"),
        ("8B --gpu h100 --gpus 8 --tensor-parallel 4", "MEASURE FIRST", "casts"),
        ("30B-A3B --gpu h100 --gpus 16", "MEASURE FIRST", "experts"),
        ("8B --gpu mi300x --gpus 8", "MEASURE FIRST", "kind of GPU"),
    ],
)
def test_four_answers(ask, words, verdict, why):
    answer = ask(words)
    assert (answer["verdict"], why in answer["why"]) == (verdict, True)
    assert decide.text(answer, verbose=True).startswith(f"{verdict}: ")


def test_larger_matmuls_gain_and_attention_does_not(ask):
    """More tokens a pass make FP8 gain more; longer rows and narrower matrices make it gain
    less."""
    settings = ("", "--batch 8", "--batch 1 --seq-len 32768", "--tensor-parallel 4")
    usual, more, longer, narrower = (
        ask(f"8B --gpu b300 --gpus 16 {words}")["speed_up"]["tensorwise"]["expected"]
        for words in settings
    )
    assert max(longer, narrower) < usual < more


@pytest.mark.parametrize(
    ("known", "unknown", "why"),
    [
        ("8B --gpus 8 --gpu b200", "8B --gpus 8 --gpu b300", "no fitted pair is of b300"),
        ("405B --gpus 512 --gpu h100", "405B --gpus 512 --gpu b200", "on Blackwell is within 4"),
        ("8B --gpu h100", "8B --gpu h100 'model.freeze=[output.weight]'", "frozen weights"),
    ],
)
def test_what_no_pair_shows_has_a_wider_range(ask, known, unknown, why):
    sure, unsure = ask(known), ask(unknown)
    narrow, wide = (one["speed_up"]["tensorwise"] for one in (sure, unsure))
    assert wide["high"] / wide["low"] > 1.1 * narrow["high"] / narrow["low"]
    assert why in unsure["trust"] and "no " not in sure["trust"]


def test_gpus_of_one_chip_reach_the_same_part_of_their_peak(ask):
    steps = pd.DataFrame([ask(f"8B --gpu {gpu}")["step_s"] for gpu in ("h100", "gh200", "h200")])
    assert (steps.diff()[1:] < 0).all(axis=None)  # in the order of their memories' bandwidths


def test_tokens_of_a_training_are_shared_by_its_data_parallel_gpus(ask):
    one, cut, more = (
        ask(f"8B --gpu h200 --gpus 8 --tokens 1B {words}")
        for words in ("", "--tensor-parallel 2", "training.global_batch_size=64")
    )
    assert one["tokens_per_step"] == 2 * cut["tokens_per_step"] == 8 * 4096
    assert one["steps"] == 30518 and cut["steps"] == 61036
    assert more["step_s"]["bf16"] == pytest.approx(8 * one["step_s"]["bf16"], rel=0.1)
    assert "tensorwise_fp8_allgather --overlay no_recompute --processes 8" in one["run"]
    assert "sbatch --nodes=4 " in ask("8B --gpu gh200 --gpus 16")["run"]


def test_the_printed_command_runs(ask, capsys):
    words = "cpu --gpu h200 --steps 20 --batch 4 --seq-len 256 data.bpe_vocab_size=4096"
    command = shlex.split(ask(f"{words} training.dataset=python_stdlib")["run"])
    assert command[:3] == ["python", "-m", "experiments.run"]
    assert run.main([*command[3:], "--dry-run"]) == 0
    assert "reads 80 rows" in capsys.readouterr().out  # 20 steps of 4


@pytest.mark.parametrize("page", ["README.md", "docs/decide.md"])
def test_pages_show_what_the_command_prints(page, capsys):
    parts = (ROOT / page).read_text(encoding="utf-8").split("\n\n")
    examples = [part for part in parts if "$ python -m experiments.decide" in part]
    assert examples
    for example in examples:
        command, *shown = [line[4:] for line in example.splitlines()]
        assert decide.main(shlex.split(command)[4:]) == 0
        printed = capsys.readouterr().out.splitlines()
        assert printed == shown, f"stale: put what `{command}` prints into {page}"


def test_numbers_as_people_write_them():
    assert [decide.number(text) for text in ("300", "100k", "1.5T")] == [300, 1e5, 1.5e12]
    assert decide.whole("2M") == 2_000_000


@pytest.mark.parametrize(
    ("flavor", "names"),
    [
        ("llama3.1-8B", "8b llama3-8B Llama-3.1-8B meta-llama/Llama-3.1-8B-Instruct"),
        ("llama3.1-70B", "70B llama-3.1-70b Llama-3.3-70B"),
        ("llama3.2-3B", "3B llama3-3b"),
        ("qwen3-30B-A3B", "30B-A3B Qwen/Qwen3-30B-A3B-Base"),
        ("qwen3-8B", "Qwen3-8B"),
        ("8B-published", "8B-published"),
    ],
)
def test_names_as_people_write_them(flavor, names):
    assert {decide.flavor(name) for name in names.split()} == {flavor}


@pytest.mark.parametrize(
    ("other", "nearest"),
    [("7B", "llama3.1-8B"), ("Llama-2-7b", "llama3.1-8B"), ("Llama-2-3B", "llama3.2-3B")],
)
def test_a_name_of_another_size_or_version(other, nearest):
    with pytest.raises(InputError, match=f"nearest in size, {nearest} or"):
        decide.flavor(other)


def test_every_gpu_has_a_chip():
    assert {gpu for gpus in CHIPS.values() for gpu in gpus} == set(GPUS)
