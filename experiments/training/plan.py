"""Work out what a recipe asks for, and refuse what cannot run before anything is written.

    plan       the model, its layers in FP8, memory: needs no GPU and no data
    open_data  the token file, prepared where it is not there yet
    to_yaml    both, with the resolved recipe, as a run's recipe.yaml; `plan` reads them from there

All raise `InputError` with a sentence that says what to change. What this machine must have is in
machine.py.
"""

import json
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from experiments.config import recipes
from experiments.config.keys import Config
from models import float8
from models.architectures import build, model_args
from models.errors import InputError
from models.flops import memory_by_use
from models.scaling import SCALINGS

if TYPE_CHECKING:
    from experiments.corpus.tokens import TokenFile


@dataclass(frozen=True)
class Plan:
    """What a recipe asks for."""

    recipe: recipes.Recipe
    args: object  # of the model's class
    fp8: float8.Choice  # which layers, with which scaling, multiplied how
    flops_per_token: int
    passes: int  # forward passes of a step (gradient accumulation)
    world_size: int  # processes of the run, each on a device of its own
    shards: int  # of them that share parameters, gradients and optimizer states
    memory: dict[str, float]  # bytes on each device by use
    token_file: "TokenFile | None" = None  # once it is opened

    @property
    def config(self):
        return self.recipe.config

    @property
    def tokens(self) -> int:
        """Tokens of a step on one device, padding included."""
        training = self.config.training
        return self.passes * training.local_batch_size * training.seq_len

    @property
    def memory_needed(self) -> float:
        """Bytes on each device."""
        return sum(self.memory.values())

    def describe(self) -> str:
        """Say what is trained, in which precision."""
        precision = "no FP8"
        if self.fp8.recipe_name:
            precision = f"{len(self.fp8.layers)} linear layers in {self.fp8.recipe_name} FP8"
        return (
            f"{self.args.describe()}, {self.flops_per_token / 1e9:.4g} GFLOP per token, {precision}"
        )


def plan(recipe: recipes.Recipe) -> Plan:
    """Work out and check a recipe. Raises `InputError`."""
    if _found(recipe):
        return _read(recipe)
    config, training = recipe.config, recipe.config.training
    with torch.device("meta"):  # modules by name, no weights
        model = build(config)
    args = model.model_args
    fp8 = float8.choose(model, config.quantize.linear.float8)
    shards = recipe.hook("shards", check_whole)(config, args, fp8.layers)
    passes = max(1, training.global_batch_size // (training.local_batch_size * recipe.processes))
    memory = memory_by_use(config, args, shards, passes)
    for estimate in recipe.hooks("memory_by_use"):
        memory |= estimate(config, args, shards)
    planned = Plan(
        recipe=recipe,
        args=args,
        fp8=fp8,
        flops_per_token=args.flops_per_token(training.seq_len),
        passes=passes,
        world_size=recipe.processes,
        shards=shards,
        memory=memory,
    )
    for check in recipe.hooks("check"):
        check(planned)
    return planned


def check_whole(config, *_) -> int:
    """Refuse keys that share a model between processes, as there is one; returns 1, its part."""
    keys = [f"parallelism.{key.name}" for key in fields(config.parallelism)]
    keys.append("quantize.linear.float8.enable_fsdp_float8_all_gather")
    refuse(config, keys, "several processes, and this recipe has one")
    return 1


def refuse(config: Config, keys: Iterable[str], needs: str) -> None:
    """Raise `InputError` for the first of some keys that has another value than its default."""
    for key in keys:
        default = attrgetter(key)(Config())
        if attrgetter(key)(config) != default:
            raise InputError(f"{key} needs {needs}: set it to {json.dumps(default)}")


# ---- in a run's folder ----

_NUMBERS = ("flops_per_token", "passes", "world_size", "shards", "memory")


def to_yaml(planned: Plan) -> str:
    """Write a run's recipe.yaml."""
    fp8 = {"layers": sorted(planned.fp8.layers), "flops_per_token": planned.fp8.flops_per_token}
    numbers = {name: getattr(planned, name) for name in _NUMBERS}
    found = {"token_file": str(planned.token_file.path), "fp8": fp8, "numbers": numbers}
    return recipes.to_yaml(planned.recipe, found | {"recipe": _digest(planned.recipe)})


def _digest(recipe: recipes.Recipe) -> int:
    return zlib.crc32(recipes.to_yaml(recipe).encode())


def _found(recipe: recipes.Recipe) -> dict | None:
    """Return what `to_yaml` wrote of this recipe; None if its keys were changed since."""
    found = recipe.made.plan
    return found if found and found["recipe"] == _digest(recipe) else None


def _read(recipe: recipes.Recipe) -> Plan:
    """Take what `to_yaml` wrote; only how FP8 matrices are multiplied is this machine's."""
    keys, fp8 = recipe.config.quantize.linear.float8, float8.Choice()
    if keys.recipe_name:
        found, scaling = recipe.made.plan["fp8"], SCALINGS[keys.recipe_name]
        matmul = float8.choose_matmul(scaling, keys.emulate)
        layers, flops = frozenset(found["layers"]), found["flops_per_token"]
        fp8 = float8.Choice(keys.recipe_name, scaling, layers, matmul, flops)
    return Plan(recipe, model_args(recipe.config), fp8, **recipe.made.plan["numbers"])


# ---- data ----


def open_data(planned: Plan) -> tuple[Plan, str]:
    """Open the token file of a plan, prepared where it is not there yet; return the plan with it,
    and what the run reads.

    Checks that the model has a row for each token.
    """
    from experiments.corpus import rows, tokens

    found = _found(planned.recipe)
    if found and Path(found["token_file"]).exists():
        token_file = tokens.TokenFile.open(Path(found["token_file"]))
    else:
        token_file = tokens.prepare(planned.config)
        rows.check_vocabulary(token_file, planned.args.vocab_size)
    finding = rows.describe(token_file, planned.config, planned.world_size)
    return replace(planned, token_file=token_file), finding
