"""FP8 layers for tests, converted as a recipe's are, and what they are given."""

from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from experiments.config.keys import Config
from models import float8
from models.scaling import SCALINGS

IN, OUT, TOKENS = 256, 144, 160  # 144 and 160 are no multiples of 128


def operands(dtype=torch.bfloat16) -> list[torch.Tensor]:
    """x, weight and gradient of a layer, with magnitudes that differ from block to block."""
    random, found = torch.Generator().manual_seed(0), []
    for shape in (TOKENS, IN), (OUT, IN), (TOKENS, OUT):
        matrix = torch.randn(shape, generator=random)
        found.append((matrix * torch.randn(shape, generator=random).mul(3).exp()).to(dtype))
    return found


def converted(
    model: nn.Module,
    recipe: str = "tensorwise",
    emulate: bool = False,
    convert: Callable = float8.convert_linears,
) -> nn.Module:
    """`model` with its linear layers in FP8."""
    scaling = SCALINGS[recipe]
    names = frozenset(name for name, m in model.named_modules() if isinstance(m, nn.Linear))
    fp8 = float8.Float8Choice(recipe, scaling, names, float8.choose_matmul(scaling, emulate))
    if fp8.emulated and not emulate:
        pytest.skip(f"torch {torch.__version__} has no {recipe} FP8 operator here")
    convert(model, SimpleNamespace(fp8=fp8, config=Config()))
    return model


def layer(recipe: str, dtype=torch.bfloat16, **keys) -> nn.Module:
    """One FP8 layer with the weight of `operands`."""
    model = nn.Sequential(nn.Linear(IN, OUT, bias=False))
    model[0].weight.data = operands(dtype)[1]
    return converted(model, recipe, **keys)


def results(model: nn.Module, factor: float = 1) -> list[torch.Tensor]:
    """Output and gradients of the layer for `operands`, x times a factor."""
    weight = model[0].weight
    x, _, gradient = operands(weight.dtype)
    x, weight.grad = (factor * x).requires_grad_(), None
    out = model(x)
    out.backward(gradient)
    return [out.detach(), x.grad, weight.grad]
