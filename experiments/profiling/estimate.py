"""Answer whether FP8 pays for a training: its memory, its speed, its first step and its hours.

The speed-up is predicted by experiments/profiling/fit.py, which rests on what others measured.
"""

import math
from dataclasses import dataclass
from math import exp, log
from shlex import join

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
AS_IS, RECOMPUTED = "no_recompute", "full_recompute"  # overlays
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
LAUNCHES = {"bf16": 14 + 23, "tensorwise": 69 + 23, "rowwise": 64 + 23}
LAUNCH_S = 5e-6

RUN = "python -m experiments.run {recipe} {settings}"
SBATCH = "sbatch --nodes={nodes} launch/alps_multinode.sbatch {recipe} {settings}"
BENCH = f"python -m experiments.bench {BF16} {' '.join(FP8.values())} --budget 600 {{settings}}"
STUDY = f"python -m experiments.study {BF16} {GATHERED} {{settings}} training.steps=60"
JOBS = (
    f"for r in {BF16} {GATHERED}; do sbatch --wait --nodes={{nodes}} launch/alps_multinode.sbatch "
    "$r --out runs/decide/$r/seed0 {settings} training.steps=60; done; "
    f"python -m analysis.report runs/decide --baseline {BF16}"
)


@dataclass(frozen=True)
class Question:
    """A training that somebody asks about; `keys` are what it sets in the recipes."""

    keys: list[str]
    gpu: str  # a key of models.gpus.GPUS
    gpus: int = 1
    tensor_parallel: int = 1
    steps: int | None = None
    tokens: float | None = None  # of the training, in place of steps
    price: float | None = None  # of a GPU's hour
    first_step: float | None = None  # seconds that FP8's takes longer


def estimate(asked: Question) -> dict:
    """Answer with a verdict, and with seconds, bytes and steps as numbers, None for never.

    Raises `InputError` for a training that the recipes cannot describe.
    """
    if asked.gpus % asked.tensor_parallel:
        ways = asked.tensor_parallel
        raise InputError(f"--gpus {asked.gpus}: expected a multiple of --tensor-parallel {ways}")
    overlay, memory = _memory(asked)
    bf16 = _plan(BF16, asked, overlay)
    answer = _facts(asked, bf16) | memory
    if not memory["fits"]:
        return answer | {"verdict": DOES_NOT_FIT, "why": _more_gpus(asked)}
    if GPUS[asked.gpu].datasheet.fp8 is None:
        why = f"{asked.gpu} has no FP8 units: FP8 would be emulated there, slower than bf16"
        return answer | {"verdict": NO, "why": why} | _commands(asked, answer, overlay, NO)
    if flops.has_experts(bf16.args):
        answer |= _bound(bf16)
    else:
        work(bf16)  # refuses what has no roofline
        answer |= _speed(asked, bf16, overlay)
        answer |= _time(asked, bf16, answer)
        answer |= _verdict(answer)
    return answer | _commands(asked, answer, overlay, answer["verdict"])


# ---- what is asked ----


def _plan(name: str, asked: Question, overlay: str) -> Plan:
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


def _memory(asked: Question) -> tuple[str, dict]:
    """Choose the overlay with which the training fits, or else needs least memory."""
    has = GPUS[asked.gpu].memory
    overlay, needed = AS_IS, _needed(asked, AS_IS, asked.gpus)
    if needed > has:
        overlay, needed = RECOMPUTED, _needed(asked, RECOMPUTED, asked.gpus)
    gib = {"needed_gib": needed / 2**30, "gpu_gib": has / 2**30}
    return overlay, gib | {"fits": needed <= has, "recomputes": overlay == RECOMPUTED}


def _needed(asked: Question, overlay: str, gpus: int) -> float:
    """Give the bytes that each of some GPUs needs, with one pass for a step."""
    keys = [*asked.keys, "training.global_batch_size=-1"]
    return plan(recipes.load(BF16, [overlay], keys), gpus).memory_needed


