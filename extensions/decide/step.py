"""Predict a training step in bf16 and in FP8 from rooflines.

A roofline is the least time that the GPU's datasheet allows: FLOPs over its peak, or bytes over its
bandwidth. Only ratios matter: bf16 matmuls are taken to be at theirs.
"""

from operator import mul
from types import SimpleNamespace

from models.flops import q_dim
from models.gpus import GPUS, chip

# How much of a block's forward pass is computed again; "half": selective, by operator
RECOMPUTED = {"none": 0.0, "half": 0.5, "full": 1.0}


class Training(SimpleNamespace):
    """A training that a command line asks about, or that was measured.

    Attributes:
        sizes: `models.flops.Sizes`.
        gpu: a key of `GPUS`; None where it is not known.
        gpus: how many there are.
        batch: rows of a GPU's step.
        sequence: tokens of a row.
        recompute: a key of `RECOMPUTED`.
        freeze: the layers that are not trained, e.g. `w1`.
    """

    @property
    def parameters(self) -> int:
        """Count the model's parameters."""
        return self.sizes.parameters()

    @property
    def frozen(self) -> int:
        """Count the weights that are not trained."""
        layers = self.sizes.linear_shapes().items()
        return sum(n * k for name, (n, k) in layers if name[-2:] in self.freeze)

    @property
    def tokens(self) -> int:
        """Count the tokens of a GPU's step."""
        return self.batch * self.sequence

    @property
    def chip(self) -> str | None:
        """Name the GPU's chip."""
        return chip(self.gpu)


def parts(training: Training) -> tuple[float, float, float]:
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


def step(training: Training, factors: dict[str, list[float]]) -> dict[str, float]:
    """Predict the seconds of a step in bf16 and by scaling: a sum of its parts, each times its
    factor."""
    found = parts(training)
    return {name: sum(map(mul, of, found)) for name, of in factors.items()}


def beyond(training: Training, limits: dict[str, list[float]]) -> list[str]:
    """Name what of a training is outside of limits: [least, most] by name."""
    return [
        name
        for name, (least, most) in limits.items()
        if not least <= getattr(training, name) <= most
    ]
