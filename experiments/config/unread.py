"""Find keys without effect: of FP8 in a recipe without FP8, and of what another key turns off."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from experiments.config.yaml_with_origins import ORIGIN_OF_COMMAND_LINE, Keys

FLOAT8 = "quantize.linear.float8"
SCALING = f"{FLOAT8}.recipe_name"  # turns FP8 on
ORIGIN_OF_BASE = "recipes/base.yaml:"


class Condition(NamedTuple):
    """Keys that are read only where another key, the switch, has certain values."""

    keys: tuple[str, ...]  # what their names begin with
    switch: str
    is_read: Callable[[Any], bool]  # by the validated recipe
    value: str  # of the switch, for which the keys are read


CONDITIONS = [
    Condition(
        ("checkpoint.",), "checkpoint.enable", lambda config: config.checkpoint.enable, "true"
    ),
    Condition(
        ("lr_scheduler.decay_type", "lr_scheduler.min_lr_factor"),
        "lr_scheduler.decay_ratio",
        lambda config: config.lr_scheduler.decay_ratio != 0,
        "the share of the steps in which the learning rate decays",
    ),
    Condition(
        ("activation_checkpoint.selective_", "activation_checkpoint.per_op_"),
        "activation_checkpoint.mode",
        lambda config: config.activation_checkpoint.mode == "selective",
        "selective",
    ),
    Condition(
        ("activation_checkpoint.memory_budget", "activation_checkpoint.visualize_"),
        "activation_checkpoint.mode",
        lambda config: config.activation_checkpoint.mode == "memory_budget",
        "memory_budget",
    ),
    Condition(
        ("profiling.profiler_",),
        "profiling.enable_profiling",
        lambda config: config.profiling.enable_profiling,
        "true",
    ),
    Condition(
        ("debug.deterministic_warn_only",),
        "debug.deterministic",
        lambda config: config.debug.deterministic,
        "true",
    ),
]


def explain_unread_keys(keys: Keys, config: Any) -> Iterator[tuple[str, str]]:
    """Yield the keys that their switches leave without effect: (key, what to do) each.

    Where somebody has turned a switch off, the keys may stay.
    """
    for condition in CONDITIONS:
        if condition.is_read(config):
            continue
        given = [key for key in keys if key.startswith(condition.keys) and key != condition.switch]
        for key in given:
            if not _is_settled(keys, key, condition.switch):
                yield (
                    key,
                    f"is not read with this {condition.switch}: set that to {condition.value}, or "
                    "leave this out",
                )


def _is_settled(keys: Keys, key: str, switch: str) -> bool:
    """Tell if the origins of a key and of its switch show that both are meant."""
    origin = keys[key].origin
    origin_of_switch = keys[switch].origin if switch in keys else ORIGIN_OF_BASE
    if origin.startswith(ORIGIN_OF_COMMAND_LINE):
        return origin_of_switch.startswith(ORIGIN_OF_COMMAND_LINE)
    return origin.startswith(ORIGIN_OF_BASE) or not origin_of_switch.startswith(ORIGIN_OF_BASE)


def find_unread_keys(
    files: Sequence[Keys], overlays: Sequence[Keys], overrides: Keys, compared: bool
) -> list[str]:
    """List the keys of FP8 in the layers of a recipe, except the scaling itself.

    Keys in layers below the last one with a scaling are left out: there, null turns off an
    inherited FP8 together with its keys.

    Args:
        files: keys of the recipe and its ancestors above base.yaml, which all recipes share.
        overlays: keys of each overlay. One that sets other keys too is made for all recipes, and
            its keys of FP8 are left out.
        overrides: keys of the command line.
        compared: True if other recipes have the same overlays and overrides. Then those are left
            out.
    """
    shared = [overlay for overlay in overlays if compared or _has_other_keys(overlay)]
    if compared:
        shared.append(overrides)
    layers = [*files, *overlays, overrides]
    layers = [_remove_float8(layer) if layer in shared else layer for layer in layers]
    while any(SCALING in layer for layer in layers[1:]):
        layers.pop(0)
    found = []
    for layer in layers:
        inner = [key for key in layer if key.startswith(f"{FLOAT8}.") and key != SCALING]
        if not inner and FLOAT8 in layer and SCALING not in layer:
            inner = [FLOAT8]  # an empty section
        found += inner
    return [*dict.fromkeys(found)]


def _remove_float8(layer: Keys) -> Keys:
    """Leave out the keys of FP8, except for the scaling."""
    return {
        key: given
        for key, given in layer.items()
        if key == SCALING or not f"{key}.".startswith(f"{FLOAT8}.")
    }


def _has_other_keys(layer: Keys) -> bool:
    """Tell if a layer sets keys outside the section of FP8."""
    return any(
        given.value != {} and not f"{key}.".startswith(f"{FLOAT8}.") for key, given in layer.items()
    )
