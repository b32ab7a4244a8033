"""FP8 weights cast once a step: layers that keep an FP8 copy of their weight, and the cast that renews it.

torchao casts a weight in every forward pass and again in every backward one. A weight changes only between steps, so
the copy of a step's start serves all of its passes: those of accumulated gradients and of recomputed activations too.
One scale per tensor is needed for it: a scale per row would be another one in the backward pass.

Imports torchao, as models/float8.py does; that quietens its warnings, so import it first.
"""

import functools

import torch
from torch import nn
from torchao.float8.float8_linear import Float8Linear, matmul_with_hp_or_float8_args
from torchao.float8.float8_training_tensor import Float8TrainingTensor, GemmInputRole, LinearMMConfig
from torchao.float8.float8_utils import tensor_to_scale, to_fp8_saturated


@torch._dynamo.allow_in_graph
class _CopyOf(torch.autograd.Function):
    """An FP8 copy in the place of its weight, to which its gradient goes."""

    @staticmethod
    def forward(ctx, weight: torch.Tensor, data: torch.Tensor, scale: torch.Tensor, config: LinearMMConfig):
        return Float8TrainingTensor(data, scale, weight.dtype, config, GemmInputRole.WEIGHT)

    @staticmethod
    def backward(ctx, gradient: torch.Tensor):
        return gradient, None, None, None


class CastOnceLinear(Float8Linear):
    """torchao's `Float8Linear`, without bias, that multiplies with `weight_fp8` / `weight_scale` of `cast_weights`.

    Both are buffers outside of checkpoints: `weight_fp8` of the weight's shape, and a float32 scalar.
    """

    @classmethod
    def from_float(cls, mod: nn.Linear, config=None) -> "CastOnceLinear":
        layer, device = super().from_float(mod, config), mod.weight.device
        data = torch.empty_like(mod.weight, dtype=config.cast_config_weight.target_dtype, requires_grad=False)
        layer.register_buffer("weight_fp8", data, persistent=False)
        layer.register_buffer("weight_scale", torch.empty((), dtype=torch.float32, device=device), persistent=False)
        return layer

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """input: (..., in_features), in the dtype that the output has too."""
        weight = _CopyOf.apply(self.weight, self.weight_fp8, self.weight_scale, self.linear_mm_config)
        return matmul_with_hp_or_float8_args.apply(input, weight.t(), self.linear_mm_config, self.config)


@torch.no_grad()
def cast_weights(model: nn.Module, compile_config) -> None:
    """Renew every FP8 copy; at the start of a step, as the optimizer or a checkpoint has changed the weights.

    Args:
        model: holds the layers.
        compile_config: a recipe's section `compile`; an eager cast moves 35 bytes a bf16 weight, a compiled one 5.
    """
    compiled = compile_config.enable and "model" in compile_config.components
    cast = _compiled_cast(compile_config.backend) if compiled else _cast
    with torch.profiler.record_function("_ToFloat8"):  # as torchao names its own casts to a profiler
        for layer in model.modules():
            if isinstance(layer, CastOnceLinear):
                cast(layer.weight.detach(), layer.weight_fp8, layer.weight_scale)  # detached: frozen or not, one graph


def _cast(weight: torch.Tensor, data: torch.Tensor, scale: torch.Tensor) -> None:
    """Write `weight` to `data` and `scale` in the arithmetic of torchao's `hp_tensor_to_float8_dynamic`."""
    scale.copy_(tensor_to_scale(weight, data.dtype))
    data.copy_(to_fp8_saturated(weight.to(torch.float32) * scale, data.dtype))


@functools.cache
def _compiled_cast(backend: str):
    return torch.compile(_cast, backend=backend, dynamic=False)  # a graph for each shape, of which a Llama has five
