"""Answer whether FP8 pays for a training: its memory, its speed, its first step and its hours.

The speed-up is predicted by experiments/profiling/fit.py, which rests on what others measured.
"""

import math
from math import log
from shlex import join

import numpy as np
import pandas as pd

from experiments.config import recipes
from experiments.profiling import features, fit, pairs
from experiments.profiling.table import work
from experiments.training.plan import Plan, plan
from models import flops
from models.architectures import label
from models.errors import InputError
from models.floors import tokens_per_step
from models.gpus import GPUS, chip

YES, NO, MEASURE, DOES_NOT_FIT = "YES", "NO", "MEASURE FIRST", "DOES NOT FIT"
BF16 = "baseline_compiled"
FP8 = {name: f"{name}_fp8_compiled" for name in ("tensorwise", "rowwise")}
BEST = "tensorwise"  # the faster scaling ...
GATHERED = "tensorwise_fp8_allgather"  # ... and its recipe for several GPUs
NODE, NODE_OF_ALPS, MOST = 8, 4, 4096  # GPUs
WIDER = 2  # times the range, where no pair is near
NEAR = 4  # times the parameters

# Seconds to the end of the first step. Compiled by block, one graph serves all blocks: means of the
# kept study on CPUs, whose compiler is another than a GPU's. Compiled as one graph: seconds for
# each layer of the course study's 8 B (results/published.yaml).
FIRST_STEP_S = {
    "block": {"bf16": 21.5, "tensorwise": 28.0},
    "model": {"bf16": 36.9 / 32, "tensorwise": 102.9 / 32},
}
# Kernels that a block's forward and backward pass launch (results/LOG.md, "the CUDA path counted"):
# inductor's, and 23 of matmuls and attention. A launch takes the host 5 µs, which is assumed.
LAUNCHES = pd.Series({"bf16": 14 + 23, "tensorwise": 69 + 23, "rowwise": 64 + 23})
LAUNCH_S = 5e-6

LARGER = "it would fit on {0}: ask again with --gpus {0}"
TOO_LARGE = "nor would it fit on {:,} of them"
NO_UNITS = "{} has no FP8 units: FP8 would be emulated there, slower than bf16"
EXPERTS = (
    "experts stay in bf16: FP8 computes {:.0%} of the matmul FLOPs; others, with experts in FP8, "
    "measured 0.75 to 1.43 times without a trend by size"
)
A_BOUND = "a bound and no prediction, because the time model knows dense models only"
SAVED = "FP8 matmuls save {:.0%} of a bf16 step, casts and scales take {:.0%}"
LAUNCHING = "; the host launches FP8's kernels slower than the GPU computes them"
TRUST = "fitted to {} pairs, 80 % range ±{:.0%}"
TWICE = ", twice as wide because {}"
FROZEN = "no fitted pair trains with frozen weights"
OTHER_GPU = "no fitted pair is of {}"
OTHER_SIZE = f"no torchao pair is within {NEAR} times the size"
UNMEASURED = "nobody has measured this kind of GPU fairly; by its rooflines {}"
TOO_FEW = "{:,} steps are too few to earn back the longer first step; {}"

RUN = "python -m experiments.run {recipe} {settings}"
SBATCH = "sbatch --nodes={nodes} launch/alps_multinode.sbatch {recipe} {settings}"
BENCH = f"python -m experiments.bench {BF16} {' '.join(FP8.values())} --budget 600 {{settings}}"
STUDY = f"python -m experiments.study {BF16} {GATHERED} {{settings}} training.steps=60"
JOBS = (
    f"for r in {BF16} {GATHERED}; do sbatch --wait --nodes={{nodes}} launch/alps_multinode.sbatch "
    "$r --out runs/decide/$r/seed0 {settings} training.steps=60; done; "
    f"python -m analysis.report runs/decide --baseline {BF16}"
)


def estimate(asked) -> dict:
    """Answer with a verdict, and with seconds, bytes and steps as numbers, None for never.

    `asked` has the arguments of experiments.decide; `keys` are what they set in the recipes.

    Raises `InputError` for a training that the recipes cannot describe.
    """
    if asked.gpus % asked.tensor_parallel:
        ways = asked.tensor_parallel
        raise InputError(f"--gpus {asked.gpus}: expected a multiple of --tensor-parallel {ways}")
    gpu = GPUS[asked.gpu]
    for overlay in ("no_recompute", "full_recompute"):
        needed = _needed(asked, overlay, asked.gpus)
        if needed <= gpu.memory:
            break
    bf16 = _plan(BF16, asked, overlay)
    tokens = tokens_per_step(bf16.config) * asked.gpus // asked.tensor_parallel
    answer = {
        "model": label(bf16.config),
        "billions": bf16.parameters / 1e9,
        "gpu": asked.gpu,
        "gpus": asked.gpus,
        "steps": math.ceil(asked.tokens / tokens) if asked.tokens else asked.steps,
        "tokens_per_step": tokens,
        "nearest": _nearest(asked, bf16),
        "needed_gib": needed / 2**30,
        "gpu_gib": gpu.memory / 2**30,
        "fits": needed <= gpu.memory,
        "recomputes": overlay == "full_recompute",
    }
    if not answer["fits"]:
        return answer | {"verdict": DOES_NOT_FIT, "why": _more_gpus(asked)}
    if gpu.datasheet.fp8 is None:
        answer |= {"verdict": NO, "why": NO_UNITS.format(asked.gpu)}
    elif flops.has_experts(bf16.args):
        answer |= _bound(bf16)
    else:
        work(bf16)  # refuses what has no roofline
        answer |= _speed(asked, bf16, overlay)
        answer |= _time(asked, bf16, answer)
        answer |= _verdict(answer)
    return answer | _commands(asked, answer, overlay)


