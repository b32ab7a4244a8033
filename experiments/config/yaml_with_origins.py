"""Read YAML and remember where each key was written, to name the line of a mistake.

Files are found by their names; `key.path=value` of the command line is read like a file.
"""

import difflib
import itertools
import json
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from pydantic import ValidationError

from models.errors import PYTHON, InputError

ROOT = Path(__file__).resolve().parents[2]
EXTENSIONS = ROOT / "extensions"
FEW = 16
# How keys end whose values the command line takes letter by letter
LITERAL = ("_path", "_dir", "data.text_column", "data.end_of_text")
ORIGIN_OF_COMMAND_LINE = "command line: "
LISTED = f"`{PYTHON} -m experiments.recipe list --all` has all"


class Given(NamedTuple):
    """A key's value, and its origin, as `recipes/base.yaml:12`; a section's value is {}."""

    value: object
    origin: str
    node: yaml.Node | None = None  # the text of the value, as it was written


Keys = dict[str, Given]
"""Keys by `key.path`, each section before what is in it; "" is the whole."""


# ---- find ----


def yaml_files(folder: Path) -> dict[str, Path]:
    """List YAML files by name: a folder's, then the extensions', e.g. of extensions/*/recipes/."""
    own, others = folder.glob("*.yaml"), EXTENSIONS.glob(f"*/{folder.name}/*.yaml")
    return {path.stem: path for path in [*sorted(own), *sorted(others)]}


def find(kind: str, name: str, known: dict[str, Any], origin: str = "") -> Any:
    """Look up a name in `known`.

    Raises `InputError` with the nearest names, and with all of them if they are few. The message
    begins with `origin`; `kind` says what should have the name.
    """
    if name in known:
        return known[name]
    others = f"choose {', '.join(known)}" if len(known) < FEW else LISTED
    raise InputError(f"{origin}`{name}` is no {kind} ({others}){did_you_mean(name, known)}")


# ---- read and write ----

MOST_BYTES = 200_000  # of a file: a resolved recipe has 3,000
MOST_VALUES = 50_000  # of a file, each alias counted as what it stands for
DEEPEST = 40  # section in a section
_TAGS = "tag:yaml.org,2002:"  # before the name of each of YAML's types


class _Loader(yaml.SafeLoader):
    """Reads `3e-4` as a number, and `2026-11-22` as a text."""

    yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in resolvers if tag != f"{_TAGS}timestamp"]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


class _Dumper(yaml.SafeDumper):
    """Quotes text like `3e-4`."""


for _class in (_Loader, _Dumper):
    _exponent = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$")
    _class.add_implicit_resolver(f"{_TAGS}float", _exponent, list("-+.0123456789"))


def read_file(path: Path) -> Keys:
    """Read a file. Raises `InputError`."""
    name = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read(MOST_BYTES + 1)
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{name}: cannot be read: {error}") from error
    keys = _parse(text, "", lambda line: f"{name}:{line}")
    if keys[""].value:
        raise InputError(f"{name}:1: expected keys with their values")
    return keys


def read_override(override: str) -> Keys:
    """Read `key.path=value` from the command line. Raises `InputError`.

    The value is YAML. Names of files, columns and tokens are taken as they stand, unless they are
    quoted, empty or null: to YAML, `[a]/b` would be no text, and `a #1` only `a`.
    """
    origin = f"{ORIGIN_OF_COMMAND_LINE}{override}"
    path, equals, text = override.partition("=")
    if not equals or not all(path.split(".")):
        raise InputError(f"{origin}: expected key.path=value, e.g. training.steps=100")
    if path.endswith(LITERAL) and not text.startswith(('"', "'")) and text not in ("", "null"):
        text = json.dumps(text, ensure_ascii=False)
    return _parse(text, path, lambda line: origin)


