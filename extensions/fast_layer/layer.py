"""Candidates for FP8 on a GPU: torchao's arithmetic with fewer kernels and fewer bytes moved.

Tensorwise, three things differ from torchao's `Float8Linear`:

* One kernel casts a matrix for both of its matmuls: as it is, and transposed. 4 bytes an element
  move (2 of bf16 read, 1 + 1 of FP8 written), where two casts move 6.
* That kernel finds the scale from the largest value of each row, which the kernel that makes the
  matrix finds in passing. So no small kernel reduces them to one.
* The backward pass gets what that kernel cast, in FP8 instead of bf16.

Rowwise, Hopper's backward matmuls take the scales of rows. torchao scales their results
afterwards, which is one more pass over each.

Results equal torchao's to the last bit, except where magnitudes exceed 1e38: scales of rows leave
float32's range there in another order. Read from top to bottom: kernel, casts, the three matmuls of
a layer, the layer, scales of rows, and how they get into a model. No GPU has timed them yet.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor, nn
from torch.library import triton_op, wrap_triton
from torch.utils.weak import WeakTensorKeyDictionary
from torchao.float8 import float8_ops
from torchao.float8.config import e4m3_dtype, e5m2_dtype
from torchao.float8.float8_linear import Float8Linear

from models.float8 import converted_modules

# ---- one kernel for both casts ----

TILE = 128  # a row of a square is 128 bytes of FP8, all of a cache line


@triton.jit
def cast_and_transpose(
    x, row_maxima, x_fp8, x_fp8_t, inverse_scale, m, n, FP8_MAX: tl.constexpr, TILE: tl.constexpr
):  # fmt: skip
    """x, x_fp8: (m, n); x_fp8_t: (n, m), all contiguous. A program casts one square of `TILE` rows.

    `row_maxima`, (m,), are the largest magnitudes of x's rows. Each value is multiplied by the
    scale that takes the largest of them to `FP8_MAX`, the format's largest value; `inverse_scale`
    is 1 / scale.
    """
    # Each program finds the largest anew, from the cache: 8 KB of 4,096 rows. Bits of numbers
    # without a sign are in the order of the numbers, and NaNs are larger than all numbers.
    chunk: tl.constexpr = 8 * TILE
    i = tl.arange(0, chunk)
    amax_bits = tl.zeros([chunk], tl.int32)
    for start in range(0, m, chunk):
        maxima = tl.load(row_maxima + start + i, mask=i < m - start, other=0).to(tl.float32)
        amax_bits = tl.maximum(amax_bits, maxima.to(tl.int32, bitcast=True))
    amax = tl.max(amax_bits).to(tl.float32, bitcast=True).to(tl.float64)
    # torchao's amax_to_scale
    scale = (FP8_MAX / tl.where(amax < 1e-12, 1e-12, amax)).to(tl.float32)
    tl.store(inverse_scale, tl.div_rn(1.0, scale))  # all programs store an equal value

    first_row = tl.program_id(1) * TILE
    first_column = tl.program_id(0) * TILE
    i = tl.arange(0, TILE)
    row = i[:, None]
    column = i[None, :]
    mask = (row < m - first_row) & (column < n - first_column)
    start = first_row.to(tl.int64) * n + first_column
    offset = row * n + column
    # No product exceeds FP8_MAX by more than float32's rounding, and FP8's rounding removes that.
    scaled = tl.load(x + start + offset, mask=mask).to(tl.float32) * scale
    square = scaled.to(x_fp8.dtype.element_ty)
    tl.store(x_fp8 + start + offset, square, mask=mask)
    mask = (row < n - first_column) & (column < m - first_row)
    start = first_column.to(tl.int64) * m + first_row
    tl.store(x_fp8_t + start + row * m + column, tl.trans(square), mask=mask)


# Inductor compiles a `triton_op` into its own code: a call costs its host 11 us, where one of a
# `custom_op` costs 47.
@triton_op("fp8::cast_and_transpose", mutates_args=())
def launch_cast(x: Tensor, row_maxima: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Cast x, (m, n) and contiguous, by the largest magnitudes of its rows, (m,).

    Returns:
        x in FP8, (m, n); the same transposed, (n, m); and 1 / scale, (1,).
    """
    m, n = x.shape
    x_fp8 = torch.empty_like(x, dtype=dtype)
    x_fp8_t = x_fp8.new_empty(n, m)
    inverse_scale = x.new_empty(1, dtype=torch.float32)
    squares = (triton.cdiv(n, TILE), triton.cdiv(m, TILE))
    fp8_max = torch.finfo(dtype).max
    wrap_triton(cast_and_transpose)[squares](
        x, row_maxima, x_fp8, x_fp8_t, inverse_scale, m, n, fp8_max, TILE, num_warps=8
    )
    return x_fp8, x_fp8_t, inverse_scale


# ---- casts ----


