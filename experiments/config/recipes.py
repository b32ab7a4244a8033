"""Recipes: YAML in, one validated torchtitan `JobConfig` out.

A recipe is `NAME.yaml` in `recipes/` or one of its folders: its parent (`base:`), one line about it (`description:`),
and the keys it changes in torchtitan's sections or those of `experiments/config/keys.py`. Its layers, of which a later
one wins, are its ancestors from base.yaml down, the recipe, overlays (`recipes/overlays/`), and `key.path=value` from
the command line. Mappings merge, everything else replaces. Each layer must be right by itself.
"""

import difflib
import functools
import os
import re
import textwrap
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from experiments.config import rules
from experiments.config.values import shown
from experiments.config.yaml_source import Entry, dump, merge, nested, parse, plain, read
from models.errors import InputError

if TYPE_CHECKING:
    from experiments.config.keys import Config

ROOT = Path(__file__).resolve().parents[2]
RECIPES = ROOT / "recipes"
GROUPS = ("", "candidates", "puzzle")  # folders of recipes in `recipes/`
OVERLAYS = RECIPES / "overlays"
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


def paths() -> dict[str, Path]:
    """Each recipe's file by its name, group by group."""
    return {name: path for group in GROUPS for name, path in _files(RECIPES / group).items()}


def _files(folder: Path) -> dict[str, Path]:
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))}


def names() -> list[str]:
    """All recipes."""
    return list(paths())


def overlay_names() -> list[str]:
    """All overlays in `recipes/overlays/`."""
    return list(_files(OVERLAYS))


def descriptions() -> dict[str, dict[str, str]]:
    """Group to name to the file's own line, for people. Raises InputError if one of the files can't be read."""
    files = paths()
    groups = {
        "The four recipes": {name: files.pop(name) for name in THE_FOUR},
        "Further recipes": {name: path for name, path in files.items() if path.parent == RECIPES},
        "Candidates, one change each": _files(RECIPES / "candidates"),
        "Puzzle: does FP8 learn on one GPU?": _files(RECIPES / "puzzle"),
        "Overlays: where, and how big": _files(OVERLAYS),
    }
    problems: list[str] = []
    lines = {
        title: {name: _read_layer(path, problems).description for name, path in group.items()}
        for title, group in groups.items()
    }
    _raise(problems)
    return lines


def load(name: str, overlays: Sequence[str] = (), overrides: Sequence[str] = (), seed: int | None = None) -> Recipe:
    """Resolve and validate a recipe.

    Args:
        name: a recipe's name, or the path of a .yaml file; one outside `recipes/` needs no `base`.
        overlays: names, applied in this order.
        overrides: `key.path=value` each, the value read as YAML.
        seed: debug.seed.

    Raises:
        InputError: with all mistakes of all layers, or, where there are none, all contradictions of the result.
    """
    layer, tree = _resolve(name, overlays, overrides, seed)
    config = rules.build(tree)
    _raise(rules.contradictions(config, tree))
    config.job.description = layer.description
    base = layer.base.value if layer.base else None
    return Recipe(layer.name, base, tuple(overlays), tuple(overrides), seed, layer.description, config)


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
    _, tree = _resolve(recipe.base, recipe.overlays, recipe.overrides, recipe.seed)
    parent = rules.build(tree)
    parent.job.description = recipe.description
    values = dict(rules.flat(asdict(recipe.config)))
    return [(key, value, values[key]) for key, value in rules.flat(asdict(parent)) if value != values[key]]


def split_variant(text: str) -> tuple[str, list[str]]:
    """A recipe's name and its own overrides: `NAME+key=value+key=value`; a plus within a value stays in it."""
    name, *overrides = re.split(r"\+(?=[A-Za-z_][\w.]*=)", text)
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
    base: Entry | None
    description: str
    sections: Entry


