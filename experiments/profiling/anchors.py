"""Anchors: runs in bf16 and FP8 that were measured side by side, with the rooflines of their steps.
models/calibration.py is fitted to them."""

from collections.abc import Iterable
from dataclasses import astuple, dataclass
from functools import cache
from math import log

import numpy as np
import yaml

from experiments.config import recipes
from experiments.config.yaml_source import ROOT
from experiments.profiling.table import work
from experiments.training.plan import Plan, plan
from models.calibration import CAST_BYTES, Calibration, Pair, calibrate, extra_cast_bytes, pair
from models.floors import tokens_per_step
from models.gpus import GPUS

PUBLISHED = ROOT / "results" / "published.yaml"
BF16 = "baseline_compiled"
FP8 = {scaling: f"{scaling}_fp8_compiled" for scaling in CAST_BYTES}
# What a kept run of a recipe measures.
SCALINGS = (
    {BF16: "bf16"}
    | {name: scaling for scaling, name in FP8.items()}
    | {"tensorwise_fp8_allgather": "tensorwise"}
)


@dataclass(frozen=True)
class Anchor:
    """Runs that were measured side by side. `tokens_per_s` are a GPU's; they and `first_step_s` are
    by bf16 and scaling."""

    name: str
    source: str
    gpu: str
    gpus: int
    bf16: Plan
    pairs: dict[str, Pair]
    tokens_per_s: dict[str, float]
    first_step_s: dict[str, float]
    ours: bool = False

    @property
    def speed_ups(self) -> dict[str, float]:
        rates = self.tokens_per_s
        return {scaling: rates[scaling] / rates["bf16"] for scaling in self.pairs}

    @property
    def share(self) -> float:
        """A bf16 step's roofline over its measured time."""
        roofline = next(iter(self.pairs.values())).bf16
        return roofline * self.tokens_per_s["bf16"] / tokens_per_step(self.bf16.config)

    def distance(self, gpu: str, gpus: int, bf16: Plan) -> float:
        """In factors of e of parameters, tokens a step, and GPUs; another kind of GPU counts as
        one."""
        ratios = (
            self.bf16.parameters / bf16.parameters,
            tokens_per_step(self.bf16.config) / tokens_per_step(bf16.config),
            self.gpus / gpus,
        )
        return sum(abs(log(ratio)) for ratio in ratios) + (self.gpu != gpu)


def plan_of(
    name: str, keys: Iterable[str] = (), overlays: Iterable[str] = (), gpus: int = 1
) -> Plan:
    """Plan what one of some GPUs does in a step of a recipe, given by its name or path.

    Raises `InputError` for a recipe without a roofline.
    """
    recipe = recipes.load(name, list(overlays), list(keys))
    recipe.config.training.global_batch_size //= gpus  # torchtitan's -1 stays -1
    planned = plan(recipe)
    work(planned)
    return planned


def rooflines(bf16: Plan, fp8: Plan, gpu: str, gpus: int) -> Pair:
    """Work out the least times of the same step in bf16 and in FP8.

    Raises `InputError` for a GPU without FP8 units.
    """
    tokens, training = tokens_per_step(fp8.config), fp8.config.training
    passes = tokens // (training.local_batch_size * training.seq_len)
    scaling = fp8.config.quantize.linear.float8.recipe_name
    casts = extra_cast_bytes(fp8.args, fp8.fp8_layers, scaling, tokens, passes)
    return pair(work(bf16), work(fp8), casts, GPUS[gpu].rates, gpus)


def calibrations(anchors: Iterable[Anchor]) -> dict[str, Calibration]:
    """Fit the time model, one for each scaling."""
    measured = {scaling: [] for scaling in FP8}
    for anchor in anchors:
        for scaling, speed_up in anchor.speed_ups.items():
            measured[scaling].append((anchor.pairs[scaling], speed_up))
    return {scaling: calibrate(pairs) for scaling, pairs in measured.items()}


@cache
def published() -> list[Anchor]:
    """Read results/published.yaml."""
    return [_published(**entry) for entry in yaml.safe_load(PUBLISHED.read_text())]


def _published(
    name, source, gpu, gpus, keys, recompute, tokens_per_s, fp8_keys=(), first_step_s=None
) -> Anchor:
    # Selective recomputation, `half`, lies halfway between none and full.
    modes = ["none", "full"] if recompute == "half" else [recompute]
    pairs = {}
    for scaling in [s for s in FP8 if s in tokens_per_s]:
        ways = []
        for mode in modes:
            with_mode = [*keys, f"activation_checkpoint.mode={mode}"]
            bf16, fp8 = plan_of(BF16, with_mode), plan_of(FP8[scaling], [*with_mode, *fp8_keys])
            ways.append(astuple(rooflines(bf16, fp8, gpu, gpus)))
        pairs[scaling] = Pair(*np.mean(ways, axis=0))
    return Anchor(name, source, gpu, gpus, bf16, pairs, tokens_per_s, first_step_s or {})


def own(
    study: str,
    gpu: str,
    gpus: int,
    files: dict[str, str],
    rates: dict[str, float],
    first_step_s: dict[str, float],
) -> Anchor:
    """Make an anchor of a kept study: recipe.yaml, tokens/s of a GPU, and seconds to the end of the
    first step, by scaling."""
    plans = {scaling: plan_of(file, gpus=gpus) for scaling, file in files.items()}
    bf16 = plans.pop("bf16")
    pairs = {scaling: rooflines(bf16, fp8, gpu, gpus) for scaling, fp8 in plans.items()}
    return Anchor(study, "this project", gpu, gpus, bf16, pairs, rates, first_step_s, ours=True)
