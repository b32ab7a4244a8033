"""The FP8 layer of the scalings of this extension.

Read from top to bottom: scales, casts, a matmul, the three matmuls of a layer, the layer.

Blocks never cross the sum of a matmul. A matmul has its operands with the summed dimension last,
and each operand is cast anew for each matmul that it is part of:

    output             sums over input features     input      (tokens, in)   weight   (out, in)
    input's gradient   sums over output features    gradient   (tokens, out)  weight.T (in, out)
    weight's gradient  sums over tokens             gradient.T (out, tokens)  input.T  (in, tokens)

`delayed` runs on FP8 units. The others are emulated everywhere: they are rounded to FP8 as their
hardware would, and multiplied in float32, which is exact but for the order of sums.
"""

import math
from functools import partial
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import pad
from torchao.float8.config import Float8GemmConfig
from torchao.float8.float8_linear import Float8Linear
from torchao.float8.float8_utils import amax_to_scale, to_fp8_saturated

from extensions.scalings import Scaling

E4M3 = torch.float8_e4m3fn
FORMATS = {"e4m3": E4M3, "e5m2": torch.float8_e5m2}

# ---- scales ----


def power_of_2(amax: Tensor, dtype: torch.dtype, least=1e-12, saturates=False) -> Tensor:
    """Give the largest power of two that takes `amax`, but at least `least`, to no more than the
    format's largest value; if it `saturates`, to the same exponent.

    From the bits: torchao's float64 division, log2, floor and exp2 are inlined where rows are cast.
    Both formats' largest values have the mantissa 1.75. Infinity and NaN give NaN.
    """
    bits = amax.float().clamp(min=least).view(torch.int32)
    exponent, mantissa = bits >> 23, bits & 0x7FFFFF
    largest_exponent = math.frexp(torch.finfo(dtype).max)[1] - 1
    exponent = 2 * 127 + largest_exponent - exponent  # 127 stands for 2^0
    if not saturates:
        exponent = exponent - (mantissa > 0x600000).int()
    exponent = exponent.clamp(max=254)  # 2^127, whose inverse is e8m0's smallest scale
    return torch.where(amax.isfinite(), (exponent << 23).view(torch.float32), math.nan)


SMALLEST_MX = 448 * 2.0**-127  # the largest value whose e8m0 scale is the smallest one
SCALES = {
    "float32": amax_to_scale,
    "mx_up": partial(power_of_2, least=SMALLEST_MX),
    "mx_ocp": partial(power_of_2, least=SMALLEST_MX, saturates=True),  # OCP MX 1.0, 6.3
}


# ---- casts ----


class Fp8(NamedTuple):
    """A matrix in FP8, and what a matmul multiplies it by: 1 / scale.

    Where FP8 is emulated the matrix is in float32, rounded to FP8, and that is 1.
    """

    data: Tensor
    inverse: Tensor

    def t(self) -> "Fp8":
        return Fp8(self.data.t(), self.inverse)


# An operator, so that compiled code calls it as it is. Inductor's C++ code of blocks along either
# dimension does not always compile (pytorch issue 164428).
@torch.library.custom_op("fp8::round_blocks", mutates_args=())
def round_blocks(x: Tensor, rows: int, along: int, scale: str, dtype: torch.dtype) -> Tensor:
    """Round x, (rows, sum), to FP8 with a scale for each `rows` x `along` of its values, and scale
    back to float32. Blocks at the end may be smaller."""
    m, n = x.shape
    tiles = pad(x.float(), (0, -n % along, 0, -m % rows))
    tiles = tiles.unflatten(1, (-1, along)).unflatten(0, (-1, rows))
    scales = SCALES[scale](tiles.abs().amax((1, 3), keepdim=True), dtype)
    rounded = to_fp8_saturated(tiles * scales, dtype).float() / scales
    return rounded.flatten(2, 3).flatten(0, 1)[:m, :n].contiguous()


@round_blocks.register_fake
def _empty(x: Tensor, rows: int, along: int, scale: str, dtype: torch.dtype) -> Tensor:
    return x.new_empty(x.shape, dtype=torch.float32)


def cast_delayed(x: Tensor, values: Tensor, dtype: torch.dtype, config) -> Fp8:
    """Cast with one scale, from the largest values of earlier steps, and note this step's.

    Values beyond the earlier ones saturate. Where there are no earlier ones, in the first step in
    FP8, the scale is this step's.
    """
    amax, before = x.abs().amax().float(), values[1:].amax()
    values[0] = torch.maximum(values[0], amax)
    scale = amax_to_scale(torch.where(before > 0, before, amax), dtype)
    low = to_fp8_saturated(x.float() * scale, dtype)
    if config.emulate:
        return Fp8(low.float() / scale, scale.new_ones(()))
    return Fp8(low, scale.reciprocal())


