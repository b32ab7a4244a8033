"""Operands of FP8 products: matrices in FP8 with the scales that took them there."""

from dataclasses import dataclass
from typing import NamedTuple

import torch

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
_TINY = 1e-12  # the least that a largest value is taken for, so that a scale is finite
TILE, WARPS = 128, 8  # of the kernel: a row of a square is 128 bytes of FP8, all of a cache line


@dataclass(frozen=True)
class Scaling:
    """What differs between the recipes of `quantize.linear.float8.recipe_name`."""

    rows: bool  # each row or column has a scale, a power of 2; else each operand has one, which is any number
    gradient: (
        torch.dtype
    )  # format of output gradients; e5m2 has the range that one scale for all of them needs
    # Whether the weight gradient is a product in FP8. Where it is not, the weight has one scale, a
    # power of 2, in the product of the input gradient.
    fp8_weight_gradient: bool = True


SCALINGS = {
    "tensorwise": Scaling(rows=False, gradient=E5M2),
    "rowwise": Scaling(rows=True, gradient=E4M3),
    "rowwise_with_gw_hp": Scaling(rows=True, gradient=E4M3, fp8_weight_gradient=False),
}


class Fp8(NamedTuple):
    """A matrix in FP8, and what its values were multiplied by."""

    data: torch.Tensor
    scale: torch.Tensor

    def t(self) -> "Fp8":
        return Fp8(self.data.t(), self.scale.t() if self.scale.dim() else self.scale)


def cast(x: torch.Tensor, dtype: torch.dtype, scaling: Scaling, along: int | None) -> Fp8:
    """x: (m, n), in `dtype` with the float32 scale of the whole, or of each row (`along` 1) or
    column (0)."""
    scale = _scale(x, dtype, scaling, along)
    most = torch.finfo(dtype).max
    return Fp8((x.float() * scale).clamp(-most, most).to(dtype), scale)


def cast_both(
    x: torch.Tensor, dtype: torch.dtype, scaling: Scaling, emulate: bool
) -> tuple[Fp8, Fp8]:
    """x: (m, n), for the product that takes it by rows and for the one that takes it by columns.

    On a GPU one kernel writes both where they have the same scale. Where rows and columns have
    scales of their own, a compiler's kernels, which cast by rows as they find the row's largest,
    move less.
    """
    if not in_one_pass(x, scaling, emulate):
        return cast(x, dtype, scaling, along=1), cast(x, dtype, scaling, along=0)
    scale = _scale(x, dtype, scaling, along=None)
    data, transposed = _cast_and_transpose(x.contiguous(), scale, dtype)
    return Fp8(data, scale), Fp8(transposed.t(), scale)


def in_one_pass(x: torch.Tensor, scaling: Scaling, emulate: bool) -> bool:
    """Whether the kernel casts it; where products are emulated, the GPU may have no instructions
    for FP8."""
    return x.is_cuda and not scaling.rows and not emulate


def _scale(
    x: torch.Tensor, dtype: torch.dtype, scaling: Scaling, along: int | None
) -> torch.Tensor:
    if scaling.rows and along is not None:
        largest = x.abs().amax(along, keepdim=True)
    else:  # by rows first, as a compiler can find it within the kernel that makes x
        largest = x.abs().amax(1).amax()
    # in float64, or compiled code would round the quotient otherwise than eager code
    scale = (torch.finfo(dtype).max / largest.double().clamp(min=_TINY)).float()
    return scale.log2().floor().exp2() if scaling.rows else scale


# An operator, and not the kernel's launch, is what graphs have: two casts of one matrix are then
# seen to be the same, and the result is kept for the backward pass instead of being made again.
@torch.library.custom_op("fp8::cast_and_transpose", mutates_args=())
def _cast_and_transpose(
    x: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    from models.fp8_cast_kernel import cast_and_transpose  # which imports Triton

    (m, n), most = x.shape, torch.finfo(dtype).max
    made = _empty(x, scale, dtype)
    cast_and_transpose[(-(-n // TILE), -(-m // TILE))](
        x, scale, *made, m, n, most, TILE=TILE, num_warps=WARPS
    )
    return made


@_cast_and_transpose.register_fake
def _empty(
    x: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.empty_like(x, dtype=dtype), x.new_empty(x.shape[::-1], dtype=dtype)
