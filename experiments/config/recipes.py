"""Recipes: YAML in, one validated torchtitan `JobConfig` out.

A recipe is `NAME.yaml` in `recipes/` or one of its folders: its parent (`base:`), one line about it (`description:`),
and the keys it changes in torchtitan's sections or those of `experiments/config/keys.py`. Its layers, of which a later
one wins, are its ancestors from base.yaml down, the recipe, overlays (`recipes/overlays/`), and `key.path=value` from
the command line. Mappings merge, everything else replaces. Each layer must be right by itself.
"""

import difflib
import functools
import itertools
import operator
import os
import re
import textwrap
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from experiments.config import rules
from experiments.config.values import text
from experiments.config.yaml_source import Entries, Entry, dump, parse, read
from models.errors import InputError

if TYPE_CHECKING:
    from experiments.config.keys import Config

ROOT = Path(__file__).resolve().parents[2]
RECIPES = ROOT / "recipes"
OVERLAYS = RECIPES / "overlays"
GROUPS = {
    "": "Further recipes",
    "candidates": "Candidates, one change each",
    "puzzle": "Puzzle: does FP8 learn on one GPU?",
}
DESCRIPTION = text(".+", "a line of text on what this is for")
NAME = text(r"\w[\w .+-]{0,99}", "letters, digits, _, -, + and ., at most 100")
THE_FOUR = ("baseline", "baseline_compiled", "rowwise_fp8_compiled", "tensorwise_fp8_compiled")


@dataclass(frozen=True)
class Recipe:
    """A resolved recipe. `config` has every default filled in; `base` is None in base.yaml and in resolved files."""

    name: str
    base: str | None
    overlays: tuple[str, ...]
    overrides: tuple[str, ...]
    seed: int | None
    description: str
    config: "Config"


def files(folder: Path) -> dict[str, Path]:
    """A folder's YAML files by name."""
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))}


def paths() -> dict[str, Path]:
    """Each recipe's file by its name, group by group."""
    return {name: path for group in GROUPS for name, path in files(RECIPES / group).items()}


def names() -> list[str]:
    """All recipes."""
    return list(paths())


def descriptions() -> dict[str, dict[str, str]]:
    """Group to name to the file's own line, for people. Raises InputError if one of the files can't be read."""
    groups = {title: files(RECIPES / group) for group, title in GROUPS.items()}
    groups = {"The four recipes": {name: groups["Further recipes"].pop(name) for name in THE_FOUR}, **groups}
    groups["Overlays: where, and how big"] = files(OVERLAYS)
    return {title: {name: _read_layer(group[name]).description for name in group} for title, group in groups.items()}


def load(name: str, overlays: Sequence[str] = (), overrides: Sequence[str] = (), seed: int | None = None) -> Recipe:
    """Resolve and validate a recipe.

    Args:
        name: a recipe's name, or the path of a .yaml file; one outside `recipes/` needs no `base`.
        overlays: names, applied in this order.
        overrides: `key.path=value` each, the value read as YAML.
        seed: debug.seed.

    Raises:
        InputError: with the first layer that cannot be read, else with all mistakes in the keys of all layers, else
            with all contradictions of the result.
    """
    layer, entries = _resolve(name, overlays, overrides, seed)
    config = rules.build(entries)
    _raise(rules.contradictions(config, entries))
    config.job.description = layer.description
    return Recipe(layer.name, layer.base.value, tuple(overlays), tuple(overrides), seed, layer.description, config)


def to_yaml(recipe: Recipe) -> str:
    """The fully resolved recipe: every key of every section. It loads by path to an equal config."""
    header = f"{recipe.name}, fully resolved\noverlays: {', '.join(recipe.overlays) or 'none'}\n"
    header += f"overrides: {' '.join(recipe.overrides) or 'none'}\n"
    sections = asdict(recipe.config)
    del sections["job"]["description"]
    return textwrap.indent(header, "# ") + dump({"name": recipe.name, "description": recipe.description, **sections})


def difference(recipe: Recipe) -> list[tuple[str, object, object]]:
    """(key.path, parent's value, this recipe's value), the parent resolved with the same overlays and overrides."""
    if recipe.base is None:
        return []
    parent = rules.build(_resolve(recipe.base, recipe.overlays, recipe.overrides, recipe.seed)[1])
    parent.job.description = recipe.description
    values = dict(rules.flat(asdict(recipe.config)))
    return [(key, value, values[key]) for key, value in rules.flat(asdict(parent)) if value != values[key]]


