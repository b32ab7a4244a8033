"""Answer whether FP8 pays for a training: its memory, its speed, its first step and its hours.

The speed-up is predicted by experiments/profiling/fit.py, and rests on what was measured.
"""

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
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
AS_IS, RECOMPUTED = "h200", "h100"  # overlays, the second with full recomputation
A_NODE, A_NODE_OF_ALPS = 8, 4  # GPUs
EXTRAPOLATED = 2  # times the range, where no pair is near
NEAR = 4  # times the parameters

# Seconds to the end of the first step. Compiled by block one graph serves all blocks: means of the
# kept study on CPUs, whose compiler is another than a GPU's. Compiled as one graph: seconds for
# each layer of the course study's 8 B (results/published.yaml).
FIRST_STEP_S = {
    "block": {"bf16": 21.5, "tensorwise": 28.0, "rowwise": 31.7},
    "model": {"bf16": 36.9 / 32, "tensorwise": 102.9 / 32, "rowwise": 134.2 / 32},
}
# Kernels that a block's forward and backward pass launch (results/LOG.md, "the CUDA path counted"):
# inductor's, 21 matmuls and attention. A launch takes the host about 5 µs, which is assumed.
LAUNCHES = {"bf16": 14 + 23, "tensorwise": 69 + 23, "rowwise": 64 + 23}
LAUNCH_S = 5e-6

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


@dataclass(frozen=True)
class Measured:
    """A study of this project on a GPU: an observation of each scaling, and its first steps."""

    pair: pairs.Pair
    observations: list[fit.Observation]
    first_step_s: dict[str, float]


def plan_of(name: str, keys: Iterable[str], overlays: Iterable[str] = (), gpus: int = 1) -> Plan:
    """Plan what one of some GPUs does in a step of a recipe, given by its name or path."""
    recipe = recipes.load(name, list(overlays), list(keys))
    recipe.config.training.global_batch_size //= gpus  # torchtitan's -1 stays -1
    return plan(recipe)


def estimate(asked: Question, own: list[Measured], refused: dict[str, list[str]]) -> dict:
    """Answer with seconds, bytes, shares and steps as numbers, None for never.

    Args:
        own: this project's measurements.
        refused: recipes that refuse to run, by what they are paired with in the table of
            compatibility.

    Raises:
        InputError: for a training that the recipes cannot describe.
    """
    overlay, memory = _memory(asked)
    bf16 = plan_of(BF16, asked.keys, [overlay], asked.gpus)
    _check(asked, bf16)
    answer = _facts(asked, bf16, overlay, memory)
    answer["goes_with"] = _goes_with(bf16, asked.gpus, refused)
    kind, gpu = _kind(bf16), GPUS[asked.gpu]
    answer["nearest"] = _nearest(asked, bf16, kind, own)
    if not memory["fits"]:
        more = f"ask again with --gpus {memory['fits_on_gpus']}"
        answer["why"] = more if memory["fits_on_gpus"] else "nor would it on 4,096 of them"
        return answer | {"verdict": DOES_NOT_FIT}
    if gpu.datasheet.fp8 is None:
        why = f"{asked.gpu} has no FP8 units: FP8 would be emulated there, slower than bf16"
        return answer | {"verdict": NO, "why": why}
    answer["recipe"] = FP8[BEST] if asked.gpus == 1 else GATHERED
    answer["measure"] = _measure(asked, overlay)
    if kind == "experts":
        return answer | _bound(bf16)
    fitted = fit.fitted(o for one in own for o in one.observations)
    answer |= _speed(asked, bf16, overlay, fitted, kind)
    answer |= _time(answer, bf16, asked, own)
    return answer | _verdict(answer)


# ---- what is asked ----


def _check(asked: Question, bf16: Plan) -> None:
    config = bf16.config
    if config.quantize.linear.float8.recipe_name or not config.compile.enable:
        raise InputError(
            "leave out quantize.linear.float8.recipe_name and compile.enable: compiled bf16 is "
            "compared to compiled FP8"
        )
    if asked.gpus % asked.tensor_parallel:
        raise InputError(
            f"--gpus {asked.gpus}: expected a multiple of --tensor-parallel {asked.tensor_parallel}"
        )
    if not flops.has_experts(bf16.args):
        work(bf16)  # refuses what has no roofline


