"""Predict a training step in bf16 and in FP8 from rooflines.

A roofline is the least time that the GPU's datasheet allows: FLOPs over its peak, or bytes over its
bandwidth. Only ratios matter: bf16 matmuls are taken to be at theirs.

A training has `sizes` (`models.flops.Sizes`), `gpu`, `gpus`, `batch`, `sequence`, `recompute` and
`freeze`: it is what a command line asks about, or a published pair.
"""

from typing import NamedTuple

from models.flops import q_dim
from models.gpus import GPUS

# How much of a block's forward pass is computed again; "half": selective, by operator
RECOMPUTED = {"none": 0.0, "half": 0.5, "full": 1.0}


class Work(NamedTuple):
    """Seconds of a step's parts at the roofline."""

    fp8_able: float  # matmuls that FP8 computes, in bf16
    rest: float  # the head, attention, element-wise work, AdamW
    cast: float  # to move a byte of each element that is cast


def frozen(training) -> int:
    """Count the weights of layers that are not trained."""
    shapes = training.sizes.linear_shapes().items()
    return sum(n * k for name, (n, k) in shapes if name.split(".")[-1] in training.freeze)


def work(training) -> Work:
    """Add up the rooflines of a step."""
    gpu, again = GPUS[training.gpu], RECOMPUTED[training.recompute]
    sizes, tokens = training.sizes, training.batch * training.sequence
    layers = sizes.linear_shapes()
    vocab, dim = layers.pop("output")
    weights = sum(n * k for n, k in layers.values())
    features = sum(n + k for n, k in layers.values())
    computed = weights * (3 + again) - frozen(training)
    attention = training.sequence * q_dim(sizes) * sizes.n_layers * (3.5 + again)
    # Kernels of a compiled block move some 4.5 bytes for each feature of its linear layers.
    moved = tokens * (4.5 * features * (1 + again / 4) + 6 * vocab)
    moved += 16 * (weights + 2 * vocab * dim) / training.gpus  # by AdamW
    return Work(
        fp8_able=2 * tokens * computed / gpu.bf16,
        rest=2 * tokens * (3 * vocab * dim + attention) / gpu.bf16 + moved / gpu.bandwidth,
        cast=(tokens * features + weights) / gpu.bandwidth,
    )


def seconds(of: Work, rowwise: float, cast: float, rest: float) -> dict[str, float]:
    """Predict a step in bf16 and by scaling.

    Args:
        of: the step's parts; a frame with these columns predicts its rows.
        rowwise: part that an FP8 matmul takes longer with scales of rows.
        cast: bytes moved for each element that is cast.
        rest: all that stays in bf16, in multiples of its roofline.
    """
    half, same = of.fp8_able / 2, rest * of.rest
    tensorwise = half + same + cast * of.cast
    return {
        "bf16": of.fp8_able + same,
        "tensorwise": tensorwise,
        "rowwise": tensorwise + rowwise * half,
    }