def _parse(text: str, path: str, origin_of: Callable[[int], str]) -> Keys:
    """Read a YAML document as the value of the key `path`; its lines count from 1.

    Raises `InputError` for the first fault.
    """
    keys = {}

    def take(node: yaml.Node, path: str, line: int) -> None:
        origin = origin_of(line)
        # a.b.c: a, a.b, a.b.c
        for section in itertools.accumulate(path.split("."), "{}.{}".format):
            keys.setdefault(section, Given({}, origin))
        if isinstance(node, yaml.MappingNode):
            for name, below in node.value:
                key = f"{path}.{name.value}".lstrip(".")
                if key in keys:
                    raise ValueError(f"{key} stands here twice")
                take(below, key, name.start_mark.line + 1)
        else:
            keys[path] = Given(loader.construct_object(node, deep=True), origin, node)
            json.dumps(keys[path].value)  # which is how pydantic takes it

    try:
        loader, node = _compose(text, _Loader)
        take(node or yaml.ScalarNode(f"{_TAGS}null", ""), path, 1)
    except Exception as error:  # PyYAML raises what int() and float() do, and others
        mark = getattr(error, "problem_mark", None)
        last = next(reversed(keys.values())).origin if keys else origin_of(1)
        reason = getattr(error, "problem", "") or str(error).partition("\n")[0]
        raise InputError(
            f"{origin_of(mark.line + 1) if mark else last}: YAML error: {reason}"
        ) from error
    return keys


def _compose(text: str | bytes, kind: type) -> tuple[Any, yaml.Node | None]:
    """Read a YAML document of bounded size into nodes; return its loader and the first node.

    Raises ValueError and YAMLError.
    """
    if len(text) > MOST_BYTES:
        raise ValueError(f"the text is longer than {MOST_BYTES:,} bytes")
    loader = kind(text)
    node = loader.get_single_node()
    if node and _count_values(node, {}) > MOST_VALUES:
        raise ValueError(f"its aliases stand for more than {MOST_VALUES:,} values")
    return loader, node


def _count_values(node: yaml.Node, counts: dict[int, int], depth: int = 0) -> int:
    """Count the values below a node, with an alias for each place of its own.

    `counts` has the nodes that were counted, and 0 for those around this one. Raises ValueError.
    """
    if depth > DEEPEST:
        raise ValueError(f"sections are nested more than {DEEPEST} deep")
    if counts.get(id(node)) == 0:
        raise ValueError("an alias stands for what it is in")
    if id(node) not in counts:
        counts[id(node)] = 0
        below = node.value if isinstance(node, yaml.CollectionNode) else []
        if isinstance(node, yaml.MappingNode):
            below = itertools.chain.from_iterable(below)
        counts[id(node)] = 1 + sum(_count_values(each, counts, depth + 1) for each in below)
    return counts[id(node)]


def load_sections(content: bytes) -> dict[str, Any]:
    """Read YAML without origins, in a tenth of the time: sections of plain values.

    Raises ValueError and YAMLError.
    """
    loader, node = _compose(content, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    sections = loader.construct_document(node) if node else None
    if not isinstance(sections, dict) or not _is_plain(sections):
        raise ValueError("not sections of numbers, texts and lists")
    return sections


def _is_plain(value: object) -> bool:
    """Tell numbers, texts, and lists and sections of them from other values."""
    if isinstance(value, dict):
        return all(isinstance(key, str) for key in value) and all(map(_is_plain, value.values()))
    if isinstance(value, list):
        return all(map(_is_plain, value))
    if isinstance(value, int):
        return abs(value) < 2**63
    if isinstance(value, str):
        return value.isascii() or value.encode(errors="replace").decode() == value
    return value is None or isinstance(value, float)


def dump(data: dict) -> str:
    """Write YAML text, keys in the order given; `read_file` reads the same values."""
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)


# ---- sections ----


def merge_layers(layers: Iterable[Keys]) -> Keys:
    """Put layers of keys upon one another; later ones win."""
    keys = {}
    for layer in layers:
        keys |= layer
    return keys


def nested(keys: Keys) -> dict:
    """Put keys into their sections.

    Where a layer has a value in a section's place, the section's keys in other layers are left out.
    """
    sections = {"": {}}
    for path, (value, *_) in keys.items():
        section, _, name = path.rpartition(".")
        if path and section in sections:
            if value == {}:
                value = sections[path] = {}
            sections[section][name] = value
    return sections[""]


