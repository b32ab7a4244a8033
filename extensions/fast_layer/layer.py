"""Candidates for FP8 on a GPU: torchao's arithmetic with fewer kernels and fewer bytes moved.

Tensorwise, three things differ from torchao's `Float8Linear`:

* One kernel casts a matrix for both of its matmuls: as it is, and transposed. 4 bytes an element
  move (2 of bf16 read, 1 + 1 of FP8 written), where two casts move 6.
* That kernel finds the scale from the largest value of each row, which the kernel that makes the
  matrix finds in passing. So no small kernel reduces them to one.
* What that kernel cast is kept for the backward pass in FP8 instead of bf16.

Rowwise, Hopper's backward matmuls are given the scales of rows. torchao scales their results
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
    x, maxima, low, transposed, inverse, m, n, MOST: tl.constexpr, TILE: tl.constexpr
):  # fmt: skip
    """x, low: (m, n); transposed: (n, m), all contiguous. A program does one square of `TILE` rows.

    `maxima`, (m,), are the largest magnitudes of x's rows. Each value is multiplied by the scale
    that takes the largest of them to `MOST`, the format's largest value; `inverse` is 1 / scale.
    """
    # Each program finds the largest anew, from the cache: 8 KB of 4,096 rows. Bits of numbers
    # without a sign are in the order of the numbers, and NaNs are above all.
    stretch: tl.constexpr = 8 * TILE
    i = tl.arange(0, stretch)
    bits = tl.zeros([stretch], tl.int32)
    for begin in range(0, m, stretch):
        some = tl.load(maxima + begin + i, mask=i < m - begin, other=0).to(tl.float32)
        bits = tl.maximum(bits, some.to(tl.int32, bitcast=True))
    amax = tl.max(bits).to(tl.float32, bitcast=True).to(tl.float64)
    scale = (MOST / tl.where(amax < 1e-12, 1e-12, amax)).to(tl.float32)  # torchao's amax_to_scale
    tl.store(inverse, tl.div_rn(1.0, scale))  # the same from all programs

    top = tl.program_id(1) * TILE
    left = tl.program_id(0) * TILE
    i = tl.arange(0, TILE)
    down, across = i[:, None], i[None, :]
    inside = (down < m - top) & (across < n - left)
    begin = top.to(tl.int64) * n + left
    at = down * n + across
    # No product exceeds MOST but by float32's rounding, which FP8's rounding takes back.
    scaled = tl.load(x + begin + at, mask=inside).to(tl.float32) * scale
    value = scaled.to(low.dtype.element_ty)
    tl.store(low + begin + at, value, mask=inside)
    inside = (down < n - left) & (across < m - top)
    begin = left.to(tl.int64) * m + top
    tl.store(transposed + begin + down * m + across, tl.trans(value), mask=inside)


# Inductor compiles a `triton_op` into its own code: a call costs its host 11 us, where one of a
# `custom_op` costs 47.
@triton_op("fp8::cast_and_transpose", mutates_args=())
def cast_twice(x: Tensor, maxima: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """x: (m, n), contiguous; maxima: (m,). Returns (m, n) and (n, m) in FP8, and (1,)."""
    m, n = x.shape
    low = torch.empty_like(x, dtype=dtype)
    transposed = low.new_empty(n, m)
    inverse = x.new_empty(1, dtype=torch.float32)
    squares = (triton.cdiv(n, TILE), triton.cdiv(m, TILE))
    most = torch.finfo(dtype).max
    wrap_triton(cast_and_transpose)[squares](
        x, maxima, low, transposed, inverse, m, n, most, TILE, num_warps=8
    )
    return low, transposed, inverse


# ---- casts ----


def cast_both(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Cast x, (m, n), by the kernel. Returns it in FP8, (m, n) and (n, m), and 1 / scale, by which
    a matmul multiplies."""
    return cast_twice(x.contiguous(), x.abs().amax(1), dtype)


