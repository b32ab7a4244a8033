"""Answer whether FP8 pays for a training: YES, NO, MEASURE FIRST or DOES NOT FIT, and why.

A step is predicted from the rooflines of training.py. Only ratios matter: bf16 matmuls are taken to
be at theirs.
"""

import math
from dataclasses import replace

import numpy as np

from extensions.decide import read
from extensions.decide.measure import measuring_command
from extensions.decide.model import HEAD
from extensions.decide.sizes import ExpertSizes
from extensions.decide.training import Training, block_weights, parts, share_of, step_seconds
from models.errors import InputError, by_pattern
from models.flops import count
from models.gpus import GPUS, old_chip
from models.scaling import FILTERS, explain_unfit_layers, explain_unfit_tokens, unfit_layers

__all__ = ["beyond", "estimate", "parts"]
RECIPES = ["tensorwise", "rowwise", "bf16"]  # the rows of ranges in fitted.yaml
# Times larger or smaller: models whose pairs have a part in the verdict
NEAR, NEAR_WITHOUT_FIT = 2, 1.5
N_SHOWN = 3  # pairs
LIBRARIES = ("torchao", "Transformer Engine")  # stacks that anybody can train with
YES, NO, MEASURE, NO_FIT = "YES", "NO", "MEASURE FIRST", "DOES NOT FIT"
FORMATS = {"fp8": "FP8", "mxfp8": "MXFP8", "nvfp4": "NVFP4"}
# Chips with units for other formats than FP8
FORMAT_CHIPS = {
    "mxfp8": ["Blackwell", "RTX Blackwell", "CDNA 4"],
    "nvfp4": ["Blackwell", "RTX Blackwell"],
}
NO_FIT_REASON = (
    "memory_gib is more than the GPU has: take more GPUs, fewer or shorter rows, or a smaller model"
)
# What cuBLAS refuses on RTX Blackwell (sm_120), with CUBLAS_STATUS_NOT_SUPPORTED
REFUSED_MATMULS = {
    "fp8": "rowwise: on RTX Blackwell (sm_120) its matmuls may be refused with "
    "CUBLAS_STATUS_NOT_SUPPORTED, see github.com/pytorch/pytorch/issues/192707",
    "mxfp8": "on RTX Blackwell (sm_120) cuBLAS before 13.6 refuses two of three matmuls with "
    "CUBLAS_STATUS_NOT_SUPPORTED, see github.com/pytorch/pytorch/issues/198126",
}


def estimate(
    asked: Training, needed: float, n_steps: float = 0, price: float = 0, name: str = "fp8"
) -> dict:
    """Answer with numbers, None for what is not known; ranges are [value, low, high].

    What is known of the kind of GPU stands in fitted.yaml: tests/fit.py says what each field is.

    Args:
        needed: bytes on each GPU.
        n_steps: of the training.
        price: of a GPU's hour.
        name: of the format, a key of FORMATS.

    Raises:
        InputError: for sizes or tokens that FP8 refuses in a run too.
    """
    gpu, fitted = GPUS[asked.gpu], read("fitted.yaml")
    kind, notes = fitted.get(gpu.chip), [asked.model.note] * bool(asked.model.note)
    answer = blank_answer(name) | {
        "model": asked.model.name,
        "parameters": None if math.isnan(asked.parameters) else asked.parameters,
        "memory_gib": None if math.isnan(needed) else round(needed / 2**30, 1),
        "gpu_memory_gib": round(gpu.memory / 2**30, 1),
        "recompute": asked.recompute,
        "notes": notes,
    }
    if not gpu.has_fp8_units or gpu.chip not in FORMAT_CHIPS.get(name, [gpu.chip]):
        return answer | {"verdict": NO, "why": explain_missing_units(asked.gpu, gpu.chip, name)}
    answer |= {"fitted_to": kind["fitted_to"], "nearest": nearest_pairs(asked, kind["pairs"])}
    if not asked.model.has_experts:
        asked = keep_unfit_layers(asked, notes)
    if needed > gpu.memory:
        answer |= {"verdict": NO_FIT, "why": NO_FIT_REASON}
    elif asked.model.has_experts:
        answer |= answer_experts(asked, fitted["experts"])
    elif name != "fp8":
        answer |= answer_format(asked, name, fitted["formats"][name])
    elif gpu.bf16 is None:
        answer["why"] = f"no estimate: {gpu.source}"
    else:
        answer |= answer_fp8(asked, kind, n_steps, price)
    add_advice(answer, asked, kind)
    return answer