def flat(sections: dict, prefix: str = "") -> dict[str, object]:
    """Flatten sections into {key.path: value}."""
    found = {}
    for key, value in sections.items():
        if isinstance(value, dict):
            found |= flat(value, f"{prefix}{key}.")
        else:
            found[prefix + key] = value
    return found


# ---- say what is wrong ----


def refusal(keys: Keys, found: Iterable[tuple[str, str]]) -> InputError:
    """Make an error with a line for each wrong key: where it was written, and what to do."""
    lines = [f"{keys.get(key, keys['']).origin}: {key}: {sentence}" for key, sentence in found]
    return InputError("\n".join(lines))


def validated(
    check: Callable[[dict], Any],
    keys: Keys,
    known: Iterable[str] = (),
    instead: Callable[[str], str | None] = lambda key: None,
) -> Any:
    """Validate keys, in their sections, with pydantic's `check`; return the result.

    A key for a text takes whatever was written as its text, as `2`, `on` or `2026-11-22`, which
    YAML reads as values of other types. Raises `InputError` for the keys that `check` refuses.

    Args:
        known: all existing keys, to suggest one of them.
        instead: what to do instead of a key, if that is known.
    """
    try:
        return check(nested(keys))
    except ValidationError as error:
        texts = _restore_texts(keys, error.errors(include_url=False))
    try:
        return check(nested(texts))
    except ValidationError as error:
        refused = error.errors(include_url=False)
    by_key: dict[str, list[dict]] = {}
    for detail in refused:
        key, _ = _locate_error(detail, keys)
        by_key.setdefault(key, []).append(detail)
    known = [*known]
    found = {}
    for key, details in by_key.items():
        inner = [name for name in keys if name.startswith(f"{key}.") and keys[name].value != {}]
        moved = {name: instead(name) for name in inner if instead(name)}
        found |= moved or {key: instead(key) or _sentence(key, details, known, inner)}
    raise refusal(keys, found.items())


def _locate_error(detail: dict, keys: Keys) -> tuple[str, tuple]:
    """Split the place of one of pydantic's errors into a key, and the place in the key's value: the
    indices of lists, and the members of unions."""
    place, length = detail["loc"], len(detail["loc"])
    while length > 1 and ".".join(map(str, place[:length])) not in keys:
        if detail["type"] == "missing":
            break
        length -= 1
    return ".".join(map(str, place[:length])), place[length:]


def _restore_texts(keys: Keys, refused: Iterable[dict]) -> Keys:
    """Return the keys with their texts as written, where pydantic asks for texts and has others."""
    texts = dict(keys)
    for detail in refused:
        key, place = _locate_error(detail, keys)
        if detail["type"] == "string_type" and key in keys:
            given = texts[key]
            texts[key] = given._replace(value=_restore_text(given.value, given.node, place))
    return texts


def _restore_text(value: object, node: yaml.Node | None, place: tuple) -> object:
    """Return a value with the text of its node at a place of it; nothing has no text."""
    if isinstance(node, yaml.ScalarNode):
        return node.value or value
    if isinstance(node, yaml.SequenceNode) and place and isinstance(place[0], int):
        items, index = list(value), place[0]
        items[index] = _restore_text(items[index], node.value[index], place[1:])
        return items
    return value


def _sentence(key: str, details: list[dict], known: list[str], inner: list[str]) -> str:
    """Say what is wrong with one key.

    Args:
        details: an error for each type allowed there.
        known: all existing keys.
        inner: the keys in it, if it is a section.
    """
    kind, value = details[0]["type"], details[0]["input"]
    if kind == "missing":
        return "is missing"
    if kind in ("unexpected_keyword_argument", "extra_forbidden"):
        near = did_you_mean(key, known) or did_you_mean((inner or [key])[-1], known)
        return f"there is no such key, here or in an extension{near}"
    words = [detail["msg"].removeprefix("Input ") for detail in details]
    return f"{' or '.join(words)}, got {value!r:.80}"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Suggest keys of the same name in other sections, else the nearest names.

    Returns the end of a sentence; empty if there are none.
    """
    last = name.rpartition(".")[2]
    near = [other for other in known if other.endswith(f".{last}")]
    near = near or difflib.get_close_matches(name, known, cutoff=0.5)
    return f": did you mean `{'` or `'.join(near[:2])}`?" if near else ""
