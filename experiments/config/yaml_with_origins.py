"""YAML in which every key knows where it was written: read files and `key.path=value`, merge them,
and say in which line a mistake was made."""

import difflib
import itertools
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import yaml
from pydantic import ValidationError

from models.errors import InputError

ROOT = Path(__file__).resolve().parents[2]


class Layer(NamedTuple):
    """Keys in their sections, and the origin of each, as `recipes/base.yaml:12`, by `key.path`; ""
    is the whole."""

    keys: dict
    origins: dict[str, str]


# ---- read and write ----


class _Loader(yaml.SafeLoader):
    """Reads `3e-4` as a number, and a date as text."""


class _Dumper(yaml.SafeDumper):
    """Quotes text like `3e-4`."""


_Loader.add_constructor("tag:yaml.org,2002:timestamp", _Loader.construct_yaml_str)
for _class in (_Loader, _Dumper):
    _exponent = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$")
    _class.add_implicit_resolver("tag:yaml.org,2002:float", _exponent, list("-+.0123456789"))


def read_file(path: Path) -> Layer:
    """Read a file. Raises `InputError`."""
    name = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{name}: cannot be read: {error}") from error
    keys, origins = _parse(text, "", lambda line: f"{name}:{line}")
    if not isinstance(keys, dict | None):
        raise InputError(f"{name}:1: expected keys with their values")
    return Layer(keys or {}, origins)


def read_override(override: str) -> Layer:
    """Read `key.path=value` from the command line. Raises `InputError`."""
    origin = f"command line: {override}"
    path, equals, text = override.partition("=")
    if not equals:
        raise InputError(f"{origin}: expected key.path=value, e.g. training.steps=100")
    keys, origins = _parse(text, path, lambda line: origin)
    names = path.split(".")
    for name in reversed(names):
        keys = {name: keys}
    sections = itertools.accumulate(names, "{}.{}".format)
    return Layer(keys, dict.fromkeys(["", *sections], origin) | origins)


def _parse(text: str, path: str, where: Callable[[int], str]) -> tuple[object, dict[str, str]]:
    """Read the YAML document of the key `path`: its value, and the origins of that and all below.

    `where` gives the origin of a line, counted from 1. Raises `InputError` for the first fault.
    """
    origins = {}

    def value_of(node: yaml.Node, path: str, line: int) -> object:
        if path in origins:
            raise InputError(f"{where(line)}: {path}: already given at {origins[path]}; keep one")
        origins[path] = where(line)
        if not isinstance(node, yaml.MappingNode):
            return loader.construct_object(node, deep=True)
        section = {}
        for key, below in node.value:
            name, line = str(key.value), key.start_mark.line + 1
            section[name] = value_of(below, f"{path}.{name}".lstrip("."), line)
        return section

    try:
        loader = _Loader(text)
        nothing = yaml.ScalarNode("tag:yaml.org,2002:null", "")
        value = value_of(loader.get_single_node() or nothing, path, 1)
        json.dumps(value)  # which is how pydantic takes it
        return value, origins
    except InputError:
        raise
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1
        raise InputError(f"{where(line)}: YAML error: {error.problem}") from error
    except Exception as error:  # PyYAML raises what int() and float() do, and others
        origin = next(reversed(origins.values()), where(1))
        reason = str(error).partition("\n")[0]
        raise InputError(f"{origin}: YAML error: {reason}") from error


def dump(data: dict) -> str:
    """YAML text, keys in the order given, that `read_file` reads as the same values."""
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)


# ---- merge ----


def merge(below: Layer, above: Layer) -> Layer:
    """Merge sections. Any other value of `above` replaces what is below."""
    return Layer(_merged(below.keys, above.keys), below.origins | above.origins)


def _merged(below: object, above: object) -> object:
    if not isinstance(below, dict) or not isinstance(above, dict):
        return above
    both = below | above
    for key in below.keys() & above.keys():
        both[key] = _merged(below[key], above[key])
    return both


def flat(section: dict, prefix: str = "") -> Iterator[tuple[str, object]]:
    """(key.path, value) of every key that isn't a section."""
    for key, value in section.items():
        if isinstance(value, dict):
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


# ---- say what is wrong ----

_IN_YAML = {
    "bool_type": "should be true or false",
    "list_type": "should be a list",
    "dataclass_type": "should be keys below it",
}
"""Messages for pydantic's types of errors, where its own are not about YAML."""


def mistakes(
    error: ValidationError, origins: dict[str, str], known: list[str], refused: dict[str, str]
) -> InputError:
    """Make an error with a line for each key that pydantic refuses: where it was written, and what
    would be right.

    `known` holds the keys that there are; `refused` what to do instead of others, by how they
    begin.
    """
    by_key: dict[str, list[dict]] = {}
    for detail in error.errors(include_url=False):
        key = ".".join(map(str, detail["loc"]))
        while key and key not in origins and detail["type"] != "missing":
            key = key.rpartition(".")[0]  # without list indices and members of a union
        by_key.setdefault(key, []).append(detail)
    lines = []
    for key, details in by_key.items():
        reasons = [why for beginning, why in refused.items() if key.startswith(beginning)]
        message = reasons[0] if reasons else _sentence(key, details, known)
        lines.append(f"{origins.get(key, origins[''])}: {key}: {message}")
    return InputError("\n".join(lines))


def _sentence(key: str, details: list[dict], known: list[str]) -> str:
    """What is wrong with one key; `details` has an error for each type that it may have."""
    kind, value = details[0]["type"], details[0]["input"]
    if kind == "missing":
        return "is missing"
    if kind in ("unexpected_keyword_argument", "extra_forbidden"):
        if key in known:
            return "should be written in its section, one key below the other"
        name = key.rpartition(".")[2]
        elsewhere = [other for other in known if other.endswith(f".{name}")]
        near = elsewhere or difflib.get_close_matches(key, known, n=1)
        if near:
            return f"did you mean `{near[0]}`? There is no such key"
        return "there is no such key, and no extension that has it"
    words = [
        _IN_YAML.get(detail["type"], detail["msg"].removeprefix("Input ")) for detail in details
    ]
    return f"{' or '.join(words)}, got {value!r:.80}"