def add_advice(answer: dict, asked: Training, kind: dict) -> None:
    """Add what to measure, and what is known of the loss."""
    gpu, name = GPUS[asked.gpu], answer["format"]
    if gpu.chip == "RTX Blackwell" and name in REFUSED_MATMULS:
        answer["notes"].append(REFUSED_MATMULS[name])
    if answer["verdict"] != NO and asked.sizes:
        is_predicted = gpu.bf16 and not asked.model.has_experts
        factors = kind["ranges"][0][1] if is_predicted else None
        answer["measure"], sentences = measuring_command(asked, name, factors)
        answer["notes"] += sentences
    if answer["verdict"] == YES:
        answer["loss"] = describe_loss(asked.parameters, name)


def blank_answer(name: str) -> dict:
    """Give an answer of which nothing is known yet but the format."""
    unknown = (
        "why",
        "model",
        "parameters",
        "step_s",
        "hours",
        "cost",
        "memory_gib",
        "gpu_memory_gib",
        "recompute",
    )
    return dict.fromkeys((*unknown, "fitted_to", "loss", "measure")) | {
        "verdict": MEASURE,
        "format": name,
        "speedup": {"tensorwise": None, "rowwise": None},
        "nearest": [],
        "outside": [],
        "notes": [],
    }


def answer_old_gpu(gpu: str, name: str) -> dict:
    """Answer for a GPU that is not in the table, and has no FP8 units."""
    why = explain_missing_units(gpu, old_chip(gpu), name)
    return blank_answer(name) | {"verdict": NO, "why": why}


def explain_missing_units(gpu: str, chip: str, name: str) -> str:
    """Say why a GPU cannot multiply in a format."""
    since = ", ".join(FORMAT_CHIPS.get(name, ["Ada", "Hopper", "CDNA 3"]))
    return f"{gpu} has no {FORMATS[name]} units, which came with {since}: its chip is {chip}"


# ---- FP8 ----


def answer_fp8(asked: Training, kind: dict, n_steps: float, price: float) -> dict:
    """Answer by the estimate of a step, and by the pairs near in size."""
    outside = beyond(asked, kind["covered"])
    if beyond(asked, kind["answered"]):
        return {"why": "no pair here is near", "outside": outside}
    within, factors = kind["ranges"][bool(outside)]  # the second is twice as wide
    seconds = step_seconds(asked, factors)
    speedup = seconds[2, 0] / seconds[:2, :1] * within
    # Pairs whose model is at most twice as large or small have a say too
    published = [gain for size, gain in kind["told"] if is_near(size, asked, NEAR)]
    gains = [*speedup[0], *published]
    if min(gains) > 1:
        verdict, why = YES, "the whole range lies above compiled bf16"
    elif max(gains) < 1:
        verdict, why = NO, "casts take more than FP8 matmuls save"
    else:
        verdict, why = MEASURE, "the range, or a pair near it, has both, a gain and a loss"
    answer = {
        "verdict": verdict,
        "why": why,
        "outside": outside,
        "speedup": dict(zip(RECIPES, speedup.tolist(), strict=False)),
    }
    if not kind["n_steps_measured"]:
        return answer
    hours = seconds * n_steps / 3600
    answer["step_s"] = dict(zip(RECIPES, seconds.tolist(), strict=True))
    if n_steps:
        answer["hours"] = dict(zip(RECIPES, hours.tolist(), strict=True))
    if n_steps and price:
        cost = hours * asked.gpus * price
        answer["cost"] = dict(zip(RECIPES, cost.tolist(), strict=True))
    return answer


