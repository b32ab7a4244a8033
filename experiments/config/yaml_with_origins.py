"""Read YAML and remember where each key was written, to name the line of a mistake.

Files are found by their names; `key.path=value` of the command line is read like a file.
"""

import difflib
import json
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from models.errors import PYTHON, InputError

ROOT = Path(__file__).resolve().parents[2]
EXTENSIONS = ROOT / "extensions"
MAX_LISTED_NAMES = 16
# Endings of keys whose values the command line takes letter by letter
LITERAL_KEY_ENDINGS = ("_path", "_dir", "data.text_column", "data.end_of_text")
ORIGIN_OF_COMMAND_LINE = "command line: "
LIST_COMMAND = f"`{PYTHON} -m experiments.recipe list --all`"


class Setting(NamedTuple):
    """A key's value and its origin, as `recipes/base.yaml:12`; a section's value is {}."""

    value: object
    origin: str
    node: yaml.Node | None = None  # the text of the value, as it was written


Layer = dict[str, Setting]
"""Settings by `key.path`. A section comes before its keys; the key "" stands for the whole."""


# ---- find ----


def yaml_files(folder: Path) -> dict[str, Path]:
    """List YAML files by name: a folder's, then the extensions', e.g. of extensions/*/recipes/."""
    core_files = sorted(folder.glob("*.yaml"))
    extension_files = sorted(EXTENSIONS.glob(f"*/{folder.name}/*.yaml"))
    return {path.stem: path for path in [*core_files, *extension_files]}


def find_by_name(kind: str, name: str, choices: dict[str, Any], origin: str = "") -> Any:
    """Look up a name in `choices`.

    Raises `InputError` with the nearest names, and with all names if there are few. The message
    begins with `origin`; `kind` is what the name should be the name of.
    """
    if name in choices:
        return choices[name]
    hint = f"{LIST_COMMAND} has all"
    if len(choices) < MAX_LISTED_NAMES:
        hint = f"choose {', '.join(choices)}"
    raise InputError(
        f"{origin}`{name}` is not a known {kind} ({hint}){suggest_names(name, choices)}"
    )


# ---- read and write ----

MAX_FILE_BYTES = 200_000  # of a file: a resolved recipe has 3,000
MAX_VALUES = 50_000  # of a file, each alias counted as what it stands for
MAX_DEPTH = 40  # of sections in sections
_TAG_PREFIX = "tag:yaml.org,2002:"  # begins the name of each of YAML's types
# YAML 1.1, which PyYAML follows, reads 3e-4 as a text: its exponents need a point and a sign
_EXPONENT = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$")


