"""Triton kernel that casts a matrix to FP8 and transposes it in one pass. Called by
models/fp8_operands.py.

4 bytes an element of bf16 move, 2 read and 1 written in each order; two casts on their own move 6.
Only a function that launches it imports this file, since it imports Triton, for which a CPU has no
use.
"""

import triton
import triton.language as tl


@triton.jit
def cast_and_transpose(x, scale, low, transposed, m, n, MOST: tl.constexpr, TILE: tl.constexpr):
    """x, low: (m, n); transposed: (n, m), all contiguous. A program does one square, of `TILE`
    rows.

    Each value times `scale`, a float32 scalar; beyond `MOST`, the format's largest, it becomes
    that.
    """
    top, left = tl.program_id(1) * TILE, tl.program_id(0) * TILE
    i = tl.arange(0, TILE)
    down, across = i[:, None], i[None, :]
    inside = (down < m - top) & (across < n - left)
    begin = top.to(tl.int64) * n + left
    scaled = tl.load(x + begin + down * n + across, mask=inside).to(tl.float32) * tl.load(scale)
    value = tl.clamp(scaled, -MOST, MOST, propagate_nan=tl.PropagateNan.ALL).to(
        low.dtype.element_ty
    )
    tl.store(low + begin + down * n + across, value, mask=inside)
    inside = (down < n - left) & (across < m - top)
    tl.store(
        transposed + left.to(tl.int64) * m + top + down * m + across, tl.trans(value), mask=inside
    )
