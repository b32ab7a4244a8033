"""Resolve recipes: YAML in, one validated torchtitan `JobConfig` out.

A recipe is `NAME.yaml` in `recipes/` or an extension's: its parent (`base:`), one line about it
(`description:`), and the keys it changes in the sections of `experiments/config/keys.py`. Its
layers, where a later one wins, are its ancestors from base.yaml down, the recipe, overlays
(`recipes/overlays/`), and `key.path=value` from the command line. Sections merge, everything else
replaces. What the layers add up to is validated, and then checked for contradictions. A mistake is
reported with its origin.

A section that is a folder of `extensions/` brings that extension in: its package has the section's
keys (`Section`), and functions in place of the core's (`Recipe.find_hook`).
"""

import hashlib
import json
import logging
from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, TypeVar, overload

from pydantic import BaseModel, ConfigDict, Field

from experiments.config.moved_keys import find_overlay_replacement
from experiments.config.yaml_with_origins import (
    ROOT,
    Layer,
    Setting,
    dump_yaml,
    find_by_name,
    flatten_sections,
    merge_layers,
    read_file,
    read_override,
    validate_layer,
    yaml_files,
)
from experiments.records.run import RECIPE, check_layout
from models.errors import InputError

if TYPE_CHECKING:
    from experiments.config.keys import Config

RECIPES = ROOT / "recipes"
OVERLAYS_FOLDER = RECIPES / "overlays"
STUDIES_FOLDER = RECIPES / "studies"
# Functions of extensions in place of the core's; a recipe may have one of each
SINGLE_HOOKS = (
    "all_reduce", "build_optimizers", "check_orphans", "choose_matmul", "convert",
    "data_parallel_degrees", "evidence", "gradient_bytes", "name_scaling", "parallelize", "start",
)  # fmt: skip
CHECKPOINT_KEY = "checkpoint.enable"
FOUR_RECIPES = ("baseline", "baseline_compiled", "rowwise_fp8_compiled", "tensorwise_fp8_compiled")


class Provenance(BaseModel):
    """The section `resolved` of a resolved file: the origin of the recipe.

    base.yaml has no `base`.
    """

    model_config = ConfigDict(strict=True, extra="forbid")

    base: str | None = None
    overlays: list[str] = []
    overrides: list[str] = []
    # Only overlays turned checkpoints on: no file of a recipe or study, and no command line
    overlay_checkpoints: bool = False


@dataclass(frozen=True)
class Recipe:
    """A resolved recipe. `config` has every default filled in."""

    name: str
    description: str
    config: "Config"
    extensions: dict[str, ModuleType] = field(default_factory=dict)  # whose sections it has
    provenance: Provenance = field(default_factory=Provenance)

    def __post_init__(self):
        """Refuse two extensions that replace one function of the core. Raises `InputError`."""
        for hook in SINGLE_HOOKS:
            sections = [name for name, module in self.extensions.items() if hasattr(module, hook)]
            if len(sections) > 1:
                raise InputError(
                    f"{' and '.join(sections)} do not go together, as each has its own `{hook}`: "
                    "leave out one of these sections"
                )

    @overload
    def find_hook(self, name: str) -> Callable | None: ...

    @overload
    def find_hook(self, name: str, default: Callable) -> Callable: ...

    def find_hook(self, name: str, default: Callable | None = None) -> Callable | None:
        """Return an extension's function in place of the core's `default`."""
        assert name in SINGLE_HOOKS
        hooks = [*self.find_hooks(name).values()]
        return hooks[0] if hooks else default

    def find_hooks(self, name: str) -> dict[str, Callable]:
        """Return the function `name` of each extension that has one, by extension: they add to what
        the core does."""
        hooks = {}
        for extension, module in self.extensions.items():
            if hasattr(module, name):
                hooks[extension] = getattr(module, name)
        return hooks

    def with_seed(self, seed: int) -> "Recipe":
        """Return this recipe with another seed."""
        config = deepcopy(self.config)
        config.debug.seed = seed
        overrides = [*self.provenance.overrides, f"debug.seed={seed}"]
        provenance = self.provenance.model_copy(update={"overrides": overrides})
        return replace(self, config=config, provenance=provenance)

    @cached_property
    def digest(self) -> str:
        """Digest of a run's keys, without the section `job` and the number of steps."""
        sections = asdict(self.config)
        del sections["job"], sections["training"]["steps"]
        return hash_text(json.dumps(sections, sort_keys=True))


