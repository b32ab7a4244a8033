"""Answer whether FP8 pays for a training: YES, NO, MEASURE FIRST or DOES NOT FIT, and why."""

import json
import math
from bisect import bisect_left
from math import exp, log

from extensions.decide.asked import Asked, Model
from extensions.decide.pairs import HERE, SCALINGS, Pair, read
from extensions.decide.step import Factors, bf16_s, frozen, speed_up, work
from models import flops
from models.gpus import GPUS, chip

FITTED = HERE / "fitted.json"
YES, NO, MEASURE, DOES_NOT_FIT = "YES", "NO", "MEASURE FIRST", "DOES NOT FIT"
OUTSIDE, REFUSED = 2, 8  # times beyond what pairs cover: a range twice as wide; no estimate
NODE, MOST = 8, 4096  # GPUs: of a measurement; that a training may be spread over


def estimate(sizes: Model, asked: Asked) -> dict:
    """Answer with numbers, None for what is not known; ranges are [value, low, high]."""
    facts, pairs = json.loads(FITTED.read_text(encoding="utf-8")), read()
    gpu = GPUS[asked.gpu]
    asked.recompute, needed = memory(sizes, asked, asked.gpus)
    outside = beyond(sizes, asked, [pair for pair in pairs if pair.calibrates])
    near = sorted(pairs, key=lambda pair: distance(pair, sizes, asked))[:3]
    answer = {
        "verdict": NO,
        "why": f"{asked.gpu} has no FP8 units",
        "speedup": dict.fromkeys(SCALINGS),
        "step_s": None,
        "hours": None,
        "cost": None,
        "memory_gib": needed / 2**30,
        "gpu_gib": gpu.memory / 2**30,
        "recompute": asked.recompute,
        "fitted_to": f"{facts['pairs']} torchao pairs of {len(pairs)}",
        "outside": ", ".join(outside) or None,
        "nearest": [pair.told() for pair in near],
        "measure": None,
    }
    if gpu.fp8 is None:
        return answer
    if needed > gpu.memory:
        return answer | {"verdict": DOES_NOT_FIT, "why": fits_on(sizes, asked)}
    if max(outside.values(), default=0) <= REFUSED:
        answer |= speeds(sizes, asked, facts, wide=bool(outside))
    alike = [pair for pair in near if distance(pair, sizes, asked) < log(2)]
    answer["verdict"], answer["why"] = verdict(answer["speedup"]["tensorwise"], alike)
    if answer["verdict"] == MEASURE:
        answer["measure"] = measure(sizes, asked, answer["step_s"])
    return answer


# ---- memory ----


def memory(sizes: Model, asked: Asked, gpus: int) -> tuple[str, float]:
    """Choose what is recomputed, nothing if it fits so and is not asked; and count the bytes that
    bf16 training needs on each GPU. Frozen weights have neither gradients nor states."""
    tokens = asked.batch * asked.sequence
    untrained = frozen(sizes, asked.freeze) / sizes.parameters()
    for recompute in [asked.recompute] if asked.recompute else ["none", "full"]:
        uses = flops.memory(sizes, tokens, gpus, recomputes=recompute == "full")
        needed = sum(uses.values()) - untrained * (uses["optimizer"] + uses["gradients"])
        if needed <= GPUS[asked.gpu].memory:
            break
    return recompute, needed


def fits_on(sizes: Model, asked: Asked) -> str:
    """Say on how many GPUs a training fits that does not fit."""
    counts, size = range(asked.gpus, MOST + 1), GPUS[asked.gpu].memory
    place = bisect_left(counts, True, key=lambda gpus: memory(sizes, asked, gpus)[1] <= size)
    if place == len(counts):
        return f"not on {MOST:,} GPUs either: take fewer or shorter rows"
    return f"it would fit on {counts[place]:,} GPUs: set --gpus"


# ---- speed ----


def extent(sizes: Model, on: Asked | Pair) -> dict[str, float]:
    """Give what pairs cover a range of."""
    return {
        "size": sizes.parameters(),
        "sequence": on.sequence,
        "tokens a step": on.batch * on.sequence,
    }


