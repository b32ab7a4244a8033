"""Triton kernels over many bf16 tensors in one launch: the sum of squares, and AdamW. Called by
models/fused_adamw.py.

A program does one chunk of one tensor. `chunks`, an int32 table, says which: (tensor, chunk of that
tensor). `table`, an int64 one, has a row for each tensor: its number of elements, then addresses.
Addresses are multiples of `ALIGN`
bytes: if that is 16, a load or store takes 8 elements at once. Only a function that launches a
kernel imports this file, since it imports Triton, for which a CPU has no use.
"""

import triton
import triton.language as tl

BF16 = tl.pointer_type(tl.bfloat16)
FLOAT32 = tl.pointer_type(tl.float32)


@triton.jit
def sum_of_squares(
    chunks, table, partial, ALIGN: tl.constexpr, CHUNK: tl.constexpr, TILE: tl.constexpr
):
    """Add up each chunk's squares, in float32, to its element of `partial`; rows are (elements,
    address)."""
    row, begin, length = _chunk(chunks, table, 2, CHUNK)
    tensor = _bf16(row + 1, begin, ALIGN)
    i = tl.arange(0, TILE)
    squares = tl.zeros([TILE], tl.float32)
    whole = length // TILE * TILE
    for at in range(0, whole, TILE):  # without a mask, which would split the loads
        x = tl.load(tensor + at + i).to(tl.float32)
        squares += x * x
    x = tl.load(tensor + whole + i, mask=whole + i < length, other=0.0).to(tl.float32)
    tl.store(partial + tl.program_id(0), tl.sum(squares + x * x, 0))


@triton.jit
def adamw(
    chunks, table, norm, max_norm, lr, decay, eps,
    BETA1: tl.constexpr, BETA2: tl.constexpr, LOG_BETA1: tl.constexpr, LOG_BETA2: tl.constexpr,
    ALIGN: tl.constexpr, CHUNK: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """One step in float32, rounded when it is stored; rows are (elements, parameter, gradient,
    moments, step)."""
    row, begin, length = _chunk(chunks, table, 6, CHUNK)
    parameter, gradient = _bf16(row + 1, begin, ALIGN), _bf16(row + 2, begin, ALIGN)
    first, second = _bf16(row + 3, begin, ALIGN), _bf16(row + 4, begin, ALIGN)
    # in float64: the second moment's correction is as small as 1 - BETA2, and float32 would leave
    # few digits of it
    step = tl.load(tl.load(row + 5).to(FLOAT32)).to(tl.float64)
    rate = lr / (1.0 - tl.exp(step * LOG_BETA1)).to(tl.float32)
    correction = 1.0 / tl.sqrt((1.0 - tl.exp(step * LOG_BETA2)).to(tl.float32))
    scale = tl.minimum(max_norm / (tl.load(norm) + 1e-6), 1.0, propagate_nan=tl.PropagateNan.ALL)
    i = tl.arange(0, TILE)
    whole = length // TILE * TILE
    for at in range(0, whole, TILE):
        _update(
            parameter,
            gradient,
            first,
            second,
            at + i,
            None,
            scale,
            rate,
            correction,
            decay,
            eps,
            BETA1,
            BETA2,
        )
    if whole < length:
        i += whole
        _update(
            parameter,
            gradient,
            first,
            second,
            i,
            i < length,
            scale,
            rate,
            correction,
            decay,
            eps,
            BETA1,
            BETA2,
        )


@triton.jit
def _chunk(chunks, table, COLUMNS: tl.constexpr, CHUNK: tl.constexpr):
    """This program's row of the table, and the first element and number of elements of its
    chunk."""
    chunk = chunks + 2 * tl.program_id(0)
    row = table + COLUMNS * tl.load(chunk)
    begin = CHUNK * tl.load(chunk + 1).to(tl.int64)
    return row, begin, tl.minimum(tl.load(row) - begin, CHUNK).to(tl.int32)


@triton.jit
def _bf16(entry, begin, ALIGN: tl.constexpr):
    """A pointer to element `begin` of the tensor whose address is there."""
    return tl.multiple_of(tl.load(entry).to(BF16), ALIGN) + begin


@triton.jit
def _update(
    parameter, gradient, first, second, i, mask, scale, rate, correction, decay, eps,
    BETA1: tl.constexpr, BETA2: tl.constexpr,
):  # fmt: skip
    g = tl.load(gradient + i, mask=mask).to(tl.float32) * scale
    p = tl.load(parameter + i, mask=mask).to(tl.float32)
    m = tl.load(first + i, mask=mask).to(tl.float32)
    v = tl.load(second + i, mask=mask).to(tl.float32)
    m = BETA1 * m + (1 - BETA1) * g
    v = BETA2 * v + (1 - BETA2) * g * g
    p -= decay * p
    p -= rate * m / (tl.sqrt(v) * correction + eps)
    tl.store(parameter + i, p.to(tl.bfloat16), mask=mask)
    tl.store(first + i, m.to(tl.bfloat16), mask=mask)
    tl.store(second + i, v.to(tl.bfloat16), mask=mask)