def _facts(asked: Question, bf16: Plan, overlay: str, memory: dict) -> dict:
    config, steps = bf16.config, asked.steps
    tokens = tokens_per_step(config) * asked.gpus // asked.tensor_parallel
    if asked.tokens:
        steps = math.ceil(asked.tokens / tokens)
    return {
        "verdict": MEASURE,
        "why": "",
        "model": label(config),
        "parameters": bf16.parameters,
        "gpu": asked.gpu,
        "gpus": asked.gpus,
        "tensor_parallel": asked.tensor_parallel,
        "tokens_per_step": tokens,
        "steps": steps,
        "memory": memory,
        "recipe": BF16,
        "settings": _settings(asked, overlay, steps),
        "recompute": config.activation_checkpoint.mode,
        "measure": None,
    }


def _settings(asked: Question, overlay: str, steps: int | None) -> str:
    """Give what a command that trains it says behind the recipe's name."""
    last = [f"training.steps={steps}"] if steps else []
    several = ["--processes", str(asked.gpus)] if asked.gpus > 1 else []
    return join(["--overlay", overlay, *several, *asked.keys, *last])


def _kind(bf16: Plan) -> str:
    """Give the kind of pairs that the training compares with."""
    if flops.has_experts(bf16.args):
        return "experts"
    return "lora" if bf16.config.model.freeze else "dense"


def _memory(asked: Question) -> tuple[str, dict]:
    """Choose the overlay with which the training fits, or else needs least memory."""
    has, overlay, needed = GPUS[asked.gpu].memory, AS_IS, _needed(asked, AS_IS, asked.gpus)
    if needed > has:
        overlay, needed = RECOMPUTED, _needed(asked, RECOMPUTED, asked.gpus)
    memory = {"needed_bytes": needed, "gpu_bytes": has, "fits": needed <= has}
    memory["fits_on_gpus"] = asked.gpus if memory["fits"] else None
    counts = [2**k for k in range(asked.gpus.bit_length(), 13)]
    while memory["fits_on_gpus"] is None and counts:
        count = counts.pop(0)
        if _needed(asked, RECOMPUTED, count) <= has:
            memory["fits_on_gpus"] = count
    return overlay, memory


def _needed(asked: Question, overlay: str, gpus: int) -> float:
    """Give the bytes that each of some GPUs needs, with one pass for a step."""
    keys = [*asked.keys, "training.global_batch_size=-1"]
    return plan(recipes.load(BF16, [overlay], keys), gpus).memory_needed


def _goes_with(planned: Plan, gpus: int, refused: dict[str, list[str]]) -> list[str]:
    """Say what FP8 has to go with in this training, and whether it does."""
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


def _nearest(asked: Question, bf16: Plan, kind: str, own: list[Measured]) -> dict:
    """Choose the measured pair that is most like the training, in factors of e of parameters, of
    which another GPU, another stack or doubt counts as one."""
    seq_len = bf16.config.training.seq_len
    of_kind = [one.pair for one in own]
    of_kind += [pair for pair in pairs.read()[0] if pair.kind == kind and pair.billions]

    def distance(pair: pairs.Pair) -> float:
        apart = abs(log(pair.billions * 1e9 / bf16.parameters))
        apart += 0.5 * (pair.gpu_key != asked.gpu) + 2.5 * (chip(pair.gpu_key) != chip(asked.gpu))
        apart += (pair.stack != "torchao") + abs(log(pair.tensor_parallel / asked.tensor_parallel))
        apart += (pair.fairness == "doubtful") + 0.2 * (pair.scaling != BEST)
        return apart + 0.1 * (pair.fairness == "minor") + 0.1 * (pair.sequence != seq_len)

    pair = min(of_kind, key=distance)
    return pair.model_dump(include={"name", "model", "gpu", "stack", "scaling", "source"}) | {
        "speed_up": pair.speed_up
    }


# ---- speed ----


def _bound(bf16: Plan) -> dict:
    """Bound the speed-up of a mixture of experts, whose experts, router and head stay in bf16."""
    shapes = flops.linear_shapes(bf16.args)
    share = flops.share_of_matmuls(bf16.args, [name for name in shapes if ".attention." in name])
    measured = [
        pair.speed_up
        for pair in pairs.read()[0]
        if pair.kind == "experts" and pair.fairness != "doubtful"
    ]
    return {
        "verdict": MEASURE,
        "at_most": flops.most_speed_up(share),
        "why": f"experts stay in bf16, and FP8 computes {share:.0%} of the matmul FLOPs; others "
        f"measured {min(measured):.2f} to {max(measured):.2f}, without a trend by size",
        "trust": "a bound, not a prediction: the time model knows dense models only",
    }


