"""Bytes that FP8's casts move, per element: a table for models/roofline.py, derived from models/fp8_linear.py."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Casts:
    """Bytes per element that making the FP8 operands of a layer's GEMMs moves."""

    input: tuple[float, float]  # forward, backward
    weight: tuple[float, float]
    grad_output: float


def casts_of(keys, compiled: bool, b: int) -> Casts:
    """Traffic of the casts; products are given the scales of rows, as on Hopper.

    `_scaled_mm` takes the left operand by rows and the right one by columns. The forward product has them so, the
    backward ones need three copies transposed: of the weight, of grad_output and of the input.

    Eager, from its operators: abs (2 + 2), max (2), to float32 (2 + 4), times scale (4 + 4), clamp (4 + 4) and to FP8
    (4 + 1) are 33 bytes, with float32 weights too; 2 for a transposed copy. Forward and backward cast anew, and
    grad_output is cast for each of its products. Where an operand has one scale, a kernel (models/fp8_operands.py)
    casts and transposes it at once (2 + 2) after abs and max (6).

    Compiled, from the graphs that AOTAutograd makes: a scale of one row comes with its cast in one pass; across the
    whole tensor or columns the largest value must be complete before the cast, a second pass. A transposed copy is
    written instead. Inputs and gradients, here those of a layer outside of blocks (in blocks: models/blocks.py), have
    their largest value from the kernel that makes them. Inputs are cast anew in the backward pass, as there the
    transposed one is needed.

    Args:
        keys: a recipe's section `quantize.linear.float8`.
        compiled: whether the layer is.
        b: bytes of a weight.
    """
    if not compiled:
        if keys.recipe_name == "rowwise_with_gw_hp":
            return Casts(input=(33, 0), weight=(33, 33 + 2), grad_output=33)
        if keys.recipe_name == "tensorwise":
            return Casts(input=(6 + 4, 0), weight=(6 + 4, 0), grad_output=6 + 4)
        return Casts((33, 33 + 2), (33, 33 + 2), 33 + 33 + 2)
    column = 2 + (2 + 1)  # largest values, cast
    return {
        # each is read once, the weight after its largest value, and written in both orders
        "tensorwise": Casts(input=(2 + 1 + 1, 0), weight=(b + b + 1 + 1, 0), grad_output=2 + 1 + 1),
        "rowwise": Casts((1, column), (b + 1, b + b + 1), 1 + column),
        # the weight by rows forward, as one tensor backward; the GEMM of grad_weight takes bf16
        "rowwise_with_gw_hp": Casts(input=(1, 0), weight=(b + 1, b + b + 1), grad_output=1),
    }[keys.recipe_name]
