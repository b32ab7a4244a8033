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
from models.errors import InputError, format_name_patterns
from models.flops import format_parameters
from models.gpus import GPUS, find_old_chip
from models.scaling import FILTER_KEY, explain_unfit_layers, explain_unfit_tokens, find_unfit_layers

__all__ = ["beyond", "estimate", "parts"]
RECIPE_ROWS = ["tensorwise", "rowwise", "bf16"]  # the rows of ranges in fitted.yaml
# Times larger or smaller: models whose pairs have a part in the verdict
NEAR_TIMES, NEAR_WITHOUT_FIT = 2, 1.5
N_SHOWN = 3  # pairs
STACK_LIBRARIES = ("torchao", "Transformer Engine")  # stacks that anybody can train with
YES, NO, MEASURE_FIRST, NO_FIT = "YES", "NO", "MEASURE FIRST", "DOES NOT FIT"
FORMAT_NAMES = {"fp8": "FP8", "mxfp8": "MXFP8", "nvfp4": "NVFP4"}
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
    training: Training,
    memory_bytes: float,
    n_steps: float = 0,
    gpu_price: float = 0,
    format_name: str = "fp8",
) -> dict:
    """Answer with numbers, None for what is not known; ranges are [value, low, high].

    What is known of the kind of GPU stands in fitted.yaml: fit.py says what each field is.

    Args:
        memory_bytes: needed on each GPU.
        n_steps: of the training.
        gpu_price: of a GPU's hour.
        format_name: a key of FORMAT_NAMES.

    Raises:
        InputError: for sizes or tokens that FP8 refuses in a run too.
    """
    gpu, fitted_facts = GPUS[training.gpu], read("fitted.yaml")
    kind_facts = fitted_facts.get(gpu.chip)
    notes = [training.model.note] if training.model.note else []
    answer = blank_answer(format_name) | {
        "model": training.model.name,
        "parameters": None if math.isnan(training.parameters) else training.parameters,
        "memory_gib": None if math.isnan(memory_bytes) else round(memory_bytes / 2**30, 1),
        "gpu_memory_gib": round(gpu.memory / 2**30, 1),
        "recompute": training.recompute,
        "notes": notes,
    }
    if not gpu.has_fp8_units or gpu.chip not in FORMAT_CHIPS.get(format_name, [gpu.chip]):
        return answer | {
            "verdict": NO,
            "why": explain_missing_units(training.gpu, gpu.chip, format_name),
        }
    answer |= {
        "fitted_to": kind_facts["fitted_to"],
        "nearest": nearest_pairs(training, kind_facts["pairs"]),
    }
    if not training.model.has_experts:
        training = keep_unfit_layers(training, notes)
    if memory_bytes > gpu.memory:
        answer |= {"verdict": NO_FIT, "why": NO_FIT_REASON}
    elif training.model.has_experts:
        answer |= answer_experts(training, fitted_facts["experts"])
    elif format_name != "fp8":
        answer |= answer_format(training, format_name, fitted_facts["formats"][format_name])
    elif gpu.bf16 is None:
        answer["why"] = f"no estimate: {gpu.source}"
    else:
        answer |= answer_fp8(training, kind_facts, n_steps, gpu_price)
    add_advice(answer, training, kind_facts)
    return answer


def add_advice(answer: dict, training: Training, kind_facts: dict) -> None:
    """Add what to measure, and what is known of the loss."""
    gpu, format_name = GPUS[training.gpu], answer["format"]
    if gpu.chip == "RTX Blackwell" and format_name in REFUSED_MATMULS:
        answer["notes"].append(REFUSED_MATMULS[format_name])
    if answer["verdict"] != NO and training.sizes:
        is_predicted = gpu.bf16 and not training.model.has_experts
        step_factors = kind_facts["ranges"][0][1] if is_predicted else None
        answer["measure"], measure_notes = measuring_command(training, format_name, step_factors)
        answer["notes"] += measure_notes
    if answer["verdict"] == YES:
        answer["loss"] = describe_loss(training.parameters, format_name)


def blank_answer(format_name: str) -> dict:
    """Give an answer of which nothing is known yet but the format."""
    unknown_fields = ["why", "model", "parameters", "step_s", "hours", "cost", "memory_gib"]
    unknown_fields += ["gpu_memory_gib", "recompute", "fitted_to", "loss", "measure"]
    return dict.fromkeys(unknown_fields) | {
        "verdict": MEASURE_FIRST,
        "format": format_name,
        "speedup": {"tensorwise": None, "rowwise": None},
        "nearest": [],
        "outside": [],
        "notes": [],
    }