# ---- load ----


class _Head(BaseModel):
    """A file's keys outside the sections. Only a resolved recipe.yaml has `name` and `resolved`."""

    model_config = ConfigDict(strict=True)

    description: str
    name: str = Field(pattern=r"^\w[\w .+-]*$")  # of a run's folder
    base: str | None = None
    resolved: Provenance = Provenance()


class OverlayHead(_Head):
    """An overlay's keys outside the sections."""

    memory_gib: float | None = Field(
        default=None,
        gt=0,
        description="An overlay's: GiB that the neediest of the four recipes takes of a GPU, by "
        "estimate. `size: auto` of a study chooses from the overlays that have it.",
    )


_HeadClass = TypeVar("_HeadClass", bound=_Head)


def load(
    name: str,
    overlays: Sequence[str] = (),
    overrides: Sequence[str] = (),
    is_compared: bool = False,
) -> Recipe:
    """Resolve and validate a recipe.

    Args:
        name: a recipe's name, or the path of a .yaml file; one outside `recipes/` needs no `base`.
        overlays: names, applied in this order.
        overrides: `key.path=value` each, the value read as YAML.
        is_compared: True for one of several recipes with these overlays and overrides: another
            recipe may read a key of FP8 that this one does not read.

    Raises:
        InputError: if a file cannot be read; else listing every wrong key; else listing keys that
            contradict each other.
    """
    if name.endswith(".yaml"):
        path = Path(name).absolute()
    else:
        path = find_by_name("recipe", name, yaml_files(RECIPES))
    head, file_layers = _read_with_ancestors(path, RECIPES, _Head)
    base_origin = f"{RECIPES.name}/base.yaml:"
    layers_above_base = [
        layer for layer in file_layers if not layer[""].origin.startswith(base_origin)
    ]
    overlay_layers = [_read_overlay(overlay) for overlay in overlays]
    if head.base:
        layer_by_overlay = dict(zip(overlays, overlay_layers, strict=True))
        _warn_of_replaced_values(merge_layers(layers_above_base), layer_by_overlay)
    command_line = merge_layers(map(read_override, overrides))
    merged = merge_layers([*file_layers, *overlay_layers, command_line])

    # torch: seconds, which a misspelt name need not wait for
    from experiments.config.keys import import_extensions, validate_recipe
    from experiments.config.unread import find_unread_keys

    extensions = import_extensions(merged)
    if "resolved" in head.model_fields_set:
        layers_above_base = []  # the file has all keys of the recipe that it was made of
    unread_keys = find_unread_keys(layers_above_base, overlay_layers, command_line, is_compared)
    config = validate_recipe(merged, extensions, unread_keys)
    config.job.description = head.description

    recorded = head.resolved  # empty, except in a resolved file
    if recorded.overlay_checkpoints:
        user_layer = command_line
    else:
        user_layer = merge_layers([*file_layers, command_line])
    user_wants_checkpoints = CHECKPOINT_KEY in user_layer and user_layer[CHECKPOINT_KEY].value
    provenance = Provenance(
        base=head.base or recorded.base,
        overlays=[*recorded.overlays, *overlays],
        overrides=[*recorded.overrides, *overrides],
        overlay_checkpoints=config.checkpoint.enable and not user_wants_checkpoints,
    )
    return Recipe(head.name, head.description, config, extensions, provenance)


def load_recipes(
    names: Iterable[str], overlays: Sequence[str], overrides: Sequence[str]
) -> dict[str, Recipe]:
    """Resolve recipes for a comparison, by name. One of them must read each key of FP8.

    Raises the errors of `load`.
    """
    names = [*names]
    loaded = {name: load(name, overlays, overrides, is_compared=True) for name in names}
    if any(recipe.config.quantize.linear.float8.recipe_name for recipe in loaded.values()):
        return loaded
    return {name: load(name, overlays, overrides) for name in names}


