"""How near to the limits of its format FP8 is: what casting does to each weight and to its
gradient.

Compiled code casts where nobody can look, so at the end of some steps the weights and their
gradients are cast once more. A weight's gradient is not cast in training; it stands for the
gradients of outputs, which compiled code keeps to itself. A format too narrow for its values shows
here before it shows in the loss.
"""

import re
from collections import defaultdict

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from models import float8
from models.fp8_linear import Fp8Linear
from models.fp8_operands import E4M3, SCALINGS, Scaling, cast

QUANTITIES = ("amax", "scale", "saturated", "flushed")


def fp8_ranges(model: nn.Module) -> dict[str, float]:
    """`TENSOR/QUANTITY/GROUP` to value, for this project's FP8 layers; the model's other layers
    have none.

    TENSOR is `weight` or `gradient`. A GROUP is the same layer of all blocks, as `feed_forward.w1`.
    The quantities:
      amax        the largest absolute value of the group
      scale       the smallest factor by which one of its casts multiplies
      saturated   fraction of the values that become the format's largest value
      flushed     fraction of the values that are not 0 and become 0

    Sharded weights are gathered one by one, so all ranks have to call this.
    """
    rows: dict[str, list[torch.Tensor]] = defaultdict(list)
    for name, layer in float8.converted_modules(model).items():
        if (
            not isinstance(layer, Fp8Linear) or not layer.in_fp8
        ):  # torchao's, whose weights FSDP2 gathers in FP8
            continue
        scaling = SCALINGS[layer.how.recipe_name]
        group = re.sub(r"^layers\.\d+\.", "", name)
        rows[f"weight/{{}}/{group}"].append(_range(layer.weight, E4M3, scaling))
        if layer.weight.grad is not None:
            rows[f"gradient/{{}}/{group}"].append(
                _range(layer.weight.grad, scaling.gradient, scaling)
            )
    if not rows:
        return {}
    groups = torch.stack(
        [_combined(torch.stack(layers)) for layers in rows.values()]
    ).tolist()  # one wait for all
    return {
        name.format(quantity): value
        for name, values in zip(rows, groups, strict=True)
        for quantity, value in zip(QUANTITIES, values, strict=True)
    }


@torch.no_grad()
def _range(x: torch.Tensor, dtype: torch.dtype, scaling: Scaling) -> torch.Tensor:
    """(4,) float32, the `QUANTITIES` of one matrix."""
    x = x.full_tensor() if isinstance(x, DTensor) else x
    low = cast(x, dtype, scaling, along=1)
    size = (
        low.data.view(torch.uint8) & 0x7F
    )  # without the sign, as bits, which compare faster than FP8 converts
    largest = torch.tensor(torch.finfo(dtype).max).to(dtype).view(torch.uint8).item()
    saturated, flushed = size == largest, (size == 0) & (x != 0)
    shares = [mask.count_nonzero() / x.numel() for mask in (saturated, flushed)]
    return torch.stack([x.abs().amax().float(), low.scale.amin(), *shares])


def _combined(layers: torch.Tensor) -> torch.Tensor:
    """(4,) of a group, from those of its layers (n, 4), which are of one size."""
    return torch.stack(
        [layers[:, 0].amax(), layers[:, 1].amin(), layers[:, 2].mean(), layers[:, 3].mean()]
    )
