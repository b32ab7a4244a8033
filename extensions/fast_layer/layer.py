"""A candidate FP8 layer: torchao's arithmetic with fewer kernels and fewer bytes moved on a GPU.

Results equal torchao's to the last bit, except where magnitudes exceed 1e38: scales of rows leave
float32's range there in another order.

Four things differ from torchao's `Float8Linear`:

* Tensorwise, one kernel casts a matrix for both of its matmuls: as it is, and transposed. 4 bytes
  an element move (2 of bf16 read, 1 + 1 of FP8 written), where two casts move 6.
* That kernel finds the scale from the largest value of each row, which the kernel that makes the
  matrix finds in passing. So no small kernel reduces them to one.
* What that kernel cast is kept for the backward pass in FP8 instead of bf16.
* Rowwise, Hopper's backward matmuls are given the scales of rows. torchao scales their results
  afterwards, which is one more pass over each.

A step of the 8 B model launches 1,347 Triton kernels tensorwise, where torchao's layer launches
2,467. Read from top to bottom: kernel, casts, matmul, the three matmuls of a layer, the layer. A
recipe asks for it by a section `fast_layer`. No GPU has timed it yet.
"""

import math
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.library import triton_op, wrap_triton
from torch.utils.weak import WeakTensorKeyDictionary
from torchao.float8.config import (
    CastConfig,
    Float8GemmConfig,
    Float8LinearConfig,
    ScalingGranularity,
    ScalingType,
)
from torchao.float8.float8_linear import Float8Linear
from torchao.float8.float8_utils import amax_to_scale, to_fp8_saturated

# ---- one kernel for both casts ----

TILE, WARPS = 128, 8  # a row of a square is 128 bytes of FP8, all of a cache line


@triton.jit
def cast_and_transpose(
    x, maxima, low, transposed, inverse, m, n, MOST: tl.constexpr, TILE: tl.constexpr
):  # fmt: skip
    """x, low: (m, n); transposed: (n, m), all contiguous. A program does one square of `TILE` rows.

    `maxima`, (m,), are the largest magnitudes of x's rows. Each value is multiplied by the scale
    that takes the largest of them to `MOST`, the format's largest value; `inverse` is 1 / scale.
    """
    # Each program finds the largest anew, from the cache: 8 KB of 4,096 rows. Bits of numbers
    # without a sign are in the order of the numbers, and those of NaN are above all.
    stretch: tl.constexpr = 8 * TILE
    i, bits = tl.arange(0, stretch), tl.zeros([stretch], tl.int32)
    for begin in range(0, m, stretch):
        some = tl.load(maxima + begin + i, mask=i < m - begin, other=0).to(tl.float32)
        bits = tl.maximum(bits, some.to(tl.int32, bitcast=True))
    amax = tl.max(bits).to(tl.float32, bitcast=True).to(tl.float64)
    scale = (MOST / tl.where(amax < 1e-12, 1e-12, amax)).to(tl.float32)  # torchao's amax_to_scale
    tl.store(inverse, tl.div_rn(1.0, scale))  # the same from all programs

    top, left = tl.program_id(1) * TILE, tl.program_id(0) * TILE
    i = tl.arange(0, TILE)
    down, across = i[:, None], i[None, :]
    inside = (down < m - top) & (across < n - left)
    begin = top.to(tl.int64) * n + left
    scaled = tl.load(x + begin + down * n + across, mask=inside).to(tl.float32) * scale
    # Comparisons leave NaN as it is. tl.clamp with PropagateNan.ALL would too, but then Triton may
    # write garbage into a transposed FP8 store (triton issue 11111).
    scaled = tl.where(scaled > MOST, MOST, scaled)
    scaled = tl.where(scaled < -MOST, -MOST, scaled)
    value = scaled.to(low.dtype.element_ty)
    tl.store(low + begin + down * n + across, value, mask=inside)
    inside = (down < n - left) & (across < m - top)
    begin = left.to(tl.int64) * m + top
    tl.store(transposed + begin + down * m + across, tl.trans(value), mask=inside)


