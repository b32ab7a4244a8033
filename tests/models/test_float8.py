"""torchao's FP8 layer, emulated; how a machine multiplies."""

import platform
from pathlib import Path

import pytest
import torch
from torch._inductor.codegen.triton import TritonOverrides
from torchao.float8 import _inductor_patch

from experiments.config import recipes
from experiments.training.plan import plan
from models import device, float8
from models.architectures import build_model
from models.float8 import EMULATED, OPERATOR, WITHOUT_ONEDNN
from models.scaling import SCALINGS
from tests.models.layers import layer, results

# ---- the layer ----


@pytest.mark.parametrize("recipe", SCALINGS)
def test_emulation_rounds_alike(recipe):
    """The same FP8 operands, multiplied in float32: to bf16's rounding."""
    emulated = results(layer(recipe, emulate=True))
    for ours, real in zip(emulated, results(layer(recipe)), strict=True):
        assert (real.float() - ours.float()).norm() < 0.01 * real.float().norm()


# ---- how FP8 matrices are multiplied ----


@pytest.mark.parametrize(
    ("sets", "runs", "emulate", "how"),
    [
        (["amx_int8", "amx_fp16"], True, False, OPERATOR),
        (["amx_int8"], True, False, WITHOUT_ONEDNN),
        (["amx_int8"], False, False, EMULATED),
        (["amx_int8"], True, True, EMULATED),
    ],
)
def test_a_cpu_multiplies_by_a_rule(sets, runs, emulate, how, monkeypatch):
    monkeypatch.setattr(device, "TYPE", "cpu")
    monkeypatch.setattr(device, "INSTRUCTION_SETS", sets)
    monkeypatch.setattr(float8, "_cpu_has_row_scales", lambda: runs)
    matmul = float8.choose_matmul(SCALINGS["rowwise"], emulate)
    assert matmul.kind == how and matmul.reason


def test_a_grace_has_a_name(monkeypatch):
    core = "processor\t: 0\nFeatures\t: fp asimd evtstrm sve2 bf16\n\n"
    monkeypatch.setattr(Path, "read_text", lambda path: core)
    assert device.read_instruction_sets() == ["asimd", "sve2", "bf16"]
    assert device.cpu_name() == platform.machine()


# ---- what is in force when FP8 is compiled ----


def test_each_recipe_in_fp8_compiles_without_minima_that_spoil_stores(monkeypatch):
    """torchao has inductor write minima and maxima of Triton code in another way, since Triton
    miscompiles FP8 stores beside its own (triton issue 11111)."""
    in_fp8 = 0
    for name in recipes.yaml_files(recipes.RECIPES):
        recipe = recipes.load(name, ["cpu"])
        keys = recipe.config.quantize.linear.float8
        if not keys.recipe_name or keys.enable_fsdp_float8_all_gather:  # which several processes do
            continue
        monkeypatch.setattr(_inductor_patch, "_PATCHED", False)
        for extreme in ("minimum", "maximum"):
            monkeypatch.setattr(TritonOverrides, extreme, staticmethod(lambda *_: "torch's own"))
        with torch.device("meta"):
            model = build_model(recipe.config)
        recipe.find_hook("convert", float8.convert_linears)(model, plan(recipe))
        assert "tl.where" in TritonOverrides.minimum("a", "b"), name
        assert "tl.where" in TritonOverrides.maximum("a", "b"), name
        in_fp8 += 1
    assert in_fp8 >= 2
