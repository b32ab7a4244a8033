"""Build a run's model: its architecture and size, compiled as the recipe asks.

`model.flavor` chooses a class and its size, which `model.sizes` changes.
"""

import importlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import models.device  # noqa: F401  # before torchtitan: see there  # isort: skip
import torch
import torch._inductor.config
from torch import nn
from torchtitan.components.loss import build_cross_entropy_loss
from torchtitan.components.lr_scheduler import build_lr_schedulers
from torchtitan.distributed import ParallelDims
from torchtitan.distributed.activation_checkpoint import apply_ac
from torchtitan.models.llama3.infra import parallelize as titan
from torchtitan.protocols.train_spec import TrainSpec

from models import llama
from models.errors import InputError

# ---- which model ----


class Architecture(NamedTuple):
    """A model's class, and the arguments that it is built with, by flavor."""

    model: type[nn.Module]
    flavors: dict[str, llama.FromRecipe]


def architectures() -> Iterator[Architecture]:
    """Give Llama, and the architectures of extensions: `ARCHITECTURE` in their architecture.py."""
    yield Architecture(llama.Llama, llama.FLAVORS)
    for path in sorted(Path(__file__).parents[1].glob("extensions/*/architecture.py")):
        yield importlib.import_module(f"extensions.{path.parent.name}.architecture").ARCHITECTURE


def architecture(config) -> Architecture:
    """Find the architecture of the recipe's flavor. Raises `InputError` if none has it."""
    flavors = []
    for candidate in architectures():
        if config.model.flavor in candidate.flavors:
            return candidate
        flavors += candidate.flavors
    raise InputError(
        f"model.flavor {config.model.flavor!r} is not one of {', '.join(flavors)}; "
        "for other sizes: 'model.sizes={dim: 2048}'"
    )


def model_args(config) -> llama.FromRecipe:
    """Give the flavor's arguments with the recipe's keys in them.

    Raises `InputError` for a flavor or sizes that cannot be.
    """
    args = replace(architecture(config).flavors[config.model.flavor])  # the flavor stays as it is
    args.update_from_config(config)
    return args


def build(config) -> nn.Module:
    """Build the recipe's model. Raises as `model_args`."""
    return architecture(config).model(model_args(config))


def label(config) -> str:
    """Name the model in tables: its flavor, and sizes that are others, as `cpu, dim 512`."""
    sizes = vars(config.model.sizes).items()
    return ", ".join([config.model.flavor, *(f"{name} {size}" for name, size in sizes if size)])


# ---- what torchtitan does with a model ----


def train_spec(config, **builders) -> TrainSpec:
    """Say how torchtitan builds a run's parts; `builders` are those that the trainer brings."""
    return TrainSpec(
        model_args=architecture(config).flavors,  # torchtitan changes the flavor: one run a process
        pipelining_fn=None,
        build_lr_schedulers_fn=build_lr_schedulers,
        build_loss_fn=build_cross_entropy_loss,
        build_tokenizer_fn=None,
        **builders,
    )


def parallelize(
    model: nn.Module, parallel_dims: ParallelDims, job_config, shard: Callable | None = None
) -> nn.Module:
    """Recompute, compile and `shard` a model as the recipe asks, in torchtitan's order."""
    keys = job_config.compile
    compiled = keys.enable and "model" in keys.components
    by_block = compiled and keys.scope == "block"
    torch._inductor.config.emulate_precision_casts = keys.emulate_precision_casts

    if job_config.activation_checkpoint.mode != "none":
        apply_ac(
            model,
            job_config.activation_checkpoint,
            model_compile_enabled=by_block,
            op_sac_save_list=titan._op_sac_save_list,
            base_folder=job_config.job.dump_folder,
        )
    if by_block:
        model.compile_blocks(keys)
    if shard:
        shard(model, parallel_dims, job_config)
    if compiled and not by_block:
        model.compile(backend=keys.backend)
    return model
