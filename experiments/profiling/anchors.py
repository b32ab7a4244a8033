"""Measured pairs of bf16 and FP8, with the floors of what was measured: what models/calibration.py
is fitted to."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache
from math import log

import yaml

from experiments.config import recipes
from experiments.config.yaml_source import ROOT
from experiments.training.plan import plan
from models.calibration import CAST_BYTES, Calibration, Pair, calibrate, extra_cast_bytes, pair
from models.floors import Work, step_work, tokens_per_step
from models.gpus import GPUS

PUBLISHED = ROOT / "results" / "published.yaml"
BF16 = "baseline_compiled"
FP8 = {scaling: f"{scaling}_fp8_compiled" for scaling in CAST_BYTES}
# What a kept run of a recipe measures.
SCALINGS = (
    {BF16: "bf16"}
    | {name: s for s, name in FP8.items()}
    | {"tensorwise_fp8_allgather": "tensorwise"}
)


@dataclass(frozen=True)
class Step:
    """What one GPU does in a step of a recipe."""

    work: list[Work]
    extra_cast_bytes: float
    tokens: int
    parameters: int


@dataclass(frozen=True)
class Anchor:
    """Runs that were measured side by side. `tokens_per_s` are a GPU's and `first_step_s` of bf16
    and of scalings."""

    name: str
    source: str
    gpu: str
    gpus: int
    tokens: int  # a step and GPU
    parameters: int
    pairs: dict[str, Pair]
    tokens_per_s: dict[str, float]
    first_step_s: dict[str, float]
    ours: bool = False

    @property
    def speed_ups(self) -> dict[str, float]:
        return {
            scaling: self.tokens_per_s[scaling] / self.tokens_per_s["bf16"]
            for scaling in self.pairs
        }

    @property
    def share(self) -> float:
        """A bf16 step's floor over its measured time."""
        return next(iter(self.pairs.values())).bf16 / (self.tokens / self.tokens_per_s["bf16"])

    def distance(self, gpu: str, gpus: int, step: Step) -> float:
        """In factors of e of parameters, tokens a step, and GPUs; another kind of GPU counts as
        one."""
        ratios = [(self.parameters, step.parameters), (self.tokens, step.tokens), (self.gpus, gpus)]
        return sum(abs(log(a / b)) for a, b in ratios) + (self.gpu != gpu)


@cache
def step(
    name: str, keys: tuple[str, ...] = (), overlays: tuple[str, ...] = (), gpus: int = 1
) -> Step:
    """Of a recipe's name or path, on `gpus`. Raises `InputError` for a recipe without a
    roofline."""
    recipe = recipes.load(name, overlays, keys)
    config = recipe.config
    config.training.global_batch_size //= gpus  # one GPU's part of it; torchtitan's -1 stays -1
    planned, tokens = plan(recipe), tokens_per_step(config)
    args, layers = planned.args, planned.fp8_layers
    scaling = config.quantize.linear.float8.recipe_name
    passes = tokens // (config.training.local_batch_size * config.training.seq_len)
    casts = extra_cast_bytes(args, layers, scaling, tokens, passes) if scaling else 0.0
    return Step(step_work(config, args, layers), casts, tokens, planned.parameters)


def floors(bf16: Step, fp8: Step, gpu: str, gpus: int) -> Pair:
    """Raises `InputError` for a GPU without FP8 units."""
    return pair(bf16.work, fp8.work, fp8.extra_cast_bytes, GPUS[gpu].rates, gpus)


@cache
def published() -> tuple[Anchor, ...]:
    """Those of results/published.yaml."""
    return tuple(map(_published, yaml.safe_load(PUBLISHED.read_text())))


def _published(entry: dict) -> Anchor:
    keys, fp8_keys, rates = (
        tuple(entry["keys"]),
        tuple(entry.get("fp8_keys", [])),
        entry["tokens_per_s"],
    )
    names = {BF16: keys} | {FP8[s]: (*keys, *fp8_keys) for s in FP8 if s in rates}
    steps = {
        SCALINGS[name]: _recomputed(name, keys, entry["recompute"]) for name, keys in names.items()
    }
    where = (entry[key] for key in ("name", "source", "gpu", "gpus"))
    return _anchor(*where, steps, rates, entry.get("first_step_s", {}))


def _recomputed(name: str, keys: tuple[str, ...], recompute: str) -> Step:
    """With activations kept (none), recomputed (full), or the mean of both (half)."""
    modes = ["none", "full"] if recompute == "half" else [recompute]
    ways = [step(name, (*keys, f"activation_checkpoint.mode={mode}")) for mode in modes]
    work = [
        replace(w, flops=w.flops / len(ways), bytes=w.bytes / len(ways))
        for way in ways
        for w in way.work
    ]
    return replace(ways[0], work=work)


def own(
    study: str, gpu: str, gpus: int, files: dict[str, str], rates: dict, first_step_s: dict
) -> Anchor:
    """From a kept study: recipe.yaml, tokens/s of a GPU, and seconds to the end of the first step,
    by scaling."""
    steps = {scaling: step(path, gpus=gpus) for scaling, path in files.items()}
    return replace(_anchor(study, "this project", gpu, gpus, steps, rates, first_step_s), ours=True)


def _anchor(name, source, gpu, gpus, steps: dict[str, Step], rates, first_step_s) -> Anchor:
    bf16 = steps["bf16"]
    pairs = {
        scaling: floors(bf16, fp8, gpu, gpus) for scaling, fp8 in steps.items() if scaling != "bf16"
    }
    return Anchor(name, source, gpu, gpus, bf16.tokens, bf16.parameters, pairs, rates, first_step_s)


def calibrations(anchors: Iterable[Anchor]) -> dict[str, Calibration]:
    """One for each scaling."""
    return {
        s: calibrate([(a.pairs[s], a.speed_ups[s]) for a in anchors if s in a.pairs]) for s in FP8
    }
