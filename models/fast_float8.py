"""A candidate FP8 layer: torchao's arithmetic with fewer bytes moved on a GPU.

Results equal torchao's to the last bit, except where magnitudes exceed 1e38: scales of rows leave
float32's range there in another order.

Three things differ from torchao's `Float8Linear`:

* Tensorwise, one kernel casts a matrix for both of its matmuls: as it is, and transposed. 4 bytes
  an element move (2 of bf16 read, 1 + 1 of FP8 written), where two casts move 6.
* What that kernel cast is kept for the backward pass in FP8 instead of bf16.
* Rowwise, Hopper's backward matmuls are given the scales of rows. torchao scales their results
  afterwards, which is one more pass over each.

Read from top to bottom: kernel, casts, matmul, the three matmuls of a layer, the layer. A recipe
asks for it by `quantize.linear.float8.implementation: fast`. No GPU has timed it yet.
"""

import math
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
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
def cast_and_transpose(x, scale, low, transposed, m, n, MOST: tl.constexpr, TILE: tl.constexpr):
    """x, low: (m, n); transposed: (n, m), all contiguous. A program does one square of `TILE` rows.

    Each value is multiplied by `scale`, a float32 scalar; beyond `MOST`, the format's largest, it
    becomes that.
    """
    top, left = tl.program_id(1) * TILE, tl.program_id(0) * TILE
    i = tl.arange(0, TILE)
    down, across = i[:, None], i[None, :]
    inside = (down < m - top) & (across < n - left)
    begin = top.to(tl.int64) * n + left
    scaled = tl.load(x + begin + down * n + across, mask=inside).to(tl.float32) * tl.load(scale)
    # Comparisons leave NaN as it is. tl.clamp with PropagateNan.ALL would too, but then Triton may
    # write garbage into a transposed FP8 store (triton issue 11111).
    scaled = tl.where(scaled > MOST, MOST, scaled)
    scaled = tl.where(scaled < -MOST, -MOST, scaled)
    value = scaled.to(low.dtype.element_ty)
    tl.store(low + begin + down * n + across, value, mask=inside)
    inside = (down < n - left) & (across < m - top)
    begin = left.to(tl.int64) * m + top
    tl.store(transposed + begin + down * m + across, tl.trans(value), mask=inside)