# ---- a matmul ----


def multiply(a: Fp8, b: Fp8, dtype: torch.dtype, gemm: Float8GemmConfig, config) -> Tensor:
    """a @ b in `dtype`: (m, k) by (k, n)."""
    if config.emulate:
        with torch.autocast(a.data.device.type, enabled=False):  # which would multiply in bf16
            return (a.data @ b.data).to(dtype)
    # FP8 units want each row of the left operand and each column of the right one in one piece.
    left, right = a.data.contiguous(), b.data.t().contiguous().t()
    scales, fast = (a.inverse, b.inverse), gemm.use_fast_accum
    return torch._scaled_mm(left, right, *scales, out_dtype=dtype, use_fast_accum=fast)


# ---- the three matmuls of a layer ----

INPUT, WEIGHT, GRADIENT = range(3)  # rows of a layer's `largest_values`


@torch._dynamo.allow_in_graph
class _ScaledMatmuls(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, values, scaling, config):
        rows = x.reshape(-1, x.shape[-1])  # (tokens, in_features)
        ctx.save_for_backward(rows, weight)
        ctx.values, ctx.scaling, ctx.config, ctx.shape = values, scaling, config, x.shape
        x8, w8 = _cast(rows, INPUT, ctx), _cast(weight, WEIGHT, ctx)
        out = multiply(x8, w8.t(), x.dtype, config.gemm_config_output, config)
        return out.reshape(*x.shape[:-1], -1)

    @staticmethod
    def backward(ctx, gradient):
        rows, weight = ctx.saved_tensors
        g = gradient.reshape(-1, gradient.shape[-1])  # (tokens, out_features)
        config, dtype = ctx.config, gradient.dtype

        g8, w8 = _cast(g, GRADIENT, ctx), _cast(weight.t(), WEIGHT, ctx)
        to_input = multiply(g8, w8.t(), dtype, config.gemm_config_grad_input, config)

        g8, x8 = _cast(g.t(), GRADIENT, ctx), _cast(rows.t(), INPUT, ctx)
        to_weight = multiply(g8, x8.t(), dtype, config.gemm_config_grad_weight, config)
        return to_input.reshape(ctx.shape), to_weight, None, None, None


def _cast(x: Tensor, what: int, ctx) -> Fp8:
    """Cast x, (rows, sum); `what` is INPUT, WEIGHT or GRADIENT."""
    scaling, dtype = ctx.scaling, E4M3
    if what == GRADIENT:
        dtype = ctx.config.cast_config_grad_output.target_dtype
    if not scaling.by_blocks:
        return cast_delayed(x, ctx.values[what], dtype, ctx.config)
    block = scaling.weights if what == WEIGHT else scaling.values
    return Fp8(round_blocks(x, *block, scaling.scale, dtype), x.new_ones(()))


# ---- the layer ----


class ScaledLinear(Float8Linear):
    """A layer whose matmuls are those above. torchao's configuration says how operands multiply,
    and the format of gradients."""

    def begin(self, scaling: Scaling, history: int) -> None:
        """Remember nothing yet; `delayed` looks back `history` steps."""
        self.scaling, values = scaling, None
        if not self.scaling.by_blocks:  # of this step so far, then of the last ones
            values = torch.zeros(3, 1 + history, device=self.weight.device)
        self.register_buffer("largest_values", values)

    def _apply(self, fn, recurse=True):
        """Begin with no history when torchtitan gives the model memory."""
        empty = self.largest_values is not None and self.largest_values.is_meta
        super()._apply(fn, recurse)
        if empty:
            self.largest_values.zero_()
        return self

    def forward(self, x: Tensor) -> Tensor:
        """x: (..., in_features); the output has its dtype, or autocast's."""
        if torch.is_autocast_enabled(x.device.type):  # torchao's own line for it looks at CUDA only
            x = x.to(torch.get_autocast_dtype(x.device.type))
        how = self.scaling, self.config
        return _ScaledMatmuls.apply(x, self.weight, self.largest_values, *how)


@torch.no_grad()
def end_step(model: nn.Module) -> None:
    """Make this step's largest values, of all ranks, the last step's."""
    layers = [m for m in model.modules() if isinstance(m, ScaledLinear)]
    histories = [layer.largest_values for layer in layers if not layer.scaling.by_blocks]
    if not histories:
        return
    now = torch.stack(histories)[:, :, 0].contiguous()  # gloo sends memory as it lies
    if dist.is_initialized() and dist.get_world_size() > 1:
        dist.all_reduce(now, dist.ReduceOp.MAX)
    for values, largest in zip(histories, now, strict=True):
        values.copy_(values.roll(1, dims=1))
        values[:, 1], values[:, 0] = largest, 0
