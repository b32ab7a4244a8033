"""Recipes: YAML in, one validated torchtitan `JobConfig` out.

A recipe is `NAME.yaml` in `recipes/` or an extension's: its parent (`base:`), one line about it
(`description:`), and the keys it changes in the sections of `experiments/config/keys.py`. Its
layers, where a later one wins, are its ancestors from base.yaml down, the recipe, overlays
(`recipes/overlays/`), and `key.path=value` from the command line. Sections merge, everything else
replaces. What the layers add up to is validated, and then checked for contradictions. A mistake is
reported with its origin.

A section that is a folder of `extensions/` brings that extension in: its package has the section's
keys (`Keys`), and functions in place of the core's (`Recipe.hook`).
"""

import functools
import importlib
import json
import operator
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from experiments.config.rules import contradictions
from experiments.config.yaml_with_origins import (
    ROOT,
    Layer,
    dump,
    flat,
    merge,
    mistakes,
    read_file,
    read_override,
)
from models.errors import InputError

if TYPE_CHECKING:
    from experiments.config.keys import Config

RECIPES = ROOT / "recipes"
OVERLAYS = RECIPES / "overlays"
EXTENSIONS = ROOT / "extensions"
LISTED = "`.venv/bin/python -m experiments.recipe list --all` has all"
THE_FOUR = ("baseline", "baseline_compiled", "rowwise_fp8_compiled", "tensorwise_fp8_compiled")
STRICT = ConfigDict(strict=True, extra="forbid")


class Resolved(BaseModel):
    """The section `resolved` of a resolved file: what the recipe was made of, and, in a run's
    folder, what experiments/training/plan.py worked out of it. base.yaml has no `base`."""

    model_config = STRICT

    base: str | None = None
    overlays: list[str] = []
    overrides: list[str] = []
    plan: dict | None = None


@dataclass(frozen=True)
class Recipe:
    """A resolved recipe. `config` has every default filled in."""

    name: str
    description: str
    config: "Config"
    extensions: dict[str, ModuleType] = field(default_factory=dict)  # whose sections it has
    made: Resolved = field(default_factory=Resolved)

    def hook(self, name: str, default: Callable | None = None) -> Callable | None:
        """Return an extension's function in place of the core's `default`.

        Raises `InputError` if two extensions have one.
        """
        entered = [own for own, module in self.extensions.items() if hasattr(module, name)]
        if len(entered) > 1:
            raise InputError(
                f"{' and '.join(entered)} do not go together, as each has its own `{name}`: "
                "leave out one of these sections"
            )
        return self.hooks(name)[0] if entered else default

    def hooks(self, name: str) -> list[Callable]:
        """Return each extension's function that adds to what the core does."""
        modules = self.extensions.values()
        return [getattr(module, name) for module in modules if hasattr(module, name)]

    @property
    def processes(self) -> int:
        """Processes of a run, one a GPU."""
        return self.hook("processes", lambda config: 1)(self.config)


# ---- what there is ----


def files(folder: Path) -> dict[str, Path]:
    """List a folder's YAML files by name."""
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))}


def paths() -> dict[str, Path]:
    """List each recipe's file by its name, the core's first."""
    return _and_of_extensions(RECIPES)


def studies() -> dict[str, Path]:
    """List each study's file by its name, the core's first."""
    return _and_of_extensions(RECIPES / "studies")


def _and_of_extensions(folder: Path) -> dict[str, Path]:
    folders = [folder, *sorted(EXTENSIONS.glob(f"*/{folder.name}"))]
    return functools.reduce(operator.or_, map(files, folders))


# ---- load ----


class _Head(BaseModel):
    """What a file has beside the sections; `name` and `resolved` only a resolved recipe."""

    model_config = STRICT

    description: str
    name: str = Field(pattern=r"^\w[\w .+-]*$")  # of a run's folder
    base: str | None = None
    resolved: Resolved = Resolved()


