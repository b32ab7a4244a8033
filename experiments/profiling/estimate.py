"""Estimate whether FP8 pays for a training: its memory, speed, first step and hours.

How the speed-up is predicted and how far off the prediction may be: models/calibration.py.
"""

import math
from collections.abc import Iterable
from shlex import join

from experiments.config import recipes
from experiments.profiling.anchors import (
    BF16,
    FP8,
    Anchor,
    calibrations,
    plan_of,
    published,
    rooflines,
)
from experiments.training.plan import Plan, memory_by_use, plan
from models.architectures import label
from models.errors import InputError
from models.floors import tokens_per_step
from models.gpus import GPUS

BEST = "tensorwise"  # the faster scaling ...
GATHERED = "tensorwise_fp8_allgather"  # ... and its recipe for several GPUs
# Overlays as experiments/training/scale.py chooses them, of which the second recomputes
# activations.
AS_IS, RECOMPUTED = "h200", "h100"
A_NODE, A_NODE_OF_ALPS = 8, 4  # GPUs
BENCH = (
    "python -m experiments.bench baseline_compiled tensorwise_fp8_compiled rowwise_fp8_compiled "
    "--budget 600 {settings}"
)
STUDY = (
    "python -m experiments.study baseline_compiled tensorwise_fp8_allgather --processes {gpus} "
    "{settings} training.steps=60"
)
JOBS = (
    "for r in baseline_compiled tensorwise_fp8_allgather; do sbatch --wait --nodes={nodes} "
    "launch/alps_multinode.sbatch $r --out runs/decide/$r/seed0 {settings} training.steps=60; "
    "done; python -m analysis.report runs/decide --baseline baseline_compiled"
)
BALANCE = (
    "FP8 matmuls save {saved_by_products:.0%} of a bf16 step, and casts to FP8 take "
    "{spent_on_casts:.0%}"
)


def estimate(
    keys: list[str],
    gpu: str,
    gpus: int,
    price: float | None,
    own: Iterable[Anchor],
    refused: dict[str, list[str]],
) -> dict:
    """Answer with seconds, bytes, shares and steps as numbers, None for never.

    Args:
        keys: what the training sets in the recipes.
        gpu: a key of `models.gpus.GPUS`.
        price: of a GPU's hour.
        own: this project's measurements.
        refused: recipes that refuse to run, by what they are paired with in the README's table.

    Raises:
        InputError: for a training that the recipes cannot describe.
    """
    overlay, memory = _memory(keys, gpu, gpus)
    bf16 = plan_of(BF16, keys, [overlay], gpus)
    config = bf16.config
    if config.quantize.linear.float8.recipe_name or not config.compile.enable:
        raise InputError(
            "compiled bf16 is compared to compiled FP8: leave out "
            "quantize.linear.float8.recipe_name and compile.enable"
        )
    measured = [*published(), *own]
    measured.sort(key=lambda anchor: anchor.distance(gpu, gpus, bf16))
    nearest = measured[0]
    answer = {
        "should_you": "no",
        "reason": _obstacle(memory, gpu, gpus),
        "model": label(config),
        "parameters": bf16.parameters,
        "gpu": gpu,
        "gpus": gpus,
        "tokens_per_step": tokens_per_step(config) * gpus,
        "steps": config.training.steps,
        "memory": memory,
        "recipe": BF16,
        "overlay": overlay,
        "recompute": config.activation_checkpoint.mode,
        "command": None,
        "goes_with": _goes_with(bf16, gpus, refused),
        "nearest": {
            "name": nearest.name,
            "source": nearest.source,
            "parameters": nearest.bf16.parameters,
            "speed_ups": nearest.speed_ups,
        },
    }
    if answer["reason"]:
        return answer

    # speed
    pairs = {}
    for scaling, name in FP8.items():
        pairs[scaling] = rooflines(bf16, plan_of(name, keys, [overlay], gpus), gpu, gpus)
    fits, best = calibrations(measured), pairs[BEST]
    ours = sum(anchor.ours for anchor in measured)
    answer["speed_up"] = {scaling: fits[scaling].speed_up(pair) for scaling, pair in pairs.items()}
    answer["rests_on"] = {
        "published": len(measured) - ours,
        "ours": ours,
        "off_by_up_to": {scaling: fit.error - 1 for scaling, fit in fits.items()},
    }
    balance = {
        "saved_by_products": best.saved(fits[BEST].efficiency),
        "spent_on_casts": best.casts / best.bf16,
    }
    answer["of_a_bf16_step"] = balance

    # time: a bf16 step takes as many times its roofline as the nearest anchor's did; at the ends of
    # the range, as any anchor's
    gain, shares = answer["speed_up"][BEST], [anchor.share for anchor in measured]
    timed = next(anchor for anchor in measured if BEST in anchor.first_step_s)
    first_s = {precision: timed.first_step_s[precision] for precision in ("bf16", BEST)}
    step_s = {"bf16": best.bf16 / shares[0]}
    step_s[BEST] = step_s["bf16"] / gain["expected"]
    later_s = first_s[BEST] - first_s["bf16"]
    pays = {
        "expected": _pays_from(later_s, step_s["bf16"], gain["expected"]),
        "earliest": _pays_from(later_s, best.bf16 / min(shares), gain["high"]),
        "latest": _pays_from(later_s, best.bf16 / max(shares), gain["low"]),
    }
    whose = "own" if timed.ours else "published"
    later_steps = answer["steps"] - 1
    hours = {p: (first_s[p] + later_steps * step_s[p]) / 3600 for p in step_s}
    answer["step_s_bf16"] = step_s["bf16"]
    answer["first_step_s"] = first_s | {"measured": f"{whose}, {timed.name}, {timed.source}"}
    answer["pays_from_step"] = pays
    answer["hours"] = hours
    answer["cost"] = {p: hours[p] * gpus * price for p in hours} if price else None

    # verdict
    verdict, doubt = _verdict(pays, answer["steps"])
    answer["should_you"] = verdict
    answer["reason"] = BALANCE.format(**balance) + doubt
    if verdict != "no":
        answer["recipe"] = FP8[BEST] if gpus == 1 else GATHERED
    answer["command"] = _command(keys, overlay, gpus)
    return answer


