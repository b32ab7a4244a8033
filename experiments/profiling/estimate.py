"""Answer whether FP8 pays for a training: its memory, its speed, its first step and its hours.

The speed-up is predicted by experiments/profiling/fit.py, which rests on what others measured.
"""

import math
from math import log
from shlex import join

import numpy as np
import pandas as pd

from experiments.config import recipes
from experiments.config.rules import check_one_precision
from experiments.profiling import features, fit, pairs
from experiments.training.plan import Plan, plan
from models import flops
from models.architectures import label
from models.errors import InputError
from models.floors import step_of
from models.gpus import GPUS, chip

YES, NO, MEASURE, DOES_NOT_FIT = "YES", "NO", "MEASURE FIRST", "DOES NOT FIT"
BF16 = "baseline_compiled"
FP8 = {name: f"{name}_fp8_compiled" for name in ("tensorwise", "rowwise")}
BEST = "tensorwise"  # the faster scaling ...
GATHERED = "tensorwise_fp8_allgather"  # ... and its recipe for several GPUs
NODE, NODE_OF_ALPS, MOST = 8, 4, 4096  # GPUs
ENDS = {"expected": 0, "low": -1, "high": 1}  # of a range
WIDER = 2  # times the range, where no pair is near
NEAR = 4  # times the parameters

# Seconds to the end of the first step. Compiled by block, one graph serves all blocks: means of the
# kept study on CPUs, whose compiler is another than a GPU's. Compiled as one graph: seconds for
# each layer of the course study's 8 B (results/published.yaml).
FIRST_STEP_S = {"block": (21.5, 28.0), "model": (36.9 / 32, 102.9 / 32)}  # in bf16, in FP8
# Kernels that a block's forward and backward pass launch (results/LOG.md, "the CUDA path counted"):
# inductor's, and 23 of matmuls and attention. A launch takes the host 5 µs, which is assumed.
LAUNCHES = pd.Series({"bf16": 14 + 23, "tensorwise": 69 + 23, "rowwise": 64 + 23})
LAUNCH_S = 5e-6


def estimate(asked) -> dict:
    """Answer with a verdict, and with seconds, bytes and steps as numbers, None for never.

    `asked` has the arguments of experiments.decide; `keys` are what they set in the recipes.

    Raises `InputError` for a training that the recipes cannot describe.
    """
    ways, gpu = asked.tensor_parallel, GPUS[asked.gpu]
    if asked.gpus % ways:
        raise InputError(f"--gpus {asked.gpus}: expected a multiple of --tensor-parallel {ways}")
    for overlay in ("no_recompute", "full_recompute"):
        bf16 = _plan(BF16, overlay, asked.keys, asked.gpus)
        fits = bf16.memory_needed <= gpu.memory
        if fits:
            break
    tokens = bf16.tokens * asked.gpus // ways
    answer = {
        "model": label(bf16.config),
        "billions": bf16.parameters / 1e9,
        "gpu": asked.gpu,
        "gpus": asked.gpus,
        "steps": math.ceil(asked.tokens / tokens) if asked.tokens else asked.steps,
        "tokens_per_step": tokens,
        "nearest": _nearest(asked, bf16),
        "needed_gib": bf16.memory_needed / 2**30,
        "gpu_gib": gpu.memory / 2**30,
        "fits": fits,
        "recomputes": overlay == "full_recompute",
    }
    if not fits:
        return answer | {"verdict": DOES_NOT_FIT, "why": _more_gpus(asked)}
    if gpu.datasheet.fp8 is None:
        why = f"{asked.gpu} has no FP8 units: FP8 would be emulated there, slower than bf16"
        answer |= {"verdict": NO, "why": why}
    elif flops.has_experts(bf16.args):
        answer |= _bound(bf16)
    else:
        answer |= _speed(asked, bf16, overlay)
        answer |= _time(asked, bf16, answer)
        answer |= _verdict(answer)
    return answer | _commands(asked, answer, overlay)


# ---- data: the training, its memory, and the pair that is most like it ----


def _plan(name: str, overlay: str, keys: list[str], gpus: int) -> Plan:
    """Plan what each of some GPUs does in a step of a recipe."""
    recipe = recipes.load(name, [overlay], keys)
    config = recipe.config
    if name == BF16 and (config.quantize.linear.float8.recipe_name or not config.compile.enable):
        raise InputError(
            "leave out quantize.linear.float8.recipe_name and compile.enable: compiled bf16 is "
            "compared to compiled FP8"
        )
    check_one_precision(config)
    return plan(recipe, gpus)


