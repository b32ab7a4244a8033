"""The candidate FP8 layer: torchao's results to the last bit, its memory, recipes and kernel."""

import math
import os
import sys

import pytest
import torch
from torch import nn
from torchao.float8 import float8_ops

from experiments.config import recipes
from experiments.training.plan import plan
from extensions import fast_layer
from extensions.fast_layer import Section
from extensions.fast_layer import layer as candidate
from models import device, float8
from tests import processes
from tests.models.layers import layer, results
from tests.runs import SMALLEST, TINY, lines_of

RECIPES = ["candidate_fast_rowwise", "candidate_fast_tensorwise"]
FLOAT8 = "quantize.linear.float8"


@pytest.fixture
def hopper(monkeypatch):
    monkeypatch.setattr(device, "TYPE", "cuda")
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    monkeypatch.setattr(float8_ops, "addmm_float8_unwrapped", float8_ops.addmm_float8_unwrapped)


def candidate_layer(recipe: str, dtype=torch.bfloat16, **keys) -> nn.Module:
    """Make one candidate layer with the weight of `operands`."""

    def convert(model: nn.Module, plan) -> None:
        plan.config.fast_layer = Section()
        fast_layer.convert(model, plan)

    return layer(recipe, dtype, convert=convert, **keys)


# ---- arithmetic ----


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("recipe", ["rowwise", "rowwise_with_gw_hp"])
def test_scales_of_rows_within_the_matmul_give_the_same(recipe, dtype, hopper):
    if not float8._cpu_has_row_scales():
        pytest.skip(f"torch {torch.__version__} has no FP8 matmul with scales of rows on a CPU")
    torchao_results = results(layer(recipe, dtype))
    model = candidate_layer(recipe, dtype)
    assert float8_ops.addmm_float8_unwrapped is candidate.multiply_with_row_scales
    assert all(map(torch.equal, torchao_results, results(model)))


def test_a_gpu_other_than_hopper_keeps_torchaos_matmul(hopper, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (10, 0))
    candidate_layer("rowwise")
    assert float8_ops.addmm_float8_unwrapped is not candidate.multiply_with_row_scales


@pytest.mark.slow
def test_the_kernel_in_tritons_interpreter():
    """In a process that has TRITON_INTERPRET=1 when Triton is imported."""
    environment = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    file = "extensions/fast_layer/tests/interpreted.py"
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-n", "0", file]
    process = processes.run(command, env=environment, check=False)
    if "wrap_triton only works on" in process.stdout:
        pytest.skip(f"torch {torch.__version__} launches no interpreted kernels of a triton_op")
    assert process.returncode == 0, process.stdout


# ---- recipes ----


def test_emulated_fp8_is_torchaos(hopper):
    assert type(candidate_layer("tensorwise")[0]) is candidate.FastFloat8Linear
    assert type(candidate_layer("tensorwise", emulate=True)[0]) is type(layer("tensorwise")[0])


def test_memory_counts_the_casts_of_the_backward_pass():
    """Peak GiB of torch.cuda.max_memory_allocated on a stand-in for a GPU, torch 2.11."""
    memory_needed = plan(recipes.load("candidate_fast_tensorwise")).memory_needed
    assert memory_needed / 2**30 == pytest.approx(68.43, rel=0.02)
    parent = plan(recipes.load("tensorwise_fp8_compiled"))
    for key in (f"{FLOAT8}.emulate=true", "fast_layer.enable=false"):
        without_casts = plan(recipes.load("candidate_fast_tensorwise", [], [key]))
        assert without_casts.memory_needed == parent.memory_needed


@pytest.mark.parametrize("name", RECIPES)
def test_its_recipes_train_on_a_cpu(name, train):
    recipe = recipes.load(name, ["cpu"], [*TINY, SMALLEST, "compile.enable=false"])
    _, intervals = train(recipe.config, 1, recipe)
    assert intervals[-1].step == 1


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_trains_on_a_gpu_as_its_parent_does(name, tmp_path):
    from experiments.run import main

    last_losses = {}
    for recipe in (name, recipes.load(name).provenance.base):
        torch.compiler.reset()  # each recipe compiles anew
        assert main([recipe, "--overlay", "cpu", *TINY, "--out", str(tmp_path / recipe)]) == 0
        last_losses[recipe] = lines_of(tmp_path / recipe)[-1]["loss"]
    assert math.isclose(*last_losses.values(), rel_tol=0.01)