def _memory(keys: list[str], gpu: str, gpus: int) -> tuple[str, dict]:
    """Choose the overlay with which the training fits, or else needs least memory."""
    plans = {name: plan(recipes.load(BF16, [name], keys), gpus) for name in (AS_IS, RECOMPUTED)}
    has, recomputed = GPUS[gpu].memory, plans[RECOMPUTED]
    overlay = AS_IS if plans[AS_IS].memory_needed <= has else RECOMPUTED
    replicas = recomputed.config.parallelism.data_parallel_replicate_degree
    fits_on = None
    for count in [gpus, *(2**k for k in range(gpus.bit_length(), 13))]:
        uses = memory_by_use(recomputed.config, recomputed.args, max(1, count // replicas))
        if sum(uses.values()) <= has:
            fits_on = count
            break
    needed = plans[overlay].memory_needed
    return overlay, {"needed_bytes": needed, "gpu_bytes": has, "fits_on_gpus": fits_on}


def _goes_with(planned: Plan, gpus: int, refused: dict[str, list[str]]) -> list[str]:
    """Say what FP8 has to go with in this training, and whether it does: rows of the README's
    table."""
    config = planned.config
    rows = {
        "torch.compile": True,
        "FSDP2, weights gathered in bf16": gpus > 1,
        "FSDP2, float8 all-gather": gpus > 1,
        "Tied embeddings under FSDP2": gpus > 1 and planned.args.enable_weight_tying,
        "Activation checkpointing, full": config.activation_checkpoint.mode == "full",
        "Qwen3": config.model.name == "qwen3",
    }
    works = {name: "works" for name, needed in rows.items() if needed}
    for name in works.keys() & refused.keys():
        works[name] = f"refused for {' and '.join(refused[name])}"
    return [f"{name}: {how}" for name, how in works.items()]


def _obstacle(memory: dict, gpu: str, gpus: int) -> str | None:
    """Say why there is nothing to compare."""
    fits_on = memory["fits_on_gpus"]
    if fits_on != gpus:
        where = f"ask again with --gpus {fits_on}" if fits_on else "nor would 4,096"
        return f"{gpus} {gpu} cannot hold this training, in FP8 as little as in bf16: {where}"
    if GPUS[gpu].rates.fp8 is None:
        return f"{gpu} has no FP8 units: FP8 would be emulated there, and slower than bf16"
    return None


def _pays_from(later_s: float, step_s: float, speed_up: float) -> int | None:
    """Find the step at which FP8, whose first step ends `later_s` later, has caught up; None if it
    never does."""
    if speed_up <= 1:
        return None
    return max(1, 1 + math.ceil(later_s / (step_s * (1 - 1 / speed_up))))


def _verdict(pays: dict[str, int | None], steps: int) -> tuple[str, str]:
    """Say yes if FP8 ends sooner even at the worst end of the range, no if it is expected not to,
    else measure; and what is doubtful."""
    if pays["latest"] and pays["latest"] <= steps:
        return "yes", ""
    if pays["expected"] is None:
        return "no", ""
    if pays["expected"] <= steps:
        return "measure", f"; that this pays within {steps:,} steps is likely, not certain"
    return "no", f", but {steps:,} steps are too few to earn back the longer first step"


def _command(keys: list[str], overlay: str, gpus: int) -> str:
    """Give the command that would measure it: the bench on one GPU, a study of 60 steps on a
    node's, runs and their report beyond."""
    own = [key for key in keys if not key.startswith("training.steps=")]
    command = BENCH
    if gpus > 1:
        command = STUDY if gpus <= A_NODE else JOBS
    nodes = math.ceil(gpus / A_NODE_OF_ALPS)
    return command.format(gpus=gpus, nodes=nodes, settings=join(["--overlay", overlay, *own]))
