"""Answer whether FP8 pays for a training: YES, NO, MEASURE FIRST or DOES NOT FIT, and why.

All that was fitted is in fitted.json (extensions/decide/fit.py).
"""

import json
import math
from math import exp, log
from pathlib import Path
from shlex import join

from extensions.decide.step import LAYERS, Factors, speed_up, work
from models import flops
from models.errors import InputError
from models.gpus import GPUS, chip

FITTED = Path(__file__).with_name("fitted.json")
YES, NO, MEASURE, DOES_NOT_FIT = "YES", "NO", "MEASURE FIRST", "DOES NOT FIT"
SCALINGS = ("tensorwise", "rowwise")
OUTSIDE, REFUSED = 2, 8  # times beyond what pairs cover: a range twice as wide; no estimate
# Seconds that FP8's first step takes longer than bf16's, compiled by block, on two CPU cores
LATER_S = 6.5
NODE, NODE_OF_ALPS = 8, 4  # GPUs


def estimate(name: str, sizes: flops.Sizes, asked) -> dict:
    """Answer with numbers, None for what is not known; ranges are [value, low, high].

    Args:
        name: of the model.
        asked: the arguments of `python -m extensions.decide`.
    """
    facts = json.loads(FITTED.read_text(encoding="utf-8"))
    tokens = asked.batch * asked.seq_len * asked.gpus
    recompute, memory = needs(sizes, asked)
    answer = {
        "verdict": None,
        "why": None,
        "model": name,
        "billions": sizes.parameters() / 1e9,
        "gpu": asked.gpu,
        "gpus": asked.gpus,
        "tokens_per_step": tokens,
        "steps": math.ceil(asked.tokens / tokens) if asked.tokens else asked.steps,
        "speedup": dict.fromkeys(SCALINGS),
        "memory_gib": memory / 2**30,
        "gpu_gib": GPUS[asked.gpu].memory / 2**30,
        "recompute": recompute,
        "step_s": None,
        "hours": None,
        "cost": None,
        "ahead_from_step": None,
        "nearest": nearest(sizes, asked, facts["near"]),
        "fitted_to": f"fitted to {facts['pairs']} torchao pairs of {facts['published']}",
        "measure": None,
    }
    if GPUS[asked.gpu].datasheet.fp8 is None:
        return answer | {"verdict": NO, "why": f"{asked.gpu} has no FP8 units"}
    if answer["memory_gib"] > answer["gpu_gib"]:
        return answer | {
            "verdict": DOES_NOT_FIT,
            "why": "take more GPUs (--gpus), or fewer or shorter rows",
        }
    where = (sizes, chip(asked.gpu), asked.batch, asked.seq_len, asked.freeze)
    outside = beyond(*where, facts)
    if max(outside.values(), default=0) <= REFUSED:
        answer |= speeds(sizes, asked, recompute, facts, wide=bool(outside))
        answer |= times(answer, asked.price)
    if outside:
        answer["fitted_to"] += f"; outside of what they cover: {', '.join(outside)}"
    answer["verdict"], answer["why"] = verdict(answer)
    if answer["verdict"] == MEASURE:
        answer["measure"] = measure(sizes, asked, answer)
    return answer


def needs(sizes: flops.Sizes, asked) -> tuple[str, float]:
    """Choose what is recomputed, and count the bytes that bf16 training needs on each GPU.

    Without --recompute nothing is recomputed, if it fits so. Frozen weights have neither gradients
    nor states of the optimizer.
    """
    if set(asked.freeze) >= set(LAYERS):
        raise InputError("--freeze leaves nothing to train: leave a layer out")
    frozen = flops.embedding(sizes) * ("tok_embeddings" in asked.freeze)
    for layer, (n, k) in sizes.linear_shapes().items():
        frozen += n * k * (layer.split(".")[-1] in asked.freeze)
    trained = 1 - frozen / sizes.parameters()
    tokens = asked.batch * asked.seq_len
    for recompute in [asked.recompute] if asked.recompute else ["none", "full"]:
        uses = flops.memory(sizes, tokens, asked.gpus, recomputes=recompute == "full")
        for use in ("optimizer", "gradients"):
            uses[use] *= trained
        needed = sum(uses.values())
        if needed <= GPUS[asked.gpu].memory:
            break
    return recompute, needed


def beyond(sizes, chip: str, batch: int, sequence: int, frozen, facts: dict) -> dict[str, float]:
    """Find how many times a training is outside of what the pairs cover, by what it is outside in;
    up to twice is inside."""
    values = {"size": sizes.parameters(), "sequence": sequence, "tokens a step": batch * sequence}
    found = {}
    for name, (low, high) in facts["ends"].items():
        found[name] = max(low / values[name], values[name] / high)
    found[f"no {chip}"] = OUTSIDE * (chip not in facts["chips"]) + 1
    found["frozen weights"] = OUTSIDE * bool(frozen) + 1
    return {name: times for name, times in found.items() if times > OUTSIDE}


