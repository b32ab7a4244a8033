"""A prediction of the ladder to FP8 all-gather on GPUs, from the least time of a step: nobody has
measured it here.

A step is the sum of its products and attention at the GPU's sustained rates and of what it reads
and writes at its memory bandwidth, as in models/floors.py, and of what is sent beside nothing.
FSDP2 gathers a block's weights while the block before computes, and reduces its gradients while the
next one does, over one link: of that, what takes longer than the computing is exposed, and the
first gather and the last reduction are. Latencies, contention of NCCL's kernels with products for
multiprocessors, and the host's time are left out; so the two rungs with FP8 all-gather are one.
"""

from dataclasses import dataclass
from types import SimpleNamespace

import pandas as pd

from analysis.comparison import COMPILED
from analysis.ladder import COMBINED, COMPUTE, EACH, PUBLISHED
from models.flops import fsdp_bytes, kv_dim, linear_shapes
from models.gpus import GPUS


def _llama(**sizes) -> SimpleNamespace:
    return SimpleNamespace(n_kv_heads=8, head_dim=128, vocab_size=128256, qk_norm=False, enable_weight_tying=False,
                           fused_projections=False, **sizes)  # fmt: skip


@dataclass(frozen=True)
class Scale:
    """A training run: its model, its GPUs, and what each of them computes in a step."""

    model: str
    args: SimpleNamespace
    gpus: int
    gpu: str  # a key of models.gpus.GPUS, one with links
    tokens: int
    seq_len: int
    recompute: bool  # full activation checkpointing

    @property
    def name(self) -> str:
        return f"{self.model} on {self.gpus} {self.gpu.upper()}"


_8B = _llama(dim=4096, n_layers=32, n_heads=32, hidden_dim=14336)
_70B = _llama(dim=8192, n_layers=80, n_heads=64, hidden_dim=28672)
SCALES = [
    # torchtitan's benchmark of December 2024 (rows of 8,192, two a GPU; its selective checkpointing
    # is not counted)
    Scale("8 B", _8B, 8, "h100", 2 * 8192, 8192, False),
    # the post's, which does not say how much a GPU computes: one row of 8,192 is assumed
    Scale("70 B", _70B, 128, "h100", 8192, 8192, True),
    # the same on Alps, whose nodes have half of the network's bandwidth for each GPU, and four GPUs
    Scale("8 B", _8B, 8, "gh200", 2 * 8192, 8192, False),
    Scale("70 B", _70B, 128, "gh200", 8192, 8192, True),
]
# 8,532 over 6,667 tokens/s: github.com/pytorch/torchtitan,
# benchmarks/llama3_h100_202412_torchtitan.md
_MEASURED = {
    ("8 B on 8 H100", COMBINED): 8532 / 6667,
    ("70 B on 128 H100", COMPUTE): PUBLISHED[COMPUTE],
    ("70 B on 128 H100", COMBINED): PUBLISHED[COMBINED],
}


def step(scale: Scale, rung: str) -> dict[str, float]:
    """Seconds of a step's parts, and bytes that it gathers and reduces."""
    rates, head = GPUS[scale.gpu].rates, scale.args.vocab_size * scale.args.dim
    fp8, gathered_fp8 = rung != COMPILED, rung in (EACH, COMBINED)
    linears = linear_shapes(scale.args)
    weights = sum(rows * columns for rows, columns in linears.values()) - head  # of the blocks
    passes = 4 if scale.recompute else 3  # forward, two backward; forward again
    products = (
        2
        * scale.tokens
        * (passes * weights / (rates.fp8 if fp8 else rates.bf16) + 3 * head / rates.bf16)
    )
    attention = (
        2 * scale.tokens * scale.seq_len * scale.args.dim * scale.args.n_layers
    )  # one causal forward pass
    attention *= (2 + 2.5 if scale.recompute else 1 + 2.5) / rates.bf16
    # Every GPU casts whole weights for both directions: it reads 2 bytes and writes 1. Or it casts
    # shards of them and transposes what it gathered, reading and writing 1.
    casts = weights * (2 * 3 / scale.gpus + 2 if gathered_fp8 else 2 * 3) * fp8
    parts = {
        "products": products,
        "attention": attention,
        "other kernels": _other_bytes(scale, fp8) / rates.bandwidth,
        "casts of weights": casts / rates.bandwidth,
    }
    names = {f"{name}.weight" for name in linears if name != "output"}
    sent = _exposed(scale, sum(parts.values()), names if gathered_fp8 else set())
    return parts | sent


