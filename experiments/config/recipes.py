"""Recipes: YAML in, one validated torchtitan `JobConfig` out.

A recipe is `NAME.yaml` in `recipes/` or one of its folders: its parent (`base:`), one line about it
(`description:`), and the keys it changes in the sections of `experiments/config/keys.py`. Its
layers, of which a later one wins, are its ancestors from base.yaml down, the recipe, overlays
(`recipes/overlays/`), and `key.path=value` from the command line. Mappings merge, everything else
replaces. What they add up to is checked once, and a mistake is reported with its origin.
"""

import difflib
import functools
import itertools
import json
import operator
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import yaml
from pydantic import ValidationError

from experiments.config.rules import contradictions
from models.errors import InputError

if TYPE_CHECKING:
    from experiments.config.keys import Config

ROOT = Path(__file__).resolve().parents[2]
RECIPES = ROOT / "recipes"
OVERLAYS = RECIPES / "overlays"
GROUPS = {
    "": "Further recipes",
    "candidates": "Candidates, one change each",
    "phases": "Phases: FP8 for a part of the steps",
    "scalings": "Scalings: other scales and formats for FP8",
    "puzzle": "Puzzle: does FP8 learn on one GPU?",
    "ladder": "Ladder: the steps to FP8 all-gather on several GPUs",
    "fp8_lm": "FP8-LM: FP8 beyond matmuls",
}
"""Folders of recipes in `recipes/`, and their titles."""
LISTED = "`python -m experiments.recipe list --all` has all"
THE_FOUR = ("baseline", "baseline_compiled", "rowwise_fp8_compiled", "tensorwise_fp8_compiled")


@dataclass(frozen=True)
class Entry:
    """A value and its origin, e.g. `recipes/base.yaml:12`. A section's value is {}: its keys are
    entries themselves."""

    value: object
    origin: str


Entries = dict[str, Entry]
"""A document by `key.path`, each section before its keys; "" is the whole. `below | above` merges
two of them: `above` wins."""


@dataclass(frozen=True)
class Recipe:
    """A resolved recipe. `config` has every default filled in; `base` is None in base.yaml and in
    resolved files."""

    name: str
    base: str | None
    overlays: tuple[str, ...]
    overrides: tuple[str, ...]
    description: str
    config: "Config"


def files(folder: Path) -> dict[str, Path]:
    """List a folder's YAML files by name."""
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))}


def paths() -> dict[str, Path]:
    """List each recipe's file by its name, group by group."""
    return functools.reduce(operator.or_, [files(RECIPES / group) for group in GROUPS])


def names() -> list[str]:
    """List all recipes."""
    return list(paths())


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
    entries = _merge(chain, overlays, overrides)
    config = _validate(entries)
    default = Entry(None, "default")
    problems = [
        f"{entries.get(key, default).origin}: {key}: {message}"
        for key, message in contradictions(config)
    ]
    if problems:
        raise InputError("\n".join(problems))
    file = chain[-1]
    config.job.description = file.description
    layers = tuple(overlays), tuple(overrides)
    return Recipe(file.name, file.base.value, *layers, file.description, config)


def to_yaml(recipe: Recipe) -> str:
    """Write the fully resolved recipe: every key of every section. It loads by path to an equal
    config."""
    overlays, overrides = list(recipe.overlays), list(recipe.overrides)
    header = f"# {recipe.name}, fully resolved; overlays: {overlays}, overrides: {overrides}\n"
    named = {"name": recipe.name, "description": recipe.description}
    sections = asdict(recipe.config)
    del sections["job"]
    return header + dump(named | sections)


def difference(recipe: Recipe) -> list[tuple[str, object, object]]:
    """List (key.path, parent's value, this recipe's value), the parent resolved with the same
    overlays and overrides."""
    if recipe.base is None:
        return []
    entries = _merge(_chain(recipe.base), recipe.overlays, recipe.overrides)
    return changes(_validate(entries), recipe.config)


def changes(before: "Config", after: "Config") -> list[tuple[str, object, object]]:
    """List (key.path, value before, value after) of the keys that differ."""
    values = dict(flat(asdict(after)))
    keys = flat(asdict(before))
    return [(key, value, values[key]) for key, value in keys if value != values[key]]


def split_variant(variant: str) -> tuple[str, list[str]]:
    """Split `NAME+key=value+key=value` into the recipe's name and its own overrides; a plus within
    a value stays in it."""
    name, *overrides = re.split(r"\+(?=[A-Za-z_][\w.]*=)", variant)
    return name, overrides


def common_keys() -> list[str]:
    """List the keys that base.yaml and overlays set: reading all of torchtitan's takes seconds."""
    keys: list[str] = []
    for path in (paths()["base"], *files(OVERLAYS).values()):
        keys += read_yaml(path)
    return keys


