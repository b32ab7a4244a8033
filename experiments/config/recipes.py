"""Recipes: YAML in, one validated torchtitan `JobConfig` out.

A recipe is `NAME.yaml` in `recipes/` or an extension's: its parent (`base:`), one line about it
(`description:`), and the keys it changes in the sections of `experiments/config/keys.py`. Its
layers, where a later one wins, are its ancestors from base.yaml down, the recipe, overlays
(`recipes/overlays/`), and `key.path=value` from the command line. Sections merge, everything else
replaces. What the layers add up to is validated, and then checked for contradictions. A mistake is
reported with its origin.

A section that is a folder of `extensions/` brings that extension in: its package has the section's
keys (`Keys`), and functions in place of the core's (`Recipe.hook`).
"""

import importlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field

from experiments.config.yaml_with_origins import (
    ROOT,
    Keys,
    did_you_mean,
    dump,
    flat,
    nested,
    read_file,
    read_override,
    refusal,
    validated,
)
from models.errors import InputError

if TYPE_CHECKING:
    from experiments.config.keys import Config

RECIPES = ROOT / "recipes"
OVERLAYS = RECIPES / "overlays"
STUDIES = RECIPES / "studies"
EXTENSIONS = ROOT / "extensions"
FEW = 8
LISTED = "`.venv/bin/python -m experiments.recipe list --all` has all"
THE_FOUR = ("baseline", "baseline_compiled", "rowwise_fp8_compiled", "tensorwise_fp8_compiled")


class Resolved(BaseModel):
    """The section `resolved` of a resolved file: what the recipe was made of, and, in a run's
    folder, what experiments/training/plan.py worked out of it. base.yaml has no `base`."""

    model_config = ConfigDict(strict=True, extra="forbid")

    base: str | None = None
    overlays: list[str] = []
    overrides: list[str] = []
    plan: dict | None = None


@dataclass(frozen=True)
class Recipe:
    """A resolved recipe. `config` has every default filled in."""

    name: str
    description: str
    config: "Config"
    extensions: dict[str, ModuleType] = field(default_factory=dict)  # whose sections it has
    made: Resolved = field(default_factory=Resolved)

    def hook(self, name: str, default: Callable | None = None) -> Callable | None:
        """Return an extension's function in place of the core's `default`.

        Raises `InputError` if two extensions have one.
        """
        found = self.hooks(name)
        if len(found) > 1:
            raise InputError(
                f"{' and '.join(self.extensions)} do not go together, as more than one has its own "
                f"`{name}`: leave out one of these sections"
            )
        return found[0] if found else default

    def hooks(self, name: str) -> list[Callable]:
        """Return each extension's function that adds to what the core does."""
        modules = self.extensions.values()
        return [getattr(module, name) for module in modules if hasattr(module, name)]

    @property
    def processes(self) -> int:
        """Processes of a run, one a GPU."""
        return self.hook("processes", lambda config: 1)(self.config)


# ---- what there is ----


def files(folder: Path) -> dict[str, Path]:
    """List a folder's YAML files by name, then those of extensions' folders of the same name."""
    own, others = folder.glob("*.yaml"), EXTENSIONS.glob(f"*/{folder.name}/*.yaml")
    return {path.stem: path for path in [*sorted(own), *sorted(others)]}


def find(kind: str, name: str, known: dict[str, Any], origin: str = "") -> Any:
    """Return what has a name.

    Raises `InputError`: the nearest names, and all of them if they are few.
    """
    if name in known:
        return known[name]
    others = f"choose {', '.join(known)}" if len(known) < FEW else LISTED
    raise InputError(f"{origin}{did_you_mean(name, known)}`{name}` is no {kind}: {others}")


# ---- load ----


class _Head(BaseModel):
    """What a file has beside the sections; `name` and `resolved` only a resolved recipe."""

    model_config = ConfigDict(strict=True)

    description: str
    name: str = Field(pattern=r"^\w[\w .+-]*$")  # of a run's folder
    base: str | None = None
    resolved: Resolved = Resolved()


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
    known, there = files(RECIPES), files(OVERLAYS)
    path = Path(name).absolute() if name.endswith(".yaml") else find("recipe", name, known)
    head, keys = _read(path, known)
    for overlay in overlays:
        keys |= _read(find("overlay", overlay, there), there)[1]
    for override in overrides:
        keys |= read_override(override)
    before = head.resolved
    made = Resolved(
        base=head.base or before.base,
        overlays=[*before.overlays, *overlays],
        overrides=[*before.overrides, *overrides],
        plan=before.plan,
    )
    extensions = _extensions(keys)
    config = _validate(keys, extensions)
    config.job.description = head.description
    return Recipe(head.name, head.description, config, extensions, made)


def _read(path: Path, known: dict[str, Path]) -> tuple[_Head, Keys]:
    """Read the file of a recipe or of an overlay: its head, and the keys of its sections upon those
    of the files that it is based on, each a name of `known`."""
    keys = read_file(path)
    head = validated(_Head.model_validate, {"name": path.stem} | nested(keys), keys)
    of_head = _Head.model_fields.keys()
    own = {key: given for key, given in keys.items() if key.partition(".")[0] not in of_head}
    if head.base is None:
        return head, own
    others = {name: other for name, other in known.items() if other != path}
    kind, origin = "recipe that this one can be based on", f"{keys['base'].origin}: base: "
    return head, _read(find(kind, head.base, others, origin), others)[1] | own


def _extensions(keys: Keys) -> dict[str, ModuleType]:
    """Import the extensions whose sections a recipe has."""
    there = [path.parent.name for path in EXTENSIONS.glob("*/__init__.py")]
    entered = [name for name in keys if name in there]
    modules = {name: importlib.import_module(f"extensions.{name}") for name in entered}
    return {name: module for name, module in modules.items() if hasattr(module, "Keys")}


def _validate(keys: Keys, extensions: dict[str, ModuleType]) -> "Config":
    """Validate keys one by one, then together; fill in defaults. JSON is pydantic's mode in which 1
    is a float too.

    Raises `InputError` with a line for each wrong key.
    """
    # torch: not for lists
    from experiments.config.keys import LEFT_OUT, Config, contradictions, validator

    own = [(name, extension.Keys) for name, extension in extensions.items()]
    sections = asdict(Config())
    known = [*sections, *flat(sections)]
    for name, section in own:
        known += [f"{name}.{key.name}" for key in fields(section)]
    check = validator(*own).validate_json
    config = validated(check, json.dumps(nested(keys)), keys, known, LEFT_OUT)
    found = contradictions(config)
    for extension in extensions.values():
        if hasattr(extension, "contradictions"):
            found += extension.contradictions(config)
    if found:
        raise refusal(keys, found)
    return config


# ---- what a recipe says ----


def to_yaml(recipe: Recipe, plan: dict | None = None) -> str:
    """Write the fully resolved recipe: every key of every section. It loads by path to an equal
    recipe."""
    sections = asdict(recipe.config)
    del sections["job"]
    named = {"name": recipe.name, "description": recipe.description}
    resolved = recipe.made.model_dump() | {"plan": plan}
    return dump(named | sections | {"resolved": resolved})


def changes(before: "Config", after: "Config") -> list[tuple[str, object, object]]:
    """List (key.path, value before, value after) of the keys that differ."""
    old, new = flat(asdict(before)), flat(asdict(after))
    differ = [key for key in old | new if old.get(key) != new.get(key)]
    return [(key, old.get(key), new.get(key)) for key in differ]