def _more_gpus(asked: Question) -> str:
    """Say on how many GPUs it would fit."""
    gpus = asked.gpus
    while gpus < MOST:
        gpus *= 2
        if _needed(asked, RECOMPUTED, gpus) <= GPUS[asked.gpu].memory:
            return f"it would fit on {gpus}: ask again with --gpus {gpus}"
    return f"nor would it fit on {gpus:,} of them"


def _facts(asked: Question, bf16: Plan) -> dict:
    tokens = tokens_per_step(bf16.config) * asked.gpus // asked.tensor_parallel
    steps = math.ceil(asked.tokens / tokens) if asked.tokens else asked.steps
    return {
        "model": label(bf16.config),
        "billions": bf16.parameters / 1e9,
        "gpu": asked.gpu,
        "gpus": asked.gpus,
        "steps": steps,
        "tokens_per_step": tokens,
        "nearest": _nearest(asked, bf16),
    }


def _nearest(asked: Question, bf16: Plan) -> dict:
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


# ---- speed ----


def _bound(bf16: Plan) -> dict:
    """Bound the speed-up of a mixture of experts, whose experts, router and head stay in bf16."""
    attention = [name for name in flops.linear_shapes(bf16.args) if ".attention." in name]
    share = flops.share_of_matmuls(bf16.args, attention)
    return {
        "verdict": MEASURE,
        "at_most": flops.most_speed_up(share),
        "why": f"experts stay in bf16: FP8 computes {share:.0%} of the matmul FLOPs; others, with "
        "experts in FP8, measured 0.75 to 1.43 times without a trend by size",
        "trust": "a bound and no prediction, because the time model knows dense models only",
    }


def _speed(asked: Question, bf16: Plan, overlay: str) -> dict:
    """Predict both steps' seconds and the speed-ups with their ranges, and say what they rest
    on."""
    fitted, found = fit.fitted(), []
    for scaling, name in FP8.items():
        planned = _plan(name, asked, overlay)
        args = features.shard(planned.args, asked.tensor_parallel)
        rates, layers = GPUS[asked.gpu].datasheet, planned.fp8_layers
        step = features.step([planned.config], args, layers, rates, asked.gpus)
        found.append(fit.Observation(name, (), "torchao", scaling, asked.gpu, step, 1.0))
    rows, pace = fit.table(found), fitted.pace(asked.gpu)
    both = fit.times(fitted.parameters, rows)
    training = bf16.config.training
    passes = tokens_per_step(bf16.config) / (training.local_batch_size * training.seq_len)
    blocks = passes * bf16.args.n_layers
    computing = {"bf16": both.bf16[0] / pace} | dict(zip(FP8, both.fp8 / pace, strict=True))
    launching = {name: LAUNCH_S * count * blocks for name, count in LAUNCHES.items()}
    step_s = {name: max(computing[name], launching[name]) for name in computing}
    far = _far(asked, bf16)
    widths = fitted.widths(rows, WIDER if far else 1)
    speed_up = {}
    for scaling, width in zip(FP8, widths, strict=True):
        ratio = step_s["bf16"] / step_s[scaling]
        speed_up[scaling] = {
            "expected": ratio, "low": ratio * exp(-width), "high": ratio * exp(width)
        }  # fmt: skip
    why = (
        f"FP8 matmuls save {both.saved[0] / both.bf16[0]:.0%} of a bf16 step, casts and scales "
        f"take {both.casts[0] / both.bf16[0]:.0%}"
    )
    if launching[BEST] > computing[BEST]:
        why += "; the host launches FP8's kernels slower than the GPU computes them"
    trust = f"fitted to {len(fitted.rows)} pairs, 80 % range ±{exp(widths[0]) - 1:.0%}"
    if far:
        trust += f", twice as wide because {far}"
    parameters = dict(zip(fit.PARAMETERS, fitted.parameters.tolist(), strict=True))
    speed = {"step_s": step_s, "speed_up": speed_up, "why": why, "trust": trust}
    return speed | {"fit": parameters}


