"""The FP8 layer of the scalings of this extension: casts, a matmul, the three matmuls of a layer,
the layer.

Blocks never cross the sum of a matmul. A matmul has its operands with the summed dimension last,
and each operand is cast anew for each matmul that it is part of:

    output             sums over input features     input      (tokens, in)   weight   (out, in)
    input's gradient   sums over output features    gradient   (tokens, out)  weight.T (in, out)
    weight's gradient  sums over tokens             gradient.T (out, tokens)  input.T  (in, tokens)

`delayed` runs on FP8 units. The others are emulated everywhere: they are rounded to FP8 as their
hardware would, and multiplied in float32, which is exact but for the order of sums.
"""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn.functional import pad
from torchao.float8 import Float8LinearConfig
from torchao.float8.float8_linear import Float8Linear
from torchao.float8.float8_utils import amax_to_scale, to_fp8_saturated
from torchao.prototype.mx_formats.config import ScaleCalculationMode
from torchao.prototype.mx_formats.mx_tensor import MXTensor

from extensions.scalings import Scaling

FORMATS = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}

# ---- casts ----


# An operator, so that compiled code calls it as it is. Inductor's C++ code of blocks along either
# dimension does not always compile (pytorch issue 164428).
@torch.library.custom_op("fp8::round_blocks", mutates_args=())
def round_blocks(x: Tensor, rows: int, along: int, scale: str, dtype: torch.dtype) -> Tensor:
    """Round x, (rows, sum), to FP8 with a scale for each `rows` x `along` of its values, and scale
    back to float32.

    Blocks at the end may be smaller. `scale` is `float32`, `power_of_2` (torchao's of rows), or
    torchao's mode of MX scales.
    """
    m, n = x.shape
    rows, along = min(rows, m), min(along, n)
    padded = pad(x.float(), (0, -n % along, 0, -m % rows))
    if scale in ScaleCalculationMode.__members__:
        low = MXTensor.to_mx(padded.contiguous(), dtype, along, ScaleCalculationMode[scale])
        return low.dequantize(torch.float32)[:m, :n].contiguous()
    tiles = padded.unflatten(1, (-1, along)).unflatten(0, (-1, rows))
    scales = amax_to_scale(tiles.abs().amax((1, 3), keepdim=True), dtype, scale == "power_of_2")
    rounded = to_fp8_saturated(tiles * scales, dtype).float() / scales
    return rounded.flatten(2, 3).flatten(0, 1)[:m, :n].contiguous()


@round_blocks.register_fake
def _empty(x: Tensor, rows: int, along: int, scale: str, dtype: torch.dtype) -> Tensor:
    return x.new_empty(x.shape, dtype=torch.float32)


