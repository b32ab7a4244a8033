"""AdamW fused over all parameters: its kernels, in Triton's interpreter and on a GPU, and where it
is chosen."""

import copy

import pytest
import torch
from torch import nn
from torch._subclasses import FakeTensorMode

from models import optimizer
from models.fused_adamw import FusedAdamW, gradient_norm
from tests.models.interpreter import run_interpreted
from tests.runs import ONE_DEVICE

SETTINGS = {"lr": 1e-2, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.1}
MAX_NORM = 1.0


def parameters(shapes: list[tuple], device: str = "cpu") -> list[nn.Parameter]:
    torch.manual_seed(0)
    return [nn.Parameter(torch.randn(shape).bfloat16().to(device)) for shape in shapes]


def check_steps(optimizer: FusedAdamW, scale: float, dtype: torch.dtype) -> None:
    """Three steps of random gradients times `scale`, and all of the state after each, are those of
    PyTorch's fused AdamW, which starts each step from the same state and keeps it in `dtype`."""
    for _ in range(3):
        reference = in_dtype(optimizer, dtype)
        pairs = list(zip(parameters_of(optimizer), parameters_of(reference), strict=True))
        for p, exact in pairs:
            p.grad = scale * torch.randn_like(p)
            exact.grad = p.grad.to(dtype, copy=True)
        norm = gradient_norm([p.grad for p, _ in pairs])
        optimizer.clip(norm, MAX_NORM)
        optimizer.step()
        reference.grad_scale = torch.clamp(
            (norm + 1e-6) / MAX_NORM, min=1.0
        )  # a fused step divides gradients by it
        reference.step()
        for p, exact in pairs:
            assert_rounded(p, exact)
            assert optimizer.state[p]["step"] == reference.state[exact]["step"]
            for moment in ("exp_avg", "exp_avg_sq"):
                assert_rounded(optimizer.state[p][moment], reference.state[exact][moment])


def in_dtype(optimizer: FusedAdamW, dtype: torch.dtype) -> torch.optim.AdamW:
    """PyTorch's AdamW with copies of the parameters and of the state of another."""
    groups = [
        [nn.Parameter(p.detach().to(dtype, copy=True)) for p in g["params"]]
        for g in optimizer.param_groups
    ]
    other = torch.optim.AdamW([{"params": group} for group in groups], fused=True)
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    return other


def parameters_of(optimizer: torch.optim.Optimizer) -> list[nn.Parameter]:
    return [p for group in optimizer.param_groups for p in group["params"]]


def assert_rounded(result: torch.Tensor, exact: torch.Tensor) -> None:
    """It is the nearest bf16 number; a neighbour of it only where the last bits of float32 decide,
    in few elements."""
    assert result.dtype == torch.bfloat16
    nearest = exact.detach().bfloat16()
    torch.testing.assert_close(
        result.detach(), nearest, rtol=2**-7, atol=1e-6 * nearest.abs().max().item()
    )
    assert (result != nearest).sum() <= 1 + 0.03 * result.numel()


# ---- in the interpreter ----


@pytest.mark.slow
def test_kernels_do_what_adamw_and_plain_casts_do():
    files = ["tests/models/adamw_interpreted.py", "tests/models/fp8_cast_interpreted.py"]
    run_interpreted("pytest", "-p", "no:cacheprovider", *files)


@pytest.mark.slow
def test_a_sharded_model_is_stepped_as_a_whole_one(tmp_path):
    assert "equal on both ranks" in run_interpreted(
        "tests.models.adamw_interpreted", tmp_path / "store"
    )


# ---- where it is chosen ----


@pytest.mark.parametrize(
    "dtype, device, overrides, kernels",
    [
        (torch.bfloat16, "cuda", [], True),
        (torch.bfloat16, "cpu", [], False),
        (torch.float32, "cuda", [], False),
        (torch.bfloat16, "cuda", ["optimizer.implementation=foreach"], False),
        (torch.bfloat16, "cuda", ["optimizer.stochastic_rounding=true"], False),
    ],
)
def test_it_steps_bf16_parameters_on_gpus_where_the_recipe_says_fused(
    dtype, device, overrides, kernels
):
    from experiments.config import recipes

    keys = recipes.load("baseline", [], overrides).config.optimizer
    with FakeTensorMode():
        model = nn.Module()
        model.weight = nn.Parameter(torch.empty(8, 8, dtype=dtype, device=device))
        [built] = optimizer.build_optimizers([model], keys, ONE_DEVICE)
    assert isinstance(built, FusedAdamW) == kernels
    group = built.param_groups[0]
    assert float(group["lr"]) == pytest.approx(keys.lr) and group["betas"] == (
        keys.beta1,
        keys.beta2,
    )
    assert (group["eps"], group["weight_decay"]) == (keys.eps, keys.weight_decay)


# ---- on a GPU ----


@pytest.mark.gpu
@pytest.mark.parametrize("scale", [10.0, 1e-5], ids=["clipped", "not clipped"])
def test_a_step_is_that_of_pytorchs_fused_adamw(scale):
    ps = parameters([(1,), (4096,), (4095, 33), (1024, 4096), (131072, 1024)], "cuda")
    check_steps(FusedAdamW(ps, **SETTINGS), scale, torch.bfloat16)


@pytest.mark.gpu
def test_the_norm_is_the_same_in_each_call_and_float32s():
    gradients = [p.detach() for p in parameters([(1,), (4095, 33), (8192, 4096)], "cuda")]
    exact = torch.cat([g.flatten() for g in gradients]).double().norm().item()
    norms = {gradient_norm(gradients).item() for _ in range(5)}
    assert len(norms) == 1 and norms.pop() == pytest.approx(exact, rel=1e-6)
