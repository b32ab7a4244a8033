"""Read all runs of a study, also those that were planned and are missing. Rule 0: one training."""

import json
from contextlib import suppress
from dataclasses import dataclass
from itertools import combinations, product
from pathlib import Path

import yaml
from pydantic import BaseModel

from analysis.runs import Run, read_run, read_yaml
from experiments.records import run as records
from experiments.records.files import RecordError
from models.errors import InputError

# What is trained, and on what. Runs that differ in one of these answer different questions.
ONE_TRAINING = (
    "hardware.name",
    "world_size",
    "parameters",
    "seq_len",
    "data",
    "steps",
    "tokens_per_step",
)
SHARED = " beside another run"


class StudyError(InputError):
    """There is nothing to compare; the message says why."""


class StudyFile(BaseModel):
    """What a study was started with, as far as it is used here."""

    recipes: list[str] = []
    seeds: list[int] = []
    baseline: str = "baseline"
    overlays: list[str] = []
    overrides: list[str] = []


@dataclass
class Study:
    runs: list[Run]
    file: StudyFile
    problems: list[str]  # records that could not be read
    clock_start: str = "the process"  # what wall times count from

    @property
    def recipes(self) -> list[str]:
        return list(dict.fromkeys([*self.file.recipes, *(run.recipe for run in self.runs)]))

    @property
    def on_cpu(self) -> bool:
        return any(run.manifest.hardware.type == "cpu" for run in self.runs if run.completed)

    def started(self, recipe: str) -> list[Run]:
        """Choose the runs of a recipe, in the order of their seeds."""
        runs = [run for run in self.runs if run.recipe == recipe]
        return sorted(runs, key=lambda run: run.seed)

    def completed(self, recipe: str) -> list[Run]:
        return [run for run in self.started(recipe) if run.completed]


def read_study(*paths: Path) -> Study:
    """Read all runs at or below some folders. Raises `StudyError` if they cannot be compared."""
    missing = [str(path) for path in paths if not path.exists()]
    if missing:
        raise StudyError(f"{', '.join(missing)}: no such file or folder")
    runs, problems = [], []
    for folder in run_folders(paths):
        try:
            runs.append(read_run(folder))
        except RecordError as error:
            problems.append(str(error))
            runs.append(unreadable(folder))
    if not any(run.manifest for run in runs):
        raise StudyError("; ".join(problems) or f"{', '.join(map(str, paths))}: holds no run")
    file = read_study_file(paths)
    planned = [Run(recipe, str(seed)) for recipe, seed in product(file.recipes, file.seeds)]
    recorded = {run.name for run in runs}
    runs += [run for run in planned if run.name not in recorded]
    check_one_training([run for run in runs if run.completed])
    mark_shared_gpus([run for run in runs if run.manifest])
    return Study(runs, file, problems)


def run_folders(paths: tuple[Path, ...]) -> list[Path]:
    """Find the folders of runs: those with a manifest that are no earlier attempt of a run."""
    manifests = sorted(file for path in paths for file in path.rglob(records.MANIFEST))
    folders = {file.parent.resolve(): file.parent for file in manifests}
    return [folder for folder in folders.values() if not folder.name.startswith("attempt")]


def unreadable(folder: Path) -> Run:
    """Make a run of damaged records, named by its manifest or else by its place, RECIPE/seedK."""
    names = {"recipe": folder.parent.name, "seed": folder.name.removeprefix("seed")}
    with suppress(OSError, ValueError):
        names |= json.loads((folder / records.MANIFEST).read_text())
    ending = "unreadable records"
    return Run(str(names["recipe"]), str(names["seed"]), path=folder, ending=ending)


def read_study_file(paths: tuple[Path, ...]) -> StudyFile:
    """Read what a study was started with: nothing of scattered runs, which have no study.yaml or
    several. Raises `StudyError` if it is damaged."""
    files = [file for path in paths for file in path.rglob(records.STUDY_FILE)]
    if len(files) != 1:
        return StudyFile()
    try:
        return StudyFile.model_validate(read_yaml(files[0]))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise StudyError(f"{files[0]}: is not what a study writes") from error


def check_one_training(runs: list[Run]) -> None:
    """Raise `StudyError` where runs differ in what is trained or in a step's learning rate, or
    where a run is there twice."""
    found = {}
    for run in runs:
        facts = {key: run.facts.get(key) for key in ONE_TRAINING}
        for step, rate in run.steps["lr"].dropna().items():
            facts[f"the learning rate of step {step}"] = f"{rate:.4g}"
        facts[f"the folder of {run.name}"] = run.path
        for key, value in facts.items():
            other, name = found.setdefault(key, (value, run.name))
            if value != other and None not in (value, other):
                raise StudyError(
                    f"these are not the runs of one training, each once: {key} is {other} in "
                    f"{name} and {value} in {run.name}"
                )


def mark_shared_gpus(runs: list[Run]) -> None:
    """Note in the place of a run that another run was on its GPU at the same time."""
    on_gpu = [run for run in runs if run.manifest.hardware.type == "cuda"]
    shared = set()
    for a, b in combinations(on_gpu, 2):
        (_, a_ended), (b_began, _) = sorted([when(a), when(b)])
        if a.place == b.place and b_began < a_ended:
            shared |= {a, b}
    for run in shared:
        run.place += SHARED


def when(run: Run) -> tuple[float, float]:
    """When the last process began and ended; a killed one when it last logged."""
    began, ended = run.manifest.start.timestamp(), run.manifest.end
    return began, ended.timestamp() if ended else began + run.steps["elapsed"].max()
