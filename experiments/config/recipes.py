"""Recipes: YAML in, one validated torchtitan `JobConfig` out.

A recipe is `NAME.yaml` in `recipes/` or an extension's: its parent (`base:`), one line about it
(`description:`), and the keys it changes in the sections of `experiments/config/keys.py`. Its
layers, of which a later one wins, are its ancestors from base.yaml down, the recipe, overlays
(`recipes/overlays/`), and `key.path=value` from the command line. Sections merge, everything else
replaces. Each layer is validated by itself, also where a later one replaces its values; what they
add up to is checked for contradictions. A mistake is reported with its origin.

A section that is a folder of `extensions/` brings that extension in: its package has the section's
keys (`Keys`), and functions in place of the core's (`Recipe.hook`).
"""

import functools
import importlib
import json
import operator
import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, NamedTuple

from pydantic import BaseModel, ConfigDict, ValidationError

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
LISTED = "`python -m experiments.recipe list --all` has all"
THE_FOUR = ("baseline", "baseline_compiled", "rowwise_fp8_compiled", "tensorwise_fp8_compiled")


class Planned(BaseModel):
    """What experiments/training/plan.py has worked out of a recipe; sizes in bytes."""

    model_config = ConfigDict(strict=True, extra="forbid")

    token_file: str
    fp8_layers: list[str]
    fp8_flops_per_token: int
    parameters: int
    flops_per_token: int
    passes: int
    world_size: int
    shards: int
    memory: dict[str, float]


class Resolved(BaseModel):
    """The section `resolved` of a resolved file: what the recipe was made of, and its plan."""

    model_config = ConfigDict(strict=True, extra="forbid")

    base: str | None = None
    overlays: list[str] = []
    overrides: list[str] = []
    plan: Planned | None = None


@dataclass(frozen=True)
class Recipe:
    """A resolved recipe. `config` has every default filled in; `base` is None in base.yaml;
    `planned` is there if the recipe was read from a run's folder."""

    name: str
    base: str | None
    overlays: tuple[str, ...]
    overrides: tuple[str, ...]
    description: str
    config: "Config"
    extensions: dict[str, ModuleType] = field(default_factory=dict)  # whose sections it has
    planned: Planned | None = None

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
    folders = [RECIPES, *sorted(EXTENSIONS.glob("*/recipes"))]
    return functools.reduce(operator.or_, map(files, folders))


def studies() -> dict[str, Path]:
    """List each study's file by its name."""
    folders = [RECIPES / "studies", *sorted(EXTENSIONS.glob("*/studies"))]
    return functools.reduce(operator.or_, map(files, folders))


def names() -> list[str]:
    """List all recipes."""
    return list(paths())


# ---- load ----


class _File(NamedTuple):
    """A recipe's file, without what it inherits."""

    name: str
    base: str | None
    description: str
    layer: Layer
    resolved: Resolved


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
    chain = _chain(name)
    layer = _merge(chain, overlays, overrides)
    extensions = _extensions(layer)
    config = _validate(layer, extensions)
    found = [*contradictions(config)]
    for extension in extensions.values():
        if hasattr(extension, "contradictions"):
            found += extension.contradictions(config)
    problems = [f"{layer.origins.get(key, 'default')}: {key}: {message}" for key, message in found]
    if problems:
        raise InputError("\n".join(problems))
    file, before = chain[-1], chain[-1].resolved
    config.job.description = file.description
    return Recipe(
        name=file.name,
        base=file.base or before.base,
        overlays=(*before.overlays, *overlays),
        overrides=(*before.overrides, *overrides),
        description=file.description,
        config=config,
        extensions=extensions,
        planned=None if overlays or overrides else before.plan,
    )


def _chain(name: str) -> list[_File]:
    """Read a recipe, by name or path, and its ancestors; the oldest first."""
    known = paths()
    if name not in known and not name.endswith(".yaml"):
        raise InputError(unknown("recipe", name, known, LISTED))
    return _with_ancestors(known.get(name) or Path(os.path.realpath(name)), known)


def _with_ancestors(path: Path, known: dict[str, Path]) -> list[_File]:
    """Read a file and those it is based on, each a name of `known`; the oldest first."""
    chain = [_read(path)]
    while chain[0].base is not None:
        parent, origin = str(chain[0].base), chain[0].layer.origins["base"]
        if parent not in known:
            raise InputError(f"{origin}: base: {unknown('recipe', parent, known, LISTED)}")
        if len(chain) > len(known):
            raise InputError(f"{origin}: base: {parent} is its own ancestor")
        chain.insert(0, _read(known[parent]))
    return chain


