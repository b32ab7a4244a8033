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
    """Give the flavor's arguments with the recipe's keys in them.

    Raises `InputError` for a flavor or sizes that cannot be.
    """
    keys, sizes = config.model, config.model.sizes
    args = replace(_flavor(keys.name, keys.flavor))  # a copy: the flavor stays as it is
    if keys.name == "llama" and sizes.head_dim:
        raise InputError(
            "model.sizes.head_dim is not a Llama's, whose heads have dim / n_heads features: "
            "leave it out"
        )
    if keys.name != "llama" and keys.fused_projections:
        raise InputError(
            f"model.fused_projections is not there for {keys.name}: set it to false, or "
            "model.name to llama"
        )
    if has_experts(args) and sizes.hidden_dim:
        raise InputError(
            f"model.sizes.hidden_dim is not of {keys.flavor}, which has experts of one width: "
            "leave it out"
        )
    args.update_from_config(config)
    divides = "model.sizes: {} ({}) must divide {} ({}): change one of them"
    if keys.name == "llama" and args.dim % args.n_heads:
        raise InputError(divides.format("n_heads", args.n_heads, "dim", args.dim))
    if args.n_heads % args.n_kv_heads:
        raise InputError(divides.format("n_kv_heads", args.n_kv_heads, "n_heads", args.n_heads))
    if args.head_dim % 2:
        raise InputError(
            f"model.sizes: a head has {args.head_dim} features, and rotations need an even number "
            "of them"
        )
    return args


def _flavor(name: str, flavor: str) -> llama.LlamaArgs | qwen3.Qwen3Args:
    flavors, hint = ARCHITECTURES[name].flavors, ""
    if flavor in flavors:
        return flavors[flavor]
    for other, architecture in ARCHITECTURES.items():
        if flavor in architecture.flavors:
            hint = f": choose one of them, or set model.name to {other}, which has it"
    raise InputError(f"model.flavor {flavor!r} is not one of {', '.join(flavors)}{hint}")


def build(config) -> nn.Module:
    """The recipe's model. Raises as `model_args`."""
    return ARCHITECTURES[config.model.name].model(model_args(config))


def label(config) -> str:
    """What tables call the model: its flavor, and sizes that are others, as `cpu, dim 512, n_layers
    8`."""
    sizes = asdict(config.model.sizes)
    others = [f"{name} {size}" for name, size in sizes.items() if size is not None]
    return ", ".join([config.model.flavor, *others])
