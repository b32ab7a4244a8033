"""Studies: what is compared, with what, and at which scale; a file of `recipes/studies/`, or some recipes."""

import os
from collections.abc import Iterator
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from experiments.config import recipes
from experiments.config.rules import explain
from experiments.config.yaml_source import nested
from experiments.config.yaml_source import read as read_yaml
from models.errors import InputError

STUDIES = recipes.RECIPES / "studies"
DEFAULT = "four_way"
AUTO = "auto"  # among the overlays: what this machine can hold
PLAN = "study.yaml"  # in the study's directory: what it was started with, auto resolved


class Study(BaseModel):
    """A study's YAML."""

    model_config = ConfigDict(extra="forbid", strict=True)

    description: str
    recipes: list[str] = Field(min_length=1)
    baseline: str
    seeds: list[int] = Field(min_length=1)
    overlays: list[str]
    overrides: list[str] = []

    def runs(self) -> Iterator[tuple[str, int]]:
        """(recipe, seed), each once, in the order in which they run: a seed's recipes one after the other."""
        return ((recipe, seed) for seed in dict.fromkeys(self.seeds) for recipe in dict.fromkeys(self.recipes))


def load(names: list[str]) -> Study:
    """The study of this name, the plan of this directory, or one of these recipes.

    Raises `InputError` with file and line, or with the nearest names.
    """
    known = recipes.files(STUDIES)
    if len(names) == 1 and os.path.exists(plan := os.path.join(names[0], PLAN)):
        return read(Path(plan))
    if len(names) == 1 and names[0] in known:
        return read(known[names[0]])
    for name in names:
        if name in known:
            raise InputError(f"{name} is a study, so it stands alone; with other names, list its recipes")
        if name not in recipes.names():
            if "/" in name or os.path.exists(name):
                raise InputError(_about_path(name))
            raise InputError(recipes.unknown("study or recipe", name, sorted(known) + recipes.names()))
    names = list(dict.fromkeys(names))
    baseline = "baseline" if "baseline" in names else names[0]
    return Study(description=", ".join(names), recipes=names, baseline=baseline, seeds=[0], overlays=[AUTO])


def _about_path(path: str) -> str:
    """Why a path does not name a study."""
    if os.path.isdir(path):
        return f"{path} holds no {PLAN}, so it is no study to go on with; its runs: python -m analysis.report {path}"
    if os.path.exists(path):
        return f"{path}: a study takes recipes by name: put the file into {recipes.RECIPES.name}/"
    return f"{path} does not exist: give a study's directory, or names of studies or recipes"


def read(path: Path) -> Study:
    """One file. Raises `InputError` with file and line."""
    keys = read_yaml(path)
    whole = keys.pop("")
    try:
        return Study.model_validate(nested(keys))
    except ValidationError as error:
        messages = explain(error, keys, Study.model_fields).items()
        raise InputError(
            "\n".join(f"{keys.get(key, whole).origin}: {key}: {text}" for key, text in messages)
        ) from error