def cast_matrix(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Cast x, (m, n), by the kernel.

    Returns:
        x in FP8, (m, n); the same transposed, (n, m); and 1 / scale, by which a matmul multiplies.
    """
    row_maxima = x.abs().amax(1)
    return launch_cast(x.contiguous(), row_maxima, dtype)


_input_casts = WeakTensorKeyDictionary()  # by input, as long as it lives


def cast_input(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Cast x, (..., in_features), as `cast_matrix`; nothing may write to x from then on.

    Layers that read the same x share its casts: wq, wk and wv, or w1 and w3. A compiler would not
    see that the kernel's launches are the same.
    """
    if x not in _input_casts:
        _input_casts[x] = cast_matrix(x.flatten(0, -2), e4m3_dtype)
    return _input_casts[x]


# ---- the three matmuls of a layer ----


def multiply(
    lhs: Tensor, rhs: Tensor, *inverse_scales: Tensor, dtype: torch.dtype, fast: bool = False
) -> Tensor:
    """Compute lhs @ rhs.t() in `dtype`: (m, k) by (n, k), as FP8 units want both. `fast` adds up
    within the tensor cores, less exactly."""
    return torch._scaled_mm(lhs, rhs.t(), *inverse_scales, out_dtype=dtype, use_fast_accum=fast)


@torch._dynamo.allow_in_graph
class _Fp8Matmuls(torch.autograd.Function):
    """The kernel casts for both passes; its casts wait for the backward pass in FP8."""

    @staticmethod
    def forward(ctx, x, weight):
        x_fp8, x_fp8_t, x_inverse_scale = cast_input(x)
        weight_fp8, weight_fp8_t, weight_inverse_scale = cast_matrix(weight, e4m3_dtype)
        ctx.save_for_backward(x_fp8_t, x_inverse_scale, weight_fp8_t, weight_inverse_scale)
        scales = (x_inverse_scale, weight_inverse_scale)
        out = multiply(x_fp8, weight_fp8, *scales, dtype=x.dtype, fast=True)
        return out.unflatten(0, x.shape[:-1])

    @staticmethod
    def backward(ctx, out_grad):
        x_fp8_t, x_inverse_scale, weight_fp8_t, weight_inverse_scale = ctx.saved_tensors
        matrix = out_grad.flatten(0, -2)  # (tokens, out_features)
        grad_fp8, grad_fp8_t, inverse_scale = cast_matrix(matrix, e5m2_dtype)
        dtype = out_grad.dtype
        x_grad = multiply(grad_fp8, weight_fp8_t, inverse_scale, weight_inverse_scale, dtype=dtype)
        weight_grad = multiply(grad_fp8_t, x_fp8_t, inverse_scale, x_inverse_scale, dtype=dtype)
        return x_grad.unflatten(0, out_grad.shape[:-1]), weight_grad


# ---- the layer ----


class FastFloat8Linear(Float8Linear):
    """torchao's layer with one scale for each tensor, whose matmuls are those above."""

    def forward(self, x: Tensor) -> Tensor:
        """x: (..., in_features); the output has its dtype, or autocast's."""
        if torch.is_autocast_enabled("cuda"):
            x = x.to(torch.get_autocast_dtype("cuda"))
        return _Fp8Matmuls.apply(x, self.weight)


# ---- scales of rows ----

_torchao_multiply = float8_ops.addmm_float8_unwrapped


def multiply_with_row_scales(*operands, **kwargs) -> Tensor:
    """Multiply as torchao's function of the same arguments, and scale rows and columns within the
    matmul."""
    if kwargs["use_fast_accum"]:
        return _torchao_multiply(*operands, **kwargs)
    lhs, lhs_scale, rhs, rhs_scale, dtype = operands
    row_scales = lhs_scale.reciprocal().flatten()[:, None]  # the operator checks their strides
    column_scales = rhs_scale.reciprocal().flatten()[None]
    out = torch._scaled_mm(lhs, rhs, row_scales, column_scales, out_dtype=torch.bfloat16)
    return out.to(dtype)


# ---- a converted model ----


def speed_up_layers(model: nn.Module, row_scales: bool) -> None:
    """Replace torchao's layers by those above; or their matmul, where cuBLASLt takes scales of
    rows."""
    if row_scales:
        if _has_row_scales():
            float8_ops.addmm_float8_unwrapped = multiply_with_row_scales  # of all layers
    else:
        for layer in converted_modules(model).values():
            layer.__class__ = FastFloat8Linear  # torchao's conversion takes no other class


def _has_row_scales() -> bool:
    """True if cuBLASLt multiplies with scales of rows and without fast accumulation: on Hopper from
    CUDA 12.9 on (pytorch pull request 157905). Elsewhere a slow kernel of CUTLASS would run."""
    is_hopper = torch.cuda.get_device_capability()[0] == 9
    return is_hopper and float(torch.version.cuda) >= 12.9