def _speed(asked: Question, bf16: Plan, overlay: str, fitted: fit.Fitted, kind: str) -> dict:
    """Predict both steps' seconds, the speed-ups with their ranges, and say what they rest on."""
    observations, rates = [], GPUS[asked.gpu].datasheet
    for scaling, name in FP8.items():
        planned = plan_of(name, asked.keys, [overlay], asked.gpus)
        args = features.shard(planned.args, asked.tensor_parallel)
        step = features.step([planned.config], args, planned.fp8_layers, rates, asked.gpus)
        observations.append(fit.Observation("asked", (), "torchao", scaling, asked.gpu, step, 1.0))
    rows = fit.table(observations)
    both = fit.times(fitted.parameters, rows)
    pace = fitted.pace(asked.gpu)
    training = bf16.config.training
    passes = tokens_per_step(bf16.config) / (training.local_batch_size * training.seq_len)
    blocks = LAUNCH_S * bf16.args.n_layers * passes
    step_s = {"bf16": max(both.bf16[0] / pace, blocks * LAUNCHES["bf16"])}
    for row, scaling in enumerate(FP8):
        launching = blocks * LAUNCHES[scaling]
        step_s[scaling] = max(both.fp8[row] / pace, launching)
    reasons = _far(asked, bf16, kind)
    widths = fitted.widths(rows, EXTRAPOLATED if reasons else 1)
    speed_up = {}
    for scaling, width in zip(FP8, widths, strict=True):
        ratio = step_s["bf16"] / step_s[scaling]
        low, high = ratio * exp(-width), ratio * exp(width)
        speed_up[scaling] = {"expected": ratio, "low": low, "high": high}
    return {
        "step_s": step_s,
        "speed_up": speed_up,
        "of_a_bf16_step": {
            "saved_by_matmuls": both.saved[0] / both.bf16[0],
            "spent_on_casts": both.casts[0] / both.bf16[0],
            "launches_wait": step_s[BEST] > both.fp8[0] / pace,
        },
        "rests_on": {
            "pairs": len(fitted.rows),
            "groups": fitted.rows["group"].nunique(),
            "own": int((fitted.rows["group"].str[-1] == OURS).sum()),
            "range": exp(widths[0]) - 1,
        },
        "parameters_of_the_fit": dict(zip(fit.PARAMETERS, fitted.parameters, strict=True)),
        "trust": ", ".join(reasons),
        "chip_measured": any(chip(pair.gpu_key) == chip(asked.gpu) for pair in _calibrating()),
    }


OURS = "this project"


def _far(asked: Question, bf16: Plan, kind: str) -> list[str]:
    """Say why no pair is near, for which the range is wider."""
    reasons = []
    if kind == "lora":
        reasons.append("twice as wide, because no fitted pair trains with frozen weights")
    calibrating = _calibrating()
    if not any(pair.gpu_key == asked.gpu for pair in calibrating):
        reasons.append(f"twice as wide, because no fitted pair is of {asked.gpu}")
    sizes = [pair.billions * 1e9 for pair in calibrating if pair.stack == "torchao"]
    if not any(1 / NEAR < size / bf16.parameters < NEAR for size in sizes):
        reasons.append(
            f"twice as wide, because no torchao pair has {bf16.parameters / 1e9:.2g} B to a factor of {NEAR}"
        )
    return reasons


def _calibrating() -> list[pairs.Pair]:
    return [pair for pair in pairs.read()[0] if pair.calibrates]


# ---- time ----


def _time(answer: dict, bf16: Plan, asked: Question, own: list[Measured]) -> dict:
    """Work out first steps, hours, cost, and from which step on FP8 is ahead."""
    step_s, gain = answer["step_s"], answer["speed_up"][BEST]
    first_s, source = _first_steps(bf16, own)
    if asked.first_step is not None:
        first_s, source = first_s | {BEST: first_s["bf16"] + asked.first_step}, "as given"
    later_s = first_s[BEST] - first_s["bf16"]
    ends = {"expected": "expected", "earliest": "high", "latest": "low"}
    overtakes = {e: _overtakes(later_s, step_s["bf16"], gain[which]) for e, which in ends.items()}
    saved = 1000 * (step_s["bf16"] - step_s[BEST]) / 3600
    hours = None
    if answer["steps"]:
        hours = {p: (first_s[p] + (answer["steps"] - 1) * step_s[p]) / 3600 for p in first_s}
    cost = None
    if asked.price is not None:
        per = hours or {"saved per 1,000 steps": saved}
        cost = {name: h * asked.gpus * asked.price for name, h in per.items()}
    return {
        "first_step_s": first_s | {"source": source},
        "overtakes_at_step": overtakes,
        "hours_saved_per_1000_steps": saved,
        "hours": hours,
        "cost": cost,
    }


