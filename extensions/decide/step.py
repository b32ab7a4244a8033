"""Predict a training step in bf16 and in FP8 from rooflines.

A roofline is the least time that the GPU's datasheet allows: FLOPs over its peak, or bytes over its
bandwidth. Only ratios matter: bf16 matmuls are taken to be at theirs.

A training is what a command line asks about, or a published pair: its `sizes`
(`models.flops.Sizes`), their `parameters`, how many of them are `frozen`, `gpu` and its `chip`,
`gpus`, `sequence`, `tokens` of a GPU's step, and `recompute`.
"""

from operator import mul

from models.flops import q_dim
from models.gpus import GPUS

# How much of a block's forward pass is computed again; "half": selective, by operator
RECOMPUTED = {"none": 0.0, "half": 0.5, "full": 1.0}


def parts(training) -> tuple[float, float, float]:
    """Give the rooflines of a step's parts, in seconds.

    First, in bf16, the matmuls that FP8 computes. Then the rest: the head, attention, element-wise
    work, AdamW. Last, to move a byte of each element that is cast.
    """
    gpu, again = GPUS[training.gpu], RECOMPUTED[training.recompute]
    sizes, tokens = training.sizes, training.tokens
    *layers, (vocab, dim) = sizes.linear_shapes().values()
    weights = sum(n * k for n, k in layers)
    features = sum(n + k for n, k in layers)
    computed = weights * (3 + again) - training.frozen
    attention = training.sequence * q_dim(sizes) * sizes.n_layers * (3.5 + again)
    # Kernels of a compiled block move some 4.5 bytes for each feature of its linear layers.
    moved = tokens * (4.5 * features * (1 + again / 4) + 6 * vocab)
    moved += 16 * (weights + 2 * vocab * dim) / training.gpus  # by AdamW
    return (
        2 * tokens * computed / gpu.bf16,
        2 * tokens * (3 * vocab * dim + attention) / gpu.bf16 + moved / gpu.bandwidth,
        (tokens * features + weights) / gpu.bandwidth,
    )


def step(training, factors: dict[str, list[float]]) -> dict[str, float]:
    """Predict the seconds of a step in bf16 and by scaling: a sum of its parts, each times its
    factor."""
    found = parts(training)
    return {name: sum(map(mul, of, found)) for name, of in factors.items()}


def beyond(training, limits: dict[str, list[float]]) -> list[str]:
    """Name what of a training is outside of limits: [least, most] by name."""
    return [
        name
        for name, (least, most) in limits.items()
        if not least <= getattr(training, name) <= most
    ]
