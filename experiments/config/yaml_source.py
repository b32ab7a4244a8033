"""YAML in which every value knows where it was written: read it, say what is wrong with it, write
it.

The values are those of YAML 1.2's core schema: `3e-4` is a number and `yes` is text, unlike in
PyYAML's own loader.
"""

import difflib
import functools
import re
from collections.abc import Callable, Iterable, Iterator
from copy import copy
from dataclasses import dataclass
from pathlib import Path

import yaml
from pydantic import ValidationError

from models.errors import InputError

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Entry:
    """A value and its origin, e.g. `recipes/base.yaml:12`. A section's value is {}: its keys are
    entries themselves."""

    value: object
    origin: str


Entries = dict[str, Entry]
"""A document by `key.path`, each section before its keys; "" is the whole. `below | above` merges
two of them: `above` wins."""


# ---- read and write ----


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


def read(path: Path) -> Entries:
    """Read the keys of a file. Raises `InputError`."""
    name = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{name}: cannot be read: {error}") from error
    entries = parse(text, lambda line: f"{name}:{line}")
    if entries[""].value not in ({}, None):
        raise InputError(f"{name}:1: expected keys with their values")
    return entries


def parse(text: str, where: Callable[[int], str], root: str = "") -> Entries:
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
    """YAML text, keys in the order given, that `parse` reads as the same values."""
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