# ---- data: the training, its memory, and the pair that is most like it ----


def _plan(name: str, asked, overlay: str) -> Plan:
    """Plan what one GPU does in a step of a recipe."""
    recipe = recipes.load(name, [overlay], asked.keys)
    config = recipe.config
    if name == BF16 and (config.quantize.linear.float8.recipe_name or not config.compile.enable):
        raise InputError(
            "leave out quantize.linear.float8.recipe_name and compile.enable: compiled bf16 is "
            "compared to compiled FP8"
        )
    config.training.global_batch_size //= asked.gpus  # torchtitan's -1 stays -1
    return plan(recipe)


def _needed(asked, overlay: str, gpus: int) -> float:
    """Give the bytes that each of some GPUs needs, with one pass for a step."""
    keys = [*asked.keys, "training.global_batch_size=-1"]
    return plan(recipes.load(BF16, [overlay], keys), gpus).memory_needed


def _more_gpus(asked) -> str:
    """Say on how many GPUs it would fit."""
    gpus = asked.gpus
    while gpus < MOST:
        gpus *= 2
        if _needed(asked, "full_recompute", gpus) <= GPUS[asked.gpu].memory:
            return LARGER.format(gpus)
    return TOO_LARGE.format(gpus)


def _nearest(asked, bf16: Plan) -> dict:
    """Choose the pair that is most like the training: in factors of e of parameters, of which
    another GPU, another stack or doubt counts as one or more."""
    kind = "experts" if flops.has_experts(bf16.args) else "dense"
    if bf16.config.model.freeze:
        kind = "lora"

    def distance(pair: pairs.Pair) -> float:
        apart = abs(log(pair.billions * 1e9 / bf16.parameters))
        apart += abs(log(pair.tensor_parallel / asked.tensor_parallel))
        apart += 0.5 * (pair.gpu_key != asked.gpu) + 2.5 * (chip(pair.gpu_key) != chip(asked.gpu))
        apart += (pair.stack != "torchao") + (pair.fairness == "doubtful")
        unlike = (pair.scaling != BEST) + (pair.sequence != bf16.config.training.seq_len)
        unlike += abs(log((pair.gpus or 1) / asked.gpus)) + (pair.fairness == "minor")
        return apart + 0.1 * unlike

    of_kind = [pair for pair in pairs.read()[0] if pair.kind == kind and pair.billions]
    pair = min(of_kind, key=distance)
    named = pair.model_dump(include={"name", "model", "gpu", "stack", "scaling", "source"})
    return named | {"speed_up": pair.speed_up}


# ---- features and fit: the speed ----


def _bound(bf16: Plan) -> dict:
    """Bound the speed-up of a mixture of experts, whose experts, router and head stay in bf16."""
    attention = [name for name in flops.linear_shapes(bf16.args) if ".attention." in name]
    share = flops.share_of_matmuls(bf16.args, attention)
    bound = {"at_most": flops.most_speed_up(share), "trust": A_BOUND}
    return bound | {"verdict": MEASURE, "why": EXPERTS.format(share)}