# Inductor compiles a `triton_op` into its own code: a call costs its host 11 us, where one of a
# `custom_op` costs 47.
@triton_op("fp8::cast_and_transpose", mutates_args=())
def cast_twice(x: Tensor, maxima: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """x: (m, n), contiguous; maxima: (m,). Returns (m, n) and (n, m) in FP8, and (1,)."""
    m, n = x.shape
    low, transposed = x.new_empty((m, n), dtype=dtype), x.new_empty((n, m), dtype=dtype)
    inverse = x.new_empty(1, dtype=torch.float32)
    squares = (triton.cdiv(n, TILE), triton.cdiv(m, TILE))
    most = torch.finfo(dtype).max
    wrap_triton(cast_and_transpose)[squares](
        x, maxima, low, transposed, inverse, m, n, most, TILE=TILE, num_warps=WARPS
    )
    return low, transposed, inverse


# ---- casts ----


def power_of_2(amax: Tensor, dtype: torch.dtype) -> Tensor:
    """Give the largest power of two that takes `amax` to no more than the format's largest value.

    From the bits: torchao's float64 division, log2, floor and exp2 are inlined where rows are cast.
    Both formats' largest values have the mantissa 1.75. Infinity and NaN give NaN.
    """
    bits = amax.float().clamp(min=1e-12).view(torch.int32)
    exponent, mantissa = bits >> 23, bits & 0x7FFFFF
    largest_exponent = math.frexp(torch.finfo(dtype).max)[1] - 1
    exponent = 2 * 127 + largest_exponent - exponent - (mantissa > 0x600000).int()
    return torch.where(amax.isfinite(), (exponent << 23).view(torch.float32), math.nan)


class Fp8(NamedTuple):
    """A matrix in FP8, and what a matmul multiplies it by: 1 / scale, one, or one a row."""

    data: Tensor
    inverse: Tensor

    def t(self) -> "Fp8":
        return Fp8(self.data.t(), self.inverse.t())


def cast(x: Tensor, how: CastConfig, config: Float8LinearConfig, dim: int) -> Fp8:
    """Cast x, (m, n), for a matmul that sums over dimension `dim`."""
    size = x.abs()
    # Of a whole matrix by rows first: inductor can do that within the kernel that makes x.
    amax = size.amax(dim, keepdim=True) if _by_rows(how) else size.amax(1).amax()
    to_scale = power_of_2 if config.round_scales_to_power_of_2 else amax_to_scale
    scale = to_scale(amax, how.target_dtype)
    return Fp8(to_fp8_saturated(x.float() * scale, how.target_dtype), scale.reciprocal())


def cast_both(x: Tensor, how: CastConfig, config: Float8LinearConfig) -> tuple[Fp8, Fp8]:
    """Cast x, (m, n), for the matmul that sums over its columns and for the one over its rows."""
    if not in_one_pass(x, config):
        return cast(x, how, config, dim=1), cast(x, how, config, dim=0)
    low, transposed, inverse = cast_twice(x.contiguous(), x.abs().amax(1), how.target_dtype)
    inverse = inverse.squeeze()
    return Fp8(low, inverse), Fp8(transposed.t(), inverse)


def in_one_pass(x: Tensor, config: Float8LinearConfig) -> bool:
    """Whether the kernel casts x: on a GPU, where both casts have the same scale.

    Scales of rows differ from those of columns; inductor's kernels, which cast rows as they find
    the row's largest, then move less.
    """
    return x.is_cuda and not _by_rows(config.cast_config_input)


def _by_rows(how: CastConfig) -> bool:
    return how.scaling_granularity is ScalingGranularity.AXISWISE


# ---- a matmul ----


def multiply(a: Fp8, b: Fp8, dtype: torch.dtype, gemm: Float8GemmConfig) -> Tensor:
    """a @ b in `dtype`: (m, k) by (k, n); fast accumulation adds up within the tensor cores, less
    exactly."""
    # FP8 units want each row of the left operand and each column of the right one in one piece.
    left, right = a.data.contiguous(), b.data.t().contiguous().t()
    fast = gemm.use_fast_accum
    scale_a, scale_b, afterwards = a.inverse, b.inverse, None
    by_rows = scale_a.dim() > 0
    if by_rows:
        scale_a = scale_a.flatten()[:, None]  # whose strides the operator checks
        scale_b = scale_b.expand(1, right.shape[1]).contiguous()  # both have to be of one kind
        if not (fast or takes_row_scales(left)):
            afterwards = scale_a * scale_b
            scale_a = scale_b = scale_a.new_ones(())
    out_dtype = torch.bfloat16 if by_rows else dtype  # the only one that takes scales of rows
    out = torch._scaled_mm(left, right, scale_a, scale_b, out_dtype=out_dtype, use_fast_accum=fast)
    if afterwards is not None:
        out = out * afterwards
    return out.to(dtype)


def takes_row_scales(x: Tensor) -> bool:
    """Whether a matmul without fast accumulation is given scales of rows.

    On Hopper cuBLASLt takes them from CUDA 12.9 on (pytorch pull request 157905). On other GPUs a
    slow kernel of CUTLASS would run.
    """
    if not x.is_cuda:
        return True
    cuda = tuple(map(int, torch.version.cuda.split(".")))
    return torch.cuda.get_device_capability()[0] == 9 and cuda >= (12, 9)


# ---- the three matmuls of a layer ----


@torch._dynamo.allow_in_graph
class _Fp8Matmuls(torch.autograd.Function):
    """What the kernel casts for both directions is kept for the backward pass in FP8. What plain
    operators cast is kept as it is and cast again: inductor sees where casts are the same."""

    @staticmethod
    def forward(ctx, x, weight, config, keep_weight):
        x8, kept_x = _cast_input(x, config)
        if keep_weight and in_one_pass(weight, config):
            w8, kept_w = cast_both(weight, config.cast_config_weight, config)
        else:
            w8, kept_w = cast(weight, config.cast_config_weight, config, dim=1), (weight, None)
        ctx.save_for_backward(*kept_x, *kept_w)
        ctx.config, ctx.shape = config, x.shape
        out = multiply(x8, w8.t(), x.dtype, config.gemm_config_output)
        return out.reshape(*x.shape[:-1], -1)

    @staticmethod
    def backward(ctx, gradient):
        x, x_inverse, weight, weight_inverse = ctx.saved_tensors
        config, dtype = ctx.config, gradient.dtype
        g = gradient.reshape(-1, gradient.shape[-1])  # (tokens, out_features)

        w8 = Fp8(weight, weight_inverse)
        if weight_inverse is None:
            w8 = cast(weight, config.cast_config_weight_for_grad_input, config, dim=0)
        how = config.cast_config_input_for_grad_weight
        if how.scaling_type is not ScalingType.DISABLED:
            g8, g8_by_columns = cast_both(g, config.cast_config_grad_output, config)
            x8 = Fp8(x, x_inverse)
            if x_inverse is None:
                x8 = cast(x, how, config, dim=0)
            to_weight = multiply(g8_by_columns.t(), x8, dtype, config.gemm_config_grad_weight)
        else:
            g8 = cast(g, config.cast_config_grad_output, config, dim=1)
            to_weight = g.t() @ x
        to_input = multiply(g8, w8, dtype, config.gemm_config_grad_input)
        return to_input.reshape(ctx.shape), to_weight, None, None


_casts = WeakTensorKeyDictionary()  # input -> its version, which writing to it changes, and casts


def _cast_input(x: Tensor, config: Float8LinearConfig) -> tuple[Fp8, tuple]:
    """Returns x for the forward matmul, (tokens, in_features), and what the backward pass needs: by
    columns in FP8, or x and None.

    Layers that read the same x share the kernel's casts: wq, wk and wv, or w1 and w3. A compiler
    would not see that the kernel's launches are the same. Writing through `x.data` is not seen.
    """
    rows, how = x.reshape(-1, x.shape[-1]), config.cast_config_input
    if not in_one_pass(x, config):
        return cast(rows, how, config, dim=1), (rows, None)
    if x.is_inference():  # without a version
        return cast_both(rows, how, config)
    version, casts = _casts.get(x, (None, None))
    if version != x._version:
        casts = cast_both(rows, how, config)
        _casts[x] = x._version, casts
    return casts


# ---- the layer ----


class FastFloat8Linear(Float8Linear):
    """A layer with torchao's configuration, whose matmuls are those above."""

    # Keep the FP8 weight until the backward pass: 1 byte a weight, 7 GB for 8 B. Not under FSDP2,
    # where every rank would keep all of it, nor where activations are recomputed.
    keep_weight = False

    def forward(self, x: Tensor) -> Tensor:
        """x: (..., in_features); the output has its dtype, or autocast's."""
        if torch.is_autocast_enabled(x.device.type):  # torchao's own line for it looks at CUDA only
            x = x.to(torch.get_autocast_dtype(x.device.type))
        return _Fp8Matmuls.apply(x, self.weight, self.config, self.keep_weight)
