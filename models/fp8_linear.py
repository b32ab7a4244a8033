"""A linear layer whose three products run in FP8; operands are cast anew for each of them.

    output          = input          @ weight.T
    input gradient  = output gradient @ weight
    weight gradient = output gradient.T @ input

FP8 has 4 (e4m3) or 3 (e5m2) significant bits and a small range, so an operand is multiplied by a scale that takes its
largest value to the format's largest, and the product is divided by both scales. A scale holds for a whole operand
(tensorwise) or for one row of the left and one column of the right one (rowwise), along which the product sums.

The arithmetic is that of torchao's `Float8Linear`, bit for bit. Unlike it this layer is plain operators in an autograd
function, without a tensor subclass: its compiled graphs can be cached, and every product can be given scales of rows.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch._functorch.config
from torch import nn

torch._functorch.config.autograd_cache_allow_custom_autograd_functions = True  # whose compiled graphs are then cached

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
_TINY = 1e-12  # the least that a largest value is taken for, so that a scale is finite


@dataclass(frozen=True)
class Scaling:
    """What differs between the recipes of `quantize.linear.float8.recipe_name`.

    Args:
        rows: each row or column has a scale, a power of 2; else each operand has one, which is any number.
        gradient: format of output gradients; e5m2 has the range that one scale for all of them needs.
        fp8_weight_gradient: whether the weight gradient is a product in FP8. Where it is not, the weight has one scale,
            a power of 2, in the product of the input gradient.
    """

    rows: bool
    gradient: torch.dtype
    fp8_weight_gradient: bool = True


SCALINGS = {
    "tensorwise": Scaling(rows=False, gradient=E5M2),
    "rowwise": Scaling(rows=True, gradient=E4M3),
    "rowwise_with_gw_hp": Scaling(rows=True, gradient=E4M3, fp8_weight_gradient=False),
}


@dataclass(frozen=True)
class Products:
    """How a layer multiplies.

    Args:
        recipe_name: a key of `SCALINGS`.
        fast_backward: let backward products add up within the tensor cores, less exactly, as the forward one does.
        row_scales: whether products without fast accumulation are given scales of rows. Otherwise they multiply with a
            scale of 1, and their results are scaled afterwards.
        emulate: multiply the rounded operands in float32.
    """

    recipe_name: str
    fast_backward: bool = False
    row_scales: bool = True
    emulate: bool = False

    @property
    def fp8_products(self) -> int:
        """How many of the three have FP8 operands."""
        return 3 if SCALINGS[self.recipe_name].fp8_weight_gradient else 2


class Fp8Linear(nn.Linear):
    """`nn.Linear` without bias whose products run in FP8; the weight stays as it is."""

    how: Products

    @classmethod
    def from_float(cls, linear: nn.Linear, how: Products) -> "Fp8Linear":
        """An FP8 layer with the same parameter."""
        with torch.device("meta"):
            layer = cls(linear.in_features, linear.out_features, bias=False)
        layer.weight, layer.how = linear.weight, how
        return layer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: (..., in_features); the output has its dtype."""
        how = self.how  # as plain values, which compiled graphs can be cached by
        return _Fp8Products.apply(x, self.weight, how.recipe_name, how.fast_backward, how.row_scales, how.emulate)


class _Fp8Products(torch.autograd.Function):
    """Operands are cast as they are and then transposed, so that a compiler sees where two casts are the same."""

    @staticmethod
    def forward(ctx, x, weight, recipe_name, fast_backward, row_scales, emulate):
        ctx.save_for_backward(x, weight)
        ctx.how = recipe_name, fast_backward, row_scales, emulate
        s = SCALINGS[recipe_name]
        x8, weight8 = _cast(x.reshape(-1, x.shape[-1]), E4M3, s, along=1), _cast(weight, E4M3, s, along=1)
        out = _multiply(x8, weight8.t(), x.dtype, fast=True, row_scales=row_scales, emulate=emulate)
        return out.reshape(*x.shape[:-1], -1)

    @staticmethod
    def backward(ctx, gradient):
        x, weight = ctx.saved_tensors
        recipe_name, fast, row_scales, emulate = ctx.how
        s, how = SCALINGS[recipe_name], (x.dtype, fast, row_scales, emulate)
        g, flat = gradient.reshape(-1, gradient.shape[-1]), x.reshape(-1, x.shape[-1])
        weight8 = _cast(weight, E4M3, s, along=0 if s.fp8_weight_gradient else None)
        to_input = _multiply(_cast(g, s.gradient, s, along=1), weight8, *how)
        if s.fp8_weight_gradient:
            to_weight = _multiply(_cast(g, s.gradient, s, along=0).t(), _cast(flat, E4M3, s, along=0), *how)
        else:
            to_weight = g.t() @ flat
        return to_input.reshape(x.shape), to_weight, None, None, None, None


class _Fp8(NamedTuple):
    """A matrix in FP8, and what its values were multiplied by."""

    data: torch.Tensor
    scale: torch.Tensor

    def t(self) -> "_Fp8":
        return _Fp8(self.data.t(), self.scale.t() if self.scale.dim() else self.scale)


def _cast(x: torch.Tensor, dtype: torch.dtype, scaling: Scaling, along: int | None) -> _Fp8:
    """x: (m, n), in `dtype` with the float32 scale of the whole, or of each row (`along` 1) or column (0)."""
    by_row = scaling.rows and along is not None
    largest = x.abs().amax(along, keepdim=True) if by_row else x.abs().amax()
    most = torch.finfo(dtype).max
    # in float64, or compiled code would round the quotient otherwise than eager code
    scale = (most / largest.double().clamp(min=_TINY)).float()
    if scaling.rows:
        scale = scale.log2().floor().exp2()
    return _Fp8((x.float() * scale).clamp(-most, most).to(dtype), scale)


def _multiply(a: _Fp8, b: _Fp8, dtype: torch.dtype, fast: bool, row_scales: bool, emulate: bool) -> torch.Tensor:
    """a @ b in `dtype`: (m, k) by (k, n), with scales for rows of a and columns of b, or for each as a whole.

    Args:
        fast: let the product add up within the tensor cores.
        row_scales, emulate: see `Products`.
    """
    if emulate:
        with torch.autocast(a.data.device.type, enabled=False):  # which would multiply in bf16
            return ((a.data.float() / a.scale) @ (b.data.float() / b.scale)).to(dtype)
    # FP8 units want each row of the left operand and each column of the right one in one piece
    left, right = a.data.contiguous(), b.data.t().contiguous().t()
    inverse_a, inverse_b = a.scale.reciprocal(), b.scale.reciprocal()
    if not a.scale.dim():
        return torch._scaled_mm(left, right, inverse_a, inverse_b, out_dtype=dtype, use_fast_accum=fast)
    if not b.scale.dim():  # both have to be of one kind
        inverse_b = inverse_b.repeat(right.shape[1]).reshape(1, -1)
    if fast or row_scales:
        out = torch._scaled_mm(left, right, inverse_a, inverse_b, out_dtype=torch.bfloat16, use_fast_accum=fast)
    else:
        one = inverse_a.new_ones(())
        out = torch._scaled_mm(left, right, one, one, out_dtype=torch.bfloat16) * (inverse_a * inverse_b)
    return out.to(dtype)  # with scales of rows the product itself is bf16
