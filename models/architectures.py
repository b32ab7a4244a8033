"""The architectures: `model.name` chooses a class and its flavors, `model.flavor` and `model.sizes`
a size."""

from dataclasses import asdict, replace
from typing import NamedTuple

from torch import nn

from models import llama, qwen3
from models.errors import InputError
from models.flops import has_experts


class Architecture(NamedTuple):
    """A model's class, and the arguments that it is built with, by flavor."""

    model: type[nn.Module]
    flavors: dict[str, llama.LlamaArgs | qwen3.Qwen3Args]


ARCHITECTURES = {
    "llama": Architecture(llama.Llama, llama.FLAVORS),
    "qwen3": Architecture(qwen3.Qwen3, qwen3.FLAVORS),
}


def model_args(config) -> llama.LlamaArgs | qwen3.Qwen3Args:
    """The flavor's arguments with the recipe's keys. Raises `InputError` for a flavor or sizes that
    cannot be."""
    name, flavor, flavors = (
        config.model.name,
        config.model.flavor,
        ARCHITECTURES[config.model.name].flavors,
    )
    if flavor not in flavors:
        others = [
            other for other, architecture in ARCHITECTURES.items() if flavor in architecture.flavors
        ]
        hint = (
            f": choose one of them, or set model.name to {others[0]}, which has it"
            if others
            else ""
        )
        raise InputError(f"model.flavor {flavor!r} is not one of {', '.join(flavors)}{hint}")
    if name == "llama" and config.model.sizes.head_dim:
        raise InputError(
            "model.sizes.head_dim is not a Llama's, whose heads have dim / n_heads features: leave it out"
        )
    if name != "llama" and config.model.fused_projections:
        raise InputError(
            f"model.fused_projections is not there for {name}: set it to false, or model.name to llama"
        )
    args = replace(flavors[flavor])  # a copy: the flavor stays as it is
    if has_experts(args) and config.model.sizes.hidden_dim:
        raise InputError(
            f"model.sizes.hidden_dim is not of {flavor}, which has experts of one width: leave it out"
        )
    args.update_from_config(config)
    _check_heads(args, name)
    return args


def _check_heads(args, name: str) -> None:
    if name == "llama" and args.dim % args.n_heads:
        raise InputError(
            f"model.sizes: n_heads ({args.n_heads}) must divide dim ({args.dim}): change one of them"
        )
    if args.n_heads % args.n_kv_heads:
        raise InputError(
            f"model.sizes: n_kv_heads ({args.n_kv_heads}) must divide n_heads ({args.n_heads}): change one of them"
        )
    if args.head_dim % 2:
        raise InputError(
            f"model.sizes: a head has {args.head_dim} features, and rotations need an even number of them"
        )


def build(config) -> nn.Module:
    """The recipe's model. Raises as `model_args`."""
    return ARCHITECTURES[config.model.name].model(model_args(config))


def label(config) -> str:
    """What tables call the model: its flavor, and sizes that are others, as `cpu, dim 512, n_layers
    8`."""
    others = [
        f"{name} {size}" for name, size in asdict(config.model.sizes).items() if size is not None
    ]
    return ", ".join([config.model.flavor, *others])