# An operator, so that compiled graphs hold the cast and not the kernel's launch: two casts of one
# matrix are then seen to be the same, and the result is kept instead of being made again.
@torch.library.custom_op("fp8::cast_and_transpose", mutates_args=())
def cast_twice(x: Tensor, scale: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """x: (m, n), contiguous. Returns (m, n) and (n, m) in FP8, both contiguous."""
    low, transposed = _empty(x, scale, dtype)
    m, n = x.shape
    squares = (triton.cdiv(n, TILE), triton.cdiv(m, TILE))
    most = torch.finfo(dtype).max
    cast_and_transpose[squares](x, scale, low, transposed, m, n, most, TILE=TILE, num_warps=WARPS)
    return low, transposed


@cast_twice.register_fake
def _empty(x: Tensor, scale: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x, dtype=dtype), x.new_empty(x.shape[::-1], dtype=dtype)


# ---- casts ----


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
    return torch.where(amax.isfinite(), (exponent << 23).view(torch.float32), math.nan)


class Fp8(NamedTuple):
    """A matrix in FP8, and the scale of its values: one for all, or one a row or column.

    Emulated ones may have one a value.
    """

    data: Tensor
    scale: Tensor

    def t(self) -> "Fp8":
        return Fp8(self.data.t(), self.scale.t())


def cast(x: Tensor, how: CastConfig, config: Float8LinearConfig, dim: int) -> Fp8:
    """Cast x, (m, n), for a matmul that sums over dimension `dim`."""
    scale = _scale(x, how, config, dim)
    return Fp8(to_fp8_saturated(x.float() * scale, how.target_dtype), scale)


def cast_both(x: Tensor, how: CastConfig, config: Float8LinearConfig) -> tuple[Fp8, Fp8]:
    """Cast x, (m, n), for the matmul that sums over its columns and for the one over its rows."""
    if not in_one_pass(x, config):
        return cast(x, how, config, dim=1), cast(x, how, config, dim=0)
    scale = _scale(x, how, config, dim=1)
    low, transposed = cast_twice(x.contiguous(), scale, how.target_dtype)
    return Fp8(low, scale), Fp8(transposed.t(), scale)


def in_one_pass(x: Tensor, config: Float8LinearConfig) -> bool:
    """Whether the kernel casts x: on a GPU, where both casts have the same scale.

    Scales of rows differ from those of columns; inductor's kernels, which cast rows as they find
    the row's largest, then move less. A GPU that emulates may have no instructions for FP8.
    """
    return x.is_cuda and not config.emulate and not _by_rows(config.cast_config_input)


def _by_rows(how: CastConfig) -> bool:
    return how.scaling_granularity is ScalingGranularity.AXISWISE


def _scale(x: Tensor, how: CastConfig, config: Float8LinearConfig, dim: int) -> Tensor:
    size = x.abs()
    # Of a whole matrix by rows first: inductor can do that within the kernel that makes x.
    amax = size.amax(dim, keepdim=True) if _by_rows(how) else size.amax(1).amax()
    to_scale = power_of_2 if config.round_scales_to_power_of_2 else amax_to_scale
    return to_scale(amax, how.target_dtype)


# ---- a matmul ----


def multiply(
    a: Fp8, b: Fp8, dtype: torch.dtype, gemm: Float8GemmConfig, config: Float8LinearConfig
) -> Tensor:
    """a @ b in `dtype`: (m, k) by (k, n); fast accumulation adds up within the tensor cores, less
    exactly."""
    if config.emulate:
        with torch.autocast(a.data.device.type, enabled=False):  # which would multiply in bf16
            return ((a.data.float() / a.scale) @ (b.data.float() / b.scale)).to(dtype)
    # FP8 units want each row of the left operand and each column of the right one in one piece.
    left, right = a.data.contiguous(), b.data.t().contiguous().t()
    fast = gemm.use_fast_accum
    scale_a, scale_b, afterwards = a.scale.reciprocal(), b.scale.reciprocal(), None
    by_rows = a.scale.dim() > 0
    if by_rows:
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
        rows = x.reshape(-1, x.shape[-1])  # (tokens, in_features)
        x8, *kept_x = _cast_and_keep(rows, config.cast_config_input, config, True)
        w8, *kept_w = _cast_and_keep(weight, config.cast_config_weight, config, keep_weight)
        ctx.save_for_backward(*kept_x, *kept_w)
        ctx.config, ctx.shape, ctx.dtype = config, x.shape, x.dtype
        out = multiply(x8, w8.t(), x.dtype, config.gemm_config_output, config)
        return out.reshape(*x.shape[:-1], -1)

    @staticmethod
    def backward(ctx, gradient):
        x, x_scale, weight, weight_scale = ctx.saved_tensors
        config, dtype = ctx.config, ctx.dtype
        g = gradient.reshape(-1, gradient.shape[-1])  # (tokens, out_features)

        if weight_scale is None:
            w8 = cast(weight, config.cast_config_weight_for_grad_input, config, dim=0)
        else:
            w8 = Fp8(weight, weight_scale)
        how = config.cast_config_input_for_grad_weight
        if how.scaling_type is not ScalingType.DISABLED:
            g8, g8_by_columns = cast_both(g, config.cast_config_grad_output, config)
            x8 = cast(x, how, config, dim=0) if x_scale is None else Fp8(x, x_scale)
            gemm = config.gemm_config_grad_weight
            to_weight = multiply(g8_by_columns.t(), x8, dtype, gemm, config)
        else:
            g8 = cast(g, config.cast_config_grad_output, config, dim=1)
            to_weight = g.t() @ x
        to_input = multiply(g8, w8, dtype, config.gemm_config_grad_input, config)
        return to_input.reshape(ctx.shape), to_weight, None, None


def _cast_and_keep(x: Tensor, how: CastConfig, config: Float8LinearConfig, keep: bool):
    """Returns x for the forward matmul, and what the backward pass needs: x and None, or, if it is
    to `keep` what the kernel cast, x by columns in FP8 and its scale."""
    if keep and in_one_pass(x, config):
        by_rows, by_columns = cast_both(x, how, config)
        return by_rows, *by_columns
    return cast(x, how, config, dim=1), x, None


# ---- the layer ----


class FastFloat8Linear(Float8Linear):
    """A layer with torchao's configuration, whose matmuls are those above."""

    # Keep the FP8 weight until the backward pass: 1 byte a weight, 7 GB for 8 B. Not under FSDP2,
    # where every rank would keep all of it, nor where activations are recomputed.
    keep_weight = False

    def forward(self, x: Tensor) -> Tensor:
        """x: (..., in_features); the output has its dtype."""
        return _Fp8Matmuls.apply(x, self.weight, self.config, self.keep_weight)
