"""Read all runs of a study, also those that were planned and are missing. Rule 0: one training."""

import json
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from itertools import combinations, product
from pathlib import Path

import pandas as pd
import yaml
from pydantic import BaseModel

from analysis.runs import Run, read_run
from experiments.records import run as records
from experiments.records.files import RecordError

# What is trained, and on what. Runs that differ in one of these answer different questions.
ONE_TRAINING = ("hardware.name", "world_size", "parameters", "seq_len", "data", "steps",
                "tokens_per_step")  # fmt: skip
SAME_RATE = 1.001  # learning rates this near are one, rounded in text
SHARED = " beside another run"


class StudyError(ValueError):
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

    def started(self, recipe: str) -> list[Run]:
        return [run for run in self.runs if run.recipe == recipe]

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
    files = [file for path in paths for file in path.rglob(records.STUDY_FILE)]
    file = read_study_file(files[0]) if len(files) == 1 else StudyFile()
    return make_study(runs, file, problems)


def make_study(runs: list[Run], file: StudyFile, problems: list[str]) -> Study:
    """Make a study of runs. Raises `StudyError` if they cannot be compared."""
    recorded = {(run.recipe, run.seed) for run in runs}
    for recipe, seed in product(file.recipes, file.seeds):
        if (recipe, str(seed)) not in recorded:
            runs.append(Run(recipe, str(seed)))
    completed = [run for run in runs if run.completed]
    check_each_once(completed)
    check_one_training(completed)
    mark_shared_gpus([run for run in runs if run.manifest])
    return Study(runs, file, problems)


def run_folders(paths: Iterable[Path]) -> list[Path]:
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


def read_study_file(path: Path) -> StudyFile:
    """Read a study.yaml. Raises `StudyError` if it is damaged."""
    try:
        return StudyFile.model_validate(yaml.safe_load(path.read_text()))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise StudyError(f"{path}: is not what a study writes") from error


def check_each_once(runs: list[Run]) -> None:
    """Raise `StudyError` where two runs have the same recipe and seed."""
    names = {}
    for run in runs:
        if run.name in names:
            raise StudyError(
                f"{names[run.name]} and {run.path} are both {run.name}: name the runs of one "
                "study, each once"
            )
        names[run.name] = run.path


def check_one_training(runs: list[Run]) -> None:
    """Raise `StudyError` where runs differ in what is trained, or in a step's learning rate."""
    for key in ONE_TRAINING:
        values = {run.facts[key]: run.name for run in runs if run.facts.get(key) is not None}
        if len(values) > 1:
            found = " and ".join(f"{value} in {name}" for value, name in values.items())
            raise StudyError(f"these runs are not one training: {key} is {found}")
    rates = pd.DataFrame({run.name: run.steps["lr"] for run in runs})
    apart = rates.index[rates.max(axis=1) > SAME_RATE * rates.min(axis=1)]
    if len(apart):
        first = rates.loc[apart[0]]
        raise StudyError(f"these runs are not one training: the learning rate of step {apart[0]} "
                         f"is {first.min():g} in {first.idxmin()} and {first.max():g} in "
                         f"{first.idxmax()}")  # fmt: skip


def mark_shared_gpus(runs: list[Run]) -> None:
    """Note in the place of a run that another run was on its GPU at the same time."""
    shared = set()
    for a, b in combinations(runs, 2):
        together = max(begin(a), begin(b)) < min(end(a), end(b))
        if together and a.place == b.place and a.manifest.hardware.type == "cuda":
            shared |= {a, b}
    for run in shared:
        run.place += SHARED


def begin(run: Run) -> float:
    return run.manifest.start.timestamp()


def end(run: Run) -> float:
    """When the last process ended; when it last logged, if it was killed."""
    last = run.manifest.end
    return last.timestamp() if last else begin(run) + run.steps["elapsed"].max()