def beyond(sizes: Model, on: Asked | Pair, pairs: list[Pair]) -> dict[str, float]:
    """Find how many times a training is outside of what the pairs cover, by what it is outside in;
    up to twice is inside."""
    covered, found = [extent(pair.sizes, pair) for pair in pairs], {}
    for name, value in extent(sizes, on).items():
        values = [of[name] for of in covered]
        found[name] = max(min(values) / value, value / max(values))
    seen = {chip(pair.gpu) for pair in pairs}
    found[f"no {chip(on.gpu)}"] = 0 if chip(on.gpu) in seen else REFUSED
    found["frozen weights"] = REFUSED if on.freeze else 0
    return {name: times for name, times in found.items() if times > OUTSIDE}


def speeds(sizes: Model, asked: Asked, facts: dict, wide: bool) -> dict:
    """Predict speed-ups, seconds a step, hours and cost."""
    factors, parts = Factors(**facts["factors"]), work(sizes, asked)
    range_ = exp(facts["half_width"] * (1 + wide))
    speedup, step_s = {}, {"bf16": [bf16_s(factors, parts) / pace for pace in facts["pace"]]}
    for scaling in SCALINGS:
        ratio = speed_up(factors, parts, scaling == "rowwise")
        low, high = ratio / range_, ratio * range_
        speedup[scaling] = [ratio, low, high]
        together = zip(step_s["bf16"], (ratio, high, low), strict=True)
        step_s[scaling] = [seconds / of for seconds, of in together]
    found = {"speedup": speedup, "step_s": step_s}
    tokens = asked.batch * asked.sequence * asked.gpus
    steps = math.ceil(asked.tokens / tokens) if asked.tokens else asked.steps
    if steps:
        found["hours"] = scaled(step_s, steps / 3600)
        if asked.price:
            found["cost"] = scaled(found["hours"], asked.price * asked.gpus)
    return found


def scaled(ranges: dict, by: float) -> dict:
    """Multiply ranges."""
    return {name: [by * value for value in of] for name, of in ranges.items()}


# ---- verdict ----


def distance(pair: Pair, sizes: Model, asked: Asked) -> float:
    """Say how unlike a training a pair is: in factors of e of parameters, of which another chip,
    kind or stack counts as one or more."""
    if not pair.billions or pair.fairness == "doubtful":
        return math.inf
    kind = "lora" if asked.freeze else "dense"
    unlike = 2 * (chip(pair.gpu) != chip(asked.gpu)) + 2 * (pair.kind != kind)
    unlike += (pair.stack != "torchao") + (pair.scaling not in SCALINGS)
    return unlike + abs(log(pair.billions * 1e9 / sizes.parameters()))


def verdict(speedup: list | None, alike: list[Pair]) -> tuple[str, str]:
    """Say YES or NO where the whole range does and no pair like the training contradicts, else
    MEASURE FIRST; and why."""
    if speedup is None:
        return MEASURE, "no pair here is near"
    _, low, high = speedup
    if low <= 1 <= high:
        return MEASURE, "the range has both, a gain and a loss"
    for pair in alike:
        if pair.scaling == "tensorwise" and (pair.speed_up > 1) != (low > 1):
            return MEASURE, f"a near pair disagrees: {pair.speed_up:.2f}, {pair.source}"
    if low > 1:
        return YES, "the whole range lies above compiled bf16"
    return NO, "casts take more than FP8 matmuls save"


def measure(sizes: Model, asked: Asked, step_s: dict | None) -> str:
    """Give the command that measures it here, on a node, and how long that takes."""
    own = sizes.model_dump(exclude={"enable_weight_tying", "qk_norm"})
    own["hidden_dim"] = round(sizes.hidden_dim)
    keys = [f"training.local_batch_size={asked.batch}", f"training.seq_len={asked.sequence}"]
    keys.append(f"'model.sizes={json.dumps(own)}'")
    if asked.freeze:
        patterns = [f"*{layer}.weight" for layer in asked.freeze]
        keys.append(f"'puzzle.freeze={json.dumps(patterns)}'")
    if asked.gpus > 1:
        keys.append(f"sharded.processes={min(asked.gpus, NODE)}")
    overlay = "full_recompute" if asked.recompute == "full" else "no_recompute"
    slow = step_s["bf16"][2] if step_s else 1
    minutes = math.ceil(9 * (60 * slow + 90) / 60)  # nine runs of 60 steps, and their start
    return (
        ".venv/bin/python -m experiments.study baseline_compiled tensorwise_fp8_compiled "
        f"rowwise_fp8_compiled --seeds 3 --overlay {overlay} training.steps=60 {' '.join(keys)}"
        f"  # about {minutes} minutes"
    )