def _more_gpus(asked) -> str:
    """Say on how many GPUs it would fit."""
    gpus, keys = asked.gpus, [*asked.keys, "training.global_batch_size=-1"]
    while gpus < MOST:
        gpus *= 2
        needed = _plan(BF16, "full_recompute", keys, gpus).memory_needed
        if needed <= GPUS[asked.gpu].memory:
            return f"it would fit on {gpus}: ask again with --gpus {gpus}"
    return f"nor would it fit on {gpus:,} of them"


def _nearest(asked, bf16: Plan) -> dict:
    """Choose the pair that is most like the training: in factors of e of parameters, of which
    another GPU, another stack or doubt counts as one or more."""
    kind = "experts" if flops.has_experts(bf16.args) else "dense"
    if bf16.config.model.freeze:
        kind = "lora"

    def distance(pair: pairs.Pair) -> float:
        size = abs(log(pair.billions * 1e9 / bf16.parameters))
        cut = abs(log(pair.tensor_parallel / asked.tensor_parallel))
        gpu = 0.5 * (pair.gpu_key != asked.gpu) + 2.5 * (pair.chip != chip(asked.gpu))
        report = (pair.stack != "torchao") + (pair.fairness == "doubtful")
        little = (pair.scaling != BEST) + (pair.sequence != bf16.config.training.seq_len)
        little += abs(log((pair.gpus or 1) / asked.gpus)) + (pair.fairness == "minor")
        return size + cut + gpu + report + 0.1 * little

    pair = min((pair for pair in pairs.read() if pair.kind == kind and pair.billions), key=distance)
    shown = ("name", "model", "stack", "scaling", "gpu", "source", "speed_up")
    return {field: getattr(pair, field) for field in shown}


# ---- features and fit: the speed ----


def _bound(bf16: Plan) -> dict:
    """Bound the speed-up of a mixture of experts, whose experts, router and head stay in bf16."""
    attention = [name for name in flops.linear_shapes(bf16.args) if ".attention." in name]
    share = flops.share_of_matmuls(bf16.args, attention)
    return {
        "at_most": flops.most_speed_up(share),
        "trust": "a bound and no prediction, because the time model knows dense models only",
        "verdict": MEASURE,
        "why": f"experts stay in bf16: FP8 computes {share:.0%} of the matmul FLOPs; others, with "
        "experts in FP8, measured 0.75 to 1.43 times without a trend by size",
    }


def _speed(asked, bf16: Plan, overlay: str) -> dict:
    """Predict both steps' seconds and the speed-ups with their ranges, and say what they rest
    on."""
    fitted, found, rates = fit.fitted(), [], GPUS[asked.gpu].datasheet
    for scaling, name in FP8.items():
        planned = _plan(name, overlay, asked.keys, asked.gpus)
        step = step_of(planned.config, planned.passes)
        sizes, layers = features.shard(planned.args, asked.tensor_parallel), planned.fp8.layers
        rooflines = features.rooflines(step, sizes, layers, rates, asked.gpus)
        found.append({"stack": "torchao", "scaling": scaling, **rooflines})
    rows = fit.with_parameters(pd.DataFrame(found))
    both = fit.times(fitted.parameters, rows)
    of_bf16 = both.bf16[0]
    computing = pd.Series([of_bf16, *both.fp8], LAUNCHES.index) / fitted.pace(asked.gpu, asked.gpus)
    launching = LAUNCH_S * LAUNCHES * rows["blocks"][0]
    step_s = np.maximum(computing, launching)
    why = f"FP8 matmuls save {both.saved[0] / of_bf16:.0%} of a bf16 step, "
    why += f"casts and scales take {both.casts[0] / of_bf16:.0%}"
    if launching[BEST] > computing[BEST]:
        why += "; the host launches FP8's kernels slower than the GPU computes them"
    far = _far(asked, bf16, fitted.rows)
    widths = np.hypot(fitted.half_width() * (WIDER if far else 1), fitted.spread(rows))
    trust = f"fitted to {len(fitted.rows)} pairs, 80 % range ±{np.expm1(widths[0]):.0%}"
    if far:
        trust += f", twice as wide because {far}"
    ratios = step_s["bf16"] / step_s[list(FP8)]
    ranges = {end: ratios * np.exp(sign * widths) for end, sign in ENDS.items()}
    return {
        "step_s": step_s.to_dict(),
        "speed_up": pd.DataFrame(ranges).to_dict("index"),
        "why": why,
        "trust": trust,
        "fit": dict(zip(fit.PARAMETERS, fitted.parameters.tolist(), strict=True)),
    }