def answer_old_gpu(gpu: str, format_name: str) -> dict:
    """Answer for a GPU that is not in the table, and has no FP8 units."""
    reason_text = explain_missing_units(gpu, find_old_chip(gpu), format_name)
    return blank_answer(format_name) | {"verdict": NO, "why": reason_text}


def explain_missing_units(gpu: str, chip_name: str, format_name: str) -> str:
    """Say why a GPU cannot multiply in a format."""
    format_chips = ", ".join(FORMAT_CHIPS.get(format_name, ["Ada", "Hopper", "CDNA 3"]))
    units = f"{FORMAT_NAMES[format_name]} units"
    return f"{gpu} has no {units}, which came with {format_chips}: its chip is {chip_name}"


# ---- FP8 ----


def answer_fp8(training: Training, kind_facts: dict, n_steps: float, gpu_price: float) -> dict:
    """Answer by the estimate of a step, and by the pairs near in size."""
    outside_names = beyond(training, kind_facts["covered"])
    if training.bf16_share > kind_facts["largest_bf16_share"]:
        outside_names.append("bf16_share")
    if beyond(training, kind_facts["answered"]):
        return {"why": "no pair here is near", "outside": outside_names}
    # the second is twice as wide
    width_factors, step_factors = kind_facts["ranges"][bool(outside_names)]
    step_range = step_seconds(training, step_factors)
    speedup_range = step_range[2, 0] / step_range[:2, :1] * width_factors
    published_ratios = [
        ratio for size, ratio in kind_facts["told"] if is_near(size, training, NEAR_TIMES)
    ]
    speed_ratios = [*speedup_range[0], *published_ratios]
    if min(speed_ratios) > 1:
        verdict, reason_text = YES, "the whole range lies above compiled bf16"
    elif max(speed_ratios) < 1:
        verdict, reason_text = NO, "casts take more than FP8 matmuls save"
    else:
        verdict = MEASURE_FIRST
        reason_text = "the range, or a pair near it, has both, a gain and a loss"
    answer = {
        "verdict": verdict,
        "why": reason_text,
        "outside": outside_names,
        "speedup": dict(zip(RECIPE_ROWS, speedup_range.tolist(), strict=False)),
    }
    if not kind_facts["n_steps_measured"]:
        return answer
    hour_range = step_range * n_steps / 3600
    answer["step_s"] = dict(zip(RECIPE_ROWS, step_range.tolist(), strict=True))
    if n_steps:
        answer["hours"] = dict(zip(RECIPE_ROWS, hour_range.tolist(), strict=True))
    if n_steps and gpu_price:
        cost_range = hour_range * training.gpus * gpu_price
        answer["cost"] = dict(zip(RECIPE_ROWS, cost_range.tolist(), strict=True))
    return answer


def keep_unfit_layers(training: Training, notes: list[str]) -> Training:
    """Keep layers in bf16 whose sides 16 does not divide; add a note on them.

    Raises InputError, with the sentences of a run, if no layer is left or tokens are unfit.
    """
    layer_shapes = training.sizes.linear_shapes()
    unfit_names = set(
        find_unfit_layers(
            {name: layer_shapes[name] for name in layer_shapes.keys() - training.bf16_layers}
        )
    )
    if unfit_names and block_weights(training.sizes).keys() <= unfit_names | training.bf16_layers:
        raise InputError(explain_unfit_layers(sorted(unfit_names)))
    unfit_tokens = explain_unfit_tokens(training.seq_len, training.batch)
    if unfit_tokens:
        raise InputError(unfit_tokens)
    filtered_layers = training.bf16_layers - HEAD
    if filtered_layers:
        notes.append(
            f"the recipe keeps {format_name_patterns(filtered_layers)} in bf16, "
            f"{share_of(training.sizes, filtered_layers):.0%} of the blocks' matmul FLOPs"
        )
    if unfit_names:
        notes.append(
            f"{format_name_patterns(unfit_names)} stay in bf16, "
            f"{share_of(training.sizes, unfit_names):.0%} of the blocks' matmul FLOPs: 16 does not "
            f"divide their sides, so a run needs them in {FILTER_KEY}"
        )
    return replace(training, bf16_layers=training.bf16_layers | unfit_names)