def flavor_keys(flavor: str) -> list[str]:
    """The keys that choose a flavor of any architecture. Raises `InputError` naming the flavors if
    there is none."""
    from models.architectures import ARCHITECTURES  # torch

    known = {}
    for name, architecture in ARCHITECTURES.items():
        known |= dict.fromkeys(architecture.flavors, name)
    if flavor not in known:
        sizes = "for other sizes: 'model.sizes={dim: 2048}'"
        raise InputError(f"{unknown('model', flavor, known)}; {sizes}")
    return [f"model.name={known[flavor]}", f"model.flavor={flavor}"]


# ---- layers ----


class _File(NamedTuple):
    """A recipe's file, without what it inherits."""

    name: str
    base: Entry
    description: str
    keys: Entries


def _chain(name: str) -> list[_File]:
    """Read a recipe, by name or path, and its ancestors; the oldest first."""
    known = paths()
    if name not in known and not name.endswith(".yaml"):
        raise InputError(unknown("recipe", name, known, LISTED))
    return _with_ancestors(known.get(name) or Path(os.path.realpath(name)), known)


def _with_ancestors(path: Path, known: dict[str, Path]) -> list[_File]:
    """Read a file and those it is based on, each a name of `known`; the oldest first."""
    chain = [_read(path)]
    while chain[0].base.value is not None:
        parent, origin = str(chain[0].base.value), chain[0].base.origin
        if parent not in known:
            raise InputError(f"{origin}: base: {unknown('recipe', parent, known, LISTED)}")
        if len(chain) > len(known):
            raise InputError(f"{origin}: base: {parent} is its own ancestor")
        chain.insert(0, _read(known[parent]))
    return chain


def _merge(chain: list[_File], overlays: Sequence[str], overrides: Sequence[str]) -> Entries:
    """Merge the keys of a recipe, of its overlays, and of the command line."""
    layers = [file.keys for file in chain]
    known = files(OVERLAYS)
    for overlay in overlays:
        if overlay not in known:
            raise InputError(unknown("overlay", overlay, known, LISTED))
        layers += [file.keys for file in _with_ancestors(known[overlay], known)]
    layers += map(parse_override, overrides)
    merged = functools.reduce(operator.or_, layers)
    values = [key for key, entry in merged.items() if entry.value != {}]
    # a value in the place of a section hides the keys below it
    hidden = tuple(f"{key}." for key in values)
    return {key: entry for key, entry in merged.items() if not key.startswith(hidden)}


def _read(path: Path) -> _File:
    """Read the file of a recipe or of an overlay. Only a resolved recipe gives a `name`."""
    keys = read_yaml(path)
    origin = keys.pop("").origin
    if "description" not in keys:
        raise InputError(f"{origin}: description: is missing; say in a line what this is for")
    base = keys.pop("base", Entry(None, origin))
    name = keys.pop("name", Entry(path.stem, origin))
    if not re.fullmatch(r"\w[\w .+-]*", str(name.value)):  # it names a run's folder
        raise InputError(f"{name.origin}: name: should be letters, digits, _, -, + and .")
    return _File(name.value, base, keys.pop("description").value, keys)


def parse_override(override: str) -> Entries:
    """Read `key.path=value` from the command line as a layer. Raises `InputError`."""
    origin = f"command line: {override}"
    key, equals, value = override.partition("=")
    if not equals:
        raise InputError(f"{origin}: expected key.path=value, e.g. training.steps=100")
    sections = itertools.accumulate(key.split(".")[:-1], "{}.{}".format)
    layer = {section: Entry({}, origin) for section in sections}
    return layer | parse_yaml(value, lambda line: origin, key)


# ---- keys ----


def _validate(entries: Entries) -> "Config":
    """Validate keys and fill in defaults. JSON is pydantic's mode in which 1 is a float too.

    Raises `InputError` with a line for each wrong key.
    """
    from experiments.config import keys  # torch, which listing recipes does not need

    text = json.dumps(nested(entries), default=str)
    try:
        return keys.VALIDATOR.validate_json(text)
    except ValidationError as error:
        sections = asdict(keys.Config())
        known = [*sections, *dict(flat(sections))]
        lines = mistakes(error, entries, known, keys.REFUSED)
        raise InputError("\n".join(lines)) from error


# ---- YAML in which every value knows where it was written ----
#
# The values are those of YAML 1.2's core schema: `3e-4` is a number and `yes` is text, unlike in
# PyYAML's own loader.


class _Loader(yaml.SafeLoader):
    yaml_implicit_resolvers = {}


class _Dumper(yaml.SafeDumper):
    """Quotes what either kind of YAML would not read as text."""


_NUMBER = r"[-+]?(\.\d+|\d+\.\d*|\d+(?=[eE]))([eE][-+]?\d+)?$"
for _type, _pattern, _first in (
    ("null", r"(~|null|Null|NULL|)$", ["~", "n", "N", ""]),
    ("bool", r"(true|True|TRUE|false|False|FALSE)$", list("tTfF")),
    ("int", r"[-+]?(0|[1-9]\d*)$", list("-+0123456789")),
    ("float", rf"{_NUMBER}|[-+]?\.(inf|Inf|INF)$|\.(nan|NaN|NAN)$", list("-+.0123456789")),
):
    for _class in (_Loader, _Dumper):
        _class.add_implicit_resolver(f"tag:yaml.org,2002:{_type}", re.compile(_pattern), _first)


