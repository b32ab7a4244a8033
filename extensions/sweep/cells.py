"""The cells of a sweep: a study for each combination of the values of some keys."""

from collections import Counter
from itertools import combinations, product
from pathlib import Path
from typing import Annotated, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from experiments.config import recipes
from experiments.config.recipes import files
from experiments.config.yaml_with_origins import flat, mistakes, read_file, read_override
from experiments.records.run import Record, Seed
from models.errors import InputError

HERE = Path(__file__).resolve().parent
FILE, CELLS = "sweep.yaml", "cells.json"
Values = Annotated[list[int | str], Field(min_length=1)]


class Cell(NamedTuple):
    """One value of each axis."""

    name: str  # of its folder
    values: dict[str, int | str]

    @property
    def overrides(self) -> list[str]:
        return [f"{key}={value}" for key, value in self.values.items()]


class Fit(Record):
    """The memory in bytes that a cell needs and has, and why it cannot run."""

    needed: float
    available: float
    obstacle: str | None = None


class Fits(Record):
    """cells.json: the cells by name."""

    cells: dict[str, Fit]


class Sweep(BaseModel):
    """sweep.yaml: a study's keys, and `axes`: the values of some keys of its recipes."""

    model_config = ConfigDict(extra="forbid", strict=True)

    description: str
    recipes: list[str] = Field(min_length=1)
    seeds: list[Seed] = Field(min_length=1)
    overlays: list[str] = []
    overrides: list[str] = []
    axes: dict[str, Values] = Field(min_length=1)

    @field_validator("axes", mode="before")
    @classmethod
    def _flat(cls, axes: dict) -> dict:
        return dict(flat(axes)) if isinstance(axes, dict) else axes

    def cells(self) -> list[Cell]:
        """List the cells in the order of the axes' values."""
        cells = []
        for values in product(*(dict.fromkeys(axis) for axis in self.axes.values())):
            cell = dict(zip(self.axes, values, strict=True))
            cells.append(Cell("_".join(f"{last(key)}-{cell[key]}" for key in cell), cell))
        return cells

    def override(self, overrides: list[str]) -> None:
        """Take what a command line sets. A key that it sets is no axis any more.

        Raises `InputError` if none is left.
        """
        given = [key for override in overrides for key in read_override(override).origins]
        self.overrides = self.overrides + overrides
        self.axes = {key: values for key, values in self.axes.items() if key not in given}
        if not self.axes:
            raise InputError("no axis is left: leave one out of the command line, or run a study")


def last(key: str) -> str:
    """Return the last word of a key.path."""
    return key.rpartition(".")[2]


def in_order(cells: list[Cell]) -> list[Cell]:
    """Order cells so that every beginning covers the axes evenly.

    The next cell is the one whose values, and then whose pairs of values, were there least often.
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


def load(name: str) -> Sweep:
    """Read the sweep of a name, or of an unfinished sweep's folder. Raises `InputError`."""
    known = files(HERE / "sweeps")
    path = Path(name) / FILE
    if name in known:
        path = known[name]
    elif not path.exists():
        raise InputError(recipes.unknown(f"sweep or folder with a {FILE}", name, known))
    keys, origins = read_file(path)
    try:
        return Sweep.model_validate(keys)
    except ValidationError as error:
        raise mistakes(error, origins, list(Sweep.model_fields), {}) from error
