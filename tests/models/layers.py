"""FP8 layers for tests, converted as a recipe's are."""

from collections.abc import Collection

import pytest
import torch
from torch import nn

from experiments.config.keys import Float8Linear as Keys
from models import float8, fp8_matmul
from models.scalings import SCALINGS

RECIPES = ("tensorwise", "rowwise", "rowwise_with_gw_hp")
K, N, TOKENS = 64, 96, 48


def converted(
    model: nn.Module,
    recipe: str = "tensorwise",
    names: Collection[str] = (),
    emulate: bool = False,
    fast: bool = False,
    **keys,
) -> nn.Module:
    """`model` with the linear layers of these names, or with all of them, in FP8."""
    names = names or {name for name, m in model.named_modules() if isinstance(m, nn.Linear)}
    if fp8_matmul.choose(SCALINGS[recipe], emulate).how == fp8_matmul.EMULATED and not emulate:
        pytest.skip(f"torch {torch.__version__} has no {recipe} FP8 operator here")
    keys |= {"recipe_name": recipe, "implementation": "fast" if fast else "torchao"}
    float8.convert(model, names, Keys(**keys), emulate)
    if emulate and not fast and recipe in RECIPES:  # torchao's own emulation, to compare with
        for layer in float8.converted_modules(model).values():
            layer.__class__ = float8.LAYERS["torchao"]
    return model


def layer(recipe: str, dtype=torch.bfloat16, **keys) -> nn.Module:
    """One FP8 layer with the same weights each time."""
    torch.manual_seed(0)
    return converted(nn.Sequential(nn.Linear(K, N, bias=False)).to(dtype), recipe, **keys)


def results(model: nn.Module, dtype=torch.bfloat16) -> list[torch.Tensor]:
    """Output and gradients of two rows of tokens, some of which are large."""
    x = torch.randn(2, TOKENS // 2, K, generator=torch.Generator().manual_seed(1)).to(dtype)
    x[0, :3] *= 100
    x.requires_grad_()
    out = model(x)
    out.float().square().sum().backward()
    return [out.detach(), x.grad, *(p.grad for p in model.parameters())]
