"""A training step in bf16 and in FP8, as a sum of rooflines.

A roofline is the least time that the GPU's datasheet allows: FLOPs over its peak, or bytes over its
bandwidth. Only ratios matter: bf16 matmuls are as far from their roofline as all else here.
"""

from typing import NamedTuple

from models.flops import Sizes, q_dim
from models.gpus import GPUS

# How far above their rooflines parts are, in multiples of a bf16 matmul's distance
ATTENTION = 2.0  # flash attention
ELEMENTWISE = 2.0  # norms, RoPE, SwiGLU, loss, optimizer
GAP_S = 2e-6  # around each FP8 matmul: its scales, its launch
# How much of a block's forward pass is computed again; "half": selective, by operator
RECOMPUTED = {None: 0.0, "none": 0.0, "half": 0.5, "full": 1.0}
# Kinds of linear layers, and the embedding
LAYERS = ("wq", "wk", "wv", "wo", "w1", "w2", "w3", "output", "tok_embeddings")


class Factors(NamedTuple):
    """The fitted parameters."""

    rowwise: float  # time of an FP8 matmul with scales of rows, over that with one scale
    bytes_a_cast: float  # bytes moved for each element that is cast


class Work(NamedTuple):
    """Seconds of a step's parts in bf16; `cast` is the time to move a byte of each element."""

    fp8_able: float  # matmuls that FP8 computes
    rest: float
    cast: float
    gaps: float


def work(
    sizes: Sizes,
    gpu: str,
    batch: int,
    sequence: int,
    gpus: int = 1,
    recompute: str | None = None,
    frozen: tuple[str, ...] = (),
    head_fp8: bool = False,
    bandwidth: float | None = None,
) -> Work:
    """Add up the rooflines of a step of `batch` rows a GPU.

    Args:
        gpu: a key of `GPUS`.
        frozen: kinds of layers without a weight gradient.
        head_fp8: the head is in FP8 as the blocks are.
        bandwidth: B/s, where it is not the GPU's.
    """
    peak = GPUS[gpu].datasheet.bf16
    bandwidth = bandwidth or GPUS[gpu].datasheet.bandwidth
    tokens, again = batch * sequence, RECOMPUTED[recompute]
    head = sizes.vocab_size * sizes.dim
    in_bf16 = in_fp8 = weights = features = matmuls = 0
    for name, (n, k) in sizes.linear_shapes().items():
        layer = name.split(".")[-1]
        computed = (3 - (layer in frozen)) * n * k
        if layer == "output" and not head_fp8:
            in_bf16 += computed
            continue
        in_fp8 += computed + again * n * k
        weights += n * k
        features += n + k
        matmuls += 3
    attention = 2 * tokens * sequence * q_dim(sizes) * sizes.n_layers * (3.5 + again) / peak
    # Kernels of a compiled block move some 4.5 bytes for each feature of its linear layers.
    moved = tokens * (4.5 * features * (1 + again / 4) + 6 * sizes.vocab_size)
    moved += 16 * (weights + 2 * head) / gpus  # by AdamW
    return Work(
        fp8_able=2 * tokens * in_fp8 / peak,
        rest=2 * tokens * in_bf16 / peak + ATTENTION * attention + ELEMENTWISE * moved / bandwidth,
        cast=(tokens * features + weights) / bandwidth,
        gaps=GAP_S * matmuls,
    )


def speed_up(factors: Factors, parts: Work, rowwise: bool) -> float:
    """Predict FP8's speed over bf16's."""
    in_fp8 = parts.fp8_able / 2 * (factors.rowwise if rowwise else 1)
    casts = factors.bytes_a_cast * parts.cast + parts.gaps
    return (parts.fp8_able + parts.rest) / (in_fp8 + parts.rest + casts)
