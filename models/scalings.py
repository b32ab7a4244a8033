"""The scalings of FP8: what `quantize.linear.float8.recipe_name` of a recipe can be.

A cast multiplies values by a scale that takes the largest of them to the format's largest value.
Scalings differ in which values share a scale:

* `tensorwise`: all of a tensor. Then one outlier makes all other values small.
* `rowwise`: each row of the left operand and each column of the right one, so that an outlier costs
  only its own row. `rowwise_with_gw_hp` computes the gradient of the weight in bf16.
* `delayed`: all of a tensor, by the largest values of the last steps, so that a cast need not first
  find the largest value.
* `blockwise`, DeepSeek-V3's (arXiv 2412.19437): 1 x 128 values of inputs and gradients, and 128 x
  128 of weights.
* `mxfp8`, OCP's format: 32 values, by a power of two that is rounded so that nothing saturates
  (arXiv 2506.08027). `mxfp8_ocp` rounds as the OCP text does, and saturates up to an eighth of the
  range.
"""

from typing import NamedTuple

ALL = 2**30  # more than any matrix has rows or columns
TENSOR, ROW = (ALL, ALL), (1, ALL)


class Scaling(NamedTuple):
    """How the operands of a linear layer's three matmuls are cast."""

    name: str
    values: tuple[int, int]  # of inputs and gradients: rows x values along the sum share a scale
    weights: tuple[int, int]  # the same of weights
    gradients: str  # FP8 format of gradients of outputs; inputs and weights are e4m3
    matmuls: int = 3  # in FP8, of a layer's three; the others are in bf16
    scale: str = "float32"  # how a scale is made of the largest magnitude, see scaled_linear.py
    scale_bytes: int = 4
    in_torchao: bool = False  # torchao has the layer

    @property
    def by_rows(self) -> bool:
        """True if an operand's rows have scales of their own."""
        return self.values == ROW

    @property
    def by_blocks(self) -> bool:
        """True if operands have scales of blocks. They have no matmul here: they are rounded to FP8
        and multiplied in float32, everywhere."""
        return self.values not in (TENSOR, ROW)


SCALINGS = {
    scaling.name: scaling
    for scaling in (
        #       name                  values    weights     gradients
        Scaling("tensorwise",         TENSOR,   TENSOR,     "e5m2", in_torchao=True),
        Scaling("rowwise",            ROW,      ROW,        "e4m3", in_torchao=True),
        Scaling("rowwise_with_gw_hp", ROW,      ROW,        "e4m3", in_torchao=True, matmuls=2),
        Scaling("delayed",            TENSOR,   TENSOR,     "e5m2"),
        Scaling("blockwise",          (1, 128), (128, 128), "e4m3"),
        Scaling("mxfp8",              (1, 32),  (1, 32),    "e4m3", scale="mx_up", scale_bytes=1),
        Scaling("mxfp8_ocp",          (1, 32),  (1, 32),    "e4m3", scale="mx_ocp", scale_bytes=1),
    )
}  # fmt: skip