def _other_bytes(scale: Scale, fp8: bool) -> float:
    """To and from memory, of kernels that are no products: see models/floors.py, for bf16
    parameters."""
    args, d, kv, f = scale.args, scale.args.dim, kv_dim(scale.args), scale.args.hidden_dim
    forward, backward = 16 * d + 4 * (d + kv) + 6 * f, 22 * d + 4 * (d + kv) + 10 * f
    again = forward - 4 * d if scale.recompute else 0
    block = forward + again + backward + (8 * d + 4 * kv) * fp8
    optimizer = (
        16 * sum(rows * columns for rows, columns in linear_shapes(args).values()) / scale.gpus
    )
    return scale.tokens * (args.n_layers * block + 14 * d + 6 * args.vocab_size) + optimizer


def _exposed(scale: Scale, computing: float, fp8: set[str]) -> dict[str, float]:
    """Seconds in which a GPU sends and does not compute, of a step that computes for so long; and
    bytes of the step."""
    args, bandwidth = scale.args, GPUS[scale.gpu].links.bus_bandwidth(scale.gpus)
    share = (scale.gpus - 1) / scale.gpus
    shapes = {f"{name}.weight": shape for name, shape in linear_shapes(args).items()}
    shapes |= {"tok_embeddings.weight": (args.vocab_size, args.dim)}

    def seconds(prefix: str) -> tuple[float, float]:
        own = {name: shape for name, shape in shapes.items() if name.startswith(prefix)}
        gathered, reduced = fsdp_bytes(own, scale.gpus, fp8, reshard="never")  # gathered once
        return gathered * share / bandwidth, reduced * share / bandwidth

    (gather, reduce), embedding = seconds("layers.0."), seconds("tok_embeddings.")
    forward = computing / args.n_layers / (4 if scale.recompute else 3)
    backward = computing / args.n_layers - forward
    beside = args.n_layers * (max(0.0, gather - forward) + max(0.0, gather + reduce - backward))
    gathered, reduced = fsdp_bytes(shapes, scale.gpus, fp8)
    return {
        "sent beside nothing": beside + sum(embedding),
        "gathered": gathered,
        "reduced": reduced,
    }


def table() -> pd.DataFrame:
    """One row a scale and rung: milliseconds by part, GB that are sent, predicted and measured
    speed over bf16."""
    rows = []
    for scale in SCALES:
        whole = {}
        for rung in (COMPILED, COMPUTE, COMBINED):
            found = step(scale, rung)
            sizes = {f"{name}, GB": found.pop(name) / 1e9 for name in ("gathered", "reduced")}
            whole[rung] = sum(found.values())
            rows.append(
                {
                    "scale": scale.name,
                    "rung": rung,
                    **{f"{part}, ms": 1e3 * s for part, s in found.items()},
                    **sizes,
                }
                | {
                    "predicted": whole[COMPILED] / whole[rung],
                    "published": _MEASURED.get((scale.name, rung)),
                }
            )
    return pd.DataFrame(rows).set_index(["scale", "rung"])


def cost_of_an_all_reduce(scale: Scale) -> float:
    """Seconds that an all-reduce for each weight costs, by the published 1.42 and 1.50 and a
    predicted step in bf16."""
    found = step(scale, COMPILED)
    in_bf16 = sum(found.values()) - found["gathered"] - found["reduced"]
    calls = 2 * (
        len(linear_shapes(scale.args)) - 1
    )  # forward and backward, of all layers but the head
    return in_bf16 * (1 / PUBLISHED[EACH] - 1 / PUBLISHED[COMBINED]) / calls
