"""Answer whether FP8 pays for a training: YES, NO, MEASURE FIRST or DOES NOT FIT, and why.

All that was fitted is in fitted.json (extensions/decide/fit.py).
"""

import json
import math
from dataclasses import replace
from math import exp, log
from pathlib import Path
from shlex import join

from extensions.decide.step import LAYERS, Factors, Setting, layers, log_speed_up, rooflines, times
from models import flops
from models.errors import InputError
from models.gpus import GPUS, chip

FITTED = Path(__file__).with_name("fitted.json")
YES, NO, MEASURE, DOES_NOT_FIT = "YES", "NO", "MEASURE FIRST", "DOES NOT FIT"
SCALINGS = ("tensorwise", "rowwise")
STACK = "torchao"  # the recipes'
OUTSIDE, REFUSED = 2, 8  # times beyond what pairs cover: a range twice as wide; no estimate
# Seconds that FP8's first step takes longer than bf16's, compiled by block: as on two CPU cores,
# whose compiler is another than a GPU's.
LATER_S = 6.5
NODE, NODE_OF_ALPS, MOST = 8, 4, 4096  # GPUs


def estimate(name: str, sizes: flops.Sizes, asked) -> dict:
    """Answer with numbers, None for what is not known; ranges are [value, low, high].

    Args:
        name: of the model.
        asked: the arguments of `python -m extensions.decide`.
    """
    facts = json.loads(FITTED.read_text(encoding="utf-8"))
    setting = Setting(sizes, asked.gpu, asked.batch, asked.seq_len, asked.gpus)
    setting = replace(setting, frozen=tuple(asked.freeze))
    if set(asked.freeze) >= set(LAYERS):
        raise InputError("--freeze leaves nothing to train: leave a layer out")
    recompute, memory = _memory(setting, asked)
    setting = replace(setting, recompute=recompute)
    tokens = asked.batch * asked.seq_len * asked.gpus
    of_stack = facts["stacks"][STACK]["pairs"]
    answer = {
        "verdict": DOES_NOT_FIT,
        "why": "",
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
        "break_even_step": None,
        "nearest": _nearest(setting, facts["pairs"]),
        "fitted_to": f"fitted to {of_stack} {STACK} pairs of {facts['observations']}",
        "measure": None,
    }
    if GPUS[asked.gpu].datasheet.fp8 is None:
        return answer | {"verdict": NO, "why": f"{asked.gpu} has no FP8 units"}
    if memory > GPUS[asked.gpu].memory:
        return answer | {"why": _more_gpus(setting, asked)}
    beyond = far(setting, facts["stacks"][STACK])
    if max(beyond.values(), default=0) <= REFUSED:
        answer["speedup"] = _speed_ups(setting, facts, bool(beyond))
        answer |= _time(setting, facts, answer, asked.price)
    answer |= _verdict(answer, beyond)
    if beyond:
        answer["fitted_to"] += f"; outside of what they cover: {', '.join(beyond)}"
    if answer["verdict"] == MEASURE:
        answer["measure"] = _measure(setting, answer)
    return answer


# ---- memory: the core's own accounting ----


def _memory(setting: Setting, asked) -> tuple[str, float]:
    """What is recomputed, and the bytes that training in bf16 needs on each GPU. Without
    --recompute nothing is, if it fits so."""
    tried = [asked.recompute] if asked.recompute else ["none", "full"]
    for recompute in tried:
        needed = _needed(replace(setting, recompute=recompute))
        if needed <= GPUS[setting.gpu].memory:
            break
    return recompute, needed


def _needed(setting: Setting) -> float:
    """Bytes on each GPU; frozen weights have neither gradients nor states of the optimizer."""
    tokens, recomputes = setting.batch * setting.sequence, setting.recompute == "full"
    uses = flops.memory(setting.sizes, tokens, setting.gpus, recomputes=recomputes)
    trained = 1 - _frozen_parameters(setting) / setting.sizes.parameters()
    return sum(
        size * (trained if use in ("optimizer", "gradients") else 1) for use, size in uses.items()
    )


def _frozen_parameters(setting: Setting) -> float:
    shapes = layers(setting)
    frozen = [shapes[name] for name in setting.frozen if name in shapes]
    embedding = flops.embedding(setting.sizes) * ("tok_embeddings" in setting.frozen)
    return embedding + sum(n * k * many for n, k, many in frozen)


def _more_gpus(setting: Setting, asked) -> str:
    """Say on how many GPUs it would fit."""
    gpus = setting.gpus
    while gpus < MOST:
        gpus *= 2
        if _memory(replace(setting, gpus=gpus), asked)[1] <= GPUS[setting.gpu].memory:
            return f"it would fit on {gpus}: ask again with --gpus {gpus}"
    return f"nor would it fit on {gpus:,} of them: take fewer rows (--batch) or shorter ones"


# ---- speed ----


def far(setting: Setting, facts: dict) -> dict[str, float]:
    """How many times outside of what a stack's pairs cover a setting is, by what it is outside in;
    up to twice is inside."""
    found = {
        "size": _beyond(setting.sizes.parameters() / 1e9, *facts["billions"]),
        "sequence": _beyond(setting.sequence, *facts["sequence"]),
        "tokens a step": _beyond(setting.batch * setting.sequence, *facts["tokens"]),
        f"no {chip(setting.gpu)}": OUTSIDE * (chip(setting.gpu) not in facts["chips"]) + 1,
        "frozen weights": OUTSIDE * bool(setting.frozen) + 1,
    }
    return {what: times for what, times in found.items() if times > OUTSIDE}