def _speed(asked, bf16: Plan, overlay: str) -> dict:
    """Predict both steps' seconds and the speed-ups with their ranges, and say what they rest
    on."""
    fitted, found, rates = fit.fitted(), [], GPUS[asked.gpu].datasheet
    for scaling, name in FP8.items():
        planned = _plan(name, asked, overlay)
        args = features.shard(planned.args, asked.tensor_parallel)
        step = features.step(planned.config, args, planned.fp8.layers, rates, asked.gpus)
        found.append({"stack": "torchao", "scaling": scaling, **step})
    rows = fit.table(found)
    both = fit.times(fitted.parameters, rows)
    of_bf16 = both.bf16[0]
    computing = pd.Series([of_bf16, *both.fp8], LAUNCHES.index) / fitted.pace(asked.gpu)
    training = bf16.config.training
    passes = tokens_per_step(bf16.config) / (training.local_batch_size * training.seq_len)
    launching = LAUNCH_S * LAUNCHES * (passes * bf16.args.n_layers)
    step_s = np.maximum(computing, launching)
    far = _far(asked, bf16)
    widths = fitted.widths(rows, WIDER if far else 1)
    ratios = step_s["bf16"] / step_s[list(FP8)]
    ends = {"expected": ratios, "low": ratios * np.exp(-widths), "high": ratios * np.exp(widths)}
    why = SAVED.format(both.saved[0] / of_bf16, both.casts[0] / of_bf16)
    if launching[BEST] > computing[BEST]:
        why += LAUNCHING
    trust = TRUST.format(len(fitted.rows), np.expm1(widths[0]))
    if far:
        trust += TWICE.format(far)
    return {
        "step_s": step_s.to_dict(),
        "speed_up": pd.DataFrame(ends).to_dict("index"),
        "why": why,
        "trust": trust,
        "fit": dict(zip(fit.PARAMETERS, fitted.parameters.tolist(), strict=True)),
    }


def _far(asked, bf16: Plan) -> str:
    """Say why no pair is near; empty where one is."""
    rows = fit.fitted().rows
    times = rows.loc[rows["stack"] == "torchao", "billions"] * 1e9 / bf16.parameters
    reasons = {
        FROZEN: bf16.config.model.freeze,
        OTHER_GPU.format(asked.gpu): asked.gpu not in set(rows["gpu"]),
        OTHER_SIZE: not times.between(1 / NEAR, NEAR, inclusive="neither").any(),
    }
    return " and ".join(reason for reason, applies in reasons.items() if applies)


# ---- the answer: time, verdict, commands ----


def _time(asked, bf16: Plan, answer: dict) -> dict:
    """Work out the first step, hours, cost, and from which step on FP8 is ahead."""
    scope, step_s, steps = bf16.config.compile.scope, answer["step_s"], answer["steps"]
    layers = bf16.args.n_layers if scope == "model" else 1
    first_s = {name: layers * seconds for name, seconds in FIRST_STEP_S[scope].items()}
    source = f"assumption, compiled by {scope}"
    if asked.first_step is not None:
        first_s[BEST], source = first_s["bf16"] + asked.first_step, "as given"
    later_s = first_s[BEST] - first_s["bf16"]
    hours = {}
    if steps:
        for name, words in (("bf16", "in bf16"), (BEST, "in FP8")):
            hours[words] = (first_s[name] + (steps - 1) * step_s[name]) / 3600
    hours["saved per 1,000 steps"] = 1000 * (step_s["bf16"] - step_s[BEST]) / 3600
    cost = None
    if asked.price is not None:
        cost = {name: h * asked.gpus * asked.price for name, h in hours.items()}
    overtakes = {}  # the step at which FP8 has caught up
    for end, ratio in answer["speed_up"][BEST].items():
        overtakes[end] = None
        if ratio > 1:
            lead_s = step_s["bf16"] * (1 - 1 / ratio)
            overtakes[end] = max(1, 1 + math.ceil(later_s / lead_s))
    first = {"later_s": later_s, "first_step": source, "first_step_s": first_s}
    return first | {"hours": hours, "cost": cost, "overtakes_at_step": overtakes}


def _verdict(answer: dict) -> dict:
    """Say YES or NO where the whole range does, first step included, else MEASURE FIRST.

    Without steps the answer is that of a long training.
    """
    steps, overtakes = answer["steps"] or math.inf, answer["overtakes_at_step"]
    why = answer["why"]
    if chip(answer["gpu"]) not in set(fit.fitted().rows["gpu"].map(chip)):
        return {"verdict": MEASURE, "why": UNMEASURED.format(why)}
    for end, verdict in (("low", YES), ("high", MEASURE)):
        if overtakes[end] and overtakes[end] <= steps:
            return {"verdict": verdict}
    if overtakes["expected"]:
        why = TOO_FEW.format(steps, why)
    return {"verdict": NO, "why": why}


def _commands(asked, answer: dict, overlay: str) -> dict:
    """Give the recipe, the command that trains it, and the command that measures both."""
    recipe = FP8[BEST] if asked.gpus == 1 else GATHERED
    if answer["verdict"] == NO:
        recipe = BF16
    run, measure, several = RUN, BENCH, []
    if asked.gpus > NODE:
        run, measure = SBATCH, JOBS
    elif asked.gpus > 1:
        measure, several = STUDY, ["--processes", str(asked.gpus)]
    if answer["steps"]:
        run += f" training.steps={answer['steps']}"
    settings = join(["--overlay", overlay, *several, *asked.keys])
    words = {"recipe": recipe, "nodes": math.ceil(asked.gpus / NODE_OF_ALPS), "settings": settings}
    return {"recipe": recipe, "run": run.format(**words), "measure": measure.format(**words)}
