"""FP8 beyond matmuls, as in FP8-LM (arXiv 2310.18313): the states of AdamW in 8 and 16 bits."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Literal

StateDtype = Literal["float32", "bfloat16", "float16", "float8_e4m3fn"]


@dataclass
class States:
    """Dtypes of AdamW's states, by default the paper's. In FP8 and FP16 each tensor has a scale."""

    first_moment: StateDtype = "float8_e4m3fn"
    """Of the mean of the gradients."""

    second_moment: StateDtype = "float16"
    """Of the mean of their squares."""

    master_weights: StateDtype = "float16"
    """Of the weights that are stepped. The bf16 parameters are a rounded copy of them."""


@dataclass
class Keys:
    """The section `fp8_lm` of a recipe."""

    states: States = field(default_factory=States)
    """Dtypes of the optimizer's states; `optimizer.implementation` has no meaning with them."""


def contradictions(config) -> Iterator[tuple[str, str]]:
    """Find keys that contradict the states."""
    dtype = config.training.dtype
    if dtype != "bfloat16":
        yield (
            "fp8_lm.states",
            f"has master weights of bf16 parameters, and training.dtype is {dtype}; set that to "
            "bfloat16, or choose a recipe without fp8_lm",
        )


def build_optimizers(model_parts: list, config):
    """Build torchtitan's container of the optimizer with these states."""
    import torch
    from torchtitan.components.optimizer import OptimizersContainer

    from extensions.fp8_lm.optimizer import AdamWFp8LM

    keys = config.optimizer
    dtypes = {name: getattr(torch, dtype) for name, dtype in asdict(config.fp8_lm.states).items()}
    settings = {
        "lr": keys.lr,
        "betas": (keys.beta1, keys.beta2),
        "eps": keys.eps,
        "weight_decay": keys.weight_decay,
        "dtypes": dtypes,
    }
    return OptimizersContainer(model_parts, AdamWFp8LM, settings)


def memory_by_use(config, args, shards: int) -> dict[str, float]:
    """Estimate bytes on each device as the core does, with the bytes of these states."""
    from models import flops

    states = sum(flops.ITEMSIZE[dtype] for dtype in asdict(config.fp8_lm.states).values())
    optimizer = flops.parameters(args) * states / shards
    return flops.memory_by_use(config, args, shards) | {"optimizer": optimizer}


def notes(trainer) -> list[str]:
    """Say which states had values beyond the range of their dtype."""
    clamped = trainer.optimizers.optimizers[0].clamped
    return [
        f"{name}: {int(count)} values were beyond the range of their dtype and became its largest "
        "(on rank 0, since the process started)"
        for name, count in clamped.items()
        if int(count)
    ]
