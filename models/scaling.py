"""List torchao's scalings of FP8, the values of `quantize.linear.float8.recipe_name`.

A cast multiplies values by a scale that takes the largest of them to the format's largest value.
Scalings differ in which values share a scale:

* `tensorwise`: all of a tensor. Then one outlier makes all other values small.
* `rowwise`: each row of the left operand and each column of the right one, so that an outlier costs
  only its own row. `rowwise_with_gw_hp` computes the gradient of the weight in bf16.

FP8's matmuls take no sides but multiples of 16: of a layer, and the tokens of a forward pass.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from models.errors import format_name_patterns

FILTER_KEY = "quantize.linear.float8.filter_fqns"
SIDE_MULTIPLE = 16


class Scaling(NamedTuple):
    """How the operands of a linear layer's three matmuls are cast."""

    row_scales: bool  # an operand's rows have scales of their own
    matmuls: int = 3  # in FP8, of a layer's three; the others are in bf16


SCALINGS = {
    "tensorwise": Scaling(row_scales=False),
    "rowwise": Scaling(row_scales=True),
    "rowwise_with_gw_hp": Scaling(row_scales=True, matmuls=2),
}


def find_unfit_layers(shapes: Mapping[str, Sequence[int]]) -> list[str]:
    """Name the layers with a side of no multiple of 16: FP8 cannot multiply them.

    `shapes`: (out_features, in_features) by module name.
    """
    return [name for name, sides in shapes.items() if any(side % SIDE_MULTIPLE for side in sides)]


def explain_unfit_layers(names: list[str]) -> str:
    """Say what to do about the layers of `find_unfit_layers`."""
    patterns = format_name_patterns(names)
    return (
        f"FP8 needs layers whose sides are multiples of {SIDE_MULTIPLE}: add {patterns} to "
        f"{FILTER_KEY}, or choose another model.flavor or model.sizes"
    )


def explain_unfit_tokens(seq_len: int, batch: int) -> str | None:
    """Say why FP8 cannot multiply the tokens of a forward pass; None if it can."""
    tokens = seq_len * batch
    if tokens % SIDE_MULTIPLE == 0:
        return None
    return (
        f"seq_len x local_batch_size is {tokens}; FP8 needs a multiple of {SIDE_MULTIPLE}, since "
        "the weight-gradient GEMM contracts over tokens"
    )
