"""The optimizer that a recipe asks for, and clipping."""

import math

import pytest
import torch
from torch import nn

from experiments.config import recipes
from models import optimizer
from tests.runs import ONE_DEVICE


@pytest.fixture(autouse=True)
def torchao_eager():
    """torchao compiles its kernel, which takes longer than these tests."""
    with torch.compiler.set_stance("force_eager"):
        yield


def trained(overrides: list[str], steps: int, dtype=torch.bfloat16) -> torch.Tensor:
    """A matrix after some steps of a random gradient."""
    keys = recipes.load("baseline", ["cpu"], overrides).config.optimizer
    torch.manual_seed(0)
    model = nn.Linear(64, 64, bias=False).to(dtype)
    container = optimizer.build_optimizers([model], keys, ONE_DEVICE)
    gradient = torch.randn(64, 64, generator=torch.Generator().manual_seed(0))
    for _ in range(steps):
        model.weight.grad = gradient.to(dtype, copy=True)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        container.step()
    return model.weight.detach()


def test_stochastic_rounding_keeps_updates_that_rounding_to_the_nearest_loses():
    keys = ["optimizer.lr=1e-6", "optimizer.weight_decay=0.0"]
    exact = trained(keys, 20, torch.float32) - trained(keys, 0, torch.float32)
    start, nearest = trained(keys, 0), trained(keys, 20)
    stochastic = trained([*keys, "optimizer.stochastic_rounding=true"], 20)
    large = start.abs() > 2**-5  # a bf16 step there is 2^-13 at least, a hundred times an update
    assert torch.equal(nearest[large], start[large])
    update = (stochastic.float() - start.float())[large] * exact[large].sign()
    assert update.mean().item() == pytest.approx(exact[large].abs().mean().item(), rel=0.3)


@pytest.mark.parametrize(
    ("last", "max_norm", "expected"),
    [(8.0, 1.0, [0.6, 0.8]), (8.0, 1e9, [6.0, 8.0]), (math.inf, 1.0, [6.0, math.inf])],
    ids=["scaled down", "not up", "not finite: changes no gradient"],
)
def test_gradients_are_clipped_by_the_norm_of_all(last, max_norm, expected):
    weights = [nn.Parameter(torch.ones(1)) for _ in range(2)]
    weights[0].grad, weights[1].grad = torch.tensor([6.0]), torch.tensor([last])
    norm = optimizer.gradient_norm(weights)
    optimizer.clip(weights, norm, max_norm)
    assert norm == math.hypot(6, last)
    assert [weight.grad.item() for weight in weights] == pytest.approx(expected)