class _Loader(yaml.SafeLoader):
    """Reads `3e-4` as a number, and `2026-11-22` as a text."""

    yaml_implicit_resolvers = {
        letter: [(tag, pattern) for tag, pattern in resolvers if tag != f"{_TAG_PREFIX}timestamp"]
        for letter, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


class _Dumper(yaml.SafeDumper):
    """Quotes text like `3e-4`."""


for _yaml_class in (_Loader, _Dumper):
    _yaml_class.add_implicit_resolver(f"{_TAG_PREFIX}float", _EXPONENT, list("-+.0123456789"))


def read_file(path: Path) -> Layer:
    """Read a file. Raises `InputError`."""
    shown_path = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read(MAX_FILE_BYTES + 1)
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{shown_path}: cannot be read: {error}") from error
    layer = _parse_layer(text, "", lambda line: f"{shown_path}:{line}")
    if layer[""].value:
        raise InputError(f"{shown_path}:1: expected keys with their values")
    return layer


def read_override(override: str) -> Layer:
    """Read `key.path=value` from the command line. Raises `InputError`.

    The value is YAML. Names of files, columns and tokens are taken letter by letter, unless they
    are quoted, empty or null: in YAML, `[a]/b` is not a text, and `a #1` is only `a`.
    """
    origin = f"{ORIGIN_OF_COMMAND_LINE}{override}"
    key, equals, text = override.partition("=")
    if not equals or not all(key.split(".")):
        raise InputError(f"{origin}: expected key.path=value, e.g. training.steps=100")
    is_yaml = text in ("", "null") or text.startswith(('"', "'"))
    if key.endswith(LITERAL_KEY_ENDINGS) and not is_yaml:
        text = json.dumps(text, ensure_ascii=False)
    return _parse_layer(text, key, lambda line: origin)


def _parse_layer(text: str, root_key: str, format_origin: Callable[[int], str]) -> Layer:
    """Read a YAML document as the value of `root_key`; its lines count from 1.

    Raises `InputError` for the first fault.
    """
    layer: Layer = {}

    def add_node(node: yaml.Node, key: str, line: int) -> None:
        origin = format_origin(line)
        # a.b.c: the sections a and a.b, and the key a.b.c itself
        parts = key.split(".")
        for length in range(1, len(parts) + 1):
            layer.setdefault(".".join(parts[:length]), Setting({}, origin))
        if isinstance(node, yaml.MappingNode):
            for name_node, value_node in node.value:
                inner_key = f"{key}.{name_node.value}".lstrip(".")
                if inner_key in layer:
                    raise ValueError(f"{inner_key} stands here twice")
                add_node(value_node, inner_key, name_node.start_mark.line + 1)
        else:
            value = loader.construct_object(node, deep=True)
            layer[key] = Setting(value, origin, node)
            json.dumps(value)  # pydantic gets the layer as JSON

    try:
        loader, root_node = _compose_nodes(text, _Loader)
        add_node(root_node or yaml.ScalarNode(f"{_TAG_PREFIX}null", ""), root_key, 1)
    except Exception as error:  # PyYAML raises errors of int(), of float() and other ones
        mark = getattr(error, "problem_mark", None)
        if mark:
            origin = format_origin(mark.line + 1)
        elif layer:
            origin = [*layer.values()][-1].origin
        else:
            origin = format_origin(1)
        reason = getattr(error, "problem", "") or str(error).partition("\n")[0]
        raise InputError(f"{origin}: YAML error: {reason}") from error
    return layer


def _compose_nodes(text: str | bytes, loader_class: type) -> tuple[Any, yaml.Node | None]:
    """Read a YAML document of bounded size into nodes; return its loader and the first node.

    Raises ValueError and YAMLError.
    """
    if len(text) > MAX_FILE_BYTES:
        raise ValueError(f"the text is longer than {MAX_FILE_BYTES:,} bytes")
    loader = loader_class(text)
    node = loader.get_single_node()
    if node and _count_values(node, {}) > MAX_VALUES:
        raise ValueError(f"its aliases stand for more than {MAX_VALUES:,} values")
    return loader, node


def _count_values(node: yaml.Node, counts: dict[int, int], depth: int = 0) -> int:
    """Count the values in a node. The values of an alias count at each of its places.

    `counts` has the number of values by node: 0 for the nodes around this one. Raises ValueError.
    """
    if depth > MAX_DEPTH:
        raise ValueError(f"sections are nested more than {MAX_DEPTH} deep")
    if counts.get(id(node)) == 0:
        raise ValueError("an alias stands for what it is in")
    if id(node) not in counts:
        counts[id(node)] = 0
        if isinstance(node, yaml.MappingNode):
            inner_nodes = [inner for pair in node.value for inner in pair]
        elif isinstance(node, yaml.SequenceNode):
            inner_nodes = node.value
        else:
            inner_nodes = []
        n_values = 1
        for inner in inner_nodes:
            n_values += _count_values(inner, counts, depth + 1)
        counts[id(node)] = n_values
    return counts[id(node)]


def load_sections(content: bytes) -> dict[str, Any]:
    """Read YAML without origins, in a tenth of the time: sections of plain values.

    Raises ValueError and YAMLError.
    """
    loader, node = _compose_nodes(content, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    sections = loader.construct_document(node) if node else None
    if not isinstance(sections, dict) or not _is_plain_value(sections):
        raise ValueError("not sections of numbers, texts and lists")
    return sections


def _is_plain_value(value: object) -> bool:
    """True for numbers, texts, null, and lists and sections of them."""
    if isinstance(value, dict):
        has_plain_keys = all(isinstance(key, str) for key in value)
        return has_plain_keys and all(map(_is_plain_value, value.values()))
    if isinstance(value, list):
        return all(map(_is_plain_value, value))
    if isinstance(value, int):
        return abs(value) < 2**63
    if isinstance(value, str):
        return value.isascii() or value.encode(errors="replace").decode() == value
    return value is None or isinstance(value, float)


def dump_yaml(data: dict) -> str:
    """Write YAML text, keys in the order of `data`; `read_file` reads the same values."""
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)


# ---- sections ----


def merge_layers(layers: Iterable[Layer]) -> Layer:
    """Merge layers into one; later ones win."""
    merged: Layer = {}
    for layer in layers:
        merged |= layer
    return merged


def nest_sections(layer: Layer) -> dict:
    """Put keys into their sections, as {"training": {"steps": 5}}.

    Where a layer has a value in a section's place, the section's keys in other layers are left out.
    """
    sections: dict[str, dict] = {"": {}}
    for key, setting in layer.items():
        section, _, name = key.rpartition(".")
        if not key or section not in sections:
            continue
        value = setting.value
        if value == {}:  # a section
            value = {}
            sections[key] = value
        sections[section][name] = value
    return sections[""]


def flatten_sections(sections: dict, prefix: str = "") -> dict[str, object]:
    """Flatten sections into {key.path: value}."""
    values: dict[str, object] = {}
    for name, value in sections.items():
        if isinstance(value, dict):
            values |= flatten_sections(value, f"{prefix}{name}.")
        else:
            values[prefix + name] = value
    return values


# ---- errors ----


def make_input_error(layer: Layer, reasons: Iterable[tuple[str, str]]) -> InputError:
    """Make an error with a line for each wrong key: where it was written, and what to do.

    Args:
        reasons: (key, what to do) each.
    """
    lines = []
    for key, sentence in reasons:
        origin = layer.get(key, layer[""]).origin
        lines.append(f"{origin}: {key}: {sentence}")
    return InputError("\n".join(lines))


def validate_layer(
    check: Callable[[dict], Any],
    layer: Layer,
    known_keys: Iterable[str] = (),
    find_replacement: Callable[[str], str | None] = lambda key: None,
) -> Any:
    """Validate a layer, in sections, with pydantic's `check`; return the result.

    A key for a text takes its value as it was written: YAML reads `2`, `on` and `2026-11-22` as
    values of other types. Raises `InputError` for the keys that `check` refuses.

    Args:
        known_keys: all existing keys, to suggest one of them.
        find_replacement: gives what to do instead of a key; None for a key without such advice.
    """
    try:
        return check(nest_sections(layer))
    except ValidationError as error:
        texts = _restore_texts(layer, error.errors(include_url=False))
    try:
        return check(nest_sections(texts))
    except ValidationError as error:
        details = error.errors(include_url=False)
    details_by_key: dict[str, list[ErrorDetails]] = {}
    for detail in details:
        key, _ = _locate_error(detail, layer)
        details_by_key.setdefault(key, []).append(detail)
    known_keys = [*known_keys]
    reasons: dict[str, str] = {}
    for key, key_details in details_by_key.items():
        inner = [name for name in layer if name.startswith(f"{key}.") and layer[name].value != {}]
        advice_by_key = {name: find_replacement(name) for name in inner}
        replaced = {name: advice for name, advice in advice_by_key.items() if advice}
        if replaced:
            reasons |= replaced
        else:
            advice = find_replacement(key)
            node = layer[key].node if key in layer else None
            reasons[key] = advice or _describe_errors(key, node, key_details, known_keys, inner)
    raise make_input_error(layer, reasons.items())


def _locate_error(detail: ErrorDetails, layer: Layer) -> tuple[str, tuple]:
    """Split the location of one of pydantic's errors into a key and the location in its value.

    ("data", "paths", 0, "str"), where the layer has data.paths, gives "data.paths" and (0, "str"):
    the indices of lists and the members of unions.
    """
    location = detail["loc"]
    length = len(location)
    while length > 1 and ".".join(map(str, location[:length])) not in layer:
        if detail["type"] == "missing":
            break
        length -= 1
    return ".".join(map(str, location[:length])), location[length:]


def _restore_texts(layer: Layer, details: Iterable[ErrorDetails]) -> Layer:
    """Return the layer with values as they were written, where pydantic asks for a text."""
    restored = dict(layer)
    for detail in details:
        key, location = _locate_error(detail, layer)
        if detail["type"] == "string_type" and key in layer:
            setting = restored[key]
            value = _restore_text(setting.value, setting.node, location)
            restored[key] = setting._replace(value=value)
    return restored


def _restore_text(value: object, node: yaml.Node | None, location: tuple) -> object:
    """Return a value with its node's text at a location. An empty node has no text."""
    if isinstance(node, yaml.ScalarNode):
        return node.value or value
    if isinstance(value, list) and location and isinstance(node, yaml.SequenceNode):
        index = location[0]
        items = list(value)
        items[index] = _restore_text(items[index], node.value[index], location[1:])
        return items
    return value


def _describe_errors(
    key: str,
    node: yaml.Node | None,
    details: list[ErrorDetails],
    known_keys: list[str],
    inner_keys: list[str],
) -> str:
    """Say what is wrong with one key.

    Args:
        node: what was written; None without a value.
        details: pydantic's errors, one for each type that the key may have.
        known_keys: all existing keys.
        inner_keys: the keys in a section.
    """
    kind = details[0]["type"]
    if kind == "missing":
        return "is missing"
    if kind in ("unexpected_keyword_argument", "extra_forbidden"):
        suggestion = suggest_names(key, known_keys)
        if inner_keys and not suggestion:
            suggestion = suggest_names(inner_keys[-1], known_keys)
        return f"neither the core nor an extension has this key{suggestion}"
    messages = [detail["msg"].removeprefix("Input ") for detail in details]
    value = details[0]["input"]
    written = f"{value!r:.80}"
    if isinstance(value, float) and isinstance(node, yaml.ScalarNode):
        written = node.value
    sentence = f"{' or '.join(messages)}, got {written}"
    if kind == "list_type" and isinstance(value, str):
        sentence += f": write [{value:.80}]"
    return sentence


def suggest_names(name: str, choices: Iterable[str]) -> str:
    """Suggest keys of the same name in other sections; without one, the nearest names.

    Returns the end of a sentence; empty if no name is near.
    """
    last_part = name.rpartition(".")[2]
    matches = [choice for choice in choices if choice.endswith(f".{last_part}")]
    if not matches:
        matches = difflib.get_close_matches(name, choices, cutoff=0.5)
    if not matches:
        return ""
    return f": did you mean `{'` or `'.join(matches[:2])}`?"
