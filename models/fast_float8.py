"""A candidate FP8 layer: torchao's arithmetic with fewer kernels and fewer bytes moved on a GPU.

Results equal torchao's to the last bit, except where magnitudes exceed 1e38: scales of rows leave
float32's range there in another order.

Four things differ from torchao's `Float8Linear`:

* One kernel casts a matrix for both of its matmuls: as it is, and transposed. 4 bytes an element
  move (2 of bf16 read, 1 + 1 of FP8 written), where two casts move 6.
* That kernel finds the scales from the largest values of the rows, which whatever made the matrix
  has found in passing. A kernel for each scale is saved.
* What the kernel cast is kept for the backward pass in FP8 instead of bf16.
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
from torch.library import triton_op, wrap_triton
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
STRETCH = tl.constexpr(1024)  # largest values that are looked at together


@triton.jit
def cast_and_transpose(
    x, of_rows, of_columns, low, transposed, inverse, inverse_transposed, m, n,
    MOST: tl.constexpr, BY_ROWS: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """x, low: (m, n); transposed: (n, m), all contiguous. A program does one square of `TILE` rows.

    of_rows, (m,), and of_columns, (n,), are the largest magnitudes. `BY_ROWS`, each row has a scale
    in `low`, and each column in `transposed`; else both have the same one. What a matmul multiplies
    by, 1 / scale, goes to `inverse` and `inverse_transposed`; programs side by side write the same.
    """
    top, left = tl.program_id(1) * TILE, tl.program_id(0) * TILE
    i = tl.arange(0, TILE)
    row, column = i[:, None], i[None, :]
    in_rows, in_columns = i < m - top, i < n - left
    begin = top.to(tl.int64) * n + left
    inside = in_rows[:, None] & in_columns[None, :]
    value = tl.load(x + begin + row * n + column, mask=inside).to(tl.float32)
    if BY_ROWS:
        of_row = power_of_2_in_kernel(tl.load(of_rows + top + i, mask=in_rows, other=1.0), MOST)
        of_column = tl.load(of_columns + left + i, mask=in_columns, other=1.0)
        of_column = power_of_2_in_kernel(of_column, MOST)
        tl.store(inverse + top + i, tl.div_rn(1.0, of_row), mask=in_rows)
        tl.store(inverse_transposed + left + i, tl.div_rn(1.0, of_column), mask=in_columns)
        down = saturated(value * of_row[:, None], MOST).to(low.dtype.element_ty)
        across = saturated(value * of_column[None, :], MOST).to(low.dtype.element_ty)
    else:
        scale = scale_in_kernel(largest(of_rows, m), MOST)
        tl.store(inverse, tl.div_rn(1.0, scale))
        tl.store(inverse_transposed, tl.div_rn(1.0, scale))
        down = saturated(value * scale, MOST).to(low.dtype.element_ty)
        across = down
    tl.store(low + begin + row * n + column, down, mask=inside)
    begin = left.to(tl.int64) * m + top
    inside = in_columns[:, None] & in_rows[None, :]
    tl.store(transposed + begin + row * m + column, tl.trans(across), mask=inside)


@triton.jit
def largest(magnitudes, count):
    """The largest of `count` magnitudes, NaN if one is NaN: bits of numbers without a sign are in
    the numbers' order, and those of NaN are beyond."""
    i, most = tl.arange(0, 1024), tl.zeros([1024], tl.int32)
    for begin in range(0, count, 1024):
        some = tl.load(magnitudes + begin + i, mask=i < count - begin, other=0.0).to(tl.float32)
        most = tl.maximum(most, some.to(tl.int32, bitcast=True))
    return tl.max(most).to(tl.float32, bitcast=True)


@triton.jit
def scale_in_kernel(amax, MOST: tl.constexpr):
    """torchao's `amax_to_scale`, in float64 likewise."""
    amax = amax.to(tl.float64)
    return (MOST / tl.where(amax < 1e-12, 1e-12, amax)).to(tl.float32)


@triton.jit
def power_of_2_in_kernel(amax, MOST: tl.constexpr):
    """The same, down to a power of two: without the bits of the mantissa."""
    scale = scale_in_kernel(amax, MOST)
    exponent = scale.to(tl.int32, bitcast=True) & 0x7F800000
    return tl.where(scale > 0, exponent.to(tl.float32, bitcast=True), float("nan"))


