"""Studies: what is compared, with what, and at which scale; a file of `recipes/studies/`, or some
recipes.

A study with `axes` is a sweep: it has a cell for each combination of their values, and each cell is
a study.
"""

import os
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import combinations, product
from pathlib import Path
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from experiments.config import recipes
from experiments.config.rules import explain, flat
from experiments.config.yaml_source import Entry, nested
from experiments.config.yaml_source import read as read_yaml
from models.errors import InputError

STUDIES = recipes.RECIPES / "studies"
DEFAULT = "four_way"
AUTO = "auto"  # among the overlays: what this machine can hold
PLAN = "study.yaml"  # in the study's directory: what it was started with, auto resolved
PROCESSES = "processes"
# What may be an axis: the kind of its values, and how a cell's folder names them.
AXES = {
    "model.flavor": (str, "{}"),
    "training.seq_len": (int, "seq{}"),
    "training.local_batch_size": (int, "batch{}"),
    PROCESSES: (int, "processes{}"),
}


class Study(BaseModel):
    """A study's YAML."""

    model_config = ConfigDict(extra="forbid", strict=True)

    description: str
    recipes: list[str] = Field(min_length=1)
    baseline: str
    seeds: list[int] = Field(min_length=1)
    overlays: list[str]
    overrides: list[str] = []
    processes: int = Field(
        1, ge=1, le=9999
    )  # of each run: one a GPU, which FSDP2 shards the model over
    axes: dict[
        str, object
    ] = {}  # values of keys in their sections, as a recipe has them, and of `processes`

    @field_validator("axes")
    @classmethod
    def _check_axes(cls, axes: dict) -> dict:
        for key, values in flat(axes):
            if key not in AXES:
                raise ValueError(f"{key} is no axis; there are {', '.join(AXES)}")
            kind = AXES[key][0]
            if (
                not isinstance(values, list)
                or not values
                or any(type(v) is not kind or v <= kind() for v in values)
            ):
                raise ValueError(
                    f"{key}: expected a list of {'names' if kind is str else 'numbers of 1 and more'}"
                )
            if twice := [value for value, count in Counter(values).items() if count > 1]:
                raise ValueError(
                    f"{key}: {twice[0]} is there twice: leave one out"
                )  # both would be one folder
        return axes

    def cells(self) -> "list[Cell]":
        """All of them, in the order of the axes' values; a study without axes is its only cell."""
        axes = dict(flat(self.axes))
        return [
            self._cell(dict(zip(axes, values, strict=True))) for values in product(*axes.values())
        ]

    def _cell(self, values: dict) -> "Cell":
        name = "_".join(AXES[key][1].format(value) for key, value in values.items())
        keys = [
            f"{key}={value}"
            for key, value in values.items()
            if key not in (PROCESSES, "model.flavor")
        ]
        flavor = recipes.flavor_keys(values["model.flavor"]) if "model.flavor" in values else []
        own = {
            "overrides": [*self.overrides, *flavor, *keys],
            "processes": values.get(PROCESSES, self.processes),
        }
        return Cell(name, values, self.model_copy(update={"axes": {}, **own}))

    def override(self, overrides: list[str], processes: int | None) -> None:
        """What a command line sets. A key that it sets is no axis any more."""
        self.overrides, self.processes = self.overrides + overrides, processes or self.processes
        given = {key for override in overrides for key in recipes.parse_override(override)}
        given |= {PROCESSES} if processes else set()
        self.axes = nested(
            {key: Entry(values, "") for key, values in flat(self.axes) if key not in given}
        )

    def runs(self) -> Iterator[tuple[str, int]]:
        """(recipe, seed), each once, in the order in which they run: a seed's recipes one after the
        other."""
        return (
            (recipe, seed)
            for seed in dict.fromkeys(self.seeds)
            for recipe in dict.fromkeys(self.recipes)
        )


class Cell(NamedTuple):
    """A part of a sweep: its folder within the sweep's, its value on each axis, and the study that
    it is."""

    name: str
    values: dict[str, str | int]
    study: Study


def balanced(cells: Iterable[Cell]) -> list[Cell]:
    """An order of which every beginning covers the axes evenly: each value, then each pair of
    values of two axes.

    The next cell is always the one whose values were there least often; of equal ones, the first.
    """
    left, order, seen = list(cells), [], Counter()

    def often(cell: Cell) -> tuple[int, int]:
        pairs = combinations(cell.values.items(), 2)
        return sum(seen[value] for value in cell.values.items()), sum(seen[pair] for pair in pairs)

    while left:
        cell = min(left, key=often)
        left.remove(cell)
        order.append(cell)
        seen.update(cell.values.items())
        seen.update(combinations(cell.values.items(), 2))
    return order


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
            raise InputError(
                f"{name} is a study, so it stands alone; with other names, list its recipes"
            )
        if name not in recipes.names():
            if "/" in name or os.path.exists(name):
                raise InputError(_about_path(name))
            raise InputError(
                recipes.unknown("study or recipe", name, sorted(known) + recipes.names())
            )
    names = list(dict.fromkeys(names))
    baseline = "baseline" if "baseline" in names else names[0]
    return Study(
        description=", ".join(names), recipes=names, baseline=baseline, seeds=[0], overlays=[AUTO]
    )


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
