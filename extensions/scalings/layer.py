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

import torch
from torch import Tensor, nn
from torch.nn.functional import pad
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


def multiply(ctx, left: Tensor, a: int, right: Tensor, b: int, dtype: torch.dtype) -> Tensor:
    """Compute left @ right.t() in FP8: (m, sum) by (n, sum). Each of `a` and `b` is INPUT, WEIGHT
    or GRADIENT."""
    (left, left_inverse), (right, right_inverse) = _cast(ctx, left, a), _cast(ctx, right, b)
    if left_inverse is None:
        with torch.autocast(left.device.type, enabled=False):  # which would multiply in bf16
            return (left @ right.t()).to(dtype)
    return torch._scaled_mm(
        left.contiguous(),  # FP8 units want each row of both in one piece
        right.contiguous().t(),
        left_inverse,
        right_inverse,
        out_dtype=dtype,
        use_fast_accum=a == INPUT,  # of the output, as torchao: it adds up less exactly
    )


def _cast(ctx, x: Tensor, what: int) -> tuple[Tensor, Tensor | None]:
    """Give x in FP8 and 1 / scale; where FP8 is emulated, x in float32, rounded to FP8, and
    None."""
    scaling = ctx.scaling
    dtype = FORMATS[scaling.gradients if what == GRADIENT else "e4m3"]
    if scaling.by_blocks:
        block = scaling.weights if what == WEIGHT else scaling.values
        return round_blocks(x, *block, scaling.scale, dtype), None
    low, scale = cast_delayed(x, ctx.values[what], dtype)
    return (low.float() / scale, None) if ctx.emulate else (low, scale.reciprocal())


# ---- the three matmuls of a layer ----


@torch._dynamo.allow_in_graph
class _ScaledMatmuls(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, values, scaling, emulate):
        rows = x.reshape(-1, x.shape[-1])  # (tokens, in_features)
        ctx.save_for_backward(rows, weight)
        ctx.values, ctx.scaling, ctx.emulate, ctx.shape = values, scaling, emulate, x.shape
        out = multiply(ctx, rows, INPUT, weight, WEIGHT, x.dtype)
        return out.reshape(*x.shape[:-1], -1)

    @staticmethod
    def backward(ctx, gradient):
        rows, weight = ctx.saved_tensors
        g = gradient.reshape(-1, gradient.shape[-1])  # (tokens, out_features)
        to_input = multiply(ctx, g, GRADIENT, weight.t(), WEIGHT, g.dtype)
        to_weight = multiply(ctx, g.t(), GRADIENT, rows.t(), INPUT, g.dtype)
        return to_input.reshape(ctx.shape), to_weight, None, None, None


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
        how = self.largest_values, self.scaling, self.config.emulate
        return _ScaledMatmuls.apply(x, self.weight, *how)


@torch.no_grad()
def end_step(model: nn.Module, combine: Callable) -> None:
    """Make this step's largest values the last step's; `combine` finds all processes' largest."""
    layers = [m for m in model.modules() if isinstance(m, ScaledLinear) and not m.scaling.by_blocks]
    if not layers:
        return
    now = combine(torch.stack([layer.largest_values[:, 0] for layer in layers]), "max")
    for layer, largest in zip(layers, now, strict=True):
        values = layer.largest_values
        values.copy_(values.roll(1, dims=1))
        values[:, 1], values[:, 0] = largest, 0
