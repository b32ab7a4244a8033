"""Answer whether FP8 pays for a training: YES, NO, MEASURE FIRST or DOES NOT FIT, and why."""

import json
import math
from math import exp, log

from extensions.decide.asked import Asked
from extensions.decide.pairs import HERE, SCALINGS, Pair, read
from extensions.decide.step import frozen, work
from models import flops
from models.gpus import GPUS, chip

FITTED = HERE / "fitted.json"
OUTSIDE, REFUSED = 2, 8  # times beyond what pairs cover: a range twice as wide; no estimate
# What an answer says of a pair
SHOWN = {"name", "model", "stack", "scaling", "gpu", "source", "speed_up"}
MEASURE = (
    ".venv/bin/python -m experiments.study baseline_compiled tensorwise_fp8_compiled "
    "rowwise_fp8_compiled --seeds 3 --overlay {overlay}_recompute training.steps=60 "
    "training.local_batch_size={asked.batch} training.seq_len={asked.sequence} "
    "'model.sizes={sizes}'{more}  # about {minutes} minutes"
)


def estimate(asked: Asked) -> dict:
    """Answer with numbers, None for what is not known; ranges are [value, low, high]."""
    facts, pairs = json.loads(FITTED.read_text(encoding="utf-8")), read()
    asked.recompute, needed = memory(asked, asked.gpus)
    outside = beyond(asked, [pair for pair in pairs if pair.calibrates])
    near = sorted(pairs, key=lambda pair: distance(pair, asked))[:3]
    answer = {
        "verdict": None,
        "why": None,
        "speedup": dict.fromkeys(SCALINGS),
        "step_s": None,
        "hours": None,
        "cost": None,
        "memory_gib": needed / 2**30,
        "recompute": asked.recompute,
        "fitted_to": f"{facts['pairs']} torchao pairs of {len(pairs)}",
        "outside": ", ".join(outside) or None,
        "nearest": [pair.model_dump(include=SHOWN) for pair in near],
        "measure": None,
    }
    gpu = GPUS[asked.gpu]
    if gpu.fp8 and needed <= gpu.memory and max(outside.values(), default=0) <= REFUSED:
        answer |= speeds(asked, facts, wide=bool(outside))
    alike = [pair for pair in near if distance(pair, asked) < log(2)]
    answer["verdict"], answer["why"] = verdict(asked, needed, answer["speedup"], alike)
    if answer["verdict"] == "MEASURE FIRST":
        answer["measure"] = measure(asked, answer["step_s"])
    return answer


def verdict(asked: Asked, needed: float, speedup: dict, alike: list[Pair]) -> tuple[str, str]:
    """Say YES or NO where the whole range does and no pair like the training contradicts, else
    MEASURE FIRST; and why."""
    if GPUS[asked.gpu].fp8 is None:
        return "NO", f"{asked.gpu} has no FP8 units"
    if needed > GPUS[asked.gpu].memory:
        return "DOES NOT FIT", fits_on(asked)
    if speedup["tensorwise"] is None:
        return "MEASURE FIRST", "no pair here is near"
    _, low, high = speedup["tensorwise"]
    if low <= 1 <= high:
        return "MEASURE FIRST", "the range has both, a gain and a loss"
    for pair in alike:
        if pair.scaling == "tensorwise" and (pair.speed_up > 1) != (low > 1):
            return "MEASURE FIRST", f"a near pair disagrees: {pair.speed_up:.2f}, {pair.source}"
    if low > 1:
        return "YES", "the whole range lies above compiled bf16"
    return "NO", "casts take more than FP8 matmuls save"


# ---- memory ----


def memory(asked: Asked, gpus: int) -> tuple[str, float]:
    """Choose what is recomputed, nothing if it fits so and is not asked; and count the bytes that
    bf16 training needs on each GPU. Frozen weights have neither gradients nor states."""
    tokens = asked.batch * asked.sequence
    untrained = frozen(asked) / asked.sizes.parameters()
    for recompute in [asked.recompute] if asked.recompute else ["none", "full"]:
        uses = flops.memory(asked.sizes, tokens, gpus, recomputes=recompute == "full")
        needed = sum(uses.values()) - untrained * (uses["optimizer"] + uses["gradients"])
        if needed <= GPUS[asked.gpu].memory:
            break
    return recompute, needed