def _far(asked, bf16: Plan, rows: pd.DataFrame) -> str:
    """Say why no fitted pair is near; empty where one is."""
    alike = rows[(rows["stack"] == "torchao") & (rows["chip"] == chip(asked.gpu))]
    apart = np.log(alike["billions"] * 1e9 / bf16.parameters).abs()
    of_size = f"no torchao pair on {chip(asked.gpu)} is within {NEAR} times the size"
    reasons = {
        "no fitted pair trains with frozen weights": bf16.config.model.freeze,
        f"no fitted pair is of {asked.gpu}": asked.gpu not in set(rows["gpu_key"]),
        of_size: not (apart < log(NEAR)).any(),
    }
    return " and ".join(reason for reason, applies in reasons.items() if applies)


# ---- the answer: time, verdict, commands ----


def _time(asked, bf16: Plan, answer: dict) -> dict:
    """Work out the first step, hours, cost, and from which step on FP8 is ahead."""
    scope, step_s, steps = bf16.config.compile.scope, answer["step_s"], answer["steps"]
    layers = bf16.args.n_layers if scope == "model" else 1
    bf16_s, fp8_s = (layers * seconds for seconds in FIRST_STEP_S[scope])
    later_s, source = fp8_s - bf16_s, f"assumption, compiled by {scope}"
    if asked.first_step is not None:
        later_s, source = asked.first_step, "as given"
    first_s = {"bf16": bf16_s, BEST: bf16_s + later_s}
    hours, cost = {}, None
    if steps:
        hours = {
            words: (first_s[name] + (steps - 1) * step_s[name]) / 3600
            for words, name in (("in bf16", "bf16"), ("in FP8", BEST))
        }
    hours["saved per 1,000 steps"] = 1000 * (step_s["bf16"] - step_s[BEST]) / 3600
    if asked.price is not None:
        cost = {words: h * asked.gpus * asked.price for words, h in hours.items()}
    overtakes = dict.fromkeys(ENDS)  # the step at which FP8 has caught up
    for end, ratio in answer["speed_up"][BEST].items():
        if ratio > 1:
            lead_s = step_s["bf16"] * (1 - 1 / ratio)
            overtakes[end] = max(1, 1 + math.ceil(later_s / lead_s))
    return {
        "later_s": later_s,
        "first_step": source,
        "first_step_s": first_s,
        "hours": hours,
        "cost": cost,
        "overtakes_at_step": overtakes,
    }


def _verdict(answer: dict) -> dict:
    """Say YES or NO where the whole range does, first step included, else MEASURE FIRST.

    Without steps the answer is that of a long training.
    """
    steps, overtakes, why = answer["steps"], answer["overtakes_at_step"], answer["why"]
    if chip(answer["gpu"]) not in set(fit.fitted().rows["chip"]):
        why = f"nobody has measured this kind of GPU fairly; by its rooflines {why}"
        return {"verdict": MEASURE, "why": why}
    ahead = {end: step and step <= (steps or math.inf) for end, step in overtakes.items()}
    if ahead["low"]:
        return {"verdict": YES}
    if ahead["high"]:
        return {"verdict": MEASURE}
    if overtakes["expected"]:
        why = f"{steps:,} steps are too few to earn back the longer first step; {why}"
    return {"verdict": NO, "why": why}


def _commands(asked, answer: dict, overlay: str) -> dict:
    """Give the recipe, the command that trains it, and the command that measures both."""
    recipe = FP8[BEST] if asked.gpus == 1 else GATHERED
    if answer["verdict"] == NO:
        recipe = BF16
    keys = ["--overlay", overlay, *asked.keys]
    if 1 < asked.gpus <= NODE:
        keys[2:2] = ["--processes", str(asked.gpus)]
    settings, both = join(keys), f"{BF16} {GATHERED}"
    run = f"python -m experiments.run {recipe} {settings}"
    measure = f"python -m experiments.study {both} {settings} training.steps=60"
    if asked.gpus == 1:
        variants = " ".join([BF16, *FP8.values()])
        measure = f"python -m experiments.bench {variants} --budget 600 {settings}"
    elif asked.gpus > NODE:
        nodes = f"--nodes={math.ceil(asked.gpus / NODE_OF_ALPS)}"
        run = f"sbatch {nodes} launch/alps_multinode.sbatch {recipe} {settings}"
        measure = (
            f"for r in {both}; do sbatch --wait {nodes} launch/alps_multinode.sbatch $r "
            f"--out runs/decide/$r/seed0 {settings} training.steps=60; done; "
            f"python -m analysis.report runs/decide --reference {BF16}"
        )
    if answer["steps"]:
        run += f" training.steps={answer['steps']}"
    return {"recipe": recipe, "run": run, "measure": measure}
