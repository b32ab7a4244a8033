"""Work out what a recipe asks for, and refuse what cannot run before anything is written.

`plan` needs no GPU and no data. `open_data` opens the token file, and machine.py checks what this
machine must have. All raise `InputError` with a sentence that says what to change.
"""

import json
from collections.abc import Iterable, Set
from dataclasses import dataclass, fields
from operator import attrgetter

import torch

from experiments.config import recipes
from experiments.config.keys import DEFAULTS, Config
from experiments.corpus.rows import check_vocabulary, describe_data
from experiments.corpus.tokens import TokenFile, prepare_token_file
from models import float8
from models.architectures import RecipeArgs, build_model, model_args
from models.errors import InputError
from models.flops import estimate_recipe_memory


@dataclass(frozen=True)
class Plan:
    """What a recipe asks for."""

    recipe: recipes.Recipe
    config: Config  # the recipe's
    args: RecipeArgs  # of the model's class
    fp8: float8.Float8Choice  # which layers, with which scaling, multiplied how
    world_size: int  # processes of the run, each on a device of its own
    shards: int  # processes that share parameters, gradients and optimizer states
    passes: int  # forward passes of a step (gradient accumulation)
    flops_per_token: int
    memory_needed: float  # bytes on each device
    description: str  # what is trained, in which precision

    @property
    def tokens(self) -> int:
        """Tokens of a step on one device, padding included."""
        training = self.config.training
        return self.passes * training.local_batch_size * training.seq_len


@dataclass(frozen=True)
class OpenedPlan(Plan):
    """What a recipe asks for, with the token file that a run reads."""

    token_file: TokenFile

    @property
    def identity(self) -> str:
        """What a checkpoint's numbers depend on."""
        return f"recipe {self.recipe.digest}, data {self.token_file.path.name}"


def plan(recipe: recipes.Recipe) -> Plan:
    """Work out and check what a recipe asks for. Raises `InputError`."""
    config = recipe.config
    training = config.training
    fp8 = _choose_fp8(recipe)
    args = model_args(config)
    choose_degrees = recipe.find_hook("data_parallel_degrees", require_no_sharding)
    replicas, shards = choose_degrees(config, args, fp8.layers)
    world_size = replicas * shards
    passes = max(1, training.global_batch_size // (training.local_batch_size * world_size))
    memory_by_use = estimate_recipe_memory(config, args, shards, passes)
    for estimate in recipe.find_hooks("memory_by_use").values():
        memory_by_use |= estimate(config, args, shards)
    flops_per_token = args.flops_per_token(training.seq_len)
    gflops = f"{flops_per_token / 1e9:.4g} GFLOP per token"
    scaling = recipe.find_hook("name_scaling", name_recipe_scaling)(config)
    run_plan = Plan(
        recipe=recipe,
        config=config,
        args=args,
        fp8=fp8,
        world_size=world_size,
        shards=shards,
        passes=passes,
        flops_per_token=flops_per_token,
        memory_needed=sum(memory_by_use.values()),
        description=f"{args.describe()}, {gflops}, {_describe_precision(config, fp8, scaling)}",
    )
    for check in recipe.find_hooks("check").values():
        check(run_plan)
    return run_plan


def open_data(run_plan: Plan) -> tuple[OpenedPlan, str]:
    """Open a plan's token file, writing it first if it is missing.

    Returns the plan with the token file, and a sentence about what the run reads. Raises
    `InputError`.
    """
    token_file = prepare_token_file(run_plan.config)
    check_vocabulary(token_file, run_plan.args.vocab_size)
    description = describe_data(token_file, run_plan.config, run_plan.world_size)
    return OpenedPlan(**vars(run_plan), token_file=token_file), description


def _choose_fp8(recipe: recipes.Recipe) -> float8.Float8Choice:
    """Choose what runs in FP8."""
    config = recipe.config
    keys = config.quantize.linear.float8
    if keys.recipe_name is None:
        return float8.Float8Choice()
    with torch.device("meta"):  # modules by name, no weights
        model = build_model(config)
    fp8 = float8.choose_float8(model, keys)
    choose_matmul = recipe.find_hook("choose_matmul")
    if choose_matmul:
        fp8 = fp8._replace(matmul=choose_matmul(config, fp8.matmul))
    return fp8


def name_recipe_scaling(config: Config) -> str | None:
    """Name the scaling of a recipe; None without FP8."""
    return config.quantize.linear.float8.recipe_name


def _describe_precision(config: Config, fp8: float8.Float8Choice, scaling: str | None) -> str:
    """Word how many layers run in FP8, and whether they run eager in a compiled recipe."""
    sentence = "no FP8"
    if fp8.layers:
        sentence = f"{len(fp8.layers)} linear layers in {scaling} FP8"
    if fp8.emulated:
        sentence += ", emulated"
    if config.compile.enable and not config.compile.compiles_model:
        sentence += ", eager, except for a compiled loss"
    return sentence


def require_no_sharding(config, args, fp8_layers: Set[str]) -> tuple[int, int]:
    """Refuse keys of sharding; return 1 replica of 1 shard. Raises `InputError`."""
    keys = [f"parallelism.{field.name}" for field in fields(config.parallelism)]
    if fp8_layers:
        keys.append("quantize.linear.float8.enable_fsdp_float8_all_gather")
    refuse_keys(config, keys, "several processes, and this recipe has one")
    return 1, 1


def refuse_keys(config: Config, keys: Iterable[str], need: str) -> None:
    """Raise `InputError` for the first of `keys` with another value than its default."""
    for key in keys:
        default = attrgetter(key)(DEFAULTS)
        if attrgetter(key)(config) != default:
            raise InputError(f"{key} needs {need}: set it to {json.dumps(default)}")
