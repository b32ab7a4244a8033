"""A training step in bf16 and in FP8: rooflines of its parts, and how far real parts are.

A roofline is the least time that the GPU's datasheet allows: FLOPs over its peak, or bytes over its
bandwidth. `Factors` say how far above their rooflines real parts are, measured by bf16 matmuls,
whose own slowness cancels in a speed-up. extensions/decide/fit.py fits them to published pairs.
"""

from dataclasses import dataclass
from math import log
from typing import NamedTuple

from models.flops import Sizes, kv_dim, q_dim
from models.gpus import GPUS

# B/s of GPUs whose memory is not that of their key in models/gpus.py
BANDWIDTH = {"H100 96GB": 2.4e12}
# Kinds of linear layers of a block, the head and the embedding
LAYERS = ("wq", "wk", "wv", "wo", "w1", "w2", "w3", "output", "tok_embeddings")
# How much of a block's forward pass is computed again; "half": selective, by operator
RECOMPUTED = {None: 0.0, "none": 0.0, "half": 0.5, "full": 1.0}


class Factors(NamedTuple):
    """Parameters of the time model."""

    attention: float  # flash attention, over its roofline
    elementwise: float  # norms, RoPE, SwiGLU, loss, optimizer, over theirs
    rowwise: float  # FP8 matmuls with scales of rows, over those with one scale
    torchao: float  # bytes moved for each element that is cast: amax, cast, transposition, compiled
    transformer_engine: float  # the same, with scales of earlier steps
    hand_written: float  # the same, fused into the kernels before
    gap: float  # µs around each FP8 matmul: its scales, its launch

    def bytes_a_cast(self, stack: str) -> float:
        """Bytes that a stack moves for each element that it casts."""
        return getattr(self, stack.lower().replace(" ", "_").replace("-", "_"))


@dataclass(frozen=True)
class Setting:
    """What is trained where: `batch` rows of `sequence` tokens a GPU and forward pass."""

    sizes: Sizes
    gpu: str  # a key of models.gpus.GPUS
    batch: float
    sequence: int
    gpus: int = 1
    passes: int = 1  # forward passes of an optimizer step
    recompute: str | None = "none"
    stack: str = "torchao"
    rowwise: bool = False
    left_out: tuple[str, ...] = ("output",)  # layers that stay in bf16
    frozen: tuple[str, ...] = ()  # layers without a weight gradient
    matmuls: int = 3  # of a layer's three, those in FP8
    tensor_parallel: int = 1
    context_parallel: int = 1
    bandwidth: float | None = None  # B/s, where it is not the key's


class Rooflines(NamedTuple):
    """Seconds of a forward and backward pass at the datasheet's rates."""

    fp8_able: float  # matmuls that FP8 computes, in bf16
    other: float  # all other matmuls
    attention: float
    moved: float  # element-wise work
    cast: float  # to move one byte of each element that is cast
    count: int  # FP8 matmuls


def layers(setting: Setting) -> dict[str, tuple[float, float, int]]:
    """Return (out_features, in_features, how many) of each kind of linear layer of one GPU."""
    sizes, cut = setting.sizes, setting.tensor_parallel
    dim, ffn = sizes.dim, sizes.hidden_dim / cut
    q, kv = q_dim(sizes) / cut, kv_dim(sizes) / cut
    block = {"wq": (q, dim), "wk": (kv, dim), "wv": (kv, dim), "wo": (dim, q)}
    block |= {"w1": (ffn, dim), "w3": (ffn, dim), "w2": (dim, ffn)}
    found = {name: (n, k, sizes.n_layers) for name, (n, k) in block.items()}
    return found | {"output": (sizes.vocab_size / cut, dim, 1)}


def rooflines(setting: Setting) -> Rooflines:
    """Add up the rooflines of a step's parts."""
    sizes, cut = setting.sizes, setting.tensor_parallel
    rates = GPUS[setting.gpu].datasheet
    bandwidth = setting.bandwidth or rates.bandwidth
    tokens = setting.batch * setting.sequence / setting.context_parallel
    again = RECOMPUTED[setting.recompute]
    q, kv, ffn = q_dim(sizes) / cut, kv_dim(sizes) / cut, sizes.hidden_dim / cut
    fp8_able = other = cast = count = weights = 0
    for name, (n, k, many) in layers(setting).items():
        one = 2 * tokens * n * k * many / rates.bf16
        computed = 2 if name in setting.frozen else 3
        repeated = again * (name != "output")
        weights += n * k * many
        if name in setting.left_out:
            other += one * (computed + repeated)
            continue
        in_fp8 = min(computed, setting.matmuls)
        fp8_able += one * (in_fp8 + repeated)
        other += one * (computed - in_fp8)
        cast += many * (tokens * (n + k) + n * k)
        count += 3 * many
    n_layers, head = sizes.n_layers, sizes.vocab_size / cut
    scores = 2 * tokens * setting.sequence * q
    # Bytes by the kernels of a compiled block: norms and sums, RoPE, SwiGLU; logits; AdamW.
    block = 30 * sizes.dim + 8 * (q + kv) + 16 * ffn + again * (8 * sizes.dim + 6 * ffn)
    moved = tokens * (n_layers * block + 6 * head)
    moved += 16 * (weights + sizes.dim * head) / setting.gpus / setting.passes
    return Rooflines(
        fp8_able,
        other,
        n_layers * scores * (3.5 + again) / rates.bf16,
        moved / bandwidth,
        cast / bandwidth,
        count,
    )


def times(factors: Factors, setting: Setting, work: Rooflines) -> tuple[float, float]:
    """Seconds of the pass in bf16 and in FP8, as if bf16 matmuls were at their roofline."""
    alike = work.other + factors.attention * work.attention + factors.elementwise * work.moved
    in_fp8 = work.fp8_able / 2 * (factors.rowwise if setting.rowwise else 1)
    casts = factors.bytes_a_cast(setting.stack) * work.cast + 1e-6 * factors.gap * work.count
    return alike + work.fp8_able, alike + in_fp8 + casts


def log_speed_up(factors: Factors, setting: Setting, work: Rooflines) -> float:
    """Predict the logarithm of FP8's speed over bf16's."""
    bf16, fp8 = times(factors, setting, work)
    return log(bf16 / fp8)
