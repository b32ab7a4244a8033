"""Should this training be in FP8? The estimate against what was measured, and the command's
answers."""

import json

import pytest

from experiments import decide
from experiments.config import recipes
from experiments.profiling import anchors, estimate
from tests.make_runs import metrics_lines, write_run
from tests.processes import ROOT

DIM_512 = "model.sizes={dim: 512, n_layers: 8, n_heads: 8, n_kv_heads: 8}"


@pytest.fixture
def ask(capsys):
    """Ask the command; returns its answer from JSON."""

    def call(*arguments) -> dict:
        assert decide.main([*map(str, arguments), "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    return call


# ---- predictions against measurements ----


@pytest.mark.parametrize(
    ("name", "scaling", "measured"),
    [
        ("course study, 1 GH200", "tensorwise", 1.24),
        ("course study, 1 GH200", "rowwise", 1.06),
        ("torchao, 8 H100", "tensorwise", 1.25),
        ("torchao, 8 H100", "rowwise", 1.10),
        ("torchtitan, 8 H100", "tensorwise", 8532 / 6667),
        ("torchtitan, 128 H100", "tensorwise", 8380 / 6514),
    ],
)
def test_each_published_speed_up_is_predicted_from_the_others(name, scaling, measured):
    published = anchors.published()
    left_out = next(anchor for anchor in published if anchor.name == name)
    assert left_out.speed_ups[scaling] == pytest.approx(measured, rel=0.005)
    others = [anchor for anchor in published if anchor is not left_out]
    predicted = anchors.calibrations(others)[scaling].speed_up(left_out.pairs[scaling])
    assert predicted["expected"] == pytest.approx(measured, rel=0.1)
    with_it = anchors.calibrations(published)[scaling].speed_up(left_out.pairs[scaling])
    assert with_it["low"] < measured < with_it["high"]


def nanochat(depth: int) -> dict[str, float]:
    """Expected speed-ups of a Llama with the width, depth and FLOPs of nanochat's models."""
    dim = 64 * depth
    sizes = {"dim": dim, "n_layers": depth, "n_heads": dim // 128, "n_kv_heads": dim // 128}
    sizes |= {"hidden_dim": dim * 8 // 48 * 16, "vocab_size": 32768}
    keys = [f"model.sizes={json.dumps(sizes)}", "training.seq_len=2048"]
    keys.append("training.local_batch_size=32")
    bf16, fits = anchors.plan_of(anchors.BF16, keys), anchors.calibrations(anchors.published())
    expected = {}
    for scaling, name in anchors.FP8.items():
        pair = anchors.rooflines(bf16, anchors.plan_of(name, keys), "h100", 8)
        expected[scaling] = fits[scaling].speed_up(pair)["expected"]
    return expected


def test_smaller_models_outside_of_the_anchors_are_predicted():
    """github.com/karpathy/nanochat, dev/LOG.md of 2026-02-02: 1.17 and 0.90 with d26, and d12 was
    slower in FP8.

    They are no anchors, because they are no Llamas.
    """
    assert nanochat(26) == pytest.approx({"tensorwise": 1.17, "rowwise": 0.90}, rel=0.05)
    assert max(nanochat(12).values()) < 1


# ---- answers ----


def test_the_published_study_asked_again(ask):
    asked = ["8B-published", "--gpu", "NVIDIA GH200 120GB", "--price", 2]
    answer = ask(*asked, "--steps", 2000)
    assert (answer["should_you"], answer["gpu"]) == ("yes", "gh200")
    assert answer["nearest"]["name"] == "course study, 1 GH200"
    assert answer["memory"]["fits_on_gpus"] == 1
    assert answer["step_s_bf16"] == pytest.approx(4096 / 8800)  # of the same training
    pays = answer["pays_from_step"]
    assert pays["earliest"] < 728 < pays["latest"]
    assert pays["expected"] == pytest.approx(728, rel=0.1)
    assert answer["cost"]["bf16"] == 2 * answer["hours"]["bf16"] > answer["cost"]["tensorwise"]
    assert [ask(*asked, "--steps", n)["should_you"] for n in (1000, 300)] == ["measure", "no"]
    hours = ask(*asked, "--steps", 1)["hours"]
    assert hours == {name: answer["first_step_s"][name] / 3600 for name in hours}


def test_ten_lines(capsys):
    arguments = "llama3.1-8B --gpu h100 --gpus 8 --sequence 8192 --steps 100000"
    assert decide.main(arguments.split()) == 0
    title, *lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 10 and "on 8 h100: 100,000 steps of 65,536 tokens" in title
    text = {line[:11].strip(): line[11:] for line in lines}
    assert text["should you"].startswith("yes: ")
    assert text["run"].startswith("tensorwise_fp8_allgather --overlay h200")
    assert "5 published runs and 0 own" in text["rests on"]
    assert "FSDP2, float8 all-gather: refused for rowwise_fp8_compiled" in text["goes with"]
    assert "experiments.study baseline_compiled tensorwise_fp8_allgather" in text["settle it"]


def test_readme_shows_what_the_command_prints(capsys):
    parts = (ROOT / "README.md").read_text().split("\n\n")
    example = next(part for part in parts if "$ python -m experiments.decide" in part)
    command, *shown = [line[4:] for line in example.splitlines()]
    assert decide.main(command.split()[4:]) == 0
    assert capsys.readouterr().out.splitlines() == shown, (
        f"stale: put what `{command}` prints into README.md"
    )


def test_no_where_fp8_cannot_pay(ask):
    answer = ask("llama3.1-8B", "--gpu", "a100", "--gpus", 8, "--steps", 10**6)
    assert answer["should_you"] == "no" and "no FP8 units" in answer["reason"]
    assert answer["recipe"] == "baseline_compiled" and "speed_up" not in answer
    # 512 features spend more on casts than matmuls save
    answer = ask("llama3.2-1B", DIM_512, "--gpu", "h100", "--batch", 8, "--steps", 10**7)
    assert answer["should_you"] == "no" and answer["recipe"] == "baseline_compiled"
    saved, spent = answer["of_a_bf16_step"].values()
    assert saved < spent and answer["pays_from_step"]["expected"] is None


def test_memory_decides_on_gpus_and_recomputation(ask):
    asked = ["llama3.1-8B", "--gpu", "h100", "--batch", 2, "training.dtype=float32"]
    answer = ask(*asked)
    assert answer["should_you"] == "no" and "ask again with --gpus 2" in answer["reason"]
    assert ask(*asked, "--gpus", 2, "--steps", 10**6)["recipe"] == estimate.GATHERED
    answer = ask("8B-published", "--gpu", "h100")
    assert answer["overlay"] == "h100" and answer["memory"]["fits_on_gpus"] == 1
    answer = ask("8B-published", "--gpu", "h200", "activation_checkpoint.mode=full")
    assert (answer["overlay"], answer["recompute"]) == ("h200", "full")
    assert "Activation checkpointing, full: works" in answer["goes_with"]


def test_a_global_batch_is_shared_by_the_gpus(ask):
    asked = ["llama3.1-8B", "--gpu", "h100", "--gpus", 8]
    once, eight_times = ask(*asked), ask(*asked, "training.global_batch_size=64")
    assert (once["tokens_per_step"], eight_times["tokens_per_step"]) == (8 * 4096, 64 * 4096)
    assert 7 < eight_times["step_s_bf16"] / once["step_s_bf16"] < 8


# ---- our own measurements ----


@pytest.fixture
def keep(tmp_path, monkeypatch):
    """Keep a study of GPU runs where the command looks for them."""
    monkeypatch.setattr(decide, "RESULTS", tmp_path)

    def write(study, device, *keys) -> None:
        for recipe, step_s in (("baseline_compiled", 0.10), ("tensorwise_fp8_compiled", 0.08)):
            run = tmp_path / study / recipe / "seed0"
            write_run(
                run,
                recipe,
                lines=metrics_lines(last=60, step_s=step_s),
                steps=60,
                warm_up=2 / step_s,
                hardware={"name": device, "type": "cuda"},
            )
            resolved = recipes.load(recipe, ["h200"], keys)
            (run / "recipe.yaml").write_text(recipes.to_yaml(resolved))

    return write


def test_own_gpu_runs_are_anchors_too(ask, keep):
    asked = ["llama3.2-1B", "--gpu", "h200", "--steps", 20_000]
    before = ask(*asked)["speed_up"]["tensorwise"]["expected"]
    keep("h200_2027-01-01", "NVIDIA H200", "model.flavor=llama3.2-1B")
    answer = ask(*asked)
    assert answer["rests_on"]["ours"] == 1
    assert answer["nearest"]["speed_ups"]["tensorwise"] == pytest.approx(1.25)
    assert before < answer["speed_up"]["tensorwise"]["expected"] < 1.25
    assert answer["first_step_s"]["bf16"] == 20 and answer["first_step_s"]["tensorwise"] == 25


def test_own_runs_without_a_roofline_are_left_out(capsys, keep):
    keep("experts", "NVIDIA H200", "model.name=qwen3", "model.flavor=qwen3-moe-cpu")
    keep("emulated", "NVIDIA A100-SXM4-80GB", "model.flavor=llama3.2-1B")
    assert decide.main(["llama3.2-1B", "--gpu", "h200"]) == 0
    printed = capsys.readouterr()
    assert "5 published runs and 0 own" in printed.out
    assert "experts is left out: a mixture of experts has no roofline" in printed.err
