"""Resolve recipes: YAML in, one validated torchtitan `JobConfig` out.

A recipe is `NAME.yaml` in `recipes/` or an extension's: its parent (`base:`), one line about it
(`description:`), and the keys it changes in the sections of `experiments/config/keys.py`. Its
layers, where a later one wins, are its ancestors from base.yaml down, the recipe, overlays
(`recipes/overlays/`), and `key.path=value` from the command line. Sections merge, everything else
replaces. What the layers add up to is validated, and then checked for contradictions. A mistake is
reported with its origin.

A section that is a folder of `extensions/` brings that extension in: its package has the section's
keys (`Keys`), and functions in place of the core's (`Recipe.hook`).
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
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict, Field

from experiments.config.yaml_with_origins import (
    ROOT,
    Given,
    Keys,
    dump,
    find,
    flat,
    merge_layers,
    read_file,
    read_override,
    validated,
    yaml_files,
)
from experiments.records.run import RECIPE, check_layout
from models.errors import InputError

if TYPE_CHECKING:
    from experiments.config.keys import Config

RECIPES = ROOT / "recipes"
OVERLAYS = RECIPES / "overlays"
STUDIES = RECIPES / "studies"
# Functions of extensions in place of the core's, of which a recipe may have one
REPLACED = (
    "all_reduce", "build_optimizers", "check_orphans", "convert", "data_parallel_degrees",
    "evidence", "gradient_bytes", "parallelize", "start",
)  # fmt: skip
CHECKPOINTS = "checkpoint.enable"
THE_FOUR = ("baseline", "baseline_compiled", "rowwise_fp8_compiled", "tensorwise_fp8_compiled")


class Resolved(BaseModel):
    """The section `resolved` of a resolved file: what the recipe was made of, and, in a run's
    folder, what experiments/training/plan.py worked out of it. base.yaml has no `base`."""

    model_config = ConfigDict(strict=True, extra="forbid")

    base: str | None = None
    overlays: list[str] = []
    overrides: list[str] = []
    # Only overlays turned checkpoints on: no file of a recipe or study, and no command line
    overlay_checkpoints: bool = False
    plan: dict | None = None


@dataclass(frozen=True)
class Recipe:
    """A resolved recipe. `config` has every default filled in."""

    name: str
    description: str
    config: "Config"
    extensions: dict[str, ModuleType] = field(default_factory=dict)  # whose sections it has
    made: Resolved = field(default_factory=Resolved)

    def __post_init__(self):
        """Refuse two extensions in place of one function of the core. Raises `InputError`."""
        for name in REPLACED:
            theirs = [each for each, module in self.extensions.items() if hasattr(module, name)]
            if len(theirs) > 1:
                raise InputError(
                    f"{' and '.join(theirs)} do not go together, as each has its own `{name}`: "
                    "leave out one of these sections"
                )

    def hook(self, name: str, default: Callable | None = None) -> Callable | None:
        """Return an extension's function in place of the core's `default`."""
        assert name in REPLACED
        return next(iter(self.hooks(name)), default)

    def hooks(self, name: str) -> list[Callable]:
        """Return all extensions' functions called `name`: they add to what the core does."""
        return [
            getattr(module, name) for module in self.extensions.values() if hasattr(module, name)
        ]

    def with_seed(self, seed: int) -> "Recipe":
        """Return this recipe with another seed."""
        config, overrides = deepcopy(self.config), [*self.made.overrides, f"debug.seed={seed}"]
        config.debug.seed = seed
        made = self.made.model_copy(update={"overrides": overrides})
        return replace(self, config=config, made=made)

    @cached_property
    def digest(self) -> str:
        """Digest of a run's keys, without the section `job` and the number of steps."""
        sections = asdict(self.config)
        del sections["job"], sections["training"]["steps"]
        return digest(json.dumps(sections, sort_keys=True))


# ---- load ----


class _Head(BaseModel):
    """A file's keys outside the sections. Only a resolved recipe.yaml has `name` and `resolved`."""

    model_config = ConfigDict(strict=True)

    description: str
    name: str = Field(pattern=r"^\w[\w .+-]*$")  # of a run's folder
    base: str | None = None
    resolved: Resolved = Resolved()


