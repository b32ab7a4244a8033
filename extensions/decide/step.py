"""Predict a training step in bf16 and in FP8 from rooflines.

A roofline is the least time that the GPU's datasheet allows: FLOPs over its peak, or bytes over its
bandwidth. Only ratios matter: bf16 matmuls are taken to be at theirs.
"""

from typing import NamedTuple

from models.flops import embedding, kv_dim, q_dim
from models.gpus import GPUS

# How much of a block's forward pass is computed again; "half": selective, by operator
RECOMPUTED = {"none": 0.0, "half": 0.5, "full": 1.0}


class Factors(NamedTuple):
    """What is fitted."""

    rowwise: float  # part that an FP8 matmul takes longer with scales of rows
    cast: float  # bytes moved for each element that is cast
    rest: float  # all that stays in bf16, in multiples of its roofline


class Work(NamedTuple):
    """Seconds of a step's parts at the roofline."""

    fp8_able: float  # matmuls that FP8 computes, in bf16
    rest: float  # the head, attention, element-wise work, AdamW
    cast: float  # to move a byte of each element that is cast

    def bf16(self, factors: Factors) -> float:
        """Predict the seconds of a step in bf16."""
        return self.fp8_able + factors.rest * self.rest

    def speed_up(self, factors: Factors, scaling: str) -> float:
        """Predict FP8's speed over bf16's."""
        rowwise = factors.rowwise if scaling == "rowwise" else 0
        saved = self.fp8_able / 2 * (1 - rowwise) - factors.cast * self.cast
        return self.bf16(factors) / (self.bf16(factors) - saved)


def frozen(on) -> int:
    """Count the weights of layers that are not trained."""
    shapes = on.sizes.linear_shapes().items()
    return sum(n * k for name, (n, k) in shapes if name.split(".")[-1] in on.freeze)


def work(on) -> Work:
    """Add up the rooflines of a step of a training: `Asked`, or a `Pair`."""
    gpu, tokens, again = GPUS[on.gpu], on.batch * on.sequence, RECOMPUTED[on.recompute]
    sizes = on.sizes
    head = sizes.vocab_size * sizes.dim
    weights = sizes.parameters() - embedding(sizes) - head
    heads = q_dim(sizes) + kv_dim(sizes)
    features = sizes.n_layers * (7 * sizes.dim + 2 * heads + 3 * sizes.hidden_dim)
    computed = weights * (3 + again) - frozen(on)
    attention = on.sequence * q_dim(sizes) * sizes.n_layers * (3.5 + again)
    # Kernels of a compiled block move some 4.5 bytes for each feature of its linear layers.
    moved = tokens * (4.5 * features * (1 + again / 4) + 6 * sizes.vocab_size)
    moved += 16 * (weights + 2 * head) / on.gpus  # by AdamW
    return Work(
        fp8_able=2 * tokens * computed / gpu.bf16,
        rest=2 * tokens * (3 * head + attention) / gpu.bf16 + moved / gpu.bandwidth,
        cast=(tokens * features + weights) / gpu.bandwidth,
    )
