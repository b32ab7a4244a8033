"""FP8 for a part of a run's steps: the same numbers as runs that stop and go on in the other
precision."""

import copy
from functools import partial

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters
from torch.utils.checkpoint import checkpoint

from experiments.config import recipes
from experiments.training import trainer
from extensions.phases import fp8_steps
from extensions.phases.layers import switch
from models import float8
from tests.models.layers import converted
from tests.runs import SMALLEST, TINY, kill, losses_of, proof_of

FP8, WIDTH = "tensorwise_fp8_compiled", 64
SMALL = [*TINY, SMALLEST, "compile.enable=false", "lr_scheduler.warmup_steps=2"]
CHECKPOINTS = ["checkpoint.enable=true", "checkpoint.initial_load_model_only=false"]


def phase(first: int, last: int) -> list[str]:
    return [f"phases.first_step={first}", f"phases.last_step={last}"]


def phases_of(run) -> list[tuple[str, bool]]:
    """By first step, whether the profile of a phase was to show FP8."""
    return [(first, it.in_fp8) for first, it in proof_of(run).stretches.items()]


@pytest.fixture
def losses(run_here, tmp_path):
    """Trains a recipe up to a step, of which it keeps a checkpoint; its losses, one a step."""

    def train(out: str, recipe: str, steps: int, *keys: str, after: str | None = None):
        """`after` names the run whose last checkpoint this one begins with."""
        keys = [*SMALL, *keys, f"training.steps={steps}", *CHECKPOINTS]
        if after:
            [start] = (tmp_path / after / "checkpoint").iterdir()
            keys.append(f"checkpoint.initial_load_path={start}")
        assert run_here(recipe, "--overlay", "cpu", "--out", tmp_path / out, *keys) == 0
        return losses_of(tmp_path / out)

    return train


def test_a_switch_is_what_checkpoint_and_relaunch_is(losses, tmp_path):
    """bf16, FP8 and bf16 again, two steps each; the run is interrupted and goes on in the phase of
    its step."""
    losses("switched", FP8, 5, *phase(3, 4))
    kill(tmp_path / "switched")
    switched = losses("switched", FP8, 6, *phase(3, 4))

    parts = losses("first", "baseline", 2)
    parts += losses("second", FP8, 4, after="first")
    parts += losses("third", "baseline", 6, after="second")
    assert switched == parts
    assert phases_of(tmp_path / "switched") == [("1", False), ("3", True), ("5", False)]
    assert proof_of(tmp_path / "switched").profiled_step == 4


def test_rates_leave_out_the_steps_after_a_switch(train, monkeypatch):
    """The one that compiles, the next, and the profiled one; here without the ten at the start of
    the process."""
    monkeypatch.setattr(trainer, "NOT_STEADY_STEPS", 0)
    recipe = recipes.load(FP8, ["cpu"], [*SMALL, *phase(2, 6), "training.steps=7"])
    _, intervals = train(recipe.config, 7, recipe)
    assert [interval.step for interval in intervals if not interval.not_steady] == [5, 6]


@pytest.mark.slow
def test_two_processes_that_recompute_activations_switch_together(tmp_path):
    """FSDP2 gathers weights in bf16."""
    forked = pytest.importorskip("extensions.sharded.tests.forked")
    keys = [*SMALL, *phase(2, 2), "activation_checkpoint.mode=full", "sharded.processes=2"]
    forked.train(tmp_path, {"run": (FP8, keys)})
    assert phases_of(tmp_path / "run") == [("1", False), ("2", True), ("3", False)]


@pytest.mark.parametrize(
    ("name", "keys", "steps"),
    [
        ("bf16_fp8_bf16", [], range(11, 55)),
        ("bf16_then_fp8", ["training.steps=5"], range(0)),
    ],
)
def test_steps_in_fp8(name, keys, steps):
    assert fp8_steps(recipes.load(name, ["cpu"], keys).config) == steps


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_the_first_switch_compiles_once_and_the_way_back_not_at_all(dtype):
    """Each time with the outputs and gradients of eager layers of that precision. What is computed
    is computed twice, as in a run that recomputes activations."""
    torch.manual_seed(0)
    torch._dynamo.reset()
    plain = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(2))).to(dtype)
    fp8 = converted(copy.deepcopy(plain), emulate=True)
    switched, graphs = copy.deepcopy(fp8), []
    block = partial(checkpoint, switched, use_reentrant=False)
    compiled = torch.compile(block, backend="eager", fullgraph=True)

    def values(module: nn.Module, call) -> list[torch.Tensor]:
        x = torch.ones(16, WIDTH).cumsum(0).sin().bfloat16().requires_grad_()
        module.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            out = call(x)
        out.float().square().sum().backward()
        return [out.detach(), x.grad, *(p.grad for p in module.parameters())]

    for on in (False, True, False, True):
        switch(float8.converted_modules(switched).values(), on)
        before = counters["stats"]["unique_graphs"]
        found, eager = values(switched, compiled), fp8 if on else plain
        assert all(map(torch.equal, found, values(eager, eager)))
        graphs.append(counters["stats"]["unique_graphs"] - before)
    assert graphs == [1, 1, 0, 0]