def load(
    name: str,
    overlays: Sequence[str] = (),
    overrides: Sequence[str] = (),
    compared: bool = False,
) -> Recipe:
    """Resolve and validate a recipe.

    Args:
        name: a recipe's name, or the path of a .yaml file; one outside `recipes/` needs no `base`.
        overlays: names, applied in this order.
        overrides: `key.path=value` each, the value read as YAML.
        compared: True for one of several recipes with these overlays and overrides: another recipe
            may read a key of FP8 that this one does not read.

    Raises:
        InputError: if a file cannot be read; else listing every wrong key; else listing keys that
            contradict each other.
    """
    is_path = name.endswith(".yaml")
    path = Path(name).absolute() if is_path else find("recipe", name, yaml_files(RECIPES))
    head, files = _read(path, RECIPES)
    of_base = f"{RECIPES.name}/base.yaml:"
    own = [layer for layer in files if not layer[""].origin.startswith(of_base)]
    overlay_files = [find("overlay", overlay, yaml_files(OVERLAYS)) for overlay in overlays]
    overlay_layers = [merge_layers(_read(file, OVERLAYS)[1]) for file in overlay_files]
    if head.base:
        _warn_of_overlays(merge_layers(own), dict(zip(overlays, overlay_layers, strict=True)))
    command_line = merge_layers(map(read_override, overrides))
    keys = merge_layers([*files, *overlay_layers, command_line])
    from experiments.config.keys import extensions_of, validate  # torch: not for a wrong name
    from experiments.config.unread import find_unread_keys

    before = head.resolved
    made = Resolved(
        base=head.base or before.base,
        overlays=[*before.overlays, *overlays],
        overrides=[*before.overrides, *overrides],
        plan=before.plan,
    )
    extensions = extensions_of(keys)
    if "resolved" in head.model_fields_set:
        own = []  # the file has all keys of the recipe that it was made of
    unread = find_unread_keys(own, overlay_layers, command_line, compared)
    config = validate(keys, extensions, unread)
    by_user = command_line if before.overlay_checkpoints else merge_layers([*files, command_line])
    is_asked = CHECKPOINTS in by_user and by_user[CHECKPOINTS].value
    made.overlay_checkpoints = config.checkpoint.enable and not is_asked
    config.job.description = head.description
    recipe = Recipe(head.name, head.description, config, extensions, made)
    if made.plan and made.plan.get("recipe") != recipe.digest:
        made.plan = None  # keys were changed since
    return recipe


def load_compared(
    names: Iterable[str], overlays: Sequence[str], overrides: Sequence[str]
) -> dict[str, Recipe]:
    """Resolve recipes for a comparison, by name. A key of FP8 must be read by one of them.

    Raises as `load`.
    """
    names = [*names]
    loaded = {name: load(name, overlays, overrides, compared=True) for name in names}
    if any(recipe.config.quantize.linear.float8.recipe_name for recipe in loaded.values()):
        return loaded
    return {name: load(name, overlays, overrides) for name in names}


def _warn_of_overlays(own: Keys, overlays: dict[str, Keys]) -> None:
    """Warn where overlays replace values of the own files of a recipe."""
    for overlay, layer in overlays.items():
        for key in own.keys() & layer.keys():
            if own[key].value != layer[key].value:
                logging.getLogger().warning(
                    f"{own[key].origin}: {key}: overlay {overlay} sets {layer[key].value} instead; "
                    "what counts more is a value on the command line"
                )


def _read(path: Path, folder: Path, *below: Path) -> tuple[_Head, list[Keys]]:
    """Read a recipe or overlay and its ancestors in `folder`.

    Returns its head, and the keys of each file, its own last. `below`: the files that led here;
    none of them can be an ancestor.
    """
    keys = read_file(path)
    stem = Given(path.stem, keys[""].origin)
    head = validated(_Head.model_validate, {"name": stem} | keys)
    of_head = _Head.model_fields.keys()
    own = {key: given for key, given in keys.items() if key.partition(".")[0] not in of_head}
    if head.base is None:
        return head, [own]
    family = [*below, path]
    others = {name: other for name, other in yaml_files(folder).items() if other not in family}
    kind, origin = "recipe that this one can be based on", f"{keys['base'].origin}: base: "
    return head, [*_read(find(kind, head.base, others, origin), folder, *family)[1], own]


# ---- what a recipe says ----


def to_yaml(recipe: Recipe, plan=None) -> str:
    """Write the fully resolved recipe: every key of every section, and in a run's folder what its
    plan worked out. It loads by path to an equal recipe."""
    sections = asdict(recipe.config)
    del sections["job"]
    resolved = recipe.made.model_dump()
    if plan:
        resolved["plan"] = {
            "recipe": recipe.digest,
            "token_file": str(plan.token_file.path),
            "fp8_layers": sorted(plan.fp8.layers),
            "fp8_flops_per_token": plan.fp8.flops_per_token,
        }
    return dump(
        {"name": recipe.name, "description": recipe.description, **sections, "resolved": resolved}
    )


def check_recipe(folder: Path, recipe: Recipe) -> None:
    """Refuse a folder with the recipe.yaml of another recipe; its number of steps may differ.

    Raises `InputError`.
    """
    file = folder / RECIPE
    check_layout(folder)
    if file.exists() and load(str(file)).digest != recipe.digest:
        raise InputError(
            f"{folder} holds a run of another recipe: give the same name, overlays, seed and keys "
            "to go on with it, or choose another --out"
        )


def changes(before: "Config", after: "Config") -> list[tuple[str, object, object]]:
    """List (key.path, value before, value after) of the changed keys."""
    old, new = flat(asdict(before)), flat(asdict(after))
    return [(key, old.get(key), new.get(key)) for key in old | new if old.get(key) != new.get(key)]


def digest(text: str) -> str:
    """Hash a text to 8 hex digits."""
    return hashlib.sha256(text.encode()).hexdigest()[:8]
