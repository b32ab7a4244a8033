"""Scales of other shapes: against torchao's reference code, and themselves compiled; delayed scales
from step to step and across a checkpoint."""

import json
from functools import partial

import pandas as pd
import pytest
import torch
from torch import nn
from torchao.prototype.blockwise_fp8_training import kernels as blockwise

from extensions.scalings import SCALINGS, Keys, convert
from extensions.scalings import signal_to_noise as benchmark
from extensions.scalings.layer import end_step, linear, round_blocks
from tests.models import layers
from tests.models.layers import operands, results
from tests.runs import SMALLEST, TINY, kill, losses_of

E4M3 = torch.float8_e4m3fn
F32 = torch.float32
BY_BLOCKS = [name for name, scaling in SCALINGS.items() if scaling.by_blocks]


def layer(name: str, dtype=torch.bfloat16, **keys) -> nn.Module:
    """One FP8 layer of a scaling of torchao's or of this extension, with the weight of
    `operands`."""
    recipe, ours = (name, None) if name not in SCALINGS else ("tensorwise", name)

    def of_recipe(model: nn.Module, plan) -> None:
        plan.config.scalings = Keys(ours, **keys)
        convert(model, plan)

    return layers.layer(recipe, dtype, emulate=name in BY_BLOCKS, convert=of_recipe)


# ---- arithmetic ----


def test_blocks_are_those_of_torchaos_reference():
    """Smaller blocks at the end are as if zeros followed."""
    x = operands()[0][:, :144]
    whole = nn.functional.pad(x, (0, 112, 0, 96))  # (256, 256)
    for rows, matrix, (low, scales) in (
        (1, x, blockwise.torch_blockwise_scale_act_quant_lhs(whole)),
        (1, x.t(), [t.t() for t in blockwise.torch_blockwise_scale_act_quant_rhs(whole)]),
        (128, x, blockwise.torch_blockwise_scale_weight_quant(whole)),
    ):
        right = low.float() * scales.repeat_interleave(rows, 0).repeat_interleave(128, 1)
        high, wide = matrix.shape
        ours = round_blocks(matrix, rows, 128, "float32", E4M3)
        assert torch.allclose(ours, right[:high, :wide], rtol=1e-6)


@pytest.mark.parametrize(
    ("recipe", "values", "weights"),
    [("blockwise", (1, 128), (128, 128)), ("mxfp8", (1, 32), (1, 32))],
)
def test_the_three_matmuls(recipe, values, weights):
    """Blocks lie along the sum of each matmul: in DeepSeek-V3 (arXiv 2412.19437) of weights in both
    directions, in MX (arXiv 2506.08027) not. The last ones are smaller."""
    x, weight, gradient = operands(F32)

    def rounded(matrix: torch.Tensor, block: tuple[int, int] = values) -> torch.Tensor:
        return round_blocks(matrix, *block, SCALINGS[recipe].scale, E4M3)

    of = [  # left and right operand of each matmul, with the sum along its rows
        (rounded(x), rounded(weight, weights)),
        (rounded(gradient), rounded(weight.t(), weights)),
        (rounded(gradient.t()), rounded(x.t())),
    ]
    for (left, right), ours in zip(of, results(layer(recipe, F32)), strict=True):
        assert torch.allclose(left @ right.t(), ours, rtol=1e-4, atol=1e-5 * ours.abs().max())


@pytest.mark.parametrize("recipe", ["delayed", "mxfp8"])
def test_compiled_is_eager(recipe):
    model = layer(recipe)
    model.compile(fullgraph=True, backend="aot_eager")
    assert all(map(torch.equal, results(layer(recipe)), results(model)))


@pytest.mark.parametrize(("recipe", "other"), [("tensorwise", "e4m3"), ("blockwise", "e5m2")])
def test_gradients_in_another_format_than_the_scalings_own(recipe, other):
    own, asked = results(layer(recipe)), results(layer(recipe, gradients=other))
    assert torch.equal(own[0], asked[0]) and not torch.equal(own[1], asked[1])


# ---- delayed ----


def test_delayed_scales_are_of_the_last_steps():
    """In the first step the scale is the step's own; after a jump values saturate for a step; after
    N steps it is forgotten."""
    model = layer("delayed", F32, history=2)
    right = results(layer("tensorwise", F32))[0]
    outputs = []
    for factor in (1, 16, 1, 1, 1):
        outputs.append(results(model, factor)[0] / factor)
        end_step(model, lambda values, how: values)
    errors = [float((out - right).norm() / right.norm()) for out in outputs]
    assert torch.equal(outputs[0], right) and torch.equal(outputs[4], right)
    assert errors[1] > 0.1 and max(errors[2:4]) < 0.01


def test_delayed_scales_are_those_of_all_processes():
    model = layer("delayed")
    model[0].largest_values[:, 0] = torch.tensor([1.0, 5, 3])
    end_step(model, lambda values, how: torch.maximum(values, torch.full_like(values, 2)))
    assert model[0].largest_values[:, 1].tolist() == [2, 5, 3]


def test_delayed_scales_go_on_across_a_checkpoint(run_here, tmp_path):
    keys = ["--overlay", "cpu", *TINY, SMALLEST, "compile.enable=false", "checkpoint.enable=true"]
    keys += ["lr_scheduler.total_steps=4", "lr_scheduler.warmup_steps=2"]

    def run(out: str, steps: int) -> list[float]:
        more = [f"training.steps={steps}", "--out", tmp_path / out]
        assert run_here("scaling_delayed", *keys, *more) == 0
        return losses_of(tmp_path / out)

    run("parts", 2)
    kill(tmp_path / "parts")
    assert run("parts", 4) == run("whole", 4)


# ---- under outliers ----


@pytest.mark.parametrize("name", ["tensorwise", "rowwise"])
def test_the_experiment_rounds_as_torchao(name):
    multiply = partial(linear, scaling=benchmark.COMPARED[name])
    found = benchmark.three_matmuls(multiply, *operands(F32)).values()
    for ours, torchaos in zip(found, results(layers.layer(name, F32, emulate=True)), strict=True):
        assert torch.allclose(ours, torchaos, rtol=1e-4, atol=1e-5 * ours.abs().max())


def test_finer_scales_keep_more_under_outliers(monkeypatch, tmp_path, flavors):
    monkeypatch.setattr(benchmark, "FACTORS", [2**16])
    keys = ["model.sizes={n_layers: 1}", "training.seq_len=64", "training.steps=1"]
    assert benchmark.main(str(tmp_path / "snr.json"), *keys) == 0
    rows = pd.DataFrame(json.loads((tmp_path / "snr.json").read_text())["stress"])
    kept = rows[rows["stress"] == "outliers"].set_index("scaling")["snr_db"].str["output"]
    assert kept[["tensorwise", "rowwise", "blockwise", "mxfp8"]].is_monotonic_increasing