def _beyond(value: float, low: float, high: float) -> float:
    return max(low / value, value / high, 1)


def _speed_ups(setting: Setting, facts: dict, outside: bool) -> dict:
    """Predict the speed-up of each scaling with its range."""
    width = facts["stacks"][STACK]["half_width"] * (2 if outside else 1)
    found = {}
    for scaling in SCALINGS:
        scaled = replace(setting, rowwise=scaling == "rowwise")
        says = log_speed_up(Factors(**facts["factors"]), scaled, rooflines(scaled))
        found[scaling] = [exp(says), exp(says - width), exp(says + width)]
    return found


def _time(setting: Setting, facts: dict, answer: dict, price: float | None) -> dict:
    """Work out seconds a step, hours and cost, where pairs say how fast bf16 is on such a GPU."""
    paces = facts["pace"].get(chip(setting.gpu))
    if not paces:
        return {}
    seconds = times(Factors(**facts["factors"]), setting, rooflines(setting))[0]
    pace, slow, quick = paces
    bf16 = [seconds / pace, seconds / quick, seconds / slow]
    step_s = {"bf16": bf16}
    for scaling, (ratio, low, high) in answer["speedup"].items():
        step_s[scaling] = [bf16[0] / ratio, bf16[1] / high, bf16[2] / low]
    found = {"step_s": step_s, "break_even_step": _break_even(bf16[0], answer["speedup"])}
    if answer["steps"]:
        scale = answer["steps"] / 3600
        found["hours"] = {name: [scale * s for s in step] for name, step in step_s.items()}
        if price:
            pay = price * setting.gpus
            found["cost"] = {name: [pay * h for h in of] for name, of in found["hours"].items()}
    return found


def _break_even(bf16_s: float, speedup: dict) -> list[int | None]:
    """From which step on tensorwise FP8 is ahead, its longer first step included; None: never."""
    ratios = speedup["tensorwise"]
    leads = [bf16_s * (1 - 1 / ratio) for ratio in ratios]
    return [1 + math.ceil(LATER_S / lead) if lead > 0 else None for lead in leads]


def _verdict(answer: dict, beyond: dict) -> dict:
    """Say YES or NO where the whole range does, first step included, else MEASURE FIRST."""
    if answer["speedup"]["tensorwise"] is None:
        return {"verdict": MEASURE, "why": f"no pair here is near: {', '.join(beyond)}"}
    ratio, low, high = answer["speedup"]["tensorwise"]
    steps, (_, at_worst, at_best) = answer["steps"], answer["break_even_step"] or (None, 1, 1)
    if high < 1:
        return {"verdict": NO, "why": "casts take more than FP8 matmuls save"}
    if steps and answer["step_s"] and (at_best is None or at_best > steps):
        return {"verdict": NO, "why": f"{steps:,} steps do not earn back the longer first step"}
    if low > 1 and (not steps or (at_worst or math.inf) <= steps):
        return {"verdict": YES, "why": "the whole range lies above bf16"}
    why = "the range has both, a gain and a loss" if low <= 1 else "so few steps may not earn it"
    return {"verdict": MEASURE, "why": why}


# ---- pairs that are near, and how to measure it here ----


def _nearest(setting: Setting, pairs: list[dict], count: int = 3) -> list[dict]:
    """Choose the pairs that are most like the training: in factors of e of parameters and length,
    of which another chip, stack or scaling counts as one or more."""
    kind = "lora" if setting.frozen else "dense"
    billions = setting.sizes.parameters() / 1e9

    def distance(pair: dict) -> float:
        unlike = 2.5 * (pair["chip"] != chip(setting.gpu)) + (pair["stack"] != STACK)
        unlike += 2 * (pair["kind"] != kind) + 0.3 * (pair["scaling"] not in SCALINGS)
        length = abs(log((pair["sequence"] or 8192) / setting.sequence))
        return unlike + abs(log(pair["billions"] / billions)) + 0.3 * length

    shown = ("name", "model", "stack", "scaling", "gpu", "speed_up", "source")
    return [{key: pair[key] for key in shown} for pair in sorted(pairs, key=distance)[:count]]


def _measure(setting: Setting, answer: dict) -> dict:
    """Give the command that measures it here, and about how many minutes it takes."""
    sizes = ("dim", "n_layers", "n_heads", "n_kv_heads", "hidden_dim", "vocab_size")
    own = [f"{name}: {round(getattr(setting.sizes, name))}" for name in sizes]
    keys = [f"training.local_batch_size={setting.batch}", f"training.seq_len={setting.sequence}"]
    keys += ["training.steps=60", f"model.sizes={{{', '.join(own)}}}"]
    overlay = "full_recompute" if setting.recompute == "full" else "no_recompute"
    recipes = ["baseline_compiled", *(f"{scaling}_fp8_compiled" for scaling in SCALINGS)]
    start = f".venv/bin/python -m experiments.study {' '.join(recipes)}"
    if setting.gpus > NODE:
        nodes = math.ceil(setting.gpus / NODE_OF_ALPS)
        start = f"sbatch --nodes={nodes} launch/alps_multinode.sbatch RECIPE"
    elif setting.gpus > 1:
        start += f" --processes {setting.gpus}"
    step = answer["step_s"]["bf16"][2] if answer["step_s"] else 1
    minutes = math.ceil(len(recipes) * (60 * step + 90) / 60)  # 60 steps, and a first one
    return {"command": f"{start} --overlay {overlay} {join(keys)}", "minutes": minutes}