def fits_on(asked: Asked) -> str:
    """Say on how many GPUs a training fits that does not fit."""
    for gpus in (2**power for power in range(13)):
        if gpus > asked.gpus and memory(asked, gpus)[1] <= GPUS[asked.gpu].memory:
            return f"it would fit on {gpus:,} GPUs: set --gpus"
    mend = "take fewer or shorter rows"
    if asked.recompute == "none":
        mend += ", or leave out --recompute none"
    return f"not on 4,096 GPUs either: {mend}"


# ---- speed ----


def beyond(on: Asked | Pair, pairs: list[Pair]) -> dict[str, float]:
    """Find how many times a training is outside of what the pairs cover, by what it is outside in;
    up to twice is inside."""
    found = {}
    for name, extent in EXTENTS.items():
        covered = [extent(pair) for pair in pairs]
        times = max(min(covered) / extent(on), extent(on) / max(covered))
        if times > OUTSIDE:
            found[name] = times
    if on.freeze:
        found["frozen weights"] = REFUSED
    if chip(on.gpu) not in {chip(pair.gpu) for pair in pairs}:
        found[f"no {chip(on.gpu)}"] = REFUSED
    return found


# Of what pairs cover a range
EXTENTS = {
    "size": lambda on: on.sizes.parameters(),
    "sequence": lambda on: on.sequence,
    "tokens a step": lambda on: on.batch * on.sequence,
}


def speeds(asked: Asked, facts: dict, wide: bool) -> dict:
    """Predict speed-ups, seconds a step, hours and cost."""
    seconds = work(asked).seconds(**facts["factors"])
    half_width = exp(facts["half_width"] * (1 + wide))
    value, best, worst = (seconds["bf16"] / pace for pace in facts["pace"])
    speedup, step_s = {}, {"bf16": [value, best, worst]}
    for scaling in SCALINGS:
        ratio = seconds["bf16"] / seconds[scaling]
        low, high = ratio / half_width, ratio * half_width
        speedup[scaling] = [ratio, low, high]
        step_s[scaling] = [value / ratio, best / high, worst / low]
    found = {"speedup": speedup, "step_s": step_s}
    steps = asked.steps
    if asked.tokens:
        steps = asked.tokens / (asked.batch * asked.sequence * asked.gpus)
    if steps:
        found["hours"] = scaled(step_s, steps / 3600)
        if asked.price:
            found["cost"] = scaled(found["hours"], asked.gpus * asked.price)
    return found


def scaled(ranges: dict, by: float) -> dict:
    """Multiply ranges."""
    return {name: [by * value for value in of] for name, of in ranges.items()}


# ---- what is near, and how to measure ----


def distance(pair: Pair, asked: Asked) -> float:
    """Say how unlike a training a pair is: by the logarithm of parameters; another chip, kind
    or stack adds one or two."""
    if not pair.billions or pair.fairness == "doubtful":
        return math.inf
    other = 2 * (chip(pair.gpu) != chip(asked.gpu)) + 2 * (pair.kind != "dense")
    size = abs(log(pair.billions * 1e9 / asked.sizes.parameters()))
    return other + (pair.stack != "torchao") + size


def measure(asked: Asked, step_s: dict | None) -> str:
    """Give the command that measures it here, on a node of 8 GPUs, and how long that takes."""
    own, more = asked.sizes.model_dump(exclude={"enable_weight_tying", "qk_norm"}), ""
    own["hidden_dim"] = round(own["hidden_dim"])
    if asked.freeze:
        patterns = [f"*{layer}.weight" for layer in asked.freeze]
        more += f" 'puzzle.freeze={json.dumps(patterns)}'"
    if asked.gpus > 1:
        more += f" sharded.processes={min(asked.gpus, 8)}"
    slow = step_s["bf16"][2] if step_s else 1
    minutes = math.ceil(9 * (60 * slow + 90) / 60)  # nine runs of 60 steps, and their start
    overlay = "full" if asked.recompute == "full" else "no"
    return MEASURE.format(
        asked=asked, sizes=json.dumps(own), more=more, minutes=minutes, overlay=overlay
    )
