"""Scales of other shapes: against torchao's reference code, and themselves compiled; delayed scales
from step to step and across a checkpoint."""

import json
from functools import partial

import pandas as pd
import pytest
import torch
import yaml
from torch import nn
from torchao.prototype.blockwise_fp8_training import kernels as blockwise

from experiments import study
from extensions.scalings import SCALINGS, TORCHAO_MXFP8, Section, convert, signal_to_noise
from extensions.scalings.layer import end_step, measure_saturation, round_blocks, scaled_linear
from tests.models import layers
from tests.models.layers import operands, results
from tests.processes import ROOT
from tests.runs import SMALLEST, TINY, kill, losses_of

E4M3 = torch.float8_e4m3fn
F32 = torch.float32
WITH_BLOCKS = [name for name, scaling in SCALINGS.items() if scaling.has_blocks]


def layer(name: str, dtype=torch.bfloat16, **keys) -> nn.Module:
    """Make one FP8 layer of a scaling of torchao's or of this extension, with the weight of
    `operands`."""
    if name in SCALINGS or name == TORCHAO_MXFP8:
        recipe = "tensorwise"
        section = Section(name, **keys)
    else:
        recipe = name
        section = Section(None, **keys)

    def convert_layer(model: nn.Module, plan) -> None:
        plan.config.scalings = section
        convert(model, plan)

    emulate = name in WITH_BLOCKS or name == TORCHAO_MXFP8
    return layers.layer(recipe, dtype, emulate=emulate, convert=convert_layer)


# ---- arithmetic ----


def test_blocks_are_those_of_torchaos_reference():
    """Smaller blocks at the end are as if zeros followed."""
    x = operands()[0][:, :144]
    padded = nn.functional.pad(x, (0, 112, 0, 96))  # (256, 256)
    for rows, matrix, (fp8, scales) in (
        (1, x, blockwise.torch_blockwise_scale_act_quant_lhs(padded)),
        (1, x.t(), [t.t() for t in blockwise.torch_blockwise_scale_act_quant_rhs(padded)]),
        (128, x, blockwise.torch_blockwise_scale_weight_quant(padded)),
    ):
        reference = fp8.float() * scales.repeat_interleave(rows, 0).repeat_interleave(128, 1)
        m, n = matrix.shape
        rounded = round_blocks(matrix, rows, 128, "float32", E4M3)
        assert torch.allclose(rounded, reference[:m, :n], rtol=1e-6)


@pytest.mark.parametrize(
    ("recipe", "block", "weight_block"),
    [("blockwise", (1, 128), (128, 128)), ("mxfp8", (1, 32), (1, 32))],
)
def test_the_three_matmuls(recipe, block, weight_block):
    """Blocks lie along the sum of each matmul: in DeepSeek-V3 (arXiv 2412.19437) of weights in both
    directions, in MX (arXiv 2506.08027) not. The last ones are smaller."""
    x, weight, gradient = operands(F32)

    def round_matrix(matrix: torch.Tensor, block: tuple[int, int] = block) -> torch.Tensor:
        return round_blocks(matrix, *block, SCALINGS[recipe].scale, E4M3)

    matmuls = [  # the operands of each, with the sum along their rows
        (round_matrix(x), round_matrix(weight, weight_block)),
        (round_matrix(gradient), round_matrix(weight.t(), weight_block)),
        (round_matrix(gradient.t()), round_matrix(x.t())),
    ]
    for (lhs, rhs), result in zip(matmuls, results(layer(recipe, F32)), strict=True):
        assert torch.allclose(lhs @ rhs.t(), result, rtol=1e-4, atol=1e-5 * result.abs().max())


@pytest.mark.parametrize("recipe", ["delayed", "mxfp8"])
def test_compiled_is_eager(recipe):
    model = layer(recipe)
    model.compile(fullgraph=True, backend="aot_eager")
    assert all(map(torch.equal, results(layer(recipe)), results(model)))


@pytest.mark.parametrize(
    ("recipe", "gradient_format"), [("tensorwise", "e4m3"), ("blockwise", "e5m2")]
)
def test_gradients_in_another_format_than_the_scalings_own(recipe, gradient_format):
    out, x_grad, _ = results(layer(recipe))
    changed_out, changed_x_grad, _ = results(layer(recipe, gradients=gradient_format))
    assert torch.equal(out, changed_out) and not torch.equal(x_grad, changed_x_grad)


@pytest.mark.parametrize(
    ("recipe", "scaling"),
    [
        ("scaling_mxfp8", "mxfp8 FP8, emulated"),
        ("scaling_blockwise", "blockwise FP8, emulated"),
        ("scaling_delayed", "delayed FP8"),
        ("scaling_rowwise_e5m2_gradients", "rowwise (e5m2 gradients) FP8"),
        ("tensorwise_fp8_compiled", "tensorwise FP8"),
    ],
)
def test_a_dry_run_names_the_scaling(recipe, scaling, capsys):
    assert study.main([recipe, "--overlay", "cpu", "--dry-run"]) == 0
    assert f"linear layers in {scaling}," in capsys.readouterr().out


