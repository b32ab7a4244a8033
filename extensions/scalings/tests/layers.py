"""Layers of this extension's scalings for tests."""

import torch
from torch import nn

from extensions import scalings
from extensions.scalings import SCALINGS, Keys
from tests.models import layers


def converted(model: nn.Module, name: str, **keys) -> nn.Module:
    """Convert all linear layers of a model to a scaling of torchao's or of this extension."""
    return layers.converted(model, **_how(name, keys))


def layer(name: str, dtype=torch.bfloat16, **keys) -> nn.Module:
    """One FP8 layer with the weight of `operands`."""
    return layers.layer(dtype=dtype, **_how(name, keys))


def _how(name: str, keys: dict) -> dict:
    ours = SCALINGS.get(name)

    def convert(model: nn.Module, plan) -> None:
        plan.config.scalings = Keys(name if ours else None, **keys)
        scalings.convert(model, plan)

    recipe = "tensorwise" if ours else name
    return {"recipe": recipe, "emulate": bool(ours and ours.by_blocks), "convert": convert}