def split_variant(variant: str) -> tuple[str, list[str]]:
    """A recipe's name and its own overrides: `NAME+key=value+key=value`; a plus within a value stays in it."""
    name, *overrides = re.split(r"\+(?=[A-Za-z_][\w.]*=)", variant)
    return name, overrides


def unknown(kind: str, name: str, known: list[str]) -> str:
    """What to say of a name that isn't one of `known`."""
    near = difflib.get_close_matches(name, known, n=2)
    hint = f" did you mean {' or '.join(f'`{word}`' for word in near)}?" if near else ""
    return f"unknown {kind} `{name}`;{hint} known: {', '.join(known)}"


def _raise(problems: list[str]) -> None:
    if problems:
        raise InputError("\n".join(problems))


# ---- layers ----


@dataclass(frozen=True)
class _Layer:
    """One file."""

    path: Path
    name: str
    base: Entry
    description: str
    keys: Entries


def _resolve(name, overlays, overrides, seed) -> tuple[_Layer, Entries]:
    """The recipe's own layer, and the keys of all layers merged. Raises InputError."""
    chain = _chain(name)
    layers = [layer.keys for layer in chain]
    for overlay in overlays:
        if overlay not in files(OVERLAYS):
            raise InputError(unknown("overlay", overlay, list(files(OVERLAYS))))
        layers.append(_read_layer(OVERLAYS / f"{overlay}.yaml").keys)
    layers += map(_override, overrides)
    if seed is not None:
        layers.append({"debug.seed": Entry(seed, "--seed")})
    _raise([problem for layer in layers for problem in rules.check_keys(layer)])
    return chain[-1], functools.reduce(operator.or_, layers)


def _chain(name: str) -> list[_Layer]:
    """The recipe and its ancestors, oldest first. Raises InputError if one of them is no recipe."""
    known = paths()
    if name.endswith(".yaml") and not os.path.exists(name):
        raise InputError(f"{name}: no such file; give the path of a recipe, or a name: {', '.join(known)}")
    if not name.endswith(".yaml") and name not in known:
        raise InputError(unknown("recipe", name, list(known)))
    layers = [_read_layer(known.get(name) or Path(os.path.realpath(name)))]
    while (base := layers[-1].base).value is not None:
        path, descent = known[base.value], [layer.path for layer in layers]
        if path in descent:
            circle = [*descent[descent.index(path) :], path]
            raise InputError(f"{base.origin}: base: circular: {' -> '.join(step.stem for step in circle)}")
        layers.append(_read_layer(path))
    return layers[::-1]


def _read_layer(path: Path) -> _Layer:
    """One file. Raises InputError for what is wrong besides the keys of its sections."""
    place = str(path.relative_to(ROOT) if path.is_relative_to(ROOT) else path)
    keys, known = read(path, place), paths()
    is_overlay, is_listed = path.parent == OVERLAYS, path == known.get(path.stem)
    base = keys.pop("base", Entry(None, f"{place}:1"))
    description = keys.pop("description", Entry(None, f"{place}:1"))
    name = Entry(path.stem, f"{place}:1")
    if not is_listed and not is_overlay:  # a run's recipe.yaml says whose it is
        name = keys.pop("name", name)
    if is_overlay and base.value is not None:
        raise InputError(f"{base.origin}: base: an overlay has none: remove the line")
    if is_listed and path.stem != "base" and base.value is None:
        raise InputError(f"{base.origin}: base: missing; name the parent recipe, e.g. `base: baseline`")
    if base.value not in [None, *known]:
        raise InputError(f"{base.origin}: base: {unknown('recipe', str(base.value), list(known))}")
    for key, entry, rule in (("description", description, DESCRIPTION), ("name", name, NAME)):
        if message := rule(entry.value):
            raise InputError(f"{entry.origin}: {key}: {message}")
    return _Layer(path, name.value, base, description.value, keys)


def _override(override: str) -> Entries:
    """`key.path=value` from the command line as a layer. Raises InputError."""
    origin = f"command line: {override}"
    key, equals, value = override.partition("=")
    if not equals or not re.fullmatch(r"\w+(\.\w+){0,9}", key):
        raise InputError(f"{origin}: expected key.path=value, e.g. training.steps=100")
    sections = itertools.accumulate(key.split(".")[:-1], "{}.{}".format)
    return {section: Entry({}, origin) for section in sections} | parse(value, lambda line: origin, key)
