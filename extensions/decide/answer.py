"""Answer whether FP8 pays for a training: YES, NO, MEASURE FIRST or DOES NOT FIT, and why.

A step is predicted from rooflines. A roofline is the least time that the GPU's datasheet allows:
FLOPs over its peak, or bytes over its bandwidth. Only ratios matter: bf16 matmuls are taken to be
at theirs.
"""

import numpy as np

from extensions.decide import read
from models import flops
from models.gpus import GPUS

RECIPES = ["tensorwise", "rowwise", "bf16"]  # the rows of ranges in fitted.yaml
# How much of a block's forward pass is computed again; "half": selective, by operator
RECOMPUTED = {"none": 0.0, "half": 0.5, "full": 1.0}
# All sizes of a Llama but head_dim, which a recipe refuses for it
MEASURE = (
    ".venv/bin/python -m experiments.study baseline_compiled tensorwise_fp8_compiled "
    "rowwise_fp8_compiled --seeds 3 --overlay no_recompute training.steps=60 "
    "training.local_batch_size={asked.batch} training.seq_len={asked.seq_len} "
    "activation_checkpoint.mode={asked.recompute} sharded.processes={processes} "
    "model.sizes.dim={asked.sizes.dim} model.sizes.n_layers={asked.sizes.n_layers} "
    "model.sizes.n_heads={asked.sizes.n_heads} model.sizes.n_kv_heads={asked.sizes.n_kv_heads} "
    "model.sizes.hidden_dim={asked.sizes.hidden_dim} "
    "model.sizes.vocab_size={asked.sizes.vocab_size}  # about {minutes:.0f} minutes"
)


def estimate(asked) -> dict:
    """Answer with numbers, None for what is not known; ranges are [value, low, high].

    What is known of the kind of GPU stands in fitted.yaml: tests/fit.py says what each field is.

    Args:
        asked: the command line and what follows from it. Of the ways to `recompute`, the first
            that fits takes their place.
    """
    gpu = GPUS[asked.gpu]
    facts = read("fitted.yaml")[gpu.chip]
    needed = memory(asked)
    outside = beyond(asked, facts["covered"])
    within, factors = facts["ranges"][bool(outside)]  # the second is twice as wide
    step_s = np.matmul(factors, parts(asked))
    speedup = step_s[2, 0] / step_s[:2, :1] * within
    command = MEASURE.format(
        asked=asked,
        processes=min(asked.gpus, 8),  # on one node
        minutes=9 * (step_s[2, 2] + 1.5),  # nine runs of 60 bf16 steps, and their start
    )

    # Pairs whose model is at most twice as large or small have a say too
    ratios = [
        *speedup[0],
        *(ratio for size, ratio in facts["told"] if 0.5 < size / asked.parameters < 2),
    ]
    # The first case that holds: its condition, whether there is an estimate, the verdict, why
    cases = [
        (not gpu.fp8, False, "NO", f"{asked.gpu} has no FP8 units"),
        (
            needed > gpu.memory,
            False,
            "DOES NOT FIT",
            "memory_gib is more than the GPU has: take more GPUs, fewer or shorter rows",
        ),
        (
            beyond(asked, facts["answered"]),
            False,
            "MEASURE FIRST",
            f"no pair here is near\n{command}",
        ),
        (min(ratios) > 1, True, "YES", "the whole range lies above compiled bf16"),
        (max(ratios) < 1, True, "NO", "casts take more than FP8 matmuls save"),
        (
            True,
            True,
            "MEASURE FIRST",
            f"the range, or a pair near it, has both, a gain and a loss\n{command}",
        ),
    ]
    _, known, verdict, why = next(case for case in cases if case[0])

    steps = asked.steps or asked.tokens / (asked.gpus * asked.step_tokens)
    hours = known * step_s * steps / 3600
    return {
        "verdict": verdict,
        "why": why,
        "speedup": named(known * speedup) or {"tensorwise": None, "rowwise": None},
        "step_s": named(known * step_s),
        "hours": named(hours),
        "cost": named(hours * asked.gpus * asked.price),
        "memory_gib": round(needed / 2**30, 1),
        "nearest": sorted(
            facts["pairs"], key=lambda pair: abs(np.log(pair["parameters"] / asked.parameters))
        )[:3],
        "recompute": asked.recompute,
        "fitted_to": facts["fitted_to"],
        "outside": outside,
    }


def memory(asked) -> float:
    """Count the bytes that bf16 training needs on each GPU, with the first way to recompute that
    fits. Frozen weights have neither gradients nor states."""
    for way in asked.recompute:
        uses = flops.memory(asked.sizes, asked.step_tokens, asked.gpus, recomputes=way == "full")
        needed = sum(uses.values())
        needed -= asked.frozen / asked.parameters * (uses["optimizer"] + uses["gradients"])
        if needed <= GPUS[asked.gpu].memory:
            break
    asked.recompute = way
    return needed


def parts(training) -> list[float]:
    """Give the rooflines of a step's parts, in seconds.

    First, in bf16, the matmuls that FP8 computes. Then the rest: the head, attention, element-wise
    work, AdamW. Last, to move a byte of each element that is cast.

    Args:
        training: has a model's `sizes`; the key of a `gpu`, and how many `gpus` there are; the
            tokens of a row, `seq_len`, and of a GPU's step, `step_tokens`; `recompute`, a key of
            `RECOMPUTED`; and `frozen`, how many weights are not trained.
    """
    gpu = GPUS[training.gpu]
    tokens = training.step_tokens
    again = RECOMPUTED[training.recompute]
    *shapes, (vocab, dim) = training.sizes.linear_shapes().values()  # the head is last
    layers = np.array(shapes, float)
    weights = layers.prod(axis=1).sum()
    features = layers.sum()
    head = vocab * dim
    attention = (
        training.seq_len * flops.q_dim(training.sizes) * training.sizes.n_layers * (3.5 + again)
    )
    # Kernels of a compiled block move some 4.5 bytes for each feature of its linear layers.
    moved = tokens * (4.5 * features * (1 + again / 4) + 6 * vocab)
    moved += 16 * (weights + 2 * head) / training.gpus  # by AdamW
    return [
        2 * tokens * (weights * (3 + again) - training.frozen) / gpu.bf16,
        2 * tokens * (3 * head + attention) / gpu.bf16 + moved / gpu.bandwidth,
        (tokens * features + weights) / gpu.bandwidth,
    ]


def beyond(asked, limits: dict) -> list[str]:
    """Name what of a training is outside of limits: [least, most] by name."""
    return [
        name for name, (least, most) in limits.items() if not least <= getattr(asked, name) <= most
    ]


def named(ranges: np.ndarray) -> dict | None:
    """Name the rows of ranges; None if they are 0, not known."""
    return dict(zip(RECIPES, ranges.tolist(), strict=False)) if ranges.any() else None
