"""Recipes: YAML in, one validated torchtitan `JobConfig` out.

A recipe is `NAME.yaml` in `recipes/` or one of its folders: its parent (`base:`), one line about it
(`description:`), and the keys it changes in torchtitan's sections or those of
`experiments/config/keys.py`. Its layers, of which a later one wins, are its ancestors from
base.yaml down, the recipe, overlays (`recipes/overlays/`), and `key.path=value` from the command
line. Mappings merge, everything else replaces. Each layer must be right by itself.
"""

import difflib
import functools
import itertools
import operator
import os
import re
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from experiments.config import rules
from experiments.config.values import text
from experiments.config.yaml_source import ROOT, Entries, Entry, dump, parse, read
from models.errors import InputError

if TYPE_CHECKING:
    from experiments.config.keys import Config

RECIPES = ROOT / "recipes"
OVERLAYS = RECIPES / "overlays"
GROUPS = (
    "",
    "phases",
    "ladder",
    "fp8_lm",
    "candidates",
    "puzzle",
)  # folders of recipes in `recipes/`
THE_FOUR = ("baseline", "baseline_compiled", "rowwise_fp8_compiled", "tensorwise_fp8_compiled")
DESCRIPTION = text(".+", "a line of text on what this is for")
NAME = text(r"\w[\w .+-]{0,99}", "letters, digits, _, -, + and ., at most 100")


@dataclass(frozen=True)
class Recipe:
    """A resolved recipe. `config` has every default filled in; `base` is None in base.yaml and in
    resolved files."""

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


def load(
    name: str, overlays: Sequence[str] = (), overrides: Sequence[str] = (), seed: int | None = None
) -> Recipe:
    """Resolve and validate a recipe.

    Args:
        name: a recipe's name, or the path of a .yaml file; one outside `recipes/` needs no `base`.
        overlays: names, applied in this order.
        overrides: `key.path=value` each, the value read as YAML.
        seed: debug.seed.

    Raises:
        InputError: with the first layer that cannot be read, else with all mistakes in the keys of
        all layers, else
            with all contradictions of the result.
    """
    layer, entries = _resolve(name, overlays, overrides, seed)
    config = rules.build(entries)
    _raise(rules.contradictions(config, entries))
    config.job.description = layer.description
    return Recipe(
        layer.name, layer.base, tuple(overlays), tuple(overrides), seed, layer.description, config
    )


def to_yaml(recipe: Recipe) -> str:
    """The fully resolved recipe: every key of every section. It loads by path to an equal
    config."""
    header = f"{recipe.name}, fully resolved\noverlays: {', '.join(recipe.overlays) or 'none'}\n"
    header += f"overrides: {' '.join(recipe.overrides) or 'none'}\n"
    sections = asdict(recipe.config)
    del sections["job"]["description"]
    return textwrap.indent(header, "# ") + dump(
        {"name": recipe.name, "description": recipe.description, **sections}
    )


def difference(recipe: Recipe) -> list[tuple[str, object, object]]:
    """(key.path, parent's value, this recipe's value), the parent resolved with the same overlays
    and overrides."""
    if recipe.base is None:
        return []
    parent = rules.build(_resolve(recipe.base, recipe.overlays, recipe.overrides, recipe.seed)[1])
    parent.job.description = recipe.description
    values = dict(rules.flat(asdict(recipe.config)))
    return [
        (key, value, values[key])
        for key, value in rules.flat(asdict(parent))
        if value != values[key]
    ]


def split_variant(variant: str) -> tuple[str, list[str]]:
    """A recipe's name and its own overrides: `NAME+key=value+key=value`; a plus within a value
    stays in it."""
    name, *overrides = re.split(r"\+(?=[A-Za-z_][\w.]*=)", variant)
    return name, overrides


def flavor_keys(flavor: str) -> list[str]:
    """The keys that choose a flavor of any architecture. Raises `InputError` naming the flavors if
    there is none."""
    from models.architectures import ARCHITECTURES  # torch

    flavors = {
        flavor: name
        for name, architecture in ARCHITECTURES.items()
        for flavor in architecture.flavors
    }
    if flavor not in flavors:
        raise InputError(
            f"{unknown('model', flavor, flavors)}; for other sizes: 'model.sizes={{dim: 2048}}'"
        )
    return [f"model.name={flavors[flavor]}", f"model.flavor={flavor}"]


