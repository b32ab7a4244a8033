"""YAML in which every value knows where it was written: what recipes are read from, and written to.

The values are those of YAML 1.2's core schema: `3e-4` is a number and `yes` is text, unlike in PyYAML's own loader.
Tags and aliases are errors, so reading a file can't run anything.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

import yaml


@dataclass(frozen=True)
class Entry:
    """A value and its origin, e.g. `recipes/base.yaml:12`. A mapping's value is a dict of Entries."""

    value: object
    origin: str


class _Loader(yaml.SafeLoader):
    yaml_implicit_resolvers = {}

    def compose_node(self, parent, index):
        event = self.peek_event()
        if isinstance(event, yaml.AliasEvent):
            problem = f"the alias *{event.anchor} is not allowed: write the value out, or share it through `base`"
            raise yaml.composer.ComposerError(None, None, problem, event.start_mark)
        if event.tag is not None:
            tag = event.tag.replace("tag:yaml.org,2002:", "!!")
            problem = f"the tag {tag} is not allowed: a recipe holds plain values only"
            raise yaml.composer.ComposerError(None, None, problem, event.start_mark)
        return super().compose_node(parent, index)


class _Dumper(yaml.SafeDumper):
    """Quotes what either kind of YAML would not read as text."""


_FLOAT = re.compile(r"[-+]?(\.\d+|\d+\.\d*|\d+(?=[eE]))([eE][-+]?\d+)?$|[-+]?\.(inf|Inf|INF)$|\.(nan|NaN|NAN)$")
for _class in (_Loader, _Dumper):
    for _type, _pattern, _first in (
        ("null", re.compile(r"(~|null|Null|NULL|)$"), ["~", "n", "N", ""]),
        ("bool", re.compile(r"(true|True|TRUE|false|False|FALSE)$"), list("tTfF")),
        ("int", re.compile(r"[-+]?(0|[1-9]\d*)$"), list("-+0123456789")),
        ("float", _FLOAT, list("-+.0123456789")),
    ):
        _class.add_implicit_resolver(f"tag:yaml.org,2002:{_type}", _pattern, _first)


def parse(text: bytes | str, where: Callable[[int], str], problems: list[str]) -> Entry | None:
    """Read one YAML document.

    Args:
        where: gives the origin of a line, counted from 1.
        problems: gets one line for each duplicate key, or one for text that isn't YAML.

    Returns:
        The document, Entry(None) if it is empty, or None if it isn't YAML.
    """
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        return Entry(None, where(1)) if node is None else _entry(node, node.start_mark, loader, where, problems, "")
    except yaml.reader.ReaderError as error:
        problems.append(f"{where(1)}: not a text file in UTF-8: {error.reason}")
    except yaml.MarkedYAMLError as error:
        context = f" {error.context}" if error.context else ""
        problems.append(f"{where(error.problem_mark.line + 1)}: YAML error{context}: {error.problem}")
    return None


def _entry(node, mark, loader, where, problems, path: str) -> Entry:
    """Convert a node; `mark` is where its key stands, and `path` what the keys around it are, as `training.`."""
    origin = where(mark.line + 1)
    if not isinstance(node, yaml.MappingNode):
        return Entry(loader.construct_object(node, deep=True), origin)
    entries: dict[str, Entry] = {}
    for key_node, value_node in node.value:
        key = str(key_node.value)
        entry = _entry(value_node, key_node.start_mark, loader, where, problems, f"{path}{key}.")
        if key in entries:
            problems.append(f"{entry.origin}: {path}{key}: already given at {entries[key].origin}; keep one of them")
        entries[key] = entry
    return Entry(entries, origin)


def merge(below: Entry, above: Entry) -> Entry:
    """`above` over `below`: mappings merge key by key, everything else replaces."""
    if not (isinstance(below.value, dict) and isinstance(above.value, dict)):
        return above
    merged = dict(below.value)
    for key, entry in above.value.items():
        merged[key] = merge(merged[key], entry) if key in merged else entry
    return Entry(merged, above.origin)


def plain(entry: Entry) -> object:
    """The values without their origins."""
    if isinstance(entry.value, dict):
        return {key: plain(child) for key, child in entry.value.items()}
    return entry.value


def find(entry: Entry, path: tuple[str, ...]) -> Entry | None:
    """What is at `path`, or None if nobody wrote it."""
    for key in path:
        if not isinstance(entry.value, dict) or key not in entry.value:
            return None
        entry = entry.value[key]
    return entry


def dump(data: dict) -> str:
    """YAML text, keys in the order given, that `parse` reads as the same values."""
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)
