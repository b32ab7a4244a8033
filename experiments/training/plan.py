"""Work out once what a recipe asks for, and refuse what cannot run before anything is written.

    plan       the model, its layers in FP8, ranks, memory, checkpoints: needs no GPU and no data
    open_data  the token file, prepared where it is not there yet

Both raise `InputError` with a sentence that says what to change. What this machine must have is in
machine.py.
"""

import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from experiments.config import recipes
from models import float8
from models.architectures import build, freeze
from models.errors import InputError
from models.flops import memory_by_use

if TYPE_CHECKING:
    from experiments.corpus.tokens import TokenFile


@dataclass(frozen=True)
class Plan:
    """What a recipe asks of each of `world_size` processes."""

    recipe: recipes.Recipe
    world_size: int
    args: object  # of the model's class
    parameters: int
    flops_per_token: int
    fp8: float8.Choice  # which layers, with which scaling, multiplied how
    passes: int  # forward passes of a step (gradient accumulation)
    shards: int  # processes that share parameters, gradients and optimizer states
    memory: dict[str, float]  # bytes on each device by use

    @property
    def config(self):
        return self.recipe.config

    @property
    def tokens(self) -> int:
        """Tokens of a step in one process, padding included."""
        training = self.config.training
        return self.passes * training.local_batch_size * training.seq_len

    @property
    def memory_needed(self) -> float:
        """Bytes on each device."""
        return sum(self.memory.values())

    @property
    def checkpoint_bytes(self) -> float:
        """Size of a checkpoint on disk; 0 if the recipe writes none."""
        if not self.config.checkpoint.enable:
            return 0
        return (self.memory["parameters"] + self.memory["optimizer"]) * self.shards

    def describe(self) -> str:
        """Say what is trained, in which precision."""
        precision = "no FP8"
        if self.fp8.recipe_name:
            precision = f"{len(self.fp8.layers)} linear layers in {self.fp8.recipe_name} FP8"
        return (
            f"{self.args.describe()}, {self.flops_per_token / 1e9:.4g} GFLOP per token, {precision}"
        )


def plan(recipe: recipes.Recipe, world_size: int | None = None) -> Plan:
    """Work out and check a recipe for so many processes.

    Without `world_size` it is the work of one device, whoever the others are: ranks and checkpoints
    are not checked then.
    """
    config, training = recipe.config, recipe.config.training
    with torch.device("meta"):  # modules by name, no weights
        model = build(config)
    args = model.model_args
    freeze(model, config.model.freeze)
    fp8 = float8.choose(model, config.quantize.linear.float8)
    shards = 1
    if world_size:
        shards = _check_ranks(config, world_size)
        if shards > 1 and config.quantize.linear.float8.enable_fsdp_float8_all_gather:
            _check_gather(config, args, fp8.layers, shards)
    ranks = world_size or 1
    memory = memory_by_use(config, args, shards)
    for estimate in recipe.hooks("memory_by_use"):
        memory |= estimate(config, args, shards)
    planned = Plan(
        recipe=recipe,
        world_size=ranks,
        args=args,
        parameters=args.parameters(),
        flops_per_token=args.flops_per_token(training.seq_len),
        fp8=fp8,
        passes=max(1, training.global_batch_size // (training.local_batch_size * ranks)),
        shards=shards,
        memory=memory,
    )
    if world_size:
        for check in recipe.hooks("check"):
            check(planned)
    return planned


# ---- ranks ----


def _check_ranks(config, world_size: int) -> int:
    """Check what must suit the number of processes; returns the number of shards."""
    degrees, training = config.parallelism, config.training
    replicas, shards = degrees.data_parallel_replicate_degree, degrees.data_parallel_shard_degree
    if shards == -1:
        shards = max(1, world_size // replicas)
    if replicas * shards != world_size:
        raise InputError(
            "parallelism.data_parallel_replicate_degree x data_parallel_shard_degree is "
            f"{replicas} x {shards}, which must be the number of processes, {world_size}: "
            "change a degree (1 and -1 always fit), or start as many"
        )
    if shards == 1 < world_size:
        # the loss is divided by all ranks' tokens before DDP takes the mean over ranks
        raise InputError(
            f"parallelism.data_parallel_replicate_degree={world_size} leaves nothing to shard, and "
            f"torchtitan 0.2.2 then divides gradients by the {world_size} processes twice: set it "
            "to 1, or to less than the processes"
        )
    batch = training.global_batch_size
    if batch > 0 and batch % (training.local_batch_size * world_size):
        raise InputError(
            f"training.global_batch_size={batch}: expected a multiple of local_batch_size x "
            f"processes, {training.local_batch_size} x {world_size}, or -1"
        )
    built, fp8 = config.optimizer.built, config.quantize.linear.float8
    if shards == 1:
        needs = "FSDP over two or more processes: run it with --processes 2 or more, or"
        misplaced = {
            "quantize.linear.float8.enable_fsdp_float8_all_gather": (
                fp8.enable_fsdp_float8_all_gather and built is None,
                "false",
            ),
        }
    else:
        needs = f"whole weights, and {world_size} processes shard them:"
        misplaced = {
            "optimizer.built": (built == "before_conversion", "null"),
        }
    refuse(misplaced, needs)
    return shards


def refuse(misplaced: dict[str, tuple[bool, str]], needs: str) -> None:
    """Raise `InputError` for the first key that is used without what it needs.

    `misplaced` tells of each key whether it is used, and by which value it is not.
    """
    for key, (used, off) in misplaced.items():
        if used:
            raise InputError(f"{key} needs {needs} set it to {off}")


def _check_gather(config, args, fp8_layers: Collection[str], shards: int) -> None:
    """Check that FSDP can gather the weights of the FP8 layers in FP8."""
    if args.enable_weight_tying and "output" in fp8_layers:
        raise InputError(
            f"the head of {config.model.flavor} is also its embedding, which FSDP gathers in bf16: "
            "set quantize.linear.float8.filter_fqns to [output]"
        )
    shapes = args.linear_shapes()
    rows = {name: shapes[name][0] for name in shapes if name in fp8_layers}
    uneven = [name for name, n in rows.items() if n % shards]
    if uneven:
        most = math.gcd(*rows.values())
        even = max(n for n in range(1, shards) if most % n == 0)
        raise InputError(
            f"FP8 all-gather shards rows evenly, and {uneven[0]} has rows that do not divide by "
            f"{shards}: set quantize.linear.float8.enable_fsdp_float8_all_gather to false, or "
            f"shard over {even} processes"
        )


# ---- data ----


def open_data(plan: Plan) -> tuple["TokenFile", str]:
    """Open the token file of a plan, prepared where it is not there yet; say what the run reads.

    Checks that the model has a row for each token.
    """
    from experiments.corpus import rows, tokens

    token_file = tokens.prepare(plan.config)
    rows.check_vocabulary(token_file, plan.args.vocab_size)
    return token_file, rows.describe(token_file, plan.config, plan.world_size)
