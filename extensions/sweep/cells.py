"""The cells of a sweep: a study for each combination of the values of some keys."""

from itertools import product
from pathlib import Path

from pydantic import field_validator

from experiments.config.yaml_with_origins import (
    find_by_name,
    flatten_sections,
    read_override,
    yaml_files,
)
from experiments.study import StudyPlan, read_study_plan

FOLDER = Path(__file__).resolve().parent
FILE = "sweep.yaml"
PROCESSES = "sharded.processes"
GOLDEN_RATIO = 0.618  # multiples of it, taken modulo 1, fill an interval evenly from the start


class Sweep(StudyPlan):
    """sweep.yaml: a study, and `axes`: the values of some keys of its recipes."""

    size: None = None  # each cell would choose another one
    axes: dict[str, list[int | str]]

    @field_validator("axes", mode="before")
    @classmethod
    def _flat(cls, axes: dict) -> dict:
        return flatten_sections(axes) if isinstance(axes, dict) else axes

    def override(self, overrides: list[str]) -> None:
        """Take the keys of a command line. A key that it sets is not an axis any more."""
        self.overrides = self.overrides + overrides
        for override in overrides:
            for key in read_override(override):
                self.axes.pop(key, None)

    def cells(self) -> list[dict[str, int | str]]:
        """List each cell's value of each axis, in the order of the axes' values."""
        combinations = product(*self.axes.values())
        return [dict(zip(self.axes, values, strict=True)) for values in combinations]

    def folder(self, cell: dict[str, int | str]) -> str:
        """Name the folder of a cell."""
        return "_".join(f"{key.rpartition('.')[2]}-{cell[key]}" for key in self.axes)

    def studies(self) -> dict[str, StudyPlan]:
        """Make the study of each cell, by its folder, in a space-filling order: a sweep that is
        stopped early has covered every axis."""
        cells = self.cells()
        order = sorted(range(len(cells)), key=lambda number: number * GOLDEN_RATIO % 1)
        studies = {}
        for number in order:
            cell = cells[number]
            cell_overrides = [f"{key}={value}" for key, value in cell.items()]
            fields = self.model_dump(exclude={"axes"})
            fields["overrides"] = self.overrides + cell_overrides
            studies[self.folder(cell)] = StudyPlan(**fields)
        return studies


def load_sweep(name: str) -> Sweep:
    """Read the sweep of a name, or of a started sweep's folder. Raises `InputError`."""
    path = Path(name) / FILE
    if not path.exists():
        path = find_by_name(f"sweep or folder with a {FILE}", name, yaml_files(FOLDER / "sweeps"))
    return read_study_plan(path, Sweep)