def _far(asked: Question, bf16: Plan) -> str:
    """Say why no pair is near; empty where one is."""
    fitted = [pair for pair in pairs.read()[0] if pair.calibrates]
    gpus, billions = {pair.gpu_key for pair in fitted}, bf16.parameters / 1e9
    sizes = [pair.billions for pair in fitted if pair.stack == "torchao"]
    reasons = {
        "no fitted pair trains with frozen weights": bf16.config.model.freeze,
        f"no fitted pair is of {asked.gpu}": asked.gpu not in gpus,
        f"no torchao pair is within {NEAR} times the size": not any(
            1 / NEAR < size / billions < NEAR for size in sizes
        ),
    }
    return " and ".join(reason for reason, applies in reasons.items() if applies)


# ---- time ----


def _time(asked: Question, bf16: Plan, answer: dict) -> dict:
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
        ends = {name: first_s[name] + (steps - 1) * step_s[name] for name in first_s}
        hours = {"in bf16": ends["bf16"] / 3600, "in FP8": ends[BEST] / 3600}
    hours["saved per 1,000 steps"] = 1000 * (step_s["bf16"] - step_s[BEST]) / 3600
    cost = None
    if asked.price is not None:
        cost = {name: h * asked.gpus * asked.price for name, h in hours.items()}
    overtakes = {
        end: _overtakes(later_s, step_s["bf16"], ratio)
        for end, ratio in answer["speed_up"][BEST].items()
    }
    first = {"later_s": later_s, "first_step": source, "first_step_s": first_s}
    return first | {"hours": hours, "cost": cost, "overtakes_at_step": overtakes}


def _overtakes(later_s: float, step_s: float, speed_up: float) -> int | None:
    """Find the step at which FP8, whose first step ends `later_s` later, has caught up."""
    if speed_up <= 1:
        return None
    return max(1, 1 + math.ceil(later_s / (step_s * (1 - 1 / speed_up))))


# ---- the answer ----


def _verdict(answer: dict) -> dict:
    """Say YES or NO where the whole range does, first step included, else MEASURE FIRST.

    Without steps the answer is that of a long training.
    """
    steps, overtakes = answer["steps"] or math.inf, answer["overtakes_at_step"]
    kin = {chip(pair.gpu_key) for pair in pairs.read()[0] if pair.calibrates}
    if chip(answer["gpu"]) not in kin:
        why = f"nobody has measured this kind of GPU fairly; by its rooflines {answer['why']}"
        return {"verdict": MEASURE, "why": why}
    if overtakes["low"] and overtakes["low"] <= steps:
        return {"verdict": YES}
    if overtakes["high"] and overtakes["high"] <= steps:
        return {"verdict": MEASURE}
    why = answer["why"]
    if overtakes["expected"]:
        why = f"{steps:,} steps are too few to earn back the longer first step; {why}"
    return {"verdict": NO, "why": why}


def _commands(asked: Question, answer: dict, overlay: str, verdict: str) -> dict:
    """Give the recipe, the command that trains it, and the command that measures both."""
    recipe = BF16
    if verdict != NO:
        recipe = FP8[BEST] if asked.gpus == 1 else GATHERED
    keys = [f"training.steps={answer['steps']}"] if answer["steps"] else []
    several = ["--processes", str(asked.gpus)] if 1 < asked.gpus <= NODE else []
    settings = join(["--overlay", overlay, *several, *asked.keys])
    run, measure = RUN, STUDY if several else BENCH
    if asked.gpus > NODE:
        run, measure = SBATCH, JOBS
    words = {"recipe": recipe, "nodes": math.ceil(asked.gpus / NODE_OF_ALPS), "settings": settings}
    return {
        "recipe": recipe,
        "run": " ".join([run.format(**words), *keys]),
        "measure": measure.format(**words),
    }
