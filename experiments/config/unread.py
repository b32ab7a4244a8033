"""Find keys without effect: of FP8 in a recipe without FP8, and of what another key turns off."""

from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from typing import Any, NamedTuple

from experiments.config.yaml_with_origins import ORIGIN_OF_COMMAND_LINE, Layer

FLOAT8_SECTION = "quantize.linear.float8"
SCALING_KEY = f"{FLOAT8_SECTION}.recipe_name"  # turns FP8 on
ORIGIN_OF_BASE = "recipes/base.yaml:"


class Condition(NamedTuple):
    """Keys that are read only where another key, the switch, has certain values."""

    keys: tuple[str, ...]  # what their names begin with
    switch: str
    is_read: Callable[[Any], bool]  # by the value of the switch
    value: str  # of the switch, for which the keys are read


CONDITIONS = [
    Condition(("checkpoint.",), "checkpoint.enable", bool, "true"),
    Condition(
        ("lr_scheduler.decay_type", "lr_scheduler.min_lr_factor"),
        "lr_scheduler.decay_ratio",
        lambda ratio: ratio != 0,
        "the share of the steps in which the learning rate decays",
    ),
    Condition(
        ("activation_checkpoint.selective_", "activation_checkpoint.per_op_"),
        "activation_checkpoint.mode",
        lambda mode: mode == "selective",
        "selective",
    ),
    Condition(
        ("activation_checkpoint.memory_budget", "activation_checkpoint.visualize_"),
        "activation_checkpoint.mode",
        lambda mode: mode == "memory_budget",
        "memory_budget",
    ),
    Condition(("profiling.profiler_",), "profiling.enable_profiling", bool, "true"),
    Condition(("debug.deterministic_warn_only",), "debug.deterministic", bool, "true"),
]


def explain_unread_keys(keys: Layer, config: Any) -> Iterator[tuple[str, str]]:
    """Yield the keys that their switches leave without effect: (key, what to do) each.

    Where somebody has turned a switch off, the keys may stay.
    """
    for condition in CONDITIONS:
        switch = condition.switch
        state = reduce(getattr, switch.split("."), config)
        if condition.is_read(state):
            continue
        for key in keys:
            is_unread = key.startswith(condition.keys) and key != switch
            if is_unread and not _is_settled(keys, key, switch):
                yield (
                    key,
                    f"is not read while {switch} is {str(state).lower()}: set that to "
                    f"{condition.value}, or leave this out",
                )


def _is_settled(keys: Layer, key: str, switch: str) -> bool:
    """Tell if the origins of a key and of its switch show that both are meant."""
    origin = keys[key].origin
    origin_of_switch = keys[switch].origin if switch in keys else ORIGIN_OF_BASE
    if origin.startswith(ORIGIN_OF_COMMAND_LINE):
        return origin_of_switch.startswith(ORIGIN_OF_COMMAND_LINE)
    return origin.startswith(ORIGIN_OF_BASE) or not origin_of_switch.startswith(ORIGIN_OF_BASE)


def find_unread_keys(
    files: Sequence[Layer], overlays: Sequence[Layer], overrides: Layer, is_compared: bool
) -> list[str]:
    """List the keys of FP8 in the layers of a recipe, except the scaling itself.

    Keys in layers under the last one with a scaling are left out: a scaling of null turns off an
    inherited FP8 together with its keys.

    Args:
        files: keys of the recipe and its ancestors above base.yaml, which all recipes share.
        overlays: keys of each overlay. An overlay that sets other keys too serves all recipes, and
            its keys of FP8 are left out.
        overrides: keys of the command line.
        is_compared: True if other recipes have the same overlays and overrides. Then the keys of
            these are left out.
    """
    shared = [overlay for overlay in overlays if is_compared or _has_keys_outside_float8(overlay)]
    if is_compared:
        shared.append(overrides)
    layers: list[Layer] = []
    for layer in [*files, *overlays, overrides]:
        if SCALING_KEY in layer:
            layers = []
        layers.append(_remove_float8_keys(layer) if layer in shared else layer)
    unread_keys = []
    for layer in layers:
        float8_keys = [key for key in layer if _is_in_float8(key)]
        if float8_keys == [FLOAT8_SECTION]:  # an empty section
            unread_keys.append(FLOAT8_SECTION)
        else:
            unread_keys += [key for key in float8_keys if key not in (FLOAT8_SECTION, SCALING_KEY)]
    return [*dict.fromkeys(unread_keys)]


def _is_in_float8(key: str) -> bool:
    """True for the section of FP8 and its keys."""
    return f"{key}.".startswith(f"{FLOAT8_SECTION}.")


def _remove_float8_keys(layer: Layer) -> Layer:
    """Leave out the keys of FP8, except for the scaling."""
    kept_keys = [key for key in layer if key == SCALING_KEY or not _is_in_float8(key)]
    return {key: layer[key] for key in kept_keys}


def _has_keys_outside_float8(layer: Layer) -> bool:
    """True if a layer sets keys outside the section of FP8."""
    return any(setting.value != {} and not _is_in_float8(key) for key, setting in layer.items())