def beyond(training, named_limits: dict) -> list[str]:
    """Name what of a training is outside of limits: [least, most] by name."""
    return [
        name
        for name, (minimum, maximum) in named_limits.items()
        if not minimum <= getattr(training, name) <= maximum
    ]


# ---- pairs ----


def is_near(parameters: float, training: Training, size_ratio: float) -> bool:
    """Return true for a model that is at most so many times as large or small as the asked one."""
    return 1 / size_ratio < parameters / training.parameters < size_ratio


def nearest_pairs(training: Training, published_pairs: list[dict]) -> list[dict]:
    """List the few pairs nearest in size."""
    if math.isnan(training.parameters):
        return published_pairs[:N_SHOWN]
    return sorted(
        published_pairs, key=lambda pair: abs(np.log(pair["parameters"] / training.parameters))
    )[:N_SHOWN]


def answer_experts(training: Training, expert_facts: dict) -> dict:
    """Answer for a mixture of experts by its pairs: they have no trend by size."""
    reason_text = (
        f"in {expert_facts['count']} published pairs, mixtures of experts ran "
        f"{expert_facts['low']:.2f} to {expert_facts['high']:.2f} times as fast as bf16, without a "
        "trend by size"
    )
    if isinstance(training.sizes, ExpertSizes):
        speedup_bound = training.sizes.bound_speedup()
        reason_text += (
            f"; this one gains at most {speedup_bound:.3f} while its experts stay in bf16, as here"
        )
    return {
        "why": reason_text,
        "nearest": nearest_pairs(training, expert_facts["pairs"]),
        "fitted_to": f"{expert_facts['count']} pairs of mixtures of experts, no fit",
    }


def answer_format(training: Training, format_name: str, format_pairs: list[dict]) -> dict:
    """Answer for MXFP8 or NVFP4 by the pairs of its kind of GPU that are near in size."""
    chip_name, title = GPUS[training.gpu].chip, FORMAT_NAMES[format_name]
    kind_pairs = [pair for pair in format_pairs if GPUS[pair["gpu"]].chip == chip_name]
    speed_ratios = [
        pair["speed_up"]
        for pair in kind_pairs
        if is_near(pair["parameters"], training, NEAR_WITHOUT_FIT)
        and pair["scaling"] == format_name
        and pair["stack"] in STACK_LIBRARIES
    ]
    answer = {
        "nearest": nearest_pairs(training, kind_pairs),
        "fitted_to": f"{len(kind_pairs)} pairs, no fit",
    }
    if not speed_ratios:
        libraries = " or ".join(STACK_LIBRARIES)
        return answer | {"why": f"no published pair of {title} with {libraries} is near in size"}
    lowest, highest = min(speed_ratios), max(speed_ratios)
    answer["speedup"] = {format_name: [np.median(speed_ratios).item(), lowest, highest]}
    answer["why"] = (
        f"near this size {title} ran {lowest:.2f} to {highest:.2f} times as fast as bf16 "
        f"(published pairs: {len(speed_ratios)})"
    )
    if format_name == "nvfp4":
        answer["why"] += "; in torchao it is a prototype"
    elif lowest > 1 and len(speed_ratios) > 1:
        answer["verdict"] = YES
    return answer


# ---- loss ----


def describe_loss(parameters: float, format_name: str) -> str:
    """Say what others measured of the loss, at the size nearest to a model's, with the source."""
    reports = [report for report in read("loss.yaml")["reports"] if report["format"] == format_name]
    # in powers of 2: of reports equally near, the first of the file
    report = min(reports, key=lambda report: round(abs(np.log2(report["parameters"] / parameters))))
    if "gap" in report:
        gap_text = f"{report['gap']:+.4f}"
    else:
        relative_change = report["low_precision"] / report["bf16"] - 1
        gap_text = (
            f"{report['low_precision']} beside bf16's {report['bf16']} ({relative_change:+.2%})"
        )
    report_note = f", {report['note']}" if "note" in report else ""
    return (
        f"{format_parameters(report['parameters'])}, {report['scaling']}, {report['setting']}: "
        f"{report['measure']} {gap_text}{report_note}: {report['source']}"
    )
