"""YAML in which every value knows where it was written: what recipes and studies are read from, and written to.

The values are those of YAML 1.2's core schema: `3e-4` is a number and `yes` is text, unlike in PyYAML's own loader.
Tags and aliases are errors, so that reading a file cannot run anything, and what no recipe needs is refused: files of
more than 100 kB, more than 20 levels of nesting, integers of more than 18 digits, text that no file can hold.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import yaml

MAX_BYTES, MAX_DEPTH, MAX_DIGITS = 100_000, 20, 18


@dataclass(frozen=True)
class Entry:
    """A value and its origin, e.g. `recipes/base.yaml:12`. A mapping's value is a dict of Entries."""

    value: object
    origin: str


class _Loader(yaml.SafeLoader):
    yaml_implicit_resolvers = {}
    depth = 0

    def compose_node(self, parent, index):
        event = self.peek_event()
        if isinstance(event, yaml.AliasEvent):
            self._refuse(f"the alias *{event.anchor} is not allowed: write the value out, or share it through `base`")
        if event.tag is not None:
            tag = event.tag.replace("tag:yaml.org,2002:", "!!")
            self._refuse(f"the tag {tag} is not allowed: a recipe holds plain values only")
        if self.depth == MAX_DEPTH:
            self._refuse(f"more than {MAX_DEPTH} levels of nesting")
        self.depth += 1
        node = super().compose_node(parent, index)
        self.depth -= 1
        if isinstance(node, yaml.ScalarNode):
            self._check_scalar(node)
        return node

    def _check_scalar(self, node: yaml.ScalarNode) -> None:
        if node.tag.endswith(":int") and len(node.value.lstrip("-+")) > MAX_DIGITS:
            self._refuse(f"an integer of more than {MAX_DIGITS} digits", node.start_mark)
        if re.search("[\0\ud800-\udfff]", node.value):
            self._refuse("text with a NUL or half a character (a lone surrogate)", node.start_mark)

    def _refuse(self, problem: str, mark=None):
        raise yaml.composer.ComposerError(None, None, problem, mark or self.peek_event().start_mark)


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


def read(path: Path, name: str, problems: list[str]) -> Entry | None:
    """Read a file as `parse` does; `name` is what messages call it. None too if it cannot be read."""
    try:
        if not path.is_file():  # opening a pipe would wait for ever
            problems.append(f"{name}: is not a file, or a link that leads nowhere: give a YAML file")
            return None
        with open(path, "rb") as file:
            text = file.read(MAX_BYTES + 1)
    except OSError as error:
        problems.append(f"{name}: cannot be read: {error.strerror}")
        return None
    if len(text) > MAX_BYTES:
        problems.append(f"{name}: has more than {MAX_BYTES // 1000} kB, which no recipe or study needs")
        return None
    return parse(text, lambda line: f"{name}:{line}", problems)


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
        if not isinstance(key_node, yaml.ScalarNode):
            problems.append(f"{where(key_node.start_mark.line + 1)}: {path}: expected a key's name before the colon")
            continue
        key = key_node.value
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


def nested(path: list[str], entry: Entry) -> Entry:
    """The mapping in which `entry` stands at `path`."""
    for key in reversed(path):
        entry = Entry({key: entry}, entry.origin)
    return entry


def find(entry: Entry, path: list[str]) -> Entry | None:
    """What is at `path`, or None if nobody wrote it."""
    for key in path:
        if not isinstance(entry.value, dict) or key not in entry.value:
            return None
        entry = entry.value[key]
    return entry


def dump(data: dict) -> str:
    """YAML text, keys in the order given, that `parse` reads as the same values."""
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)