def _first_steps(bf16: Plan, own: list[Measured]) -> tuple[dict[str, float], str]:
    """Give the seconds of the first step in bf16 and in the faster FP8, and where they are from."""
    for one in own:
        if BEST in one.first_step_s:
            return {p: one.first_step_s[p] for p in ("bf16", BEST)}, f"measured, {one.pair.name}"
    scope = bf16.config.compile.scope
    layers = bf16.args.n_layers if scope == "model" else 1
    seconds = {p: layers * FIRST_STEP_S[scope][p] for p in ("bf16", BEST)}
    return seconds, f"assumption, compiled by {scope}"


def _overtakes(later_s: float, step_s: float, speed_up: float) -> int | None:
    """Find the step at which FP8, whose first step ends `later_s` later, has caught up."""
    if speed_up <= 1:
        return None
    return max(1, 1 + math.ceil(later_s / (step_s * (1 - 1 / speed_up))))


# ---- the answer ----


def _verdict(answer: dict) -> dict:
    """Say YES or NO if the training's whole range does, first step included; else MEASURE FIRST.

    Without steps the answer is that of a long training.
    """
    steps, overtakes = answer["steps"] or math.inf, answer["overtakes_at_step"]
    verdict, why = MEASURE, "the range has both: "
    if not answer["chip_measured"]:
        why = f"no fitted pair is of {answer['gpu']} or another GPU of its kind: "
    elif overtakes["latest"] and overtakes["latest"] <= steps:
        verdict, why = YES, ""
    elif overtakes["earliest"] is None or overtakes["earliest"] > steps:
        verdict, why = NO, ""
        if overtakes["expected"]:
            why = "too few steps to earn back the longer first step: "
    balance = answer["of_a_bf16_step"]
    why += (
        f"FP8 matmuls save {balance['saved_by_matmuls']:.0%} of a bf16 step, casts and scales "
        f"take {balance['spent_on_casts']:.0%}"
    )
    if balance["launches_wait"]:
        why += ", and the host launches FP8's kernels slower than the GPU computes them"
    return {"verdict": verdict, "why": why, "recipe": BF16 if verdict == NO else answer["recipe"]}


def _measure(asked: Question, overlay: str) -> str:
    """Give the command that would measure it: the bench on one GPU, a study of 60 steps on a
    node's, runs and their report beyond."""
    command = BENCH
    if asked.gpus > 1:
        command = STUDY if asked.gpus <= A_NODE else JOBS
    nodes = math.ceil(asked.gpus / A_NODE_OF_ALPS)
    settings = join(["--overlay", overlay, *asked.keys])
    return command.format(gpus=asked.gpus, nodes=nodes, settings=settings)


def own_study(
    study: str,
    gpu: str,
    gpus: int,
    files: dict[str, str],
    rates: dict[str, float],
    first_step_s: dict[str, float],
) -> Measured:
    """Make observations of a kept study: recipe.yaml, tokens/s of a GPU, and seconds to the end of
    the first step, by scaling.

    Raises `InputError` for recipes without a roofline.
    """
    plans = {scaling: plan_of(file, (), gpus=gpus) for scaling, file in files.items()}
    bf16 = plans.pop("bf16")
    group = (label(bf16.config), "torchao", OURS)
    observations = []
    for scaling, planned in plans.items():
        work(planned)
        rates_of = GPUS[gpu].datasheet
        step = features.step([planned.config], planned.args, planned.fp8_layers, rates_of, gpus)
        speed_up = rates[scaling] / rates["bf16"]
        step_s = tokens_per_step(planned.config) / rates["bf16"]
        observations.append(
            fit.Observation(study, group, "torchao", scaling, gpu, step, speed_up, step_s)
        )
    pair = pairs.Pair(
        name=study, model=group[0], billions=bf16.parameters / 1e9, kind="dense", stack="torchao",
        scaling=observations[0].scaling, gpu=GPUS[gpu].driver_name, gpus=gpus,
        ratio=observations[0].speed_up, source=OURS, place=study, confidence="a", fairness="clean",
    )  # fmt: skip
    return Measured(pair, observations, first_step_s)
