"""Find keys of FP8 without effect, because the recipe has no FP8."""

from collections.abc import Sequence

from experiments.config.yaml_with_origins import Keys

FLOAT8 = "quantize.linear.float8"
SCALING = f"{FLOAT8}.recipe_name"  # turns FP8 on


def keys_of_scaling(
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
    shared = [overlay for overlay in overlays if compared or _sets_more(overlay)]
    if compared:
        shared.append(overrides)
    layers = [*files, *overlays, overrides]
    layers = [_without_float8(layer) if layer in shared else layer for layer in layers]
    while any(SCALING in layer for layer in layers[1:]):
        layers.pop(0)
    found = []
    for layer in layers:
        inner = [key for key in layer if key.startswith(f"{FLOAT8}.") and key != SCALING]
        if not inner and FLOAT8 in layer and SCALING not in layer:
            inner = [FLOAT8]  # an empty section
        found += inner
    return [*dict.fromkeys(found)]


def _without_float8(layer: Keys) -> Keys:
    """Leave out the keys of FP8, except for the scaling."""
    return {
        key: given
        for key, given in layer.items()
        if key == SCALING or not f"{key}.".startswith(f"{FLOAT8}.")
    }


def _sets_more(layer: Keys) -> bool:
    """Tell if a layer sets keys outside the section of FP8."""
    return any(
        given.value != {} and not f"{key}.".startswith(f"{FLOAT8}.") for key, given in layer.items()
    )
