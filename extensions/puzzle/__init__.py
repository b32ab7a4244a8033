"""Why FP8 seemed not to learn on one GPU: an optimizer that is built before the FP8 conversion."""

from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import filter as filter_names
from typing import Literal

from models.errors import InputError


@dataclass
class Section:
    """The section `puzzle` of a recipe: on one device, `enable_fsdp_float8_all_gather` replaces
    parameters without FSDP."""

    optimizer: Literal["before_conversion", "after_conversion"] | None = None
    """When the optimizer is built; null: after. One that is built before has the old parameters."""

    freeze: list[str] | None = None
    """Parameters that are not trained: full names, or shell patterns of names, as
    `layers.*.attention.wq.weight`."""


def contradictions(config) -> Iterator[tuple[str, str]]:
    """Find keys that contradict a late conversion."""
    if _converts_late(config) and config.compile.compiles_model:
        yield (
            "puzzle.optimizer",
            "is built before a conversion that would find compiled blocks; set compile.enable to "
            "false",
        )
    if config.quantize.linear.float8.precompute_float8_dynamic_scale_for_fsdp:
        yield (
            "quantize.linear.float8.precompute_float8_dynamic_scale_for_fsdp",
            "needs a run of several processes; set it to false",
        )


def _converts_late(config) -> bool:
    """True if the optimizer is built before the conversion."""
    return config.puzzle.optimizer == "before_conversion"


def _freeze_parameters(model, config) -> None:
    """Exclude the parameters of `puzzle.freeze` from training. Raises `InputError` if a pattern
    matches nothing."""
    parameters = dict(model.named_parameters())
    for pattern in config.puzzle.freeze or []:
        names = filter_names(parameters, pattern)
        if not names:
            raise InputError(
                f"puzzle.freeze: `{pattern}` matches no parameter: give the names of some, as "
                "`layers.0.attention.wq.weight`, or a pattern of them"
            )
        for name in names:
            parameters[name].requires_grad_(False)


# ---- hooks ----


def data_parallel_degrees(config, args, fp8_layers) -> tuple[int, int]:
    """Return 1 replica of 1 shard: one process, whatever the keys of FSDP say."""
    return 1, 1


def check(plan) -> None:
    """Refuse patterns that match no parameter. Raises `InputError`."""
    import torch

    from models.architectures import build_model

    with torch.device("meta"):  # parameters by name, no weights
        _freeze_parameters(build_model(plan.config), plan.config)


def convert(model, plan) -> None:
    """Convert as the core does, or leave it to `build_optimizers`; freeze parameters."""
    from models import float8

    model.plan = plan
    if not _converts_late(plan.config):
        float8.convert_linears(model, plan)
    _freeze_parameters(model, plan.config)


def build_optimizers(config, model_parts: list, *titan_args):
    """Build torchtitan's container of the optimizer, then convert if `convert` did not.

    `titan_args` are those of torchtitan's function after the model.
    """
    from torchtitan.components.optimizer import build_optimizers

    from models import float8

    optimizers = build_optimizers(model_parts, *titan_args)
    if _converts_late(config):
        [model] = model_parts
        float8.convert_linears(model, model.plan)
    return optimizers


def check_orphans(config, orphans: list[str]) -> None:
    """Accept parameters that are in no optimizer where the recipe asks for them."""
    from experiments.training.proof import check_orphans

    if not _converts_late(config):
        check_orphans(config, orphans)