def _read(path: Path) -> _File:
    """Read the file of a recipe or of an overlay. Only a resolved recipe gives a `name`, and what
    it was `resolved` from."""
    layer = read_file(path)
    keys, origins = layer
    origin = origins[""]
    if not isinstance(keys.get("description"), str):
        origin = origins.get("description", origin)
        raise InputError(f"{origin}: description: should be a line that says what this is for")
    name, base = keys.pop("name", path.stem), keys.pop("base", None)
    if not re.fullmatch(r"\w[\w .+-]*", str(name)):  # it names a run's folder
        origin = origins.get("name", origin)
        raise InputError(f"{origin}: name: should be letters, digits, _, -, + and .")
    try:
        resolved = Resolved.model_validate(keys.pop("resolved", {}))
    except ValidationError as error:
        raise mistakes(error, origins, list(Resolved.model_fields), {}) from error
    return _File(name, base, keys.pop("description"), layer, resolved)


def _merge(chain: list[_File], overlays: Sequence[str], overrides: Sequence[str]) -> Layer:
    """Validate and merge the keys of a recipe, of its overlays, and of the command line.

    Raises `InputError` with a line for each wrong key of a layer.
    """
    layers = [file.layer for file in chain]
    known = files(OVERLAYS)
    for overlay in overlays:
        if overlay not in known:
            raise InputError(unknown("overlay", overlay, known, LISTED))
        layers += [file.layer for file in _with_ancestors(known[overlay], known)]
    layers += map(read_override, overrides)
    wrong = []
    for layer in layers:
        try:
            _validate(layer, _extensions(layer))
        except InputError as error:
            wrong.append(str(error))
    if wrong:
        raise InputError("\n".join(wrong))
    return functools.reduce(merge, layers)


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
        others = layer.keys.keys() - extensions.keys()
        foreign = [name for name in others if not get_close_matches(name, known)]
        missing = dict.fromkeys(foreign, "no section of recipes, and no extension that has keys")
        raise mistakes(error, layer.origins, known, missing | keys.REFUSED) from error


# ---- what a recipe says ----


def with_seed(recipe: Recipe, seed: int) -> Recipe:
    """Give a recipe another seed."""
    config = replace(recipe.config, debug=replace(recipe.config.debug, seed=seed))
    return replace(recipe, config=config, overrides=(*recipe.overrides, f"debug.seed={seed}"))


def to_yaml(recipe: Recipe, planned: Planned | None = None) -> str:
    """Write the fully resolved recipe: every key of every section. It loads by path to an equal
    recipe."""
    sections = asdict(recipe.config)
    del sections["job"]
    resolved = Resolved(
        base=recipe.base,
        overlays=list(recipe.overlays),
        overrides=list(recipe.overrides),
        plan=planned,
    )
    named = {"name": recipe.name, "description": recipe.description}
    return dump(named | sections | {"resolved": resolved.model_dump()})


def difference(recipe: Recipe) -> list[tuple[str, object, object]]:
    """List (key.path, parent's value, this recipe's value), the parent resolved with the same
    overlays and overrides."""
    if recipe.base is None:
        return []
    layer = _merge(_chain(recipe.base), recipe.overlays, recipe.overrides)
    return changes(_validate(layer, _extensions(layer)), recipe.config)


def changes(before: "Config", after: "Config") -> list[tuple[str, object, object]]:
    """List (key.path, value before, value after) of the keys that differ."""
    old, new = dict(flat(asdict(before))), dict(flat(asdict(after)))
    pairs = [(key, old.get(key), new.get(key)) for key in old | new]
    return [(key, value, other) for key, value, other in pairs if value != other]


# ---- words of a command line ----


def split_variant(variant: str) -> tuple[str, list[str]]:
    """Split `NAME+key=value+key=value` into the recipe's name and its own overrides; a plus within
    a value stays in it."""
    name, *overrides = re.split(r"\+(?=[A-Za-z_][\w.]*=)", variant)
    return name, overrides


def common_keys() -> list[str]:
    """List the keys that base.yaml and overlays set: reading all of torchtitan's takes seconds."""
    keys: list[str] = []
    for path in (paths()["base"], *files(OVERLAYS).values()):
        keys += read_file(path).origins
    return keys


def unknown(kind: str, name: str, known: Iterable[str], listed: str = "") -> str:
    """Say that a name is not in `known`: the nearest names first, then all of them, or how they are
    `listed`."""
    near = get_close_matches(name, known, n=2)
    hint = f"did you mean `{'` or `'.join(near)}`? " if near else ""
    return f"{hint}`{name}` is no {kind}: {listed or 'choose ' + ', '.join(known)}"
