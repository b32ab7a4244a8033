"""FP8 for a part of a run's steps: equal numbers to runs that stop and resume in the other
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
from extensions.phases import find_fp8_steps
from extensions.phases.layers import switch_precision
from models import float8
from tests.models.layers import converted
from tests.runs import SMALLEST, TINY, kill, losses_of, proof_of

FP8 = "tensorwise_fp8_compiled"
WIDTH = 64
SMALL = [*TINY, SMALLEST, "compile.enable=false", "lr_scheduler.warmup_steps=2"]
CHECKPOINTS = ["checkpoint.enable=true", "checkpoint.initial_load_model_only=false"]


def phase_keys(first: int, last: int) -> list[str]:
    return [f"phases.first_step={first}", f"phases.last_step={last}"]


def list_phases(run) -> list[tuple[str, bool]]:
    """List the first step of each phase, and whether its profile was to show FP8."""
    stretches = proof_of(run).stretches
    return [(start, stretch.in_fp8) for start, stretch in stretches.items()]


@pytest.fixture
def losses(run_here, tmp_path):
    """Train a recipe up to a step and save a checkpoint of it; returns the losses, one a step."""

    def train(out: str, recipe: str, steps: int, *keys: str, resume_from: str | None = None):
        """`resume_from` names the run whose last checkpoint this one begins with."""
        keys = [*SMALL, *keys, f"training.steps={steps}", *CHECKPOINTS]
        if resume_from:
            [start] = (tmp_path / resume_from / "checkpoint").iterdir()
            keys.append(f"checkpoint.initial_load_path={start}")
        assert run_here(recipe, "--overlay", "cpu", "--out", tmp_path / out, *keys) == 0
        return losses_of(tmp_path / out)

    return train


def test_a_switch_is_what_checkpoint_and_relaunch_is(losses, tmp_path):
    """bf16, FP8 and bf16 again, two steps each; the run is interrupted and resumes in the phase of
    its step."""
    losses("switched", FP8, 5, *phase_keys(3, 4))
    kill(tmp_path / "switched")
    switched = losses("switched", FP8, 6, *phase_keys(3, 4))

    parts = losses("first", "baseline", 2)
    parts += losses("second", FP8, 4, resume_from="first")
    parts += losses("third", "baseline", 6, resume_from="second")
    assert switched == parts
    assert list_phases(tmp_path / "switched") == [("1", False), ("3", True), ("5", False)]
    assert proof_of(tmp_path / "switched").profiled_step == 4


def test_rates_leave_out_the_steps_after_a_switch(train, monkeypatch):
    """The one that compiles, the next, and the profiled one; here the ten at the start of the
    process are not left out."""
    monkeypatch.setattr(trainer, "NOT_STEADY_STEPS", 0)
    recipe = recipes.load(FP8, ["cpu"], [*SMALL, *phase_keys(2, 6), "training.steps=7"])
    _, intervals = train(recipe.config, 7, recipe)
    assert [interval.step for interval in intervals if not interval.not_steady] == [5, 6]


def test_the_log_says_which_steps_ran_in_fp8(train):
    """Intervals of steps 1, 2 to 4, 5 to 8 and 9, with FP8 from step 3 to 6."""
    keys = [*SMALL, *phase_keys(3, 6), "training.steps=9", "metrics.log_freq=4"]
    recipe = recipes.load(FP8, ["cpu"], keys)
    _, intervals = train(recipe.config, 9, recipe)
    shares = [(i.step, i.model_extra["phases"]["fp8_share_of_steps"]) for i in intervals]
    assert shares == [(1, 0), (4, pytest.approx(2 / 3)), (8, 0.5), (9, 0)]


@pytest.mark.slow
def test_two_processes_that_recompute_activations_switch_together(tmp_path):
    """FSDP2 gathers weights in bf16."""
    forked = pytest.importorskip("extensions.sharded.tests.forked")
    keys = [*SMALL, *phase_keys(2, 2), "activation_checkpoint.mode=full", "sharded.processes=2"]
    forked.train(tmp_path, {"run": (FP8, keys)})
    assert list_phases(tmp_path / "run") == [("1", False), ("2", True), ("3", False)]


@pytest.mark.parametrize(
    ("name", "keys", "steps"),
    [
        ("bf16_fp8_bf16", [], range(11, 55)),
        ("bf16_then_fp8", ["training.steps=5"], range(0)),
    ],
)
def test_steps_in_fp8(name, keys, steps):
    assert find_fp8_steps(recipes.load(name, ["cpu"], keys).config) == steps


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_the_first_switch_compiles_once_and_the_way_back_not_at_all(dtype):
    """Each time with the outputs and gradients of eager layers of that precision. Activations are
    recomputed, as in a run that saves memory."""
    torch.manual_seed(0)
    torch._dynamo.reset()
    counters.clear()
    bf16 = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(2))).to(dtype)
    fp8 = converted(copy.deepcopy(bf16), emulate=True)
    switched = copy.deepcopy(fp8)
    block = partial(checkpoint, switched, use_reentrant=False)
    compiled = torch.compile(block, backend="eager", fullgraph=True)

    def outputs_and_gradients(module: nn.Module, call) -> list[torch.Tensor]:
        x = torch.ones(16, WIDTH).cumsum(0).sin().bfloat16().requires_grad_()
        module.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            out = call(x)
        out.float().square().sum().backward()
        return [out.detach(), x.grad, *(p.grad for p in module.parameters())]

    n_graphs = []
    for eager, in_fp8 in ((bf16, False), (fp8, True), (bf16, False), (fp8, True)):
        switch_precision(float8.converted_modules(switched).values(), in_fp8)
        values = outputs_and_gradients(switched, compiled)
        assert all(map(torch.equal, values, outputs_and_gradients(eager, eager)))
        n_graphs.append(counters["stats"]["unique_graphs"])
    assert n_graphs == [1, 2, 2, 2]
