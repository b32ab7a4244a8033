"""Answer whether FP8 pays for a training: YES, NO, MEASURE FIRST or DOES NOT FIT, and why."""

import math
from pathlib import Path

import numpy as np
import yaml

from extensions.decide.step import parts
from models import flops
from models.gpus import GPUS

FITTED = Path(__file__).with_name("fitted.yaml")
RECIPES = ["tensorwise", "rowwise", "bf16"]  # the rows of ranges in fitted.yaml
MEASURE = (
    ".venv/bin/python -m experiments.study baseline_compiled tensorwise_fp8_compiled "
    "rowwise_fp8_compiled --seeds 3 --overlay no_recompute training.steps=60 "
    "training.local_batch_size={asked.batch} training.seq_len={asked.seq_len} "
    "activation_checkpoint.mode={asked.recompute}{several} "
    "model.sizes.dim={asked.sizes.dim} model.sizes.n_layers={asked.sizes.n_layers} "
    "model.sizes.n_heads={asked.sizes.n_heads} model.sizes.n_kv_heads={asked.sizes.n_kv_heads} "
    "model.sizes.hidden_dim={asked.sizes.hidden_dim} "
    "model.sizes.vocab_size={asked.sizes.vocab_size}  # about {minutes:.0f} minutes"
)


def estimate(asked) -> dict:
    """Answer with numbers, None for what is not known; ranges are [value, low, high].

    Args:
        asked: the command line and what follows from it. Of the ways to `recompute`, the first
            that fits takes their place.
    """
    facts = yaml.load(FITTED.read_text(encoding="utf-8"), yaml.CSafeLoader)
    gpu = GPUS[asked.gpu]
    for way in asked.recompute:
        needed = memory(asked, way)
        if needed <= gpu.memory:
            break
    asked.recompute = way
    outside = beyond(asked, facts["covered"])
    if gpu.chip not in facts["chips"]:
        outside.append(gpu.chip)
    times = facts["ranges"][bool(outside)]  # the second is twice as wide
    step_s = np.array(times["step_s"]) @ parts(asked)
    speedup = step_s[2, 0] / step_s[:2, :1] * times["speedup"]
    near = sorted(facts["pairs"], key=lambda pair: unlike(pair, asked))[:3]
    measured = [
        pair["speed_up"]
        for pair in near
        if pair["scaling"] == "tensorwise" and unlike(pair, asked) < math.log(2)
    ]
    far = beyond(asked, facts["answered"])
    known, verdict, why = judge(asked.gpu, needed, far, [*speedup[0], *measured])
    minutes = 9 * (step_s[2, 2] + 1.5)  # nine runs of 60 bf16 steps, and their start
    several = f" sharded.processes={min(asked.gpus, 8)}" if asked.gpus > 1 else ""  # on a node
    command = MEASURE.format(asked=asked, several=several, minutes=minutes)
    hours = known * step_s * asked.steps / 3600
    return {
        "verdict": verdict,
        "why": why,
        "speedup": named(known * speedup) or {"tensorwise": None, "rowwise": None},
        "step_s": named(known * step_s),
        "hours": named(hours),
        "cost": named(hours * asked.gpus * asked.price),
        "memory_gib": round(needed / 2**30, 1),
        "nearest": near,
        "recompute": way,
        "fitted_to": facts["fitted_to"],
        "outside": ", ".join(outside) or None,
        "measure": command if verdict == "MEASURE FIRST" else None,
    }


def named(ranges: np.ndarray) -> dict | None:
    """Name the rows of ranges; None if they are 0, not known."""
    return dict(zip(RECIPES, ranges.tolist(), strict=False)) if ranges.any() else None


def memory(asked, recompute: str) -> float:
    """Count the bytes that bf16 training needs on each GPU. Frozen weights have neither gradients
    nor states."""
    full = recompute == "full"
    uses = flops.memory(asked.sizes, asked.step_tokens, asked.gpus, recomputes=full)
    untrained = asked.frozen / asked.parameters
    return sum(uses.values()) - untrained * (uses["optimizer"] + uses["gradients"])


def beyond(asked, limits: dict) -> list[str]:
    """Name what of a training is outside of limits: [least, most] by name."""
    return [
        name for name, (least, most) in limits.items() if not least <= getattr(asked, name) <= most
    ]


def unlike(pair: dict, asked) -> float:
    """Say how unlike a training a pair is: by the logarithm of parameters; another chip adds two,
    another stack one."""
    other = 2 * (pair["chip"] != GPUS[asked.gpu].chip) + (pair["stack"] != "torchao")
    return other + abs(math.log(1e9 * pair["billions"] / asked.parameters))


def judge(gpu: str, needed: float, far: list, ratios: list[float]) -> tuple[bool, str, str]:
    """Say whether there is an estimate, the verdict, and why.

    Args:
        needed: bytes on each GPU.
        far: what of the training is too far from all pairs.
        ratios: the ends of the range, and the speed-ups of pairs like the training.
    """
    memory = GPUS[gpu].memory
    if not GPUS[gpu].fp8:
        return False, "NO", f"{gpu} has no FP8 units"
    if needed > memory:
        needs = flops.memory_finding(needed, memory)
        return False, "DOES NOT FIT", f"{needs}: take more GPUs, fewer or shorter rows"
    if far:
        return False, "MEASURE FIRST", "no pair here is near"
    if min(ratios) > 1:
        return True, "YES", "the whole range lies above compiled bf16"
    if max(ratios) < 1:
        return True, "NO", "casts take more than FP8 matmuls save"
    return True, "MEASURE FIRST", "the range, or a pair near it, has both, a gain and a loss"
