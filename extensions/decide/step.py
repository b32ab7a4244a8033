"""Predict a training step from rooflines.

A roofline is the least time that the GPU's datasheet allows: FLOPs over its peak, or bytes over its
bandwidth. Only ratios matter: bf16 matmuls are taken to be at theirs.
"""

import numpy as np

from models.flops import q_dim
from models.gpus import GPUS

# How much of a block's forward pass is computed again; "half": selective, by operator
RECOMPUTED = {"none": 0.0, "half": 0.5, "full": 1.0}


def parts(training) -> list[float]:
    """Give the rooflines of a step's parts, in seconds.

    First, in bf16, the matmuls that FP8 computes. Then the rest: the head, attention, element-wise
    work, AdamW. Last, to move a byte of each element that is cast.

    Args:
        training: has a model's `sizes`; the key of a `gpu`, and how many `gpus` there are; the
            tokens of a row, `seq_len`, and of a GPU's step, `step_tokens`; `recompute`, a key of
            `RECOMPUTED`; and `frozen`, how many weights are not trained.
    """
    gpu, again = GPUS[training.gpu], RECOMPUTED[training.recompute]
    sizes, tokens = training.sizes, training.step_tokens
    layers = np.array([*sizes.block_shapes().values()], float)
    weights = sizes.n_layers * layers.prod(axis=1).sum()
    features = sizes.n_layers * layers.sum()
    head = sizes.vocab_size * sizes.dim
    attention = training.seq_len * q_dim(sizes) * sizes.n_layers * (3.5 + again)
    # Kernels of a compiled block move some 4.5 bytes for each feature of its linear layers.
    moved = tokens * (4.5 * features * (1 + again / 4) + 6 * sizes.vocab_size)
    moved += 16 * (weights + 2 * head) / training.gpus  # by AdamW
    return [
        2 * tokens * (weights * (3 + again) - training.frozen) / gpu.bf16,
        2 * tokens * (3 * head + attention) / gpu.bf16 + moved / gpu.bandwidth,
        (tokens * features + weights) / gpu.bandwidth,
    ]