def keep_unfit_layers(asked: Training, notes: list[str]) -> Training:
    """Keep layers in bf16 whose sides 16 does not divide; add a note on them.

    Raises InputError, with the sentences of a run, if no layer is left or tokens are unfit.
    """
    shapes = asked.sizes.linear_shapes()
    unfit = set(unfit_layers({name: shapes[name] for name in shapes.keys() - asked.bf16_layers}))
    if unfit and block_weights(asked.sizes).keys() <= unfit | asked.bf16_layers:
        raise InputError(explain_unfit_layers(sorted(unfit)))
    unfit_tokens = explain_unfit_tokens(asked.seq_len, asked.batch)
    if unfit_tokens:
        raise InputError(unfit_tokens)
    filtered = asked.bf16_layers - HEAD
    if filtered:
        notes.append(
            f"the recipe keeps {by_pattern(filtered)} in bf16, "
            f"{share_of(asked.sizes, filtered):.0%} of the blocks' matmul FLOPs"
        )
    if unfit:
        notes.append(
            f"{by_pattern(unfit)} stay in bf16, {share_of(asked.sizes, unfit):.0%} of the blocks' "
            f"matmul FLOPs: 16 does not divide their sides, so a run needs them in {FILTERS}"
        )
    return replace(asked, bf16_layers=asked.bf16_layers | unfit)


def beyond(asked, limits: dict) -> list[str]:
    """Name what of a training is outside of limits: [least, most] by name."""
    return [
        name for name, (least, most) in limits.items() if not least <= getattr(asked, name) <= most
    ]


# ---- pairs ----


def is_near(parameters: float, asked: Training, times: float) -> bool:
    """Return true for a model that is at most so many times as large or small as the asked one."""
    return 1 / times < parameters / asked.parameters < times


def nearest_pairs(asked: Training, pairs: list[dict]) -> list[dict]:
    """List the few pairs nearest in size."""
    if math.isnan(asked.parameters):
        return pairs[:N_SHOWN]
    return sorted(pairs, key=lambda pair: abs(np.log(pair["parameters"] / asked.parameters)))[
        :N_SHOWN
    ]


def answer_experts(asked: Training, published: dict) -> dict:
    """Answer for a mixture of experts by its pairs: they have no trend by size."""
    why = (
        f"in {published['count']} published pairs, mixtures of experts ran {published['low']:.2f} "
        f"to {published['high']:.2f} times as fast as bf16, without a trend by size"
    )
    if isinstance(asked.sizes, ExpertSizes):
        bound = asked.sizes.bound_speedup()
        why += f"; this one gains at most {bound:.3f} while its experts stay in bf16, as here"
    return {"why": why, "nearest": nearest_pairs(asked, published["pairs"])}


def answer_format(asked: Training, name: str, published: list[dict]) -> dict:
    """Answer for MXFP8 or NVFP4 by the pairs of its kind of GPU that are near in size."""
    pairs = [pair for pair in published if GPUS[pair["gpu"]].chip == GPUS[asked.gpu].chip]
    near = [pair for pair in pairs if is_near(pair["parameters"], asked, NEAR_WITHOUT_FIT)]
    near = [pair for pair in near if pair["scaling"] == name and pair["stack"] in LIBRARIES]
    gains = [pair["speed_up"] for pair in near]
    answer = {"nearest": nearest_pairs(asked, pairs), "fitted_to": f"{len(pairs)} pairs, no fit"}
    if not gains:
        why = f"no published pair of {FORMATS[name]} with {' or '.join(LIBRARIES)} is near in size"
        return answer | {"why": why}
    why = (
        f"near this size {FORMATS[name]} ran {min(gains):.2f} to {max(gains):.2f} times as fast as "
        f"bf16 (published pairs: {len(gains)})"
    )
    if name == "nvfp4":
        answer["why"] = f"{why}; in torchao it is a prototype"
    elif min(gains) > 1 and len(gains) > 1:
        answer |= {"verdict": YES, "why": why}
    else:
        answer["why"] = why
    return answer | {"speedup": {name: [np.median(gains).item(), min(gains), max(gains)]}}


# ---- loss ----


def describe_loss(parameters: float, name: str) -> str:
    """Say what others measured of the loss, at the size nearest to a model's, with the source."""
    reports = [report for report in read("loss.yaml")["reports"] if report["format"] == name]
    # in powers of 2: of reports equally near, the first of the file
    report = min(reports, key=lambda report: round(abs(np.log2(report["parameters"] / parameters))))
    if "gap" in report:
        gap = f"{report['gap']:+.4f}"
    else:
        change = report["low_precision"] / report["bf16"] - 1
        gap = f"{report['low_precision']} beside bf16's {report['bf16']} ({change:+.2%})"
    note = f", {report['note']}" if "note" in report else ""
    return (
        f"{count(report['parameters'])}, {report['scaling']}, {report['setting']}: "
        f"{report['measure']} {gap}{note}: {report['source']}"
    )