def unknown(kind: str, name: str, known: Iterable[str]) -> str:
    """The error sentence for a name that is not in `known`: it gives the nearest names, and all."""
    near = difflib.get_close_matches(name, known, n=2)
    hint = f" did you mean {' or '.join(f'`{word}`' for word in near)}?" if near else ""
    return f"unknown {kind} `{name}`;{hint} known: {', '.join(known)}"


def _raise(problems: list[str]) -> None:
    if problems:
        raise InputError("\n".join(problems))


# ---- layers ----


class _Layer(NamedTuple):
    """A recipe's file."""

    name: str
    base: str | None
    description: str
    keys: Entries


def _resolve(name, overlays, overrides, seed) -> tuple[_Layer, Entries]:
    """The recipe's own layer, and the keys of all layers merged. Raises InputError."""
    known = paths()
    if name.endswith(".yaml") and not os.path.exists(name):
        raise InputError(
            f"{name}: no such file; give the path of a recipe, or a name: {', '.join(known)}"
        )
    if not name.endswith(".yaml") and name not in known:
        raise InputError(unknown("recipe", name, known))
    chain = _chain(known.get(name) or Path(os.path.realpath(name)), [])
    layers = [layer.keys for layer in chain]
    known_overlays = files(OVERLAYS)
    for overlay in overlays:
        if overlay not in known_overlays:
            raise InputError(unknown("overlay", overlay, known_overlays))
        keys = read(known_overlays[overlay])
        layers.append(
            {key: keys[key] for key in keys if key.split(".")[0] not in ("", "description")}
        )
    layers += map(parse_override, overrides)
    if seed is not None:
        layers.append({"debug.seed": Entry(seed, "--seed")})
    _raise([problem for layer in layers for problem in rules.check_keys(layer)])
    return chain[-1], functools.reduce(operator.or_, layers)


def _chain(path: Path, descendants: list[Path]) -> list[_Layer]:
    """The recipe and its ancestors, oldest first. Raises InputError if one of them is no recipe."""
    layer = _read_layer(path)
    if path in descendants:
        circle = [*descendants[descendants.index(path) :], path]
        raise InputError(
            f"{path.name}: base: circular: {' -> '.join(recipe.stem for recipe in circle)}"
        )
    ancestors = _chain(paths()[layer.base], [*descendants, path]) if layer.base else []
    return [*ancestors, layer]


def _read_layer(path: Path) -> _Layer:
    """One file. Raises InputError for what is wrong besides the keys of its sections."""
    keys, known = read(path), paths()
    is_listed, default = path == known.get(path.stem), Entry(None, keys.pop("").origin)
    base, description = keys.pop("base", default), keys.pop("description", default)
    name = Entry(path.stem, default.origin)
    if not is_listed:  # a run's recipe.yaml says whose it is
        name = keys.pop("name", name)
    if is_listed and path.stem != "base" and base.value is None:
        raise InputError(
            f"{base.origin}: base: missing; name the parent recipe, e.g. `base: baseline`"
        )
    if base.value not in [None, *known]:
        raise InputError(f"{base.origin}: base: {unknown('recipe', str(base.value), known)}")
    for key, entry, rule in (("description", description, DESCRIPTION), ("name", name, NAME)):
        if message := rule(entry.value or ""):
            raise InputError(f"{entry.origin}: {key}: {message}")
    return _Layer(name.value, base.value, description.value, keys)


def parse_override(override: str) -> Entries:
    """`key.path=value` from the command line as a layer. Raises InputError."""
    origin = f"command line: {override}"
    key, equals, value = override.partition("=")
    if not equals or not re.fullmatch(r"\w+(\.\w+){0,9}", key):
        raise InputError(f"{origin}: expected key.path=value, e.g. training.steps=100")
    sections = itertools.accumulate(key.split(".")[:-1], "{}.{}".format)
    return {section: Entry({}, origin) for section in sections} | parse(
        value, lambda line: origin, key
    )