def _resolve(name, overlays, overrides, seed) -> tuple[_Layer, Entry]:
    """The recipe's own layer, and the sections of all layers merged. Raises InputError with what is wrong in them."""
    problems: list[str] = []
    chain = _chain(name, problems)
    trees = [layer.sections for layer in chain]
    for overlay in overlays:
        if overlay in overlay_names():
            trees.append(_read_layer(OVERLAYS / f"{overlay}.yaml", problems).sections)
        else:
            problems.append(unknown("overlay", overlay, overlay_names()))
    trees += [_override(text, problems) for text in overrides]
    if seed is not None:
        trees.append(nested(["debug", "seed"], Entry(seed, "--seed")))
    for tree in trees:
        rules.check_keys(tree, problems)
    _raise(problems)
    return chain[-1], functools.reduce(merge, trees)


def _chain(name: str, problems: list[str]) -> list[_Layer]:
    """The recipe and its ancestors, oldest first. Raises InputError if there is no such recipe."""
    known = paths()
    if name.endswith(".yaml") and not os.path.exists(name):
        raise InputError(f"{name}: no such file; give the path of a recipe, or a name: {', '.join(known)}")
    if not name.endswith(".yaml") and name not in known:
        raise InputError(unknown("recipe", name, list(known)))
    layers = [_read_layer(known.get(name) or Path(os.path.realpath(name)), problems)]
    while (base := layers[-1].base) is not None:
        if base.value not in known:
            problems.append(f"{base.origin}: base: {unknown('recipe', base.value, list(known))}")
            break
        path, descent = known[base.value], [layer.path for layer in layers]
        if path in descent:
            circle = [*descent[descent.index(path) :], path]
            problems.append(f"{base.origin}: base: circular: {' -> '.join(step.stem for step in circle)}")
            break
        layers.append(_read_layer(path, problems))
    return layers[::-1]


def _read_layer(path: Path, problems: list[str]) -> _Layer:
    """One file; what is wrong with it, its keys apart, is added to `problems`."""
    place = str(path.relative_to(ROOT) if path.is_relative_to(ROOT) else path)
    tree = read(path, place, problems)
    if tree is None or not isinstance(tree.value, dict):
        if tree is not None:
            what = "the file is empty" if tree.value is None else f"expected sections, got {shown(tree.value)}"
            problems.append(f"{tree.origin}: {what}; a recipe has `base:`, `description:` and the sections it changes")
        return _Layer(path, path.stem, None, "", Entry({}, f"{place}:1"))

    sections, first_line = dict(tree.value), f"{place}:1"
    is_overlay, is_listed = path.parent == OVERLAYS, path == paths().get(path.stem)
    base = sections.pop("base", None)
    if is_overlay and base is not None:
        problems.append(f"{base.origin}: base: an overlay has none: remove the line")
    if is_listed and path.stem != "base" and base is None:
        problems.append(f"{first_line}: base: missing; name the parent recipe, e.g. `base: baseline`")
    if base is not None and not isinstance(base.value, str):
        problems.append(f"{base.origin}: base: expected a recipe's name, got {shown(plain(base))}")
        base = None

    description = sections.pop("description", Entry(None, first_line))
    if not isinstance(description.value, str) or len(description.value.splitlines()) != 1:
        got = shown(plain(description))
        problems.append(f"{description.origin}: description: expected a line of text on what this is for, got {got}")
    name = Entry(path.stem, first_line)
    if not is_listed and not is_overlay:  # a run's recipe.yaml says whose it is
        name = sections.pop("name", name)
    if not re.fullmatch(r"\w[\w .+-]{0,99}", str(plain(name))):
        got = shown(plain(name))
        problems.append(f"{name.origin}: name: expected letters, digits, _, -, + and ., at most 100, got {got}")
    return _Layer(path, str(plain(name)), base, str(description.value), Entry(sections, tree.origin))


def _override(text: str, problems: list[str]) -> Entry:
    """`key.path=value` from the command line as a layer."""
    origin = f"command line: {text}"
    key, equals, value = text.partition("=")
    if not equals or not re.fullmatch(r"\w+(\.\w+){0,9}", key):
        problems.append(f"{origin}: expected key.path=value, e.g. training.steps=100")
        return Entry({}, origin)
    entry = parse(value, lambda line: origin, problems)
    return nested(key.split("."), entry) if entry else Entry({}, origin)
