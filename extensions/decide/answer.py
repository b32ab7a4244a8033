"""Answer whether FP8 pays for a training: YES, NO, MEASURE FIRST or DOES NOT FIT, and why."""

import json
import math
from dataclasses import asdict
from math import exp, log

from extensions.decide.pairs import HERE, read
from extensions.decide.step import frozen, seconds, work
from models import flops
from models.gpus import GPUS, chip

FITTED = HERE / "fitted.json"
OUTSIDE, REFUSED = 2, 8  # times beyond what pairs cover: a range twice as wide; no estimate
# What an answer says of a pair
SHOWN = ("name", "model", "stack", "scaling", "gpu", "source", "speed_up")
MEASURE = (
    ".venv/bin/python -m experiments.study baseline_compiled tensorwise_fp8_compiled "
    "rowwise_fp8_compiled --seeds 3 --overlay {overlay}_recompute training.steps=60 "
    "training.local_batch_size={asked.batch} training.seq_len={asked.sequence} "
    "'model.sizes={sizes}'{more}  # about {minutes} minutes"
)


def estimate(asked) -> dict:
    """Answer with numbers, None for what is not known; ranges are [value, low, high].

    Args:
        asked: a training (see step.py), with its `steps` and `price`, 0 if not known.
    """
    facts = json.loads(FITTED.read_text(encoding="utf-8"))
    asked.recompute, needed = memory(asked, asked.gpus)
    outside = beyond(asked, facts["covered"])
    pairs = sorted(read(), key=lambda pair: distance(pair, asked))
    answer = dict.fromkeys(["verdict", "why", "speedup", "step_s", "hours", "cost"])
    answer |= speeds(asked, facts, needed, [*outside.values()])
    answer["verdict"], answer["why"] = judge(asked, needed, answer["speedup"], pairs[:3])
    return answer | {
        "memory_gib": needed / 2**30,
        "nearest": [{key: getattr(pair, key) for key in SHOWN} for pair in pairs[:3]],
        "recompute": asked.recompute,
        "fitted_to": f"{facts['pairs']} torchao pairs of {len(pairs)}",
        "outside": ", ".join(outside) or None,
        "measure": measure(asked, answer),
    }


def judge(asked, needed: float, speedup: dict, near: list) -> tuple[str, str]:
    """Say YES or NO where the whole range does and no pair like the training contradicts, else
    MEASURE FIRST; and why."""
    if GPUS[asked.gpu].fp8 is None:
        return "NO", f"{asked.gpu} has no FP8 units"
    if needed > GPUS[asked.gpu].memory:
        return "DOES NOT FIT", where_it_fits(asked)
    if speedup["tensorwise"] is None:
        return "MEASURE FIRST", "no pair here is near"
    _, low, high = speedup["tensorwise"]
    if low <= 1 <= high:
        return "MEASURE FIRST", "the range has both, a gain and a loss"
    for pair in near:
        alike = pair.scaling == "tensorwise" and distance(pair, asked) < log(2)
        if alike and (pair.speed_up > 1) != (low > 1):
            return "MEASURE FIRST", f"a near pair disagrees: {pair.speed_up:.2f}, {pair.source}"
    if low > 1:
        return "YES", "the whole range lies above compiled bf16"
    return "NO", "casts take more than FP8 matmuls save"


# ---- memory ----


def memory(asked, gpus: int) -> tuple[str, float]:
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


def where_it_fits(asked) -> str:
    """Say on how many GPUs a training fits that does not fit."""
    for power in range(13):
        if memory(asked, 2**power)[1] <= GPUS[asked.gpu].memory:
            return f"it would fit on {2**power:,} GPUs: set --gpus"
    return "not on 4,096 GPUs either: take fewer or shorter rows, or recompute (--recompute full)"


# ---- speed ----


def extents(training) -> dict[str, float]:
    """Measure a training by what pairs cover a range of."""
    return {
        "size": training.sizes.parameters(),
        "sequence": training.sequence,
        "tokens a step": training.batch * training.sequence,
    }


def beyond(training, covered: dict) -> dict[str, float]:
    """Find how many times a training is outside of what pairs cover, by what it is outside in; up
    to twice is inside."""
    times = {}
    for name, extent in extents(training).items():
        least, most = covered[name]
        times[name] = max(least / extent, extent / most)
    own = chip(training.gpu)
    times["frozen weights"] = REFUSED * bool(training.freeze)
    times[f"no {own}"] = REFUSED * (own not in covered["chips"])
    return {name: factor for name, factor in times.items() if factor > OUTSIDE}


def speeds(asked, facts: dict, needed: float, outside: list[float]) -> dict:
    """Predict speed-ups, seconds a step, hours and cost, where a prediction can be."""
    gpu = GPUS[asked.gpu]
    if not gpu.fp8 or needed > gpu.memory or max(outside, default=0) > REFUSED:
        return {"speedup": {"tensorwise": None, "rowwise": None}}
    step = seconds(work(asked), **facts["factors"])
    width = exp(facts["half_width"] * (1 + bool(outside)))
    ratios = {scaling: step["bf16"] / step[scaling] for scaling in ("tensorwise", "rowwise")}
    speedup = {name: [ratio, ratio / width, ratio * width] for name, ratio in ratios.items()}
    value, best, worst = (step["bf16"] / pace for pace in facts["pace"])
    step_s = {
        name: [value / ratio, best / high, worst / low]
        for name, (ratio, low, high) in ({"bf16": [1, 1, 1]} | speedup).items()
    }
    hours = asked.steps / 3600
    times = {"step_s": 1, "hours": hours, "cost": hours * asked.gpus * asked.price}
    scaled = {unit: scale(step_s, by) for unit, by in times.items() if by}
    return {"speedup": speedup} | scaled


def scale(ranges: dict, by: float) -> dict:
    """Multiply ranges."""
    return {name: [by * value for value in of] for name, of in ranges.items()}


# ---- what is near, and how to measure ----


def distance(pair, asked) -> float:
    """Say how unlike a training a pair is: by the logarithm of parameters; another chip, kind
    or stack adds one or two."""
    if not pair.billions or pair.fairness == "doubtful":
        return math.inf
    other = 2 * (chip(pair.gpu) != chip(asked.gpu)) + 2 * (pair.kind != "dense")
    size = abs(log(pair.billions * 1e9 / asked.sizes.parameters()))
    return other + (pair.stack != "torchao") + size


def measure(asked, answer: dict) -> str | None:
    """Give the command that measures it here, on a node of 8 GPUs, and how long that takes."""
    if answer["verdict"] != "MEASURE FIRST":
        return None
    own, more = asdict(asked.sizes), ""
    for given in ("head_dim", "enable_weight_tying", "qk_norm"):  # by a Llama's class
        del own[given]
    if asked.freeze:
        patterns = [f"*{layer}.weight" for layer in asked.freeze]
        more += f" 'puzzle.freeze={json.dumps(patterns)}'"
    if asked.gpus > 1:
        more += f" sharded.processes={min(asked.gpus, 8)}"
    slow = answer["step_s"]["bf16"][2] if answer["step_s"] else 1
    minutes = math.ceil(9 * (60 * slow + 90) / 60)  # nine runs of 60 steps, and their start
    overlay = "full" if asked.recompute == "full" else "no"
    return MEASURE.format(
        asked=asked, sizes=json.dumps(own), more=more, minutes=minutes, overlay=overlay
    )
