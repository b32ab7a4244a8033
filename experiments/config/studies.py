"""Studies: what is compared, with what, and at which scale; a file of `recipes/studies/`, or some
recipes.

A study with `axes` is a sweep: it has a cell for each combination of their values, and each cell is
a study.
"""

from collections import Counter
from collections.abc import Iterable
from itertools import combinations, product
from pathlib import Path
from typing import Annotated, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator
from typing_extensions import TypedDict

from experiments.config import recipes, yaml_source
from experiments.records.study import STUDY_FILE
from models.errors import InputError

STUDIES = recipes.RECIPES / "studies"
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
    seeds: list[Annotated[int, Field(ge=0)]] = Field(min_length=1)
    overlays: list[str]
    overrides: list[str] = []
    processes: int = Field(1, ge=1)  # of each run: one a GPU, which FSDP2 shards the model over
    axes: Axes = {}  # values of keys, and of `processes`

    @field_validator("axes", mode="before")
    @classmethod
    def _flat(cls, axes: dict) -> dict:
        return dict(yaml_source.flat(axes)) if isinstance(axes, dict) else axes

    def cells(self) -> "list[Cell]":
        """All of them, in the order of the axes' values; a study without axes is its only cell."""
        combined = product(*(dict.fromkeys(values) for values in self.axes.values()))
        return [self._cell(dict(zip(self.axes, values, strict=True))) for values in combined]

    def _cell(self, values: dict) -> "Cell":
        folder = "_".join(f"{FOLDERS[key]}{value}" for key, value in values.items())
        overrides = [*self.overrides]
        for key, value in values.items():
            if key == "model.flavor":
                overrides += recipes.flavor_keys(value)
            elif key != PROCESSES:
                overrides.append(f"{key}={value}")
        own = {
            "axes": {},
            "overrides": overrides,
            "processes": values.get(PROCESSES, self.processes),
        }
        return Cell(folder, values, self.model_copy(update=own))

    def override(self, overrides: list[str], processes: int | None) -> None:
        """Take what a command line sets. A key that it sets is no axis any more."""
        given = [PROCESSES] if processes else []
        for override in overrides:
            given += recipes.parse_override(override)
        self.overrides = self.overrides + overrides
        self.processes = processes or self.processes
        self.axes = {key: values for key, values in self.axes.items() if key not in given}

    def runs(self) -> list[tuple[str, int]]:
        """(recipe, seed), each once, in the order in which they run: a seed's recipes one after the
        other."""
        pairs = product(dict.fromkeys(self.seeds), dict.fromkeys(self.recipes))
        return [(recipe, seed) for seed, recipe in pairs]


class Cell(NamedTuple):
    """A part of a sweep: its folder within the sweep's, its value on each axis, and the study that
    it is."""

    name: str
    values: dict[str, str | int]
    study: Study


def balanced(cells: Iterable[Cell]) -> list[Cell]:
    """Order cells so that every beginning covers the axes evenly: each value, then each pair of
    values of two axes.

    The next cell is always the one whose values were there least often; of equal ones, the first.
    """
    left, order, seen = list(cells), [], Counter()

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


def load(names: list[str]) -> Study:
    """Read the study of this name or the plan of this directory, or make a study of these recipes.

    Raises `InputError` with file and line, or with the nearest names.
    """
    known = recipes.files(STUDIES)
    if len(names) == 1:
        plan = known.get(names[0], Path(names[0]) / STUDY_FILE)
        if plan.exists():
            return read(plan)
    for name in names:
        if name in known:
            raise InputError(f"{name} is a study, so it stands alone: list its recipes instead")
        if name not in recipes.names():
            kind = f"study (by name, or by a directory with its {STUDY_FILE}) or recipe"
            raise InputError(recipes.unknown(kind, name, [*known, *recipes.names()]))
    names = list(dict.fromkeys(names))
    baseline = "baseline" if "baseline" in names else names[0]
    return Study(
        description=", ".join(names), recipes=names, baseline=baseline, seeds=[0], overlays=[AUTO]
    )


def read(path: Path) -> Study:
    """Read one file. Raises `InputError` with file and line."""
    entries = yaml_source.read(path)
    keys = yaml_source.nested(entries)
    del keys[""]
    try:
        return Study.model_validate(keys)
    except ValidationError as error:
        known = [*Study.model_fields, *(f"axes.{axis}" for axis in FOLDERS)]
        lines = yaml_source.mistakes(error, entries, known, {})
        raise InputError("\n".join(lines)) from error