@triton.jit
def saturated(scaled, MOST: tl.constexpr):
    # Comparisons leave NaN as it is. tl.clamp with PropagateNan.ALL would too, but then Triton may
    # write garbage into a transposed FP8 store (triton issue 11111).
    scaled = tl.where(scaled > MOST, MOST, scaled)
    return tl.where(scaled < -MOST, -MOST, scaled)


@triton_op("fp8::cast_and_transpose", mutates_args=())
def cast_twice(
    x: Tensor, of_rows: Tensor, of_columns: Tensor, dtype: torch.dtype, by_rows: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """x: (m, n), contiguous. Returns (m, n) and (n, m) in FP8, both contiguous, and what matmuls
    multiply them by: (m, 1) and (1, n), or numbers."""
    m, n = x.shape
    low, transposed = x.new_empty((m, n), dtype=dtype), x.new_empty((n, m), dtype=dtype)
    inverse = of_rows.new_empty((m, 1) if by_rows else (), dtype=torch.float32)
    inverse_transposed = of_rows.new_empty((1, n) if by_rows else (), dtype=torch.float32)
    squares = (triton.cdiv(n, TILE), triton.cdiv(m, TILE))
    wrap_triton(cast_and_transpose)[squares](
        x, of_rows, of_columns, low, transposed, inverse, inverse_transposed, m, n,
        MOST=torch.finfo(dtype).max, BY_ROWS=by_rows, TILE=TILE, num_warps=WARPS,
    )  # fmt: skip
    return low, transposed, inverse, inverse_transposed


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
    """A matrix in FP8, and what its matmul multiplies by: 1 / scale, of all values or of each row
    or column. Emulated, the matrix is in float32, rounded to FP8, and that is 1."""

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
    return cast_by(to_scale(amax, how.target_dtype), x, how.target_dtype, config)


def cast_by(scale: Tensor, x: Tensor, dtype: torch.dtype, config: Float8LinearConfig) -> Fp8:
    """Cast x by a scale; its values beyond the format's largest become that."""
    low = to_fp8_saturated(x.float() * scale, dtype)
    if config.emulate:
        return Fp8(low.float() / scale, scale.new_ones(()))
    return Fp8(low, scale.reciprocal())


def cast_both(x: Tensor, how: CastConfig, config: Float8LinearConfig) -> tuple[Fp8, Fp8]:
    """Cast x, (m, n), for the matmul that sums over its columns and for the one over its rows."""
    if not in_one_pass(x, config):
        return cast(x, how, config, dim=1), cast(x, how, config, dim=0)
    x, by_rows = x.contiguous(), _by_rows(how)
    size = x.abs()
    of_rows = size.amax(1)  # inductor can do that within the kernel that makes x
    of_columns = size.amax(0) if by_rows else of_rows
    low, transposed, inverse, inverse_transposed = cast_twice(
        x, of_rows, of_columns, how.target_dtype, by_rows
    )
    return Fp8(low, inverse), Fp8(transposed.t(), inverse_transposed)


def in_one_pass(x: Tensor, config: Float8LinearConfig) -> bool:
    """Whether the kernel casts x: on a GPU, where both casts are needed.

    A GPU that emulates may have no instructions for FP8.
    """
    both = config.cast_config_input_for_grad_weight.scaling_type is not ScalingType.DISABLED
    return x.is_cuda and both and not config.emulate


def _by_rows(how: CastConfig) -> bool:
    return how.scaling_granularity is ScalingGranularity.AXISWISE


# ---- a matmul ----


def multiply(
    a: Fp8, b: Fp8, dtype: torch.dtype, gemm: Float8GemmConfig, config: Float8LinearConfig
) -> Tensor:
    """a @ b in `dtype`: (m, k) by (k, n); fast accumulation adds up within the tensor cores, less
    exactly."""
    if config.emulate:
        with torch.autocast(a.data.device.type, enabled=False):  # which would multiply in bf16
            return (a.data @ b.data).to(dtype)
    # FP8 units want each row of the left operand and each column of the right one in one piece.
    left, right = a.data.contiguous(), b.data.t().contiguous().t()
    fast = gemm.use_fast_accum
    scale_a, scale_b, afterwards = a.inverse, b.inverse, None
    by_rows = a.inverse.dim() > 0
    if by_rows:
        scale_a = scale_a.flatten()[:, None]  # with the strides that the operator asks for
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