def read_yaml(path: Path) -> Entries:
    """Read the keys of a file. Raises `InputError`."""
    name = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{name}: cannot be read: {error}") from error
    entries = parse_yaml(text, lambda line: f"{name}:{line}")
    if entries[""].value not in ({}, None):
        raise InputError(f"{name}:1: expected keys with their values")
    return entries


def parse_yaml(text: str, where: Callable[[int], str], root: str = "") -> Entries:
    """Read one YAML document: what stands at the key.path `root` and below.

    `where` gives the origin of a line, counted from 1. Raises `InputError` for the first fault.
    """
    entries: Entries = {}
    try:
        loader = _Loader(text)
        nothing = yaml.ScalarNode("tag:yaml.org,2002:null", "")
        for path, node, line in _walk(loader.get_single_node() or nothing, root, 1):
            is_section = isinstance(node, yaml.MappingNode)
            value = {} if is_section else loader.construct_object(node, deep=True)
            if path in entries:
                earlier = entries[path].origin
                raise InputError(f"{where(line)}: {path}: already given at {earlier}; keep one")
            entries[path] = Entry(value, where(line))
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1
        raise InputError(f"{where(line)}: YAML error: {error.problem}") from error
    return entries


def _walk(node: yaml.Node, path: str, line: int) -> Iterator[tuple[str, yaml.Node, int]]:
    """(key.path, node, line) of a node, and of those below it."""
    yield path, node, line
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            below = f"{path}.{key.value}".lstrip(".")
            yield from _walk(value, below, key.start_mark.line + 1)


def nested(entries: Entries) -> dict:
    """The values without their origins, in their sections."""
    tree: dict = {}
    for path, entry in entries.items():
        *sections, key = path.split(".")
        section = functools.reduce(lambda outer, name: outer.setdefault(name, {}), sections, tree)
        section.setdefault(key, copy(entry.value))
    return tree


def flat(section: dict, prefix: str = "") -> Iterator[tuple[str, object]]:
    """(key.path, value) of every key that isn't a section."""
    for key, value in section.items():
        if isinstance(value, dict):
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def dump(data: dict) -> str:
    """YAML text, keys in the order given, that `parse_yaml` reads as the same values."""
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)


# ---- say what is wrong ----

_SHOULD_BE = {
    "bool_type": "should be true or false",
    "dict_type": "should be keys below it",
    "dataclass_type": "should be keys below it",
}
"""pydantic's messages in the words of YAML, by their type."""


def unknown(kind: str, name: str, known: Iterable[str], listed: str = "") -> str:
    """Say that a name is not in `known`: the nearest names first, then all of them, or how they are
    `listed`."""
    near = difflib.get_close_matches(name, known, n=2)
    hint = f"did you mean `{'` or `'.join(near)}`? " if near else ""
    return f"{hint}`{name}` is no {kind}: {listed or 'choose ' + ', '.join(known)}"


def mistakes(
    error: ValidationError, entries: Entries, known: list[str], refused: dict[str, str]
) -> list[str]:
    """A line for each key that pydantic refuses: where it was written, and what would be right.

    `known` holds the keys that there are; `refused` what to do instead of others, by how they
    begin.
    """
    by_key: dict[str, list[dict]] = {}
    for detail in error.errors(include_url=False):
        key = ".".join(map(str, detail["loc"]))
        while key not in ("", *entries) and detail["type"] != "missing":
            key = key.rpartition(".")[0]  # without list indices and members of a union
        by_key.setdefault(key, []).append(detail)
    lines = []
    for key, details in by_key.items():
        origin = entries[key if key in entries else ""].origin
        reasons = [why for beginning, why in refused.items() if key.startswith(beginning)]
        message = reasons[0] if reasons else _sentence(key, details, known)
        lines.append(f"{origin}: {key}: {message}")
    return lines


def _sentence(key: str, details: list[dict], known: list[str]) -> str:
    """What is wrong with one key; `details` has an error for each type that it may have."""
    kind, value = details[0]["type"], details[0]["input"]
    if kind in ("unexpected_keyword_argument", "extra_forbidden"):
        name = key.rpartition(".")[2]
        elsewhere = [other for other in known if other.endswith(f".{name}")]
        near = elsewhere or difflib.get_close_matches(key, known, n=1)
        return f"did you mean `{near[0]}`? There is no such key" if near else "there is no such key"
    if kind == "missing":
        return "is missing"
    words = [
        _SHOULD_BE.get(detail["type"], detail["msg"].removeprefix("Input ")) for detail in details
    ]
    return f"{' or '.join(words)}, got {value!r:.80}"
