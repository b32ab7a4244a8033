"""Recipes: YAML in, one validated torchtitan `JobConfig` out.

A recipe is `recipes/NAME.yaml`: its parent (`base:`), one line about it (`description:`), and the keys it changes in
torchtitan's sections or those of `experiments/config.py`. Later wins: the parents from base.yaml down, the recipe,
overlays (`recipes/overlays/`), `key.path=value` from the command line. Mappings merge, everything else replaces.

`python -m experiments.recipe schema > recipes/schema.json` renews what editors complete and check recipes with.
"""

import difflib
import functools
import json
import re
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from experiments.recipe_model import contradictions, flat, schema, shown, validate
from experiments.yaml_source import Entry, dump, merge, parse, plain
from models.errors import InputError

if TYPE_CHECKING:
    from experiments.config import Config

ROOT = Path(__file__).resolve().parent.parent
RECIPES = ROOT / "recipes"
OVERLAYS = RECIPES / "overlays"


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


def names() -> list[str]:
    """All recipes in `recipes/`."""
    return sorted(path.stem for path in RECIPES.glob("*.yaml"))


def overlay_names() -> list[str]:
    """All overlays in `recipes/overlays/`."""
    return sorted(path.stem for path in OVERLAYS.glob("*.yaml"))


def descriptions() -> dict[str, str]:
    """Each recipe's own line. Raises InputError if one of the files can't be read."""
    return _descriptions(RECIPES, names())


def overlay_descriptions() -> dict[str, str]:
    """Each overlay's own line. Raises InputError if one of the files can't be read."""
    return _descriptions(OVERLAYS, overlay_names())


def _descriptions(folder: Path, known: list[str]) -> dict[str, str]:
    problems: list[str] = []
    found = {name: _read(folder / f"{name}.yaml", problems).description for name in known}
    _raise(problems)
    return found


def load(name: str, overlays: Sequence[str] = (), overrides: Sequence[str] = (), seed: int | None = None) -> Recipe:
    """Resolve and validate a recipe.

    Args:
        name: a recipe's name, or the path of a .yaml file; one outside `recipes/` needs no `base`.
        overlays: names, applied in this order.
        overrides: `key.path=value` each, the value read as YAML.
        seed: debug.seed.

    Raises:
        InputError: with all mistakes at once.
    """
    problems: list[str] = []
    layers, tree = _resolve(name, overlays, overrides, seed, problems)
    readable = not problems
    config, rejected = validate(tree, problems)
    if readable:
        problems += contradictions(config, rejected, tree)
    _raise(problems)
    recipe = layers[-1]
    config.job.description = recipe.description
    base = recipe.base.value if recipe.base else None
    return Recipe(recipe.name, base, tuple(overlays), tuple(overrides), seed, recipe.description, config)


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
    problems: list[str] = []
    _, tree = _resolve(recipe.base, recipe.overlays, recipe.overrides, recipe.seed, problems)
    parent, _ = validate(tree, problems)
    _raise(problems)
    parent.job.description = recipe.description
    ours = dict(flat(asdict(recipe.config)))
    return [(key, value, ours[key]) for key, value in flat(asdict(parent)) if value != ours[key]]


def split_variant(text: str) -> tuple[str, list[str]]:
    """A recipe's name and its own overrides: `NAME+key=value+key=value`; a plus within a value stays in it."""
    name, *overrides = re.split(r"\+(?=[A-Za-z_][\w.]*=)", text)
    return name, overrides


def _raise(problems: list[str]) -> None:
    if problems:
        raise InputError("\n".join(problems))


# ---- files ----


@dataclass(frozen=True)
class _Layer:
    path: Path
    name: str
    base: Entry | None
    description: str
    sections: Entry