def load(
    name: str,
    overlays: Sequence[str] = (),
    overrides: Sequence[str] = (),
    seed: int | str | None = None,
) -> Recipe:
    """Resolve and validate a recipe.

    Args:
        name: a recipe's name, or the path of a .yaml file; one outside `recipes/` needs no `base`.
        overlays: names, applied in this order.
        overrides: `key.path=value` each, the value read as YAML.
        seed: short for the override debug.seed.

    Raises:
        InputError: if a file cannot be read; else listing every wrong key; else listing keys that
            contradict each other.
    """
    if seed is not None:
        overrides = [*overrides, f"debug.seed={seed}"]
    known = paths()
    if name not in known and not name.endswith(".yaml"):
        raise InputError(unknown("recipe", name, known, LISTED))
    head, layers = _chain(known.get(name) or Path(os.path.realpath(name)), known)
    there = files(OVERLAYS)
    for overlay in overlays:
        if overlay not in there:
            raise InputError(unknown("overlay", overlay, there, LISTED))
        layers += _chain(there[overlay], there)[1]
    layer = functools.reduce(merge, [*layers, *map(read_override, overrides)])
    extensions = _extensions(layer)
    config = _validate(layer, extensions)
    config.job.description = head.description
    before = head.resolved
    made = Resolved(
        base=head.base or before.base,
        overlays=[*before.overlays, *overlays],
        overrides=[*before.overrides, *overrides],
        plan=None if overlays or overrides else before.plan,
    )
    recipe = Recipe(head.name, head.description, config, extensions, made)
    found = [*contradictions(config)]
    for find in recipe.hooks("contradictions"):
        found += find(config)
    problems = [f"{layer.origins.get(key, 'default')}: {key}: {message}" for key, message in found]
    if problems:
        raise InputError("\n".join(problems))
    return recipe


def _chain(path: Path, known: dict[str, Path]) -> tuple[_Head, list[Layer]]:
    """Read a file, and the layers of those it is based on, each a name of `known`; the oldest
    first."""
    head, layer = _read(path)
    layers, base = [layer], head.base
    while base is not None:
        origin = layers[0].origins["base"]
        if base not in known:
            raise InputError(f"{origin}: base: {unknown('recipe', base, known, LISTED)}")
        if len(layers) > len(known):
            raise InputError(f"{origin}: base: {base} is its own ancestor")
        parent, layer = _read(known[base])
        layers, base = [layer, *layers], parent.base
    return head, layers


def _read(path: Path) -> tuple[_Head, Layer]:
    """Read the file of a recipe or of an overlay: its head, and its sections."""
    layer = read_file(path)
    layer.origins.setdefault("name", layer.origins[""])
    head = {"name": path.stem}
    head |= {key: layer.keys.pop(key) for key in _Head.model_fields if key in layer.keys}
    try:
        return _Head.model_validate(head), layer
    except ValidationError as error:
        raise mistakes(error, layer.origins, [], {}) from error


def _extensions(layer: Layer) -> dict[str, ModuleType]:
    """Import the extensions whose sections a recipe has."""
    there = {path.parent.name for path in EXTENSIONS.glob("*/__init__.py")}
    entered = [name for name in layer.keys if name in there]
    modules = {name: importlib.import_module(f"extensions.{name}") for name in entered}
    return {name: module for name, module in modules.items() if hasattr(module, "Keys")}


def _validate(layer: Layer, extensions: dict[str, ModuleType]) -> "Config":
    """Validate keys and fill in defaults. JSON is pydantic's mode in which 1 is a float too.

    Raises `InputError` with a line for each wrong key.
    """
    from experiments.config import keys  # torch, which listing recipes does not need

    sections = {name: extension.Keys for name, extension in extensions.items()}
    try:
        return keys.validator(*sections.items()).validate_json(json.dumps(layer.keys))
    except ValidationError as error:
        sections = asdict(keys.Config())
        known = [*sections, *dict(flat(sections))]
        raise mistakes(error, layer.origins, known, keys.REFUSED) from error


# ---- what a recipe says ----


def with_seed(recipe: Recipe, seed: int) -> Recipe:
    """Give a recipe another seed."""
    config = replace(recipe.config, debug=replace(recipe.config.debug, seed=seed))
    overrides = [*recipe.made.overrides, f"debug.seed={seed}"]
    made = recipe.made.model_copy(update={"overrides": overrides})
    return replace(recipe, config=config, made=made)


def to_yaml(recipe: Recipe, plan: dict | None = None) -> str:
    """Write the fully resolved recipe: every key of every section. It loads by path to an equal
    recipe."""
    sections = asdict(recipe.config)
    del sections["job"]
    named = {"name": recipe.name, "description": recipe.description}
    resolved = recipe.made.model_dump() | {"plan": plan}
    return dump(named | sections | {"resolved": resolved})


def changes(before: "Config", after: "Config") -> list[tuple[str, object, object]]:
    """List (key.path, value before, value after) of the keys that differ."""
    old, new = dict(flat(asdict(before))), dict(flat(asdict(after)))
    pairs = [(key, old.get(key), new.get(key)) for key in old | new]
    return [(key, value, other) for key, value, other in pairs if value != other]


def unknown(kind: str, name: str, known: Iterable[str], listed: str = "") -> str:
    """Say that a name is not in `known`: the nearest names first, then all of them, or how they are
    `listed`."""
    near = get_close_matches(name, known, n=2)
    hint = f"did you mean `{'` or `'.join(near)}`? " if near else ""
    return f"{hint}`{name}` is no {kind}: {listed or 'choose ' + ', '.join(known)}"
