"""Studies: what is compared, with what, and at which scale; a file of `recipes/studies/`, or some recipes."""

from collections.abc import Iterator
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from experiments.config import recipes
from experiments.config.yaml_source import find, parse, plain
from models.errors import InputError

STUDIES = recipes.RECIPES / "studies"
DEFAULT = "four_way"
AUTO = "auto"  # among the overlays: what this machine can hold
PLAN = "study.yaml"  # in the study's directory: what it was started with, auto resolved


class Study(BaseModel):
    """A study's YAML: what is compared, with what, at which scale."""

    model_config = ConfigDict(extra="forbid", strict=True)

    description: str
    recipes: list[str]
    baseline: str
    seeds: list[int] = Field(min_length=1)
    overlays: list[str]
    overrides: list[str] = []

    def runs(self) -> Iterator[tuple[str, int]]:
        """(recipe, seed) in the order in which they run: a seed's recipes one after the other."""
        return ((recipe, seed) for seed in self.seeds for recipe in self.recipes)


def load(names: list[str]) -> Study:
    """The study of this name, the plan of this directory, or one of these recipes.

    Raises `InputError` with file and line, or with the nearest names.
    """
    known = {path.stem: path for path in STUDIES.glob("*.yaml")}
    if len(names) == 1 and (Path(names[0]) / PLAN).exists():
        return read(Path(names[0]) / PLAN)
    if len(names) == 1 and names[0] in known:
        return read(known[names[0]])
    for name in names:
        if name in known:
            raise InputError(f"{name} is a study, so it stands alone; with other names, list its recipes")
        if name not in recipes.names():
            if "/" in name or Path(name).exists():
                raise InputError(_about_path(Path(name)))
            raise InputError(recipes.unknown("study or recipe", name, sorted(known) + recipes.names()))
    names = list(dict.fromkeys(names))
    baseline = "baseline" if "baseline" in names else names[0]
    return Study(description=", ".join(names), recipes=names, baseline=baseline, seeds=[0], overlays=[AUTO])


def _about_path(path: Path) -> str:
    """Why a path does not name a study."""
    if path.is_dir():
        return f"{path} holds no {PLAN}, so it is no study to go on with; its runs: python -m analysis.report {path}"
    if path.exists():
        return f"{path}: a study takes recipes by name: put the file into {recipes.RECIPES.name}/"
    return f"{path} does not exist: give a study's directory, or names of studies or recipes"


def read(path: Path) -> Study:
    """One file. Raises `InputError` with file and line."""
    problems: list[str] = []
    tree = parse(path.read_bytes(), lambda line: f"{path}:{line}", problems)
    try:
        if tree:
            return Study.model_validate(plain(tree))
    except ValidationError as error:
        for fault in error.errors():
            place = find(tree, fault["loc"][:1]) or tree
            problems.append(f"{place.origin}: {'.'.join(map(str, fault['loc']))}: {fault['msg']}")
    raise InputError("\n".join(problems))
