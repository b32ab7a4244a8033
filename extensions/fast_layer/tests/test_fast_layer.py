"""Our FP8 layer: torchao's results to the last bit, what it keeps, its recipes and its kernel."""

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
from extensions.fast_layer import Keys
from extensions.fast_layer import layer as fast
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


def ours(recipe: str, dtype=torch.bfloat16, **keys) -> nn.Module:
    """One layer of ours with the weight of `operands`."""

    def convert(model: nn.Module, plan) -> None:
        plan.config.fast_layer = Keys()
        fast_layer.convert(model, plan)

    return layer(recipe, dtype, convert=convert, **keys)


# ---- arithmetic ----


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("recipe", ["rowwise", "rowwise_with_gw_hp"])
def test_scales_of_rows_within_the_matmul_give_the_same(recipe, dtype, hopper):
    if not float8._cpu_has_row_scales():
        pytest.skip(f"torch {torch.__version__} has no FP8 matmul with scales of rows on a CPU")
    torchaos, made = results(layer(recipe, dtype)), ours(recipe, dtype)
    assert float8_ops.addmm_float8_unwrapped is fast.multiply_by_rows
    assert all(map(torch.equal, torchaos, results(made)))


def test_a_gpu_other_than_hopper_keeps_torchaos_matmul(hopper, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (10, 0))
    ours("rowwise")
    assert float8_ops.addmm_float8_unwrapped is not fast.multiply_by_rows


@pytest.mark.slow
def test_the_kernel_in_tritons_interpreter():
    """In a process that has TRITON_INTERPRET=1 when Triton is imported."""
    environment = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    file = "extensions/fast_layer/tests/interpreted.py"
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-n", "0", file]
    ended = processes.run(command, env=environment, check=False)
    if "wrap_triton only works on" in ended.stdout:
        pytest.skip(f"torch {torch.__version__} launches no interpreted kernels of a triton_op")
    assert ended.returncode == 0, ended.stdout


# ---- recipes ----


def test_emulated_fp8_is_torchaos(hopper):
    assert type(ours("tensorwise")[0]) is fast.FastFloat8Linear
    assert type(ours("tensorwise", emulate=True)[0]) is type(layer("tensorwise")[0])


def test_memory_counts_what_is_kept_in_fp8():
    """Peak GiB of torch.cuda.max_memory_allocated on a stand-in for a GPU, torch 2.11."""
    needed = plan(recipes.load("candidate_fast_tensorwise")).memory_needed
    assert needed / 2**30 == pytest.approx(68.43, rel=0.02)
    for kept_less in (f"{FLOAT8}.emulate=true", "fast_layer.enable=false"):
        without = plan(recipes.load("candidate_fast_tensorwise", [], [kept_less]))
        assert without.memory_needed == plan(recipes.load("tensorwise_fp8_compiled")).memory_needed


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

    last = {}
    for recipe in (name, recipes.load(name).made.base):
        torch.compiler.reset()  # each recipe compiles anew
        assert main([recipe, "--overlay", "cpu", *TINY, "--out", str(tmp_path / recipe)]) == 0
        last[recipe] = lines_of(tmp_path / recipe)[-1]["loss"]
    assert math.isclose(*last.values(), rel_tol=0.01)
