"""Studies: what is compared, with what, and at which size; a file of `recipes/studies/`, or some
recipes."""

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from experiments.config import recipes
from experiments.config.yaml_with_origins import nested, read_file, validated
from experiments.records.run import STUDY_FILE, Seed

DEFAULT = "four_way"
AUTO = "auto"  # in place of overlays: what this machine can hold


class Study(BaseModel):
    """A study's YAML."""

    model_config = ConfigDict(extra="forbid", strict=True)

    description: str
    recipes: list[str] = Field(min_length=1)
    baseline: str
    seeds: list[Seed] = Field(min_length=1)
    overlays: list[str]
    overrides: list[str] = []

    def runs(self) -> list[tuple[str, int]]:
        """List (recipe, seed), each once, in the order in which they run.

        A seed's recipes come one after the other. Each seed begins with another recipe, or a recipe
        could keep to one of several GPUs.
        """
        names, runs = list(dict.fromkeys(self.recipes)), []
        for seed in dict.fromkeys(self.seeds):
            runs += [(name, seed) for name in names]
            names = names[1:] + names[:1]
        return runs


def load(names: list[str]) -> Study:
    """Read the study of this name, or make a study of these recipes.

    Raises `InputError` with file and line, or with the nearest names.
    """
    known, there = recipes.files(recipes.RECIPES), recipes.files(recipes.STUDIES)
    if len(names) > 1:
        there = {}  # a study stands alone
    if names[0] in there:
        return read(there[names[0]])
    for name in names:
        kind = f"recipe, and neither one study nor a folder with a {STUDY_FILE}"
        recipes.find(kind, name, there | known)
    return Study(
        description=", ".join(names),
        recipes=names,
        baseline="baseline" if "baseline" in names else names[0],
        seeds=[0],
        overlays=[AUTO],
    )


def read(path: Path, kind: type[Study] = Study) -> Study:
    """Read one file as a study of a `kind`. Raises `InputError` with file and line."""
    keys = read_file(path)
    study = validated(kind.model_validate, nested(keys), keys, kind.model_fields)
    known = recipes.files(recipes.RECIPES)
    for name in study.recipes:  # no paths: each recipe has a folder of its name
        recipes.find("recipe", name, known, f"{keys['recipes'].origin}: recipes: ")
    its_own, origin = dict.fromkeys(study.recipes), f"{keys['baseline'].origin}: baseline: "
    recipes.find("recipe of this study", study.baseline, its_own, origin)
    return study
