"""Bytes that FP8's casts move, per element: a table for models/roofline.py, derived from torchao's operators."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Casts:
    """Bytes per element that making the FP8 operands of a layer's GEMMs moves, and scaling their results after them."""

    input: tuple[float, float]  # forward, backward
    weight: tuple[float, float]
    grad_output: float
    grad_input: float = 0
    grad_weight: float = 0


def casts_of(keys, compiled: bool, b: int) -> Casts:
    """Traffic of torchao 0.18's casts.

    `_scaled_mm` takes the left operand by rows and the right one by columns. The forward product has them so, the
    backward ones need three copies transposed: of the weight, of grad_output and of the input.

    Eager, from its operators: abs (2 + 2), max (2), to float32 (2 + 4), times scale (4 + 4), clamp (4 + 4) and to FP8
    (4 + 1) are 33 bytes, with float32 weights too; 2 for a transposed copy. Forward and backward cast anew, and
    grad_output is cast for each of its products. Rowwise products without fast accumulation, the backward ones, are
    scaled afterwards: an outer product in float32 (4), then a multiplication in place (2 + 4 + 2).

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
    scaled_after = keys.recipe_name != "tensorwise" and not keys.fast_accumulation_in_backward
    if not compiled:
        after = 12 * scaled_after
        if keys.recipe_name == "rowwise_with_gw_hp":
            return Casts(input=(33, 0), weight=(33, 33 + 2), grad_output=33, grad_input=after)
        return Casts((33, 33 + 2), (33, 33 + 2), 33 + 33 + 2, grad_input=after, grad_weight=after)
    column = 2 + (2 + 1)  # largest values, cast
    return {
        # grad_output is read once and written in both orders; the weight's scale is kept for the backward pass
        "tensorwise": Casts(input=(2 + 1, 2 + 1), weight=(b + b + 1, b + 1), grad_output=2 + 1 + 1),
        # grad_weight leaves the graph, so that nothing else could scale it in passing: 2 + 2
        "rowwise": Casts((1, column), (b + 1, b + b + 1), 1 + column, grad_weight=4 * scaled_after),
        # the weight by rows forward, as one tensor backward; the GEMM of grad_weight takes bf16
        "rowwise_with_gw_hp": Casts(input=(1, 0), weight=(b + 1, b + b + 1), grad_output=1),
    }[keys.recipe_name]


def once_a_step(compiled: bool, b: int, passes: int) -> tuple[float, float]:
    """`Casts.weight` of a pass where models/float8_weights.py casts once for all `passes` of a step.

    The cast reads a weight for its largest value, then to cast it; eager, it goes by way of a copy (2). Each backward
    pass makes a transposed copy of the FP8 weight (1 + 1).
    """
    cast = b + b + 1 if compiled else 33 + 2
    return 0, cast / passes + 1 + 1
