"""Studies: what is compared, with what, and at which scale; a file of `recipes/studies/`, or some
recipes.

A study with `axes` is a sweep: it has a cell for each combination of their values, and each cell is
a study.
"""

from collections import Counter
from dataclasses import dataclass, field
from itertools import combinations, product
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator
from typing_extensions import TypedDict

from experiments.config import recipes
from experiments.config.yaml_with_origins import flat, mistakes, read_file, read_override
from experiments.records.run import STUDY_FILE, Fit, Seed
from models.errors import InputError

DEFAULT = "four_way"
AUTO = "auto"  # among the overlays: what this machine can hold
PROCESSES = "processes"
FOLDERS = {
    "model.flavor": "",
    "training.seq_len": "seq",
    "training.local_batch_size": "batch",
    PROCESSES: "processes",
}
"""What may be an axis, and what stands before its value in the name of a cell's folder."""

STRICT = ConfigDict(extra="forbid", strict=True)
Counts = Annotated[list[Annotated[int, Field(ge=1)]], Field(min_length=1)]
Axes = TypedDict("Axes", dict.fromkeys(FOLDERS, Counts) | {"model.flavor": list[str]}, total=False)
Axes.__pydantic_config__ = STRICT


class Study(BaseModel):
    """A study's YAML."""

    model_config = STRICT

    description: str
    recipes: list[str] = Field(min_length=1)
    baseline: str
    seeds: list[Seed] = Field(min_length=1)
    overlays: list[str]
    overrides: list[str] = []
    axes: Axes = {}  # values of keys, and of `processes`

    @field_validator("axes", mode="before")
    @classmethod
    def _flat(cls, axes: dict) -> dict:
        return dict(flat(axes)) if isinstance(axes, dict) else axes

    def cells(self) -> "list[Cell]":
        """List the cells in the order of the axes' values; a study without axes is its only
        cell."""
        combined = product(*(dict.fromkeys(values) for values in self.axes.values()))
        return [self._cell(dict(zip(self.axes, values, strict=True))) for values in combined]

    def _cell(self, values: dict) -> "Cell":
        folder = "_".join(f"{FOLDERS[key]}{value}" for key, value in values.items())
        overrides = [*self.overrides]
        for key, value in values.items():
            if key == PROCESSES:
                overrides.append(f"sharded.processes={value}")
            else:
                overrides.append(f"{key}={value}")
        own = {"axes": {}, "overrides": overrides}
        return Cell(folder, values, self.model_copy(update=own))

    def override(self, overrides: list[str]) -> None:
        """Take what a command line sets. A key that it sets is no axis any more."""
        given = []
        for override in overrides:
            given += read_override(override).origins
        if "sharded.processes" in given:
            given.append(PROCESSES)
        self.overrides = self.overrides + overrides
        self.axes = {key: values for key, values in self.axes.items() if key not in given}

    def runs(self) -> list[tuple[str, int]]:
        """List (recipe, seed), each once, in the order in which they run.

        A seed's recipes come one after the other. Each seed begins with another recipe, or a recipe
        could keep to one of several GPUs.
        """
        names, runs = list(dict.fromkeys(self.recipes)), []
        for place, seed in enumerate(dict.fromkeys(self.seeds)):
            first = place % len(names)
            runs += [(name, seed) for name in names[first:] + names[:first]]
        return runs


@dataclass
class Cell:
    """A part of a sweep, or a whole study as its only part."""

    name: str  # of its folder; empty for a whole study
    values: dict[str, str | int]  # on each axis
    study: Study
    plans: dict = field(default_factory=dict)  # {recipe: Plan}
    fit: Fit | None = None  # whether this machine holds a sweep's cell

    @property
    def checkpoint_bytes(self) -> float:
        """Size of its largest checkpoint; 0 if no recipe writes any."""
        return max(planned.checkpoint_bytes for planned in self.plans.values())


def can_run(cells: list[Cell]) -> list[Cell]:
    """Order the cells that can run so that every beginning covers the axes evenly: each value, then
    each pair of values of two axes.

    The next cell is always the one whose values were there least often; of equal ones, the first.
    """
    left = [cell for cell in cells if not (cell.fit and cell.fit.obstacle)]
    order, seen = [], Counter()

    def often(cell: Cell) -> list[int]:
        values = cell.values.items()
        return [sum(seen[group] for group in combinations(values, size)) for size in (1, 2)]

    while left:
        cell = min(left, key=often)
        left.remove(cell)
        order.append(cell)
        for size in (1, 2):
            seen.update(combinations(cell.values.items(), size))
    return order


# ---- studies from files ----


def load(names: list[str]) -> Study:
    """Read the study of this name, or make a study of these recipes.

    Raises `InputError` with file and line, or with the nearest names.
    """
    known = recipes.studies()
    if len(names) == 1 and names[0] in known:
        return read(known[names[0]])
    for name in names:
        if name in known:
            raise InputError(f"{name} is a study, so it stands alone: list its recipes instead")
        if name not in recipes.names():
            kind = f"study, recipe, or folder with a {STUDY_FILE}"
            near = [*known, *recipes.names()]
            raise InputError(recipes.unknown(kind, name, near, recipes.LISTED))
    names = list(dict.fromkeys(names))
    baseline = "baseline" if "baseline" in names else names[0]
    return Study(
        description=", ".join(names), recipes=names, baseline=baseline, seeds=[0], overlays=[AUTO]
    )


def read(path: Path) -> Study:
    """Read one file. Raises `InputError` with file and line."""
    keys, origins = read_file(path)
    try:
        study = Study.model_validate(keys)
    except ValidationError as error:
        known = [*Study.model_fields, *(f"axes.{axis}" for axis in FOLDERS)]
        raise mistakes(error, origins, known, {}) from error
    known = recipes.names()
    for name in study.recipes:
        if name not in known:  # also a path: each recipe has a folder of its name
            sentence = recipes.unknown("recipe", name, known, recipes.LISTED)
            raise InputError(f"{origins['recipes']}: recipes: {sentence}")
    if study.baseline not in study.recipes:
        raise InputError(
            f"{origins['baseline']}: baseline: {study.baseline} is not one of the study's "
            f"recipes: {', '.join(study.recipes)}"
        )
    return study
