"""The optimizer's candidates: torchao's small states and stochastic rounding; and what it moves."""

import pytest
import torch
from torch import nn
from torch.distributed import checkpoint

from experiments.config import recipes
from experiments.training import preflight
from models import llama, optimizer
from models.errors import InputError
from models.floors import OPTIMIZER
from models.flops import parameters
from tests.costs import total, work
from tests.runs import ONE_DEVICE


@pytest.fixture(autouse=True)
def torchao_eager():
    """torchao compiles its kernels, which takes longer than these tests."""
    with torch.compiler.set_stance("force_eager"):
        yield


def config(*overrides, name="baseline", overlays=("cpu",)):
    return recipes.load(name, overlays, overrides).config


def trained(overrides: list[str], steps: int, dtype=torch.bfloat16, seed=0):
    """A matrix after some steps of a random gradient, and its optimizer."""
    keys = config(*overrides).optimizer
    torch.manual_seed(seed)
    model = nn.Linear(64, 64, bias=False).to(dtype)
    container = optimizer.build_optimizers([model], keys, ONE_DEVICE)
    gradient = torch.randn(64, 64, generator=torch.Generator().manual_seed(0))
    for _ in range(steps):
        model.weight.grad = gradient.to(dtype, copy=True)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        container.step()
    return model.weight.detach(), container


# ---- torchao's ----


@pytest.mark.parametrize("name, element", [("AdamW8bit", torch.uint8), ("AdamWFp8", torch.float8_e4m3fn)])
def test_small_moments_follow_adamw_in_the_bytes_that_are_estimated(name, element):
    exact, _ = trained([], 8, torch.float32)
    close, container = trained([f"optimizer.name={name}"], 8, torch.float32)
    moved = (exact - trained([], 0, torch.float32)[0]).norm()
    assert 0 < (close - exact).norm() < 0.1 * moved
    state = next(iter(container.optimizers[0].state.values()))
    for moment in (state["exp_avg"], state["exp_avg_sq"]):
        assert moment.codes.dtype == element
        size = sum(getattr(moment, part).nbytes for part in ("codes", "scale"))
        estimate = preflight.memory_estimate(config(f"optimizer.name={name}"))
        assert size / moment.numel() == estimate["optimizer"] / (2 * parameters(llama.FLAVORS["cpu"]))


@pytest.mark.parametrize("choice", ["name=AdamW8bit", "name=AdamWFp8", "stochastic_rounding=true"])
def test_torchaos_optimizers_take_the_recipes_settings(choice):
    keys = [choice, "lr=3e-4", "beta1=0.8", "beta2=0.95", "eps=1e-6", "weight_decay=0.3"]
    _, container = trained([f"optimizer.{key}" for key in keys], 0)
    group = container.optimizers[0].param_groups[0]
    assert group["lr"] == pytest.approx(3e-4) and group["betas"] == (0.8, 0.95)
    assert (group["eps"], group["weight_decay"]) == (1e-6, 0.3)


def test_stochastic_rounding_keeps_updates_that_rounding_to_the_nearest_loses():
    keys = ["optimizer.lr=1e-6", "optimizer.weight_decay=0.0"]
    exact = trained(keys, 20, torch.float32)[0] - trained(keys, 0, torch.float32)[0]
    start, _ = trained(keys, 0)
    nearest, _ = trained(keys, 20)
    stochastic, _ = trained([*keys, "optimizer.stochastic_rounding=true"], 20)
    large = start.abs() > 2**-5  # a bf16 step there is 2^-13 at least, a hundred times an update
    assert torch.equal(nearest[large], start[large])
    update = (stochastic.float() - start.float())[large] * exact[large].sign()
    assert update.mean().item() == pytest.approx(exact[large].abs().mean().item(), rel=0.3)


@pytest.mark.parametrize("name", ["AdamW", "AdamW8bit", "AdamWFp8"])
def test_a_gradient_seen_once_makes_giant_steps_with_small_moments(name):
    """Known, and not mended here: beside its block's largest, a second moment becomes 0 sooner than its first one."""
    torch.manual_seed(0)
    model = nn.Linear(256, 16, bias=False)
    keys = config(f"optimizer.name={name}", "optimizer.lr=1e-3", "optimizer.weight_decay=0").optimizer
    container = optimizer.build_optimizers([model], keys, ONE_DEVICE)
    model.weight.grad = torch.randn(16, 256).mul(3).exp() * 1e-4 * torch.randn(16, 256).sign()
    container.step()
    model.weight.grad = torch.zeros_like(model.weight)
    before = model.weight.detach().clone()
    container.step()
    largest = (model.weight - before).abs().max().item() / keys.lr
    assert largest < 1 if name == "AdamW" else largest > 1000


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
@pytest.mark.parametrize("name", ["AdamW8bit", "AdamWFp8"])
def test_small_moments_survive_a_checkpoint(name, tmp_path):
    _, trained_for_3 = trained([f"optimizer.name={name}"], 3)
    checkpoint.save(trained_for_3.state_dict(), checkpoint_id=tmp_path)
    _, other = trained([f"optimizer.name={name}"], 1, seed=1)
    state = other.state_dict()
    checkpoint.load(state, checkpoint_id=tmp_path)
    other.load_state_dict(state)
    saved, loaded = (next(iter(each.optimizers[0].state.values())) for each in (trained_for_3, other))
    assert loaded["step"] == saved["step"] == 3
    for moment in ("exp_avg", "exp_avg_sq"):
        assert torch.equal(loaded[moment].dequantize(), saved[moment].dequantize())


# ---- what the roofline makes of them ----


def optimizer_bytes(name: str, *overrides) -> float:
    return total(work(name, *overrides), "bytes", OPTIMIZER) / parameters(llama.FLAVORS["8B-published"])


def test_bytes_of_the_optimizer_by_hand():
    adamw = 7 * 2  # gradient, and parameter and moments there and back
    assert optimizer_bytes("baseline_compiled") == 2 + adamw  # norm, and a step that clips
    assert optimizer_bytes("candidate_adamw_stochastic_rounding") == 2 + (2 + 2) + adamw  # norm; clipping; step
    assert optimizer_bytes("baseline", "training.dtype=float32") == 2 * (2 + (2 + 2) + adamw)
    # gradient and moments twice, parameter there and back; in between, of 8 bits, both in float32
    small = 2 + (2 + 2) + 2 * 2 + 2 * 2 + 2 * 3 * (1 + 4 / 256)
    assert optimizer_bytes("candidate_adamw_fp8") == small
    assert optimizer_bytes("candidate_adamw_8bit") == small + 2 * 2 * 4
    assert optimizer_bytes("baseline", "optimizer.implementation=foreach") == 2 + 4 + 40


# ---- what is refused ----


@pytest.mark.parametrize(
    "overrides, message",
    [
        (["optimizer.stochastic_rounding=true", "training.dtype=float32"], "rounds bf16 weights"),
        (["optimizer.early_step_in_backward=true"], "no gradients for the proof to look at; set it to false"),
        (["optimizer.name=AdamWFp8", "checkpoint.async_mode=async"], "only be saved with disabled"),
        (["compile.cuda_graphs=true"], "set compile.enable to true"),
        (["compile.enable=true", "compile.cuda_graphs=true", "training.global_batch_size=1024"],
         "set training.global_batch_size to -1"),
        (["optimizer.built=before_conversion", "compile.enable=true"], "set compile.enable to false"),
    ],
)  # fmt: skip
def test_contradictions_are_found_before_the_run(overrides, message):
    with pytest.raises(InputError, match=message):
        config(*overrides)
