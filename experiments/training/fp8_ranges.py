"""Measure how near to the limits of its format FP8 is: what casting does to weights and gradients.

Compiled code casts where nobody can look, so at the end of some steps the weights and their
gradients are cast once more, by torchao's functions. A weight's gradient is not cast in training;
it stands for the gradients of outputs, which compiled code keeps to itself. A format too narrow for
its values shows here before it shows in the loss.
"""

import re
from collections import defaultdict

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torchao.float8.config import CastConfig
from torchao.float8.float8_scaling_utils import get_maybe_axiswise_dim
from torchao.float8.float8_utils import tensor_to_scale, to_fp8_saturated

from models import float8
from models.scalings import ScaledLinear

QUANTITIES = ("amax", "scale", "saturated", "flushed")


def fp8_ranges(model: nn.Module) -> dict[str, float]:
    """Return `TENSOR/QUANTITY/GROUP` to value, for the layers that are in FP8 now.

    TENSOR is `weight` or `gradient`. A GROUP is the same layer of all blocks, as `feed_forward.w1`.
    The quantities:
      amax        the largest absolute value of the group
      scale       the smallest factor by which one of its casts multiplies
      saturated   fraction of the values that become the format's largest value
      flushed     fraction of the values that are not 0 and become 0

    Sharded weights are gathered one by one, so all ranks have to call this. Weights that FSDP2
    gathers in FP8 have none: their scale is that of all shards; nor have weights with scales of
    blocks.
    """
    groups: dict[str, list[torch.Tensor]] = defaultdict(list)
    for name, layer in float8.converted_modules(model).items():
        config = layer.config
        by_blocks = isinstance(layer, ScaledLinear) and layer.largest_values is None
        if not layer.in_fp8 or config.enable_fsdp_float8_all_gather or by_blocks:
            continue
        group, powers_of_2 = re.sub(r"^layers\.\d+\.", "", name), config.round_scales_to_power_of_2
        groups[f"weight/{{}}/{group}"].append(
            _range(layer.weight, config.cast_config_weight, powers_of_2)
        )
        if layer.weight.grad is not None:
            groups[f"gradient/{{}}/{group}"].append(
                _range(layer.weight.grad, config.cast_config_grad_output, powers_of_2)
            )
    if not groups:
        return {}
    combined = torch.stack([_combined(torch.stack(layers)) for layers in groups.values()])
    ranges = {}
    for name, values in zip(groups, combined.tolist(), strict=True):  # one wait for the device
        for quantity, value in zip(QUANTITIES, values, strict=True):
            ranges[name.format(quantity)] = value
    return ranges


@torch.no_grad()
def _range(x: torch.Tensor, cast: CastConfig, powers_of_2: bool) -> torch.Tensor:
    """(4,) float32, the `QUANTITIES` of one matrix, cast by rows where rows have scales."""
    x = x.full_tensor() if isinstance(x, DTensor) else x
    dtype, granularity = cast.target_dtype, cast.scaling_granularity
    rows = get_maybe_axiswise_dim(-1, granularity)
    scale = tensor_to_scale(
        x, dtype, scaling_granularity=granularity, axiswise_dim=rows,
        round_scales_to_power_of_2=powers_of_2,
    )  # fmt: skip
    low = to_fp8_saturated(x.float() * scale, dtype)
    size = low.view(torch.uint8) & 0x7F  # without the sign; bits compare faster than FP8 converts
    largest = torch.tensor(torch.finfo(dtype).max).to(dtype).view(torch.uint8).item()
    saturated, flushed = size == largest, (size == 0) & (x != 0)
    shares = [mask.count_nonzero() / x.numel() for mask in (saturated, flushed)]
    return torch.stack([x.abs().amax().float(), scale.amin(), *shares])


def _combined(layers: torch.Tensor) -> torch.Tensor:
    """(4,) of a group, from those of its layers (n, 4), which are of one size."""
    amax, scale, saturated, flushed = layers.unbind(1)
    return torch.stack([amax.amax(), scale.amin(), saturated.mean(), flushed.mean()])
