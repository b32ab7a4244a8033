"""The cells of a sweep: a study for each combination of the values of some keys."""

from itertools import product
from math import gcd
from pathlib import Path
from typing import Annotated

from pydantic import Field, field_validator

from experiments.config import recipes, studies
from experiments.config.yaml_with_origins import flat, read_override

HERE = Path(__file__).resolve().parent
FILE = "sweep.yaml"
OBSTACLE = "does_not_fit.txt"  # in a cell's folder: what the cell needs of what there is
Values = dict[str, int | str]  # of a cell, by axis


class Sweep(studies.Study):
    """sweep.yaml: a study, and `axes`: the values of some keys of its recipes."""

    axes: dict[str, Annotated[list[int | str], Field(min_length=1)]]

    @field_validator("axes", mode="before")
    @classmethod
    def _flat(cls, axes: dict) -> dict:
        return flat(axes) if isinstance(axes, dict) else axes

    def override(self, overrides: list[str]) -> None:
        """Take what a command line sets. A key that it sets is no axis any more."""
        given = [key for override in overrides for key in read_override(override)]
        self.overrides = self.overrides + overrides
        self.axes = {key: values for key, values in self.axes.items() if key not in given}

    def cells(self) -> dict[str, Values]:
        """List the values of each cell, in the order of the axes, by the name of its folder."""
        combinations = product(*self.axes.values())
        cells = [dict(zip(self.axes, values, strict=True)) for values in combinations]
        return {self.name(values): values for values in cells}

    def name(self, values: Values) -> str:
        """Name a cell."""
        return "_".join(f"{last(key)}-{values[key]}" for key in self.axes)

    def studies(self) -> dict[str, studies.Study]:
        """Make the study of each cell.

        They are in a space-filling order, by steps of the golden section, so that a sweep that is
        stopped early has covered every axis.
        """
        cells, made = [*self.cells().items()], {}
        step = round(0.618 * len(cells))
        while gcd(step, len(cells)) > 1:
            step += 1
        for place in range(len(cells)):
            name, values = cells[place * step % len(cells)]
            overrides = [f"{key}={value}" for key, value in values.items()]
            keys = self.model_dump(exclude={"axes"})
            made[name] = studies.Study(**keys | {"overrides": self.overrides + overrides})
        return made


def last(key: str) -> str:
    """Return the last word of a key.path."""
    return key.rpartition(".")[2]


def load(name: str) -> Sweep:
    """Read the sweep of a name, or of a started sweep's folder. Raises `InputError`."""
    known = recipes.files(HERE / "sweeps")
    path = Path(name) / FILE
    if not path.exists():
        path = recipes.find(f"sweep or folder with a {FILE}", name, known)
    return studies.read(path, Sweep)
