"""Work out what a recipe asks for, and refuse what cannot run before anything is written.

    plan       the model, its layers in FP8, memory: needs no GPU and no data
    open_data  the token file, prepared where it is not there yet
    to_yaml    the resolved recipe as a run's recipe.yaml, with the layers and the token file, which
               `plan` and `open_data` take from there

All raise `InputError` with a sentence that says what to change. What this machine must have is in
machine.py.
"""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields, replace
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from experiments.config import recipes
from experiments.config.keys import Config
from experiments.records.run import RECIPE
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
    shards: int = 1  # processes that share parameters, gradients and optimizer states
    token_file: "TokenFile | None" = None  # once it is opened

    @property
    def config(self):
        return self.recipe.config

    @property
    def world_size(self) -> int:
        """Processes of the run, each on a device of its own."""
        return self.recipe.processes

    @property
    def passes(self) -> int:
        """Forward passes of a step (gradient accumulation)."""
        training = self.config.training
        return max(1, training.global_batch_size // (training.local_batch_size * self.world_size))

    @property
    def tokens(self) -> int:
        """Tokens of a step on one device, padding included."""
        training = self.config.training
        return self.passes * training.local_batch_size * training.seq_len

    @property
    def flops_per_token(self) -> int:
        return self.args.flops_per_token(self.config.training.seq_len)

    @property
    def memory_needed(self) -> float:
        """Bytes on each device."""
        by_use = memory_by_use(self.config, self.args, self.shards, self.passes)
        for estimate in self.recipe.hooks("memory_by_use"):
            by_use |= estimate(self.config, self.args, self.shards)
        return sum(by_use.values())

    @property
    def identity(self) -> str:
        """What a checkpoint's numbers depend on."""
        return f"recipe {digest_of(self.recipe)}, data {self.token_file.path.name}"

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
    config = recipe.config
    args, fp8 = model_args(config), _choose_fp8(recipe)
    shards = recipe.hook("shards", check_whole)(config, args, fp8.layers)
    planned = Plan(recipe, args, fp8, shards)
    for check in recipe.hooks("check"):
        check(planned)
    return planned


def _choose_fp8(recipe: recipes.Recipe) -> float8.Choice:
    """Choose what runs in FP8, or take the layers that `to_yaml` wrote; how their matrices are
    multiplied is this machine's."""
    keys, found = recipe.config.quantize.linear.float8, _found(recipe)
    if keys.recipe_name is None:
        return float8.Choice()
    if not found:
        with torch.device("meta"):  # modules by name, no weights
            model = build(recipe.config)
        return float8.choose(model, keys)
    scaling, layers = SCALINGS[keys.recipe_name], frozenset(found["fp8_layers"])
    matmul = float8.choose_matmul(scaling, keys.emulate)
    return float8.Choice(keys.recipe_name, scaling, layers, matmul, found["fp8_flops_per_token"])


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


# ---- in a run's folder ----


def to_yaml(planned: Plan) -> str:
    """Write a run's recipe.yaml."""
    found = {
        "recipe": digest_of(planned.recipe),
        "token_file": str(planned.token_file.path),
        "fp8_layers": sorted(planned.fp8.layers),
        "fp8_flops_per_token": planned.fp8.flops_per_token,
    }
    return recipes.to_yaml(planned.recipe, found)


def _found(recipe: recipes.Recipe) -> dict | None:
    """Return what `to_yaml` wrote of this recipe; None if its keys were changed since."""
    found = recipe.made.plan
    return found if found and found["recipe"] == digest_of(recipe) else None


def check_recipe(path: Path, plan: Plan) -> None:
    """Check that a folder has no recipe.yaml, or the plan's, whose steps may be others.

    Raises `InputError`.
    """
    file = path / RECIPE
    if file.exists() and digest_of(recipes.load(str(file))) != digest_of(plan.recipe):
        raise InputError(
            f"{path} holds an unfinished run of another recipe: give the same name, overlays, "
            "seed and keys to go on with it, or choose another --out"
        )


def digest_of(recipe: recipes.Recipe) -> str:
    """Digest the keys of a run, but for how long it is."""
    sections = asdict(recipe.config)
    del sections["job"], sections["training"]["steps"]
    return digest(json.dumps(sections, sort_keys=True))


def digest(text: str) -> str:
    """Tell texts apart by 8 letters."""
    return hashlib.sha256(text.encode()).hexdigest()[:8]
