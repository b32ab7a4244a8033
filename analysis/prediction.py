"""A prediction of the ladder to FP8 all-gather on GPUs, where nobody has measured it here.

A step takes the least time of its kernels (models/floors.py) and of what is sent beside nothing.
FSDP2 gathers a block's weights while the block before computes, and reduces its gradients while the
next one does, over one link. Of that, what takes longer than the computing is exposed, and so are
the first gather and the last reduction. Latencies, contention of NCCL's kernels with matmuls for
multiprocessors, and the host's time are left out; so the two rungs with FP8 all-gather are one.
"""

from itertools import product
from typing import NamedTuple

import pandas as pd

from analysis.comparison import COMPILED
from analysis.other_logs.published import llama_3
from analysis.studies import COMBINED, COMPUTE, EACH, LADDER_PUBLISHED
from models import floors
from models.flops import Sizes, linear_shapes
from models.gpus import GPUS

SEQ_LEN = 8192
MATMULS, OTHERS, EXPOSED = "matmuls, ms", "other kernels, ms", "sent beside nothing, ms"
# The table's columns, by the parts of a step.
PARTS = {
    floors.MATMUL_FP8: MATMULS,
    floors.MATMUL_BF16: MATMULS,
    floors.ATTENTION: "attention, ms",
    floors.CASTS: "casts, ms",
    floors.ELEMENTWISE: OTHERS,
    floors.LOSS: OTHERS,
    floors.OPTIMIZER: OTHERS,
    EXPOSED: EXPOSED,
}
SENT = {COMPILED: 2, COMPUTE: 2, COMBINED: 1}  # bytes of a gathered weight


class Scale(NamedTuple):
    """A training run: its model, its GPUs, and what each of them computes in a step."""

    args: Sizes
    gpus: int
    gpu: str  # a key of models.gpus.GPUS, one with links
    step: floors.Step  # of each GPU


_8B = llama_3(4096, 32, 32, 14336)
_70B = llama_3(8192, 80, 64, 28672)
_TWO_ROWS = floors.Step(SEQ_LEN, rows=2)
_RECOMPUTED = floors.Step(SEQ_LEN, rows=1, forwards=2)
POST = "70 B on 128 H100"
SCALES = {
    # torchtitan's benchmark of December 2024; its selective checkpointing is not counted
    "8 B on 8 H100": Scale(_8B, 8, "h100", _TWO_ROWS),
    # the post's, which does not say how much a GPU computes: one row is assumed
    POST: Scale(_70B, 128, "h100", _RECOMPUTED),
    # the same on Alps, whose nodes have half of the network's bandwidth for each GPU, and four GPUs
    "8 B on 8 GH200": Scale(_8B, 8, "gh200", _TWO_ROWS),
    "70 B on 128 GH200": Scale(_70B, 128, "gh200", _RECOMPUTED),
}
# github.com/pytorch/torchtitan, benchmarks/llama3_h100_202412_torchtitan.md: tokens/s
PUBLISHED = {("8 B on 8 H100", COMBINED): 8532 / 6667}
PUBLISHED |= {(POST, rung): LADDER_PUBLISHED[rung] for rung in (COMPUTE, COMBINED)}


def table() -> pd.DataFrame:
    """Predict each scale and rung: milliseconds by part, and speed over bf16."""
    steps = {(name, rung): step(SCALES[name], rung) for name, rung in product(SCALES, SENT)}
    predicted = 1e3 * pd.DataFrame(steps).groupby(PARTS, sort=False).sum().T
    predicted = predicted.rename_axis(["scale", "rung"])
    total = predicted.sum(axis="columns")
    predicted["predicted"] = total.groupby("scale").transform("first") / total
    return predicted.assign(published=pd.Series(PUBLISHED))


def cost_of_an_all_reduce() -> float:
    """Work out the seconds of an all-reduce for a single weight's scale.

    They follow from the published 1.42 and 1.50 if bf16 takes as long as predicted.
    """
    seconds = sum(step(SCALES[POST], COMPILED).values())
    calls = 2 * (len(linear_shapes(_70B)) - 1)  # forward and backward, all but the head
    return seconds * (1 / LADDER_PUBLISHED[EACH] - 1 / LADDER_PUBLISHED[COMBINED]) / calls


def step(scale: Scale, rung: str) -> dict[str, float]:
    """Predict a step of one GPU: seconds of its parts."""
    args, gpu, shapes = scale.args, GPUS[scale.gpu], linear_shapes(scale.args)
    rows, columns = shapes.pop("output")  # the head stays in bf16, as does the embedding
    embedding, weights = rows * columns, sum(n * k for n, k in shapes.values())
    in_fp8 = [] if rung == COMPILED else [*shapes]
    least = floors.step_floors(floors.step_work(scale.step, args, in_fp8), gpu.rates)
    least[floors.OPTIMIZER] /= scale.gpus  # sharded
    # A roofline reads 2 bytes of a weight and writes 1 twice, as it is and transposed. After a
    # gather in bf16 every GPU casts whole weights forward and backward, reading 2 bytes and
    # writing 1. Before a gather in FP8 it casts only its shard so, and transposes the whole.
    casts = {COMPILED: 4, COMPUTE: 2 * 3, COMBINED: 2 * 3 / scale.gpus + 2}
    least[floors.CASTS] += (casts[rung] - 4) * weights / gpu.rates.bandwidth
    # Of each block what takes longer to send than to compute is exposed, and so are the first
    # gather and the last reduction, of the embedding.
    computing = sum(least.values()) / args.n_layers
    forward = computing / (2 + scale.step.forwards)
    seconds_a_byte = (1 - 1 / scale.gpus) / gpu.links.bus_bandwidth(scale.gpus)
    of_block = weights / args.n_layers * seconds_a_byte
    gathering, reducing = SENT[rung] * of_block, 4 * of_block
    exposed = max(0.0, gathering - forward)
    exposed += max(0.0, gathering + reducing - (computing - forward))
    ends = (2 + 4) * embedding * seconds_a_byte
    return least | {EXPOSED: args.n_layers * exposed + ends}