# ---- delayed ----


def test_delayed_scales_are_of_the_last_steps():
    """In the first step the scale is the step's own; after a jump values saturate for a step; after
    N steps it is forgotten."""
    model = layer("delayed", F32, history=2)
    tensorwise_out = results(layer("tensorwise", F32))[0]
    outputs = []
    for factor in (1, 16, 1, 1, 1):
        outputs.append(results(model, factor)[0] / factor)
        end_step(model, lambda values, operation: values)
    norm = tensorwise_out.norm()
    errors = [float((out - tensorwise_out).norm() / norm) for out in outputs]
    assert torch.equal(outputs[0], tensorwise_out) and torch.equal(outputs[4], tensorwise_out)
    assert errors[1] > 0.1 and max(errors[2:4]) < 0.01


def test_delayed_scales_are_those_of_all_processes():
    model = layer("delayed")
    model[0].largest_values[:, 0] = torch.tensor([1.0, 5, 3])
    end_step(model, lambda values, operation: torch.maximum(values, torch.full_like(values, 2)))
    assert model[0].largest_values[:, 1].tolist() == [2, 5, 3]


def test_operands_beyond_the_earlier_steps_are_counted():
    """Two of three, in the second step; the first step has its own scale."""
    model = layer("delayed", history=2)
    tracked = {"all_reduce": lambda values, operation: values}
    model[0].largest_values[:, 0] = torch.tensor([1.0, 5, 3])
    assert measure_saturation(model, **tracked) == {"saturated_share_of_operands": 0}
    end_step(model, **tracked)
    model[0].largest_values[:, 0] = torch.tensor([2.0, 5, 4])
    [share] = measure_saturation(model, **tracked).values()
    assert share == pytest.approx(2 / 3)
    assert measure_saturation(layer("blockwise"), **tracked) == {}


@pytest.mark.parametrize("recipe", ["scaling_delayed", "mxfp8_compiled", "scaling_nvfp4"])
def test_a_run_resumes_from_a_checkpoint_with_equal_losses(recipe, run_here, tmp_path):
    """... with its largest values, and with the state of what rounds at random."""
    keys = ["--overlay", "cpu", *TINY, SMALLEST, "compile.enable=false", "checkpoint.enable=true"]
    keys += ["lr_scheduler.total_steps=4", "lr_scheduler.warmup_steps=2"]

    def run(out: str, steps: int) -> list[float]:
        out_keys = [f"training.steps={steps}", "--out", tmp_path / out]
        assert run_here(recipe, *keys, *out_keys) == 0
        return losses_of(tmp_path / out)

    run("parts", 2)
    kill(tmp_path / "parts")
    assert run("parts", 4) == run("whole", 4)


# ---- under outliers ----


@pytest.mark.parametrize("name", ["tensorwise", "rowwise"])
def test_the_experiment_rounds_as_torchao(name):
    multiply = partial(scaled_linear, scaling=signal_to_noise.COMPARED[name])
    matmuls = signal_to_noise.three_matmuls(multiply, *operands(F32)).values()
    torchao_results = results(layers.layer(name, F32, emulate=True))
    for result, torchao_result in zip(matmuls, torchao_results, strict=True):
        assert torch.allclose(result, torchao_result, rtol=1e-4, atol=1e-5 * result.abs().max())


def test_finer_scales_keep_more_under_outliers(monkeypatch, tmp_path, flavors):
    monkeypatch.setattr(signal_to_noise, "FACTORS", [2**16])
    keys = ["model.sizes={n_layers: 1}", "training.seq_len=64", "training.steps=1"]
    assert signal_to_noise.main(str(tmp_path / "snr.json"), *keys) == 0
    rows = pd.DataFrame(json.loads((tmp_path / "snr.json").read_text())["stress"])
    snr_db = rows[rows["stress"] == "outliers"].set_index("scaling")["snr_db"].str["output"]
    assert snr_db[["tensorwise", "rowwise", "blockwise", "mxfp8"]].is_monotonic_increasing


@pytest.mark.parametrize("name", ["formats", "scalings"])
def test_the_study_is_the_one_whose_runs_are_kept(name):
    """Its recipes, seeds, reference, size and keys; TensorBoard changes no loss."""
    plan = study.load_study_plan([name])
    [file] = (ROOT / "extensions/scalings/results" / name).glob("*/study.yaml")
    kept = yaml.safe_load(file.read_text())
    assert {*plan.recipes} == {*kept["recipes"]} and plan.reference == kept["reference"]
    assert plan.seeds == kept["seeds"] and plan.overlays == kept["overlays"]
    kept_keys = [key for key in kept["overrides"] if not key.startswith("metrics.")]
    assert plan.overrides == kept_keys