_casts = WeakTensorKeyDictionary()  # of inputs, as long as they live


def cast_input(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Cast x, (..., in_features), as `cast_both`; nothing may write to x from then on.

    Layers that read the same x share its casts: wq, wk and wv, or w1 and w3. A compiler would not
    see that the kernel's launches are the same.
    """
    if x not in _casts:
        _casts[x] = cast_both(x.flatten(0, -2), e4m3_dtype)
    return _casts[x]


# ---- the three matmuls of a layer ----


def multiply(left: Tensor, right: Tensor, *inverses: Tensor, dtype, fast: bool = False) -> Tensor:
    """Compute left @ right.t() in `dtype`: (m, sum) by (n, sum), as FP8 units want both. `fast`
    adds up within the tensor cores, less exactly."""
    return torch._scaled_mm(left, right.t(), *inverses, out_dtype=dtype, use_fast_accum=fast)


@torch._dynamo.allow_in_graph
class _Fp8Matmuls(torch.autograd.Function):
    """What the kernel casts for both directions is kept for the backward pass in FP8."""

    @staticmethod
    def forward(ctx, x, weight):
        x8, x8_by_columns, x_inverse = cast_input(x)
        w8, w8_by_columns, w_inverse = cast_both(weight, e4m3_dtype)
        ctx.save_for_backward(x8_by_columns, x_inverse, w8_by_columns, w_inverse)
        out = multiply(x8, w8, x_inverse, w_inverse, dtype=x.dtype, fast=True)
        return out.unflatten(0, x.shape[:-1])

    @staticmethod
    def backward(ctx, gradient):
        x8, x_inverse, w8, w_inverse = ctx.saved_tensors
        g = gradient.flatten(0, -2)  # (tokens, out_features)
        g8, g8_by_columns, inverse = cast_both(g, e5m2_dtype)
        to_input = multiply(g8, w8, inverse, w_inverse, dtype=g.dtype)
        to_weight = multiply(g8_by_columns, x8, inverse, x_inverse, dtype=g.dtype)
        return to_input.unflatten(0, gradient.shape[:-1]), to_weight


# ---- the layer ----


class FastFloat8Linear(Float8Linear):
    """torchao's layer with one scale for each tensor, whose matmuls are those above."""

    def forward(self, x: Tensor) -> Tensor:
        """x: (..., in_features); the output has its dtype, or autocast's."""
        if torch.is_autocast_enabled("cuda"):
            x = x.to(torch.get_autocast_dtype("cuda"))
        return _Fp8Matmuls.apply(x, self.weight)


# ---- scales of rows ----

_torchaos = float8_ops.addmm_float8_unwrapped


def multiply_by_rows(*operands, **keys) -> Tensor:
    """Multiply as torchao's function of the same arguments, and scale rows and columns within the
    matmul."""
    if keys["use_fast_accum"]:
        return _torchaos(*operands, **keys)
    left, left_scale, right, right_scale, dtype = operands
    rows = left_scale.reciprocal().flatten()[:, None]  # whose strides the operator checks
    columns = right_scale.reciprocal().flatten()[None]
    return torch._scaled_mm(left, right, rows, columns, out_dtype=torch.bfloat16).to(dtype)


# ---- a converted model ----


def speed_up(model: nn.Module, by_rows: bool) -> None:
    """Put ours in place of torchao's layers, or of their matmul where cuBLASLt takes scales of
    rows."""
    if not by_rows:
        for layer in converted_modules(model).values():
            layer.__class__ = FastFloat8Linear  # torchao's conversion knows no class but its own
    # Without fast accumulation: on Hopper from CUDA 12.9 on (pytorch pull request 157905).
    # Elsewhere a slow kernel of CUTLASS would run.
    elif torch.cuda.get_device_capability()[0] == 9 and float(torch.version.cuda) >= 12.9:
        float8_ops.addmm_float8_unwrapped = multiply_by_rows  # of all layers