def speeds(sizes: flops.Sizes, asked, recompute: str, facts: dict, wide: bool) -> dict:
    """Predict the speed-up of each scaling, and seconds a step, with their ranges."""
    where = (asked.gpu, asked.batch, asked.seq_len, asked.gpus, recompute, tuple(asked.freeze))
    parts, range_ = work(sizes, *where), exp(facts["half_width"] * (1 + wide))
    pace, slow, quick = facts["pace"]
    bf16 = [(parts.fp8_able + parts.rest) / of for of in (pace, quick, slow)]
    speedup, step_s = {}, {"bf16": bf16}
    for scaling in SCALINGS:
        ratio = speed_up(Factors(**facts["factors"]), parts, scaling == "rowwise")
        speedup[scaling] = [ratio, ratio / range_, ratio * range_]
        step_s[scaling] = [bf16[0] / ratio, bf16[1] / ratio / range_, bf16[2] / ratio * range_]
    return {"speedup": speedup, "step_s": step_s}


def times(answer: dict, price: float | None) -> dict:
    """Work out hours, cost, and from which step on tensorwise FP8 is ahead, its longer first step
    included: as predicted, at best and at worst."""
    step_s, found = answer["step_s"], {}
    saved = [step_s["bf16"][0] * (1 - 1 / ratio) for ratio in answer["speedup"]["tensorwise"]]
    value, worst, best = [1 + math.ceil(LATER_S / s) if s > 0 else None for s in saved]
    found["ahead_from_step"] = [value, best, worst]
    if answer["steps"]:
        scale = answer["steps"] / 3600
        found["hours"] = {name: [scale * s for s in of] for name, of in step_s.items()}
        if price:
            pay = price * answer["gpus"]
            found["cost"] = {name: [pay * h for h in of] for name, of in found["hours"].items()}
    return found


def verdict(answer: dict) -> tuple[str, str]:
    """Say YES or NO where the whole range does, else MEASURE FIRST; and why."""
    if answer["speedup"]["tensorwise"] is None:
        return MEASURE, "no pair here is near"
    _, low, high = answer["speedup"]["tensorwise"]
    if high < 1:
        return NO, "casts take more than FP8 matmuls save"
    if low <= 1:
        return MEASURE, "the range has both, a gain and a loss"
    _, best, worst = answer["ahead_from_step"]
    steps = answer["steps"] or math.inf
    if steps < best:
        return NO, f"{steps:,} steps do not earn back the longer first step"
    if steps < worst:
        return MEASURE, f"{steps:,} steps may not earn back the longer first step"
    return YES, "the whole range lies above bf16"


def nearest(sizes: flops.Sizes, asked, pairs: list[dict]) -> list[dict]:
    """Choose the three pairs that are most like the training: in factors of e of parameters and
    length, of which another chip, stack or scaling counts as one or more."""
    kind = "lora" if asked.freeze else "dense"

    def distance(pair: dict) -> float:
        unlike = 2.5 * (pair["chip"] != chip(asked.gpu)) + (pair["stack"] != "torchao")
        unlike += 2 * (pair["kind"] != kind) + 0.3 * (pair["scaling"] not in SCALINGS)
        length = abs(log((pair["sequence"] or 8192) / asked.seq_len))
        return unlike + abs(log(pair["billions"] * 1e9 / sizes.parameters())) + 0.3 * length

    return sorted(pairs, key=distance)[:3]


def measure(sizes: flops.Sizes, asked, answer: dict) -> dict:
    """Give the command that measures it here, and about how many minutes it takes."""
    names = ("dim", "n_layers", "n_heads", "n_kv_heads", "hidden_dim", "vocab_size")
    own = ", ".join(f"{name}: {round(getattr(sizes, name))}" for name in names)
    keys = [f"training.local_batch_size={asked.batch}", f"training.seq_len={asked.seq_len}"]
    keys += ["training.steps=60", f"model.sizes={{{own}}}"]
    if asked.freeze:
        keys.append("model.freeze=" + json.dumps([f"*{layer}.weight" for layer in asked.freeze]))
    start = ".venv/bin/python -m experiments.study baseline_compiled"
    start += "".join(f" {scaling}_fp8_compiled" for scaling in SCALINGS)
    if asked.gpus > NODE:
        nodes = math.ceil(asked.gpus / NODE_OF_ALPS)
        start = f"sbatch --nodes={nodes} extensions/sharded/alps_multinode.sbatch RECIPE"
    elif asked.gpus > 1:
        start += f" sharded.processes={asked.gpus}"
    overlay = "full_recompute" if answer["recompute"] == "full" else "no_recompute"
    step = answer["step_s"]["bf16"][2] if answer["step_s"] else 1
    minutes = math.ceil(3 * (60 * step + 90) / 60)  # three recipes of 60 steps, and first ones
    return {"command": f"{start} --overlay {overlay} {join(keys)}", "minutes": minutes}
