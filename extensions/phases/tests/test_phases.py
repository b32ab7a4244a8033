"""FP8 for a part of a run's steps: the same numbers as runs that stop and go on in the other
precision."""

import copy
import json
import sys
from functools import partial

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters
from torch.utils.checkpoint import checkpoint

from experiments.config import recipes
from experiments.records.files import read
from experiments.records.run import PROOF, Proof
from experiments.training import trainer
from extensions.phases import fp8_steps, switch
from models import float8
from models.errors import InputError
from tests import processes
from tests.models.layers import converted
from tests.runs import SMALLEST, TINY, kill, losses_of

FP8, FLOAT8, WIDTH = "tensorwise_fp8_compiled", "quantize.linear.float8", 64
GATHER = f"{FLOAT8}.enable_fsdp_float8_all_gather=true"
EAGER = ["compile.enable=false"]


def phase(first: int | str, last: int | str) -> list[str]:
    return [f"phases.first_step={first}", f"phases.last_step={last}"]


@pytest.fixture
def losses(run_here, tmp_path):
    """Trains a recipe in this process up to a step, of which it keeps a checkpoint; its losses, one
    a step."""

    def train(
        out: str, recipe: str, steps: int, keys: list[str], after: str | None = None
    ) -> list[float]:
        """`after` names the run whose last checkpoint this one begins with."""
        keys = [*TINY, SMALLEST, *keys, f"training.steps={steps}", "checkpoint.enable=true"]
        keys += ["lr_scheduler.warmup_steps=2"]
        if after:
            [start] = (tmp_path / after / "checkpoint").iterdir()
            keys.append(f"checkpoint.initial_load_path={start}")
            keys.append("checkpoint.initial_load_model_only=false")
        assert run_here(recipe, "--overlay", "cpu", "--out", tmp_path / out, *keys) == 0
        return losses_of(tmp_path / out)

    return train


def test_a_switch_is_what_checkpoint_and_relaunch_is(losses, tmp_path):
    """bf16, FP8 and bf16 again, two steps each; the run is interrupted and goes on in the phase of
    its step."""
    out, keys = tmp_path / "switched", [*EAGER, *phase(3, 4)]
    losses("switched", FP8, 5, keys)
    kill(out)
    switched = losses("switched", FP8, 6, keys)

    parts = losses("first", "baseline", 2, EAGER)
    assert losses("never", FP8, 2, keys) == parts
    parts += losses("second", FP8, 4, EAGER, after="first")
    parts += losses("third", "baseline", 6, EAGER, after="second")
    assert switched == parts

    proof = read(out / PROOF, Proof)
    phases = {first: (it.in_fp8, it.profiled_step) for first, it in proof.stretches.items()}
    assert phases == {"1": (False, 2), "3": (True, 4), "5": (False, 6)}  # of both attempts
    assert proof.profiled_step == 4


def test_rates_leave_out_the_steps_after_a_switch(train, monkeypatch):
    """The one that compiles, the next, and the profiled one; here without the ten at the start of
    the process."""
    monkeypatch.setattr(trainer, "NOT_STEADY_STEPS", 0)
    keys = [*TINY, SMALLEST, *EAGER, *phase(2, 6), "training.steps=7"]
    recipe = recipes.load(FP8, ["cpu"], keys)
    _, windows = train(recipe.config, 7, recipe)
    assert [window.step for window in windows if not window.not_steady] == [5, 6]


@pytest.mark.slow
def test_two_processes_that_recompute_activations_switch_together(tmp_path):
    """FSDP2 gathers weights in bf16."""
    pytest.importorskip("extensions.sharded")
    keys = [*TINY, SMALLEST, *EAGER, *phase(2, 2), "activation_checkpoint.mode=full"]
    keys.append("sharded.processes=2")
    run = [FP8, "--overlay", "cpu", "--out", str(tmp_path / "run"), *keys]
    (tmp_path / "runs.json").write_text(json.dumps([[2, run]]))
    command = [sys.executable, "-m", "extensions.sharded.tests.forked", tmp_path / "runs.json"]
    processes.run(command, 290)
    phases = read(tmp_path / "run" / PROOF, Proof).stretches
    assert [(first, phase.in_fp8) for first, phase in phases.items()] == [
        ("1", False),
        ("2", True),
        ("3", False),
    ]


@pytest.mark.parametrize(
    ("name", "keys", "wrong"),
    [
        ("bf16_then_fp8", ["phases.last_step=10"], "phases.last_step"),
        ("bf16_then_fp8", ["phases.last_step=0"], "phases.last_step"),
        ("bf16_then_fp8", ["phases.first_step=after"], "phases.first_step"),
        ("baseline", ["phases.first_step=5"], f"{FLOAT8}.recipe_name"),
        ("bf16_then_fp8", [GATHER], f"{FLOAT8}.enable_fsdp_float8_all_gather"),
        ("bf16_then_fp8", ["profiling.enable_profiling=true"], "profiling.enable_profiling"),
    ],
)
def test_what_contradicts_a_switch_is_refused(name, keys, wrong):
    with pytest.raises(InputError, match=f": {wrong}: "):
        recipes.load(name, ["cpu"], keys)


@pytest.mark.parametrize(
    ("name", "overlay", "steps"),
    [
        ("bf16_then_fp8", [], range(101, 1001)),
        ("fp8_then_bf16", [], range(1, 901)),
        ("bf16_fp8_bf16", ["cpu"], range(11, 55)),
    ],
)
def test_steps_in_fp8(name, overlay, steps):
    assert fp8_steps(recipes.load(name, overlay).config) == steps


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("recompute", [False, True])
def test_the_first_switch_compiles_once_and_the_way_back_not_at_all(dtype, recompute):
    torch.manual_seed(0)
    torch._dynamo.reset()
    linears = [nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(2)]
    plain = nn.Sequential(linears[0], nn.SiLU(), linears[1]).to(dtype)
    fp8 = converted(copy.deepcopy(plain), emulate=True)
    switched, graphs = copy.deepcopy(fp8), []
    block = partial(checkpoint, switched, use_reentrant=False) if recompute else switched
    layers = float8.converted_modules(switched).values()
    compiled = torch.compile(block, backend="eager", fullgraph=True)

    def values(module: nn.Module, call) -> list[torch.Tensor]:
        x = torch.ones(16, WIDTH).cumsum(0).sin().bfloat16().requires_grad_()
        with torch.autocast("cpu", torch.bfloat16):
            out = call(x)
        out.float().square().sum().backward()
        return [out.detach(), x.grad, *(p.grad for p in module.parameters())]

    for on in (False, True, False, True):
        switch(layers, on)
        switched.zero_grad()
        before = counters["stats"]["unique_graphs"]
        found = values(switched, compiled)
        graphs.append(counters["stats"]["unique_graphs"] - before)
        other = copy.deepcopy(fp8 if on else plain)
        assert all(map(torch.equal, found, values(other, other)))
    assert graphs == [1, 1, 0, 0]
