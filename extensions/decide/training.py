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


def share_of(sizes: flops.Sizes, layer_names: frozenset[str]) -> float:
    """Compute the share of the blocks' matmul FLOPs in some layers."""
    weight_counts = block_weights(sizes)
    return sum(weight_counts[name] for name in weight_counts if name in layer_names) / sum(
        weight_counts.values()
    )


def block_weights(sizes: flops.Sizes) -> dict[str, float]:
    """Count the weights of each linear layer but the head."""
    return {name: n * k for name, (n, k) in sizes.linear_shapes().items() if name not in HEAD}


def choose_recompute(asked_training: Training, recompute_ways: list[str]) -> tuple[Training, float]:
    """Choose the first of the ways to recompute with which a training fits, else the last.

    Returns the training with it, and the bytes that bf16 training needs on each GPU; nan where the
    sizes are not known.
    """
    for recompute_way in recompute_ways:
        training = replace(asked_training, recompute=recompute_way)
        memory_bytes = count_memory(training)
        if memory_bytes <= GPUS[asked_training.gpu].memory:
            break
    return training, memory_bytes


def count_memory(training: Training) -> float:
    """Count the bytes that bf16 training needs on each GPU.

    Frozen weights have neither gradients nor moments. Of a mixture of experts whose sizes are not
    known, parameters, gradients and moments alone are counted.
    """
    if training.sizes is None:
        return training.parameters * BYTES_A_PARAMETER / training.gpus
    memory_uses = flops.estimate_memory(
        training.sizes,
        training.step_tokens,
        training.gpus,
        recomputes=training.recompute == "full",
    )
    frozen_bytes = (
        training.frozen
        / training.parameters
        * (memory_uses["optimizer"] + memory_uses["gradients"])
    )
    return sum(memory_uses.values()) - frozen_bytes


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
    step_tokens = training.step_tokens
    recomputed_share = RECOMPUTED[training.recompute]
    layer_shapes = training.sizes.linear_shapes()
    weight_counts = block_weights(training.sizes)
    fp8_layers = [name for name in layer_shapes if name not in bf16_layers]
    fp8_blocks = sum(weight_counts[name] for name in fp8_layers if name in weight_counts)
    bf16_blocks = sum(weight_counts.values()) - fp8_blocks
    vocab_size, dim = layer_shapes["output"]
    head_weights = vocab_size * dim
    fp8_head = head_weights * ("output" in fp8_layers)
    attention_work = (
        training.seq_len
        * flops.q_dim(training.sizes)
        * training.sizes.n_layers
        * (3.5 + recomputed_share)
    )
    # Kernels of a compiled block move some 4.5 bytes for each feature of its linear layers.
    layer_features = float(
        sum(n + k for name, (n, k) in layer_shapes.items() if name in weight_counts)
    )
    moved_bytes = step_tokens * (4.5 * layer_features * (1 + recomputed_share / 4) + 6 * vocab_size)
    moved_bytes += 16 * (sum(weight_counts.values()) + 2 * head_weights) / training.gpus  # by AdamW
    fp8_weights = fp8_blocks * (3 + recomputed_share) - training.frozen + 3 * fp8_head
    bf16_weights = bf16_blocks * (3 + recomputed_share) + 3 * (head_weights - fp8_head)
    cast_bytes = sum(
        step_tokens * (n + k) + n * k for n, k in (layer_shapes[name] for name in fp8_layers)
    )
    return [
        2 * step_tokens * fp8_weights / gpu.bf16,
        2 * step_tokens * (bf16_weights + attention_work) / gpu.bf16 + moved_bytes / gpu.bandwidth,
        cast_bytes / gpu.bandwidth,
    ]


def step_seconds(training: Training, step_factors: list) -> np.ndarray:
    """Predict the seconds of a step: (recipe, [value, low, high]); `factors` of fitted.yaml."""
    return np.matmul(step_factors, parts(training, training.bf16_layers))
