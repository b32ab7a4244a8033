"""YAML in which every value knows where it was written: what recipes and studies are read from, and
written to.

The values are those of YAML 1.2's core schema: `3e-4` is a number and `yes` is text, unlike in
PyYAML's own loader. Tags and aliases are errors, so that reading a file cannot run anything, and
what no recipe needs is refused: files of more than 100 kB, more than 20 levels of nesting, integers
of more than 18 digits, text that no file can hold.
"""

import functools
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import yaml

from experiments.config.values import shown
from models.errors import InputError

ROOT = Path(__file__).resolve().parents[2]
MAX_BYTES, MAX_DEPTH, MAX_DIGITS = 100_000, 20, 18


@dataclass(frozen=True)
class Entry:
    """A value and its origin, e.g. `recipes/base.yaml:12`. A section's value is {}: its keys are
    entries themselves."""

    value: object
    origin: str


Entries = dict[str, Entry]
"""A document by `key.path`, each section before its keys. `below | above` merges two of them:
`above` wins."""


class _Loader(yaml.SafeLoader):
    yaml_implicit_resolvers = {}
    depth = 0

    def compose_node(self, parent, index):
        event = self.peek_event()
        if isinstance(event, yaml.AliasEvent):
            self._refuse(
                f"the alias *{event.anchor} is not allowed: write the value out, or share it through `base`"
            )
        if event.tag is not None:
            tag = event.tag.replace("tag:yaml.org,2002:", "!!")
            self._refuse(f"the tag {tag} is not allowed: a recipe holds plain values only")
        if self.depth == MAX_DEPTH:
            self._refuse(f"more than {MAX_DEPTH} levels of nesting")
        self.depth += 1
        node = super().compose_node(parent, index)
        self.depth -= 1
        if node.tag.endswith(":int") and len(node.value.lstrip("-+")) > MAX_DIGITS:
            self._refuse(f"an integer of more than {MAX_DIGITS} digits", node)
        if isinstance(node, yaml.ScalarNode) and re.search("[\0\ud800-\udfff]", node.value):
            self._refuse("text with a NUL or half a character (a lone surrogate)", node)
        return node

    def _refuse(self, problem: str, node: yaml.Node | None = None):
        raise yaml.composer.ComposerError(
            None, None, problem, (node or self.peek_event()).start_mark
        )


class _Dumper(yaml.SafeDumper):
    """Quotes what either kind of YAML would not read as text."""


_FLOAT = re.compile(
    r"[-+]?(\.\d+|\d+\.\d*|\d+(?=[eE]))([eE][-+]?\d+)?$|[-+]?\.(inf|Inf|INF)$|\.(nan|NaN|NAN)$"
)
for _class in (_Loader, _Dumper):
    for _type, _pattern, _first in (
        ("null", re.compile(r"(~|null|Null|NULL|)$"), ["~", "n", "N", ""]),
        ("bool", re.compile(r"(true|True|TRUE|false|False|FALSE)$"), list("tTfF")),
        ("int", re.compile(r"[-+]?(0|[1-9]\d*)$"), list("-+0123456789")),
        ("float", _FLOAT, list("-+.0123456789")),
    ):
        _class.add_implicit_resolver(f"tag:yaml.org,2002:{_type}", _pattern, _first)


def read(path: Path) -> Entries:
    """The keys of a file, and "", the whole. Raises InputError."""
    name = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path
    try:
        if not path.is_file():  # opening a pipe would wait for ever
            raise InputError(
                f"{name}: is not a file, or a link that leads nowhere: give a YAML file"
            )
        with open(path, "rb") as file:
            text = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise InputError(f"{name}: cannot be read: {error.strerror}") from error
    if len(text) > MAX_BYTES:
        raise InputError(
            f"{name}: has more than {MAX_BYTES // 1000} kB, which no recipe or study needs"
        )
    entries = parse(text, lambda line: f"{name}:{line}")
    if entries[""].value not in ({}, None):
        raise InputError(
            f"{name}:1: expected keys with their values, got {shown(entries[''].value)}"
        )
    return entries


def parse(text: bytes | str, where: Callable[[int], str], root: str = "") -> Entries:
    """One YAML document: what stands at the key.path `root` and below.

    `where` gives the origin of a line, counted from 1. Raises InputError for the first fault.
    """
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
    except yaml.reader.ReaderError as error:
        raise InputError(f"{where(1)}: not a text file in UTF-8: {error.reason}") from error
    except yaml.MarkedYAMLError as error:
        context = f" {error.context}" if error.context else ""
        raise InputError(
            f"{where(error.problem_mark.line + 1)}: YAML error{context}: {error.problem}"
        ) from error
    entries: Entries = {}

    def collect(node: yaml.Node, origin: str, path: str) -> None:
        if path in entries:
            raise InputError(
                f"{origin}: {path}: already given at {entries[path].origin}; keep one of them"
            )
        is_section = isinstance(node, yaml.MappingNode)
        entries[path] = Entry(
            {} if is_section else loader.construct_object(node, deep=True), origin
        )
        for key, value in node.value if is_section else ():
            origin = where(key.start_mark.line + 1)
            if not isinstance(key, yaml.ScalarNode) or not re.fullmatch(r"\w+", key.value):
                raise InputError(
                    f"{origin}: expected a key's name, of letters, digits and _, before the colon"
                )
            collect(value, origin, f"{path}.{key.value}".lstrip("."))

    collect(node or yaml.ScalarNode("tag:yaml.org,2002:null", ""), where(1), root)
    return entries


def nested(entries: Entries) -> dict:
    """The values without their origins, in their sections."""
    tree: dict = {}
    for path, entry in entries.items():
        *sections, key = path.split(".")
        section = functools.reduce(lambda outer, name: outer.setdefault(name, {}), sections, tree)
        if entry.value == {}:
            section.setdefault(key, {})
        else:
            section[key] = entry.value
    return tree


def dump(data: dict) -> str:
    """YAML text, keys in the order given, that `parse` reads as the same values."""
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)