def cast_delayed(x: Tensor, values: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Cast with one scale, from the largest values of earlier steps, and note this step's.

    Values beyond the earlier ones saturate. Where there are no earlier ones, in the first step in
    FP8, the scale is this step's. Returns the matrix in FP8, and the scale.
    """
    amax, before = x.abs().amax().float(), values[1:].amax()
    values[0] = torch.maximum(values[0], amax)
    scale = amax_to_scale(torch.where(before > 0, before, amax), dtype)
    return to_fp8_saturated(x.float() * scale, dtype), scale


# ---- a matmul ----

INPUT, WEIGHT, GRADIENT = range(3)  # rows of a layer's `largest_values`


def multiply(ctx, left: Tensor, a: int, right: Tensor, b: int) -> Tensor:
    """Compute left @ right.t() in FP8: (m, sum) by (n, sum), in the dtype of `left`. Each of `a`
    and `b` is INPUT, WEIGHT or GRADIENT."""
    dtype = left.dtype
    (left, left_scale), (right, right_scale) = _cast(ctx, left, a), _cast(ctx, right, b)
    if ctx.emulate:
        with torch.autocast(left.device.type, enabled=False):  # which would multiply in bf16
            return ((left.float() / left_scale) @ (right.float() / right_scale).t()).to(dtype)
    return torch._scaled_mm(
        left.contiguous(),  # FP8 units want each row of both in one piece
        right.contiguous().t(),
        left_scale.reciprocal(),
        right_scale.reciprocal(),
        out_dtype=dtype,
        use_fast_accum=a == INPUT,  # of the output, as torchao: it adds up less exactly
    )


def _cast(ctx, x: Tensor, what: int) -> tuple[Tensor, Tensor | float]:
    """Cast x; returns what a matmul takes, and its scale."""
    scaling = ctx.scaling
    dtype = FORMATS[scaling.gradients if what == GRADIENT else "e4m3"]
    if scaling.by_blocks:
        block = scaling.weights if what == WEIGHT else scaling.values
        return round_blocks(x, *block, scaling.scale, dtype), 1.0
    return cast_delayed(x, ctx.values[what], dtype)


# ---- the three matmuls of a layer ----


@torch._dynamo.allow_in_graph
class _ScaledMatmuls(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, scaling, values, emulate):
        ctx.save_for_backward(x, weight)
        ctx.scaling, ctx.values, ctx.emulate = scaling, values, emulate
        return multiply(ctx, x, INPUT, weight, WEIGHT)

    @staticmethod
    def backward(ctx, gradient):
        x, weight = ctx.saved_tensors
        to_input = multiply(ctx, gradient, GRADIENT, weight.t(), WEIGHT)
        to_weight = multiply(ctx, gradient.t(), GRADIENT, x.t(), INPUT)
        return to_input, to_weight, None, None, None


def linear(
    x: Tensor,
    weight: Tensor,
    scaling: Scaling,
    values: Tensor | None = None,
    emulate: bool = True,
) -> Tensor:
    """Compute x @ weight.t() and its gradients in FP8. x: (..., in_features). `values` are a
    layer's `largest_values`, for `delayed`."""
    out = _ScaledMatmuls.apply(x.flatten(0, -2), weight, scaling, values, emulate)
    return out.unflatten(0, x.shape[:-1])


# ---- the layer ----


class ScaledLinear(Float8Linear):
    """A layer whose matmuls are those above; torchao's configuration says whether to emulate."""

    def begin(self, scaling: Scaling, history: int) -> None:
        """Remember nothing yet; `delayed` looks back `history` steps."""
        self.scaling = scaling
        # Of this step so far, then of the last ones
        values = torch.zeros(3, 1 + history, device=self.weight.device)
        self.register_buffer("largest_values", None if scaling.by_blocks else values)

    def _apply(self, fn, recurse=True):
        """Begin with no history when torchtitan gives the model memory."""
        empty = self.largest_values is not None and self.largest_values.is_meta
        super()._apply(fn, recurse)
        if empty:
            self.largest_values.zero_()
        return self

    def forward(self, x: Tensor) -> Tensor:
        """x: (..., in_features); the output has its dtype, or autocast's."""
        if torch.is_autocast_enabled(x.device.type):
            x = x.to(torch.get_autocast_dtype(x.device.type))
        return linear(x, self.weight, self.scaling, self.largest_values, self.config.emulate)


def with_gradients(config: Float8LinearConfig, name: str) -> Float8LinearConfig:
    """Give torchao's configuration another FP8 format of gradients of outputs."""
    dtype, for_weight = FORMATS[name], config.cast_config_grad_output_for_grad_weight
    return replace(
        config,
        cast_config_grad_output=replace(config.cast_config_grad_output, target_dtype=dtype),
        cast_config_grad_output_for_grad_weight=replace(for_weight, target_dtype=dtype),
    )


@torch.no_grad()
def end_step(model: nn.Module, all_reduce: Callable) -> None:
    """Make this step's largest values of all processes the last step's."""
    histories = [value for name, value in model.named_buffers() if name.endswith("largest_values")]
    if not histories:
        return
    largest = all_reduce(torch.stack(histories)[:, :, 0], "max")
    for values, now in zip(histories, largest, strict=True):
        values[:, 0] = now
        values.copy_(values.roll(1, dims=1))
        values[:, 0] = 0
