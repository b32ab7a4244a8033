"""Answer whether FP8 pays for a training: YES, NO, MEASURE FIRST or DOES NOT FIT, and why."""

import json
import math

from extensions.decide.pairs import HERE, read
from extensions.decide.step import Training, beyond, step
from models import flops
from models.gpus import GPUS

FITTED = HERE / "fitted.json"
# What an answer says of a pair
SHOWN = ("name", "model", "stack", "scaling", "gpu", "source", "speed_up")
MEASURE = (
    ".venv/bin/python -m experiments.study baseline_compiled tensorwise_fp8_compiled "
    "rowwise_fp8_compiled --seeds 3 --overlay no_recompute training.steps=60 "
    "training.local_batch_size={asked.batch} training.seq_len={asked.sequence} "
    "activation_checkpoint.mode={asked.recompute} 'model.sizes={{dim: {sizes.dim}, "
    "n_layers: {sizes.n_layers}, n_heads: {sizes.n_heads}, n_kv_heads: {sizes.n_kv_heads}, "
    "hidden_dim: {sizes.hidden_dim}, vocab_size: {sizes.vocab_size}}}'{more}"
    "  # about {minutes} minutes"
)


def estimate(asked: Training) -> dict:
    """Answer with numbers, None for what is not known; ranges are [value, low, high].

    Args:
        asked: has `steps` and `price` too, 0 if not known. The first of `may_recompute` that fits
            becomes its `recompute`.
    """
    facts = json.loads(FITTED.read_text(encoding="utf-8"))
    gpu, pairs = GPUS[asked.gpu], read()
    for recompute in asked.may_recompute:
        asked.recompute = recompute
        needed = memory(asked)
        if needed <= gpu.memory:
            break
    near = sorted(pairs, key=lambda pair: distance(pair, asked))[:3]
    outside = beyond(asked, facts["covered"])
    if asked.chip not in facts["chips"]:
        outside.append(asked.chip)
    found = {"speedup": {"tensorwise": None, "rowwise": None}, "step_s": None}
    if not gpu.fp8:
        verdict, why = "NO", f"{asked.gpu} has no FP8 units"
    elif needed > gpu.memory:
        needs = flops.memory_finding(needed, gpu.memory)
        verdict, why = "DOES NOT FIT", f"{needs}: take more GPUs, fewer or shorter rows"
    elif beyond(asked, facts["answered"]):
        verdict, why = "MEASURE FIRST", "no pair here is near"
    else:
        found = speeds(asked, facts, math.exp(facts["half_width"] * (1 + bool(outside))))
        verdict, why = judge(asked, found["speedup"]["tensorwise"], near)
    hours = scale(found["step_s"], asked.steps / 3600)
    return {
        "verdict": verdict,
        "why": why,
        **found,
        "hours": hours,
        "cost": scale(hours, asked.gpus * asked.price),
        "memory_gib": round(needed / 2**30, 1),
        "nearest": [{key: getattr(pair, key) for key in SHOWN} for pair in near],
        "recompute": asked.recompute,
        "fitted_to": f"{facts['pairs']} torchao pairs of {len(pairs)}",
        "outside": ", ".join(outside) or None,
        "measure": measure(asked, found["step_s"]) if verdict == "MEASURE FIRST" else None,
    }


def memory(asked: Training) -> float:
    """Count the bytes that bf16 training needs on each GPU. Frozen weights have neither gradients
    nor states."""
    recomputes = asked.recompute == "full"
    uses = flops.memory(asked.sizes, asked.tokens, asked.gpus, recomputes=recomputes)
    untrained = asked.frozen / asked.parameters
    return sum(uses.values()) - untrained * (uses["optimizer"] + uses["gradients"])


def speeds(asked: Training, facts: dict, width: float) -> dict:
    """Predict speed-ups, within `width` times, and the seconds of a step."""
    seconds = step(asked, facts["factors"])
    value, best, worst = (seconds["bf16"] / pace for pace in facts["pace"])
    speedup, step_s = {}, {"bf16": [value, best, worst]}
    for scaling in ("tensorwise", "rowwise"):
        ratio = seconds["bf16"] / seconds[scaling]
        low, high = ratio / width, ratio * width
        speedup[scaling] = [ratio, low, high]
        step_s[scaling] = [value / ratio, best / high, worst / low]
    return {"speedup": speedup, "step_s": step_s}


def scale(ranges: dict | None, by: float) -> dict | None:
    """Multiply ranges; None if they are not known, or `by` is not, which is 0."""
    if not ranges or not by:
        return None
    return {name: [by * value for value in of] for name, of in ranges.items()}


def judge(asked: Training, speedup: list[float], near: list[Training]) -> tuple[str, str]:
    """Say YES or NO where the whole range does, and pairs like the training; and why."""
    alike = [pair for pair in near if distance(pair, asked) < math.log(2)]
    ratios = speedup + [pair.speed_up for pair in alike if pair.scaling == "tensorwise"]
    if min(ratios) > 1:
        return "YES", "the whole range lies above compiled bf16"
    if max(ratios) < 1:
        return "NO", "casts take more than FP8 matmuls save"
    return "MEASURE FIRST", "the range, or a pair near it, has both, a gain and a loss"


def distance(pair: Training, asked: Training) -> float:
    """Say how unlike a training a pair is: by the logarithm of parameters; another chip, kind
    or stack adds one or two."""
    if not pair.billions or pair.fairness == "doubtful":
        return math.inf
    other = 2 * (pair.chip != asked.chip) + 2 * (pair.kind != "dense") + (pair.stack != "torchao")
    return other + abs(math.log(pair.billions * 1e9 / asked.parameters))


def measure(asked: Training, step_s: dict | None) -> str:
    """Give the command that measures it here, on a node of 8 GPUs, and how long that takes."""
    more = ""
    if asked.frozen:
        more = f' "puzzle.freeze={[f"*{layer}.weight" for layer in asked.freeze]}"'
    elif asked.gpus > 1:
        more = f" sharded.processes={min(asked.gpus, 8)}"
    slow = step_s["bf16"][2] if step_s else 1
    minutes = math.ceil(9 * (60 * slow + 90) / 60)  # nine runs of 60 steps, and their start
    return MEASURE.format(asked=asked, sizes=asked.sizes, more=more, minutes=minutes)
