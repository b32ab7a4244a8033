"""Features: what the speed-up of a training step depends on, in seconds of rooflines.

Both steps' rooflines are at the datasheet's rates (models/floors.py); experiments/profiling/fit.py
says how far from them real steps are.
"""

from collections.abc import Collection
from dataclasses import fields, replace

import pandas as pd

from experiments.profiling.pairs import Pair
from models import floors
from models.flops import Sizes, linear_shapes
from models.gpus import GPUS, Rates


def rooflines(
    step: floors.Step, sizes: Sizes, fp8_layers: Collection[str], rates: Rates, shards: float
) -> dict[str, float]:
    """Work out the rooflines of a step, whose optimizer's work `shards` GPUs share."""
    bf16 = floors.step_floors(floors.step_work(step, sizes, ()), rates)
    fp8 = floors.step_floors(floors.step_work(step, sizes, fp8_layers), rates)
    every = linear_shapes(sizes)
    shapes = [every[name] for name in fp8_layers]
    # Of a layer FP8 casts the input, the gradient of the output, and once a pass the weight.
    elements = step.passes * sum(step.tokens * (n + k) + n * k for n, k in shapes)
    return {
        "matmuls": bf16[floors.MATMUL_BF16],  # in bf16, of all linear layers
        "left": fp8[floors.MATMUL_BF16],  # in bf16, of those that FP8 leaves out
        "fp8": fp8[floors.MATMUL_FP8],  # in FP8, of the others
        "attention": bf16[floors.ATTENTION],
        "elementwise": bf16[floors.ELEMENTWISE] + bf16[floors.LOSS] + bf16[floors.CASTS],
        "optimizer": bf16[floors.OPTIMIZER] / shards,
        "cast": elements / rates.bandwidth,  # to move one byte of each element cast to FP8
        "fp8_matmuls": 3 * step.passes * len(shapes),  # how many
        "blocks": step.passes * sizes.n_layers,  # how many a step passes through
    }


def shard(args, ways: int) -> Sizes:
    """Cut every matrix along its heads, its FFN or its vocabulary, as one of `ways` tensor-parallel
    GPUs computes it."""
    sizes = Sizes(**{field.name: getattr(args, field.name) for field in fields(Sizes)})
    return replace(
        sizes,
        n_heads=sizes.n_heads / ways,
        n_kv_heads=max(1, sizes.n_kv_heads / ways),
        hidden_dim=sizes.hidden_dim / ways,
        vocab_size=sizes.vocab_size / ways,
    )


def of_pair(pair: Pair) -> pd.Series:
    """Work out the rooflines of a published step, whose parameters are taken to be in bf16.

    Blocks are alike: the rooflines of one and of two blocks give those of all.
    """
    one, two = (_of_blocks(pair, replace(pair.sizes, n_layers=blocks)) for blocks in (1, 2))
    return one + (pair.sizes.n_layers - 1) * (two - one)


def _of_blocks(pair: Pair, sizes: Sizes) -> pd.Series:
    left_out = pair.left_out if pair.head_fp8 else (*pair.left_out, "output")
    layers = [name for name in linear_shapes(sizes) if not name.endswith(left_out)]
    # Selective recomputation lies halfway between none and full.
    forwards = {"half": (1, 2), "full": (2,)}.get(pair.recompute, (1,))
    one = floors.Step(
        seq_len=pair.sequence,
        rows=pair.batch / pair.context_parallel,
        passes=pair.passes,
        fp8_matmuls=pair.matmuls,
    )
    steps = [replace(one, forwards=number) for number in forwards]
    part, rates = shard(sizes, pair.tensor_parallel), GPUS[pair.gpu_key].datasheet
    found = [rooflines(step, part, layers, rates, pair.gpus or 1) for step in steps]
    return pd.DataFrame(found).mean()
