"""FP8 beyond matmuls, as in FP8-LM (arXiv 2310.18313): the states of AdamW in 8 and 16 bits, and
gradients that are sent in FP8."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Literal

from models.errors import InputError

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
class Section:
    """The section `fp8_lm` of a recipe."""

    states: States | None = None
    """Dtypes of the optimizer's states; `optimizer.implementation` has no meaning with them. null:
    torch's AdamW's."""

    gradients: Literal["float8"] | None = None
    """Send gradients in FP8 where FSDP2 reduce-scatters them, with a scale for each block of 256
    values, and add them up in float32; null: send them in float32. With or without FP8 matmuls;
    needs no FP8 units."""


def contradictions(config) -> Iterator[tuple[str, str]]:
    """Find keys that contradict the dtypes of the states."""
    if config.fp8_lm.states and config.training.dtype != "bfloat16":
        yield (
            "fp8_lm.states",
            "has master weights of bf16 parameters: set training.dtype to bfloat16, or choose a "
            "recipe without fp8_lm",
        )


# ---- gradients ----


def check(plan) -> None:
    """Refuse FP8 gradients where processes exchange none. Raises `InputError`."""
    if plan.config.fp8_lm.gradients and plan.shards == 1:
        raise InputError(
            "fp8_lm.gradients needs a model that several processes share: set sharded.processes to "
            "2 or more, or this to null"
        )


def before_step(trainer, step: int) -> None:
    """Have the first step and all later ones send gradients in FP8."""
    from extensions.fp8_lm.gradients import send_in_fp8

    if trainer.job_config.fp8_lm.gradients and step == trainer.first_step:
        send_in_fp8(trainer.model_parts[0])


def gradient_bytes(config, n: int) -> int:
    """Count the bytes in which FSDP2 sends n gradients."""
    from extensions.fp8_lm.gradients import count_bytes

    if config.fp8_lm.gradients:
        return count_bytes(n)
    return 4 * n


# ---- states ----


def build_optimizers(config, model_parts: list, *titan_args):
    """Build torchtitan's container of the optimizer with these states; `titan_args` are those of
    torchtitan's function after the model."""
    import torch
    from torchtitan.components import optimizer

    from extensions.fp8_lm.optimizer import AdamWFp8LM

    if not config.fp8_lm.states:
        return optimizer.build_optimizers(model_parts, *titan_args)
    optimizer_config = config.optimizer
    dtype_names = asdict(config.fp8_lm.states)
    kwargs = {
        "lr": optimizer_config.lr,
        "betas": (optimizer_config.beta1, optimizer_config.beta2),
        "eps": optimizer_config.eps,
        "weight_decay": optimizer_config.weight_decay,
        "dtypes": {state: getattr(torch, dtype) for state, dtype in dtype_names.items()},
    }
    return optimizer.OptimizersContainer(model_parts, AdamWFp8LM, kwargs)


def memory_by_use(config, args, shards: int) -> dict[str, float]:
    """Estimate the bytes of these states on each device."""
    from models.flops import ITEMSIZE

    if not config.fp8_lm.states:
        return {}
    state_bytes = sum(ITEMSIZE[dtype] for dtype in asdict(config.fp8_lm.states).values())
    return {"optimizer": args.parameters() * state_bytes / shards}


def notes(trainer) -> list[str]:
    """Say if values of the states were beyond the range of their dtype."""
    clamped = int(getattr(trainer.optimizers.optimizers[0], "clamped", 0))
    if not clamped:
        return []
    return [
        f"{clamped} values of the optimizer's states were beyond the range of their dtype and "
        "became its largest (on rank 0, since the process started)"
    ]