def _warn_of_replaced_values(recipe_layer: Layer, layer_by_overlay: dict[str, Layer]) -> None:
    """Warn where overlays replace values of a recipe."""
    for overlay, overlay_layer in layer_by_overlay.items():
        for key in recipe_layer.keys() & overlay_layer.keys():
            setting = recipe_layer[key]
            value = overlay_layer[key].value
            if setting.value != value:
                logging.getLogger().warning(
                    f"{setting.origin}: {key}: overlay {overlay} sets {value} instead; what counts "
                    "more is a value on the command line"
                )


def _read_with_ancestors(
    path: Path, folder: Path, head_class: type[_HeadClass], *descendants: Path
) -> tuple[_HeadClass, list[Layer]]:
    """Read a recipe or overlay and its ancestors in `folder`.

    Returns its head and the layer of each file, base.yaml first. No file of `descendants` can be
    an ancestor.
    """
    layer = read_file(path)
    default_name = Setting(path.stem, layer[""].origin)
    head = validate_layer(head_class.model_validate, {"name": default_name} | layer)
    section_keys = [key for key in layer if key.partition(".")[0] not in head_class.model_fields]
    sections_layer = {key: layer[key] for key in section_keys}
    if head.base is None:
        return head, [sections_layer]
    family = [*descendants, path]
    possible_parents = {
        name: file for name, file in yaml_files(folder).items() if file not in family
    }
    origin = f"{layer['base'].origin}: base: "
    kind = "recipe that this one can be based on"
    parent_file = find_by_name(kind, head.base, possible_parents, origin)
    _, ancestor_layers = _read_with_ancestors(parent_file, folder, head_class, *family)
    return head, [*ancestor_layers, sections_layer]


def _read_overlay(name: str) -> Layer:
    """Read an overlay and its ancestors as one layer. Raises `InputError`."""
    files = yaml_files(OVERLAYS_FOLDER)
    replacement = find_overlay_replacement(name)
    if replacement and name not in files:
        raise InputError(f"`{name}` is not an overlay any more: {replacement}")
    file = find_by_name("overlay", name, files)
    _, layers = _read_with_ancestors(file, OVERLAYS_FOLDER, OverlayHead)
    return merge_layers(layers)


def list_sizes() -> list[str]:
    """List the overlays with `memory_gib`, the largest first. Raises `InputError`."""
    memory_by_size = {}
    for name, file in yaml_files(OVERLAYS_FOLDER).items():
        head, _ = _read_with_ancestors(file, OVERLAYS_FOLDER, OverlayHead)
        if head.memory_gib is not None:
            memory_by_size[name] = head.memory_gib
    return sorted(memory_by_size, key=memory_by_size.__getitem__, reverse=True)


# ---- write and compare recipes ----


def to_yaml(recipe: Recipe) -> str:
    """Write the resolved recipe as YAML: every key of every section.

    The text loads, as a file, to an equal recipe.
    """
    sections = asdict(recipe.config)
    del sections["job"]
    head = {"name": recipe.name, "description": recipe.description}
    return dump_yaml(head | sections | {"resolved": recipe.provenance.model_dump()})


def require_same_recipe(folder: Path, recipe: Recipe) -> None:
    """Refuse a folder with the recipe.yaml of another recipe; its number of steps may differ.

    Raises `InputError`.
    """
    file = folder / RECIPE
    check_layout(folder)
    if file.exists() and load(str(file)).digest != recipe.digest:
        raise InputError(
            f"{folder} holds a run of another recipe: give the same name, overlays, seed and keys "
            "to resume it, or choose another --out"
        )


def list_changes(parent: "Config", config: "Config") -> list[tuple[str, object, object]]:
    """List (key.path, value of the parent, value of the config) of the keys that differ."""
    parent_values = flatten_sections(asdict(parent))
    values = flatten_sections(asdict(config))
    keys = parent_values | values
    changed_keys = [key for key in keys if parent_values.get(key) != values.get(key)]
    return [(key, parent_values.get(key), values.get(key)) for key in changed_keys]


def hash_text(text: str) -> str:
    """Hash a text to 8 hex digits."""
    return hashlib.sha256(text.encode()).hexdigest()[:8]