def _read(path: Path, problems: list[str]) -> _Layer:
    """One file; what is wrong with it is added to `problems`."""
    place = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path
    tree = parse(path.read_bytes(), lambda line: f"{place}:{line}", problems)
    if tree is None or not isinstance(tree.value, dict):
        if tree is not None:
            what = "the file is empty" if tree.value is None else f"expected sections, got {shown(tree.value)}"
            problems.append(f"{tree.origin}: {what}; a recipe has `base:`, `description:` and the sections it changes")
        return _Layer(path, path.stem, None, "", Entry({}, f"{place}:1"))

    sections = dict(tree.value)
    base = sections.pop("base", None)
    if path.parent == OVERLAYS and base is not None:
        problems.append(f"{base.origin}: base: an overlay has none: remove the line")
    if path.parent == RECIPES and path.stem != "base" and base is None:
        problems.append(f"{place}:1: base: missing; name the parent recipe, e.g. `base: baseline`")
    if base is not None and not isinstance(base.value, str):
        problems.append(f"{base.origin}: base: expected a recipe's name, got {shown(plain(base))}")
        base = None

    description = sections.pop("description", Entry(None, f"{place}:1"))
    if not isinstance(description.value, str) or len(description.value.splitlines()) != 1:
        got = shown(plain(description))
        problems.append(f"{description.origin}: description: expected a line of text on what this is for, got {got}")
    name = path.stem
    if path.parent not in (RECIPES, OVERLAYS):  # a run's recipe.yaml says whose it is
        name = str(plain(sections.pop("name", Entry(name, ""))))
    return _Layer(path, name, base, str(description.value), Entry(sections, tree.origin))


def _chain(name: str, problems: list[str]) -> list[_Layer]:
    """The recipe and its ancestors, oldest first. Raises InputError if there is no such recipe."""
    path = Path(name).resolve() if name.endswith(".yaml") else RECIPES / f"{name}.yaml"
    if name.endswith(".yaml") and not path.is_file():
        raise InputError(f"{name}: no such file; give the path of a recipe, or a name: {', '.join(names())}")
    if not path.is_file() or not name.endswith(".yaml") and name not in names():
        raise InputError(unknown("recipe", name, names()))
    layers = [_read(path, problems)]
    while (base := layers[-1].base) is not None:
        path = RECIPES / f"{base.value}.yaml"
        line = [layer.path for layer in layers]
        if base.value not in names():
            problems.append(f"{base.origin}: base: {unknown('recipe', base.value, names())}")
            break
        if path in line:
            circle = [*line[line.index(path) :], path]
            problems.append(f"{base.origin}: base: circular: {' -> '.join(step.stem for step in circle)}")
            break
        layers.append(_read(path, problems))
    return layers[::-1]


def _resolve(name, overlays, overrides, seed, problems: list[str]) -> tuple[list[_Layer], Entry]:
    """The recipe's chain, and its sections with everything merged."""
    layers = _chain(name, problems)
    trees = [layer.sections for layer in layers]
    for overlay in overlays:
        if overlay in overlay_names():
            trees.append(_read(OVERLAYS / f"{overlay}.yaml", problems).sections)
        else:
            problems.append(unknown("overlay", overlay, overlay_names()))
    trees += [_override(text, problems) for text in overrides]
    if seed is not None:
        trees.append(_nested(("debug", "seed"), Entry(seed, "--seed")))
    return layers, functools.reduce(merge, trees)


def _override(text: str, problems: list[str]) -> Entry:
    origin = f"command line: {text}"
    key, equals, value = text.partition("=")
    if not equals or not all(key.split(".")):
        problems.append(f"{origin}: expected key.path=value, e.g. training.steps=100")
        return Entry({}, origin)
    entry = parse(value, lambda line: origin, problems)
    return _nested(tuple(key.split(".")), entry) if entry else Entry({}, origin)


def _nested(path: tuple[str, ...], entry: Entry) -> Entry:
    for key in reversed(path):
        entry = Entry({key: entry}, entry.origin)
    return entry


def unknown(kind: str, name: str, known: list[str]) -> str:
    """What to say of a name that isn't one of `known`."""
    near = difflib.get_close_matches(name, known, n=2)
    hint = f" did you mean {' or '.join(f'`{word}`' for word in near)}?" if near else ""
    return f"unknown {kind} `{name}`;{hint} known: {', '.join(known)}"


if __name__ == "__main__":
    if sys.argv[1:] != ["schema"]:
        sys.exit("usage: python -m experiments.recipe schema > recipes/schema.json")
    print(json.dumps(schema(), indent=2))
