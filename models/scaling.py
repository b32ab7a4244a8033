"""List torchao's scalings of FP8, the values of `quantize.linear.float8.recipe_name`.

A cast multiplies values by a scale that takes the largest of them to the format's largest value.
Scalings differ in which values share a scale:

* `tensorwise`: all of a tensor. Then one outlier makes all other values small.
* `rowwise`: each row of the left operand and each column of the right one, so that an outlier costs
  only its own row. `rowwise_with_gw_hp` computes the gradient of the weight in bf16.
"""

from typing import NamedTuple


class Scaling(NamedTuple):
    """How the operands of a linear layer's three matmuls are cast."""

    by_rows: bool  # an operand's rows have scales of their own
    matmuls: int = 3  # in FP8, of a layer's three; the others are in bf16


SCALINGS = {
    "tensorwise": Scaling(by_rows=False),
    "rowwise": Scaling(by_rows=True),
    "rowwise_with_gw_hp": Scaling(by_rows=True, matmuls=2),
}
