"""A training that somebody asks about: its memory, and the rooflines of its step.

A roofline is the least time that the GPU's datasheet allows: FLOPs over its peak, or bytes over its
bandwidth.
"""

from dataclasses import dataclass, replace

import numpy as np

from extensions.decide.model import HEAD, Model
from models import flops
from models.gpus import GPUS

# How much of a block's forward pass is computed again; "half": selective, by operator
RECOMPUTED = {"none": 0.0, "half": 0.5, "full": 1.0}
BYTES_A_PARAMETER = 8  # in bf16: itself, its gradient, and AdamW's two moments


@dataclass(frozen=True)
class Training:
    """A training that somebody asks about."""

    model: Model
    gpu: str  # a key of GPUS, or the name of a GPU without FP8 units
    gpus: int
    batch: int  # rows of a GPU's forward pass
    seq_len: int
    recompute: str  # a key of RECOMPUTED
    frozen: float = 0  # weights that are not trained
    bf16_layers: frozenset[str] = HEAD  # linear layers that stay in bf16

    @property
    def sizes(self) -> flops.Sizes:
        """The sizes of the model."""
        return self.model.sizes

    @property
    def parameters(self) -> float:
        """The parameters of the model."""
        return self.model.parameters

    @property
    def step_tokens(self) -> int:
        """The tokens of a GPU's forward pass."""
        return self.batch * self.seq_len

    @property
    def bf16_share(self) -> float:
        """The share of the blocks' matmul FLOPs that stays in bf16."""
        return share_of(self.sizes, self.bf16_layers)


def share_of(sizes: flops.Sizes, layers: frozenset[str]) -> float:
    """Compute the share of the blocks' matmul FLOPs in some layers."""
    blocks = block_weights(sizes)
    return sum(blocks[name] for name in blocks if name in layers) / sum(blocks.values())


def block_weights(sizes: flops.Sizes) -> dict[str, float]:
    """Count the weights of each linear layer but the head."""
    return {name: n * k for name, (n, k) in sizes.linear_shapes().items() if name not in HEAD}


def choose_recompute(asked: Training, ways: list[str]) -> tuple[Training, float]:
    """Choose the first of the ways to recompute with which a training fits, else the last.

    Returns the training with it, and the bytes that bf16 training needs on each GPU; nan where the
    sizes are not known.
    """
    for way in ways:
        training = replace(asked, recompute=way)
        needed = count_memory(training)
        if needed <= GPUS[asked.gpu].memory:
            break
    return training, needed


def count_memory(training: Training) -> float:
    """Count the bytes that bf16 training needs on each GPU.

    Frozen weights have neither gradients nor moments. Of a mixture of experts whose sizes are not
    known, parameters, gradients and moments alone are counted.
    """
    if training.sizes is None:
        return training.parameters * BYTES_A_PARAMETER / training.gpus
    uses = flops.memory(
        training.sizes,
        training.step_tokens,
        training.gpus,
        recomputes=training.recompute == "full",
    )
    frozen = training.frozen / training.parameters * (uses["optimizer"] + uses["gradients"])
    return sum(uses.values()) - frozen


def parts(training, bf16_layers: frozenset[str] = HEAD) -> list[float]:
    """Give the rooflines of a step's parts, in seconds.

    First, in bf16, the matmuls that FP8 computes. Then the rest: other matmuls, attention,
    element-wise work, AdamW. Last, to move a byte of each element that is cast.

    Args:
        training: has what `Training` has, of it `sizes`, `gpu`, `gpus`, `seq_len`, `step_tokens`,
            `recompute` and `frozen`.
        bf16_layers: linear layers that stay in bf16.
    """
    gpu = GPUS[training.gpu]
    tokens = training.step_tokens
    again = RECOMPUTED[training.recompute]
    shapes = training.sizes.linear_shapes()
    weights = block_weights(training.sizes)
    fp8_layers = [name for name in shapes if name not in bf16_layers]
    fp8_blocks = sum(weights[name] for name in fp8_layers if name in weights)
    bf16_blocks = sum(weights.values()) - fp8_blocks
    vocab_size, dim = shapes["output"]
    head = vocab_size * dim
    fp8_head = head * ("output" in fp8_layers)
    attention = (
        training.seq_len * flops.q_dim(training.sizes) * training.sizes.n_layers * (3.5 + again)
    )
    # Kernels of a compiled block move some 4.5 bytes for each feature of its linear layers.
    features = float(sum(n + k for name, (n, k) in shapes.items() if name in weights))
    moved = tokens * (4.5 * features * (1 + again / 4) + 6 * vocab_size)
    moved += 16 * (sum(weights.values()) + 2 * head) / training.gpus  # by AdamW
    fp8_weights = fp8_blocks * (3 + again) - training.frozen + 3 * fp8_head
    bf16_weights = bf16_blocks * (3 + again) + 3 * (head - fp8_head)
    cast = sum(tokens * (n + k) + n * k for n, k in (shapes[name] for name in fp8_layers))
    return [
        2 * tokens * fp8_weights / gpu.bf16,
        2 * tokens * (bf16_weights + attention) / gpu.bf16 + moved / gpu.bandwidth,
        cast / gpu.bandwidth,
    ]


def step_seconds(training: Training, factors: list) -> np.ndarray:
    """Predict the seconds of a step: (recipe, [value, low, high]); `factors` of fitted.yaml."""
    return np.matmul(factors, parts(training, training.bf16_layers))
