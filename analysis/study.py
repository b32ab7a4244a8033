"""Read all runs of a study, and note missing planned runs. Rule 0: one training."""

from collections import defaultdict
from dataclasses import dataclass
from itertools import permutations, product
from pathlib import Path

from analysis.runs import Run, read_run, read_yaml
from experiments.records.run import MANIFEST, STUDY_FILE, RecordError, StudyFile
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
    "checkpoint.initial_load_path",
)


class StudyError(InputError):
    """There is nothing to compare; the message says why."""


@dataclass
class Study:
    runs: list[Run]  # by recipe, in the order of the study, and by seed
    file: StudyFile
    problems: list[str]  # records that could not be read
    clock_start: str = "the process"  # what wall times count from

    @property
    def recipes(self) -> list[str]:
        return list(dict.fromkeys(run.recipe for run in self.runs))

    @property
    def on_cpu(self) -> bool:
        return any(run.manifest.hardware.type == "cpu" for run in self.runs if run.completed)

    def started(self, recipe: str) -> list[Run]:
        return [run for run in self.runs if run.recipe == recipe]

    @property
    def completed(self) -> dict[str, list[Run]]:
        """The completed runs of each recipe; a recipe without one has an empty list."""
        runs = defaultdict(list)
        for run in self.runs:
            if run.completed:
                runs[run.recipe].append(run)
        return runs


def read_study(*paths: Path) -> Study:
    """Read all runs at or below some folders. Raises `StudyError` if they cannot be compared."""
    folders = set()
    files = set()
    for path in paths:
        folders |= {manifest.parent for manifest in path.rglob(MANIFEST)}
        files |= set(path.rglob(STUDY_FILE))
    runs = []
    problems = []
    for path in sorted(folders):
        if (path.parent / MANIFEST).exists():
            continue  # an earlier attempt, which belongs to the run above it
        try:
            runs.append(read_run(path))
        except RecordError as error:
            problems.append(str(error))
            seed = path.name.removeprefix("seed")
            runs.append(Run(path.parent.name, seed, path=path, ending="unreadable records"))
    if not any(run.manifest for run in runs):
        raise StudyError("; ".join(problems) or f"{', '.join(map(str, paths))}: holds no run")
    # Scattered runs have no study.yaml, or several.
    file = read_study_file(*files) if len(files) == 1 else StudyFile()
    recorded = {run.name for run in runs}
    for recipe, seed in product(file.recipes, file.seeds):
        if f"{recipe}/seed{seed}" not in recorded:
            runs.append(Run(recipe, str(seed)))
    order = [*file.recipes, *(run.recipe for run in runs)]
    runs.sort(key=lambda run: (order.index(run.recipe), len(run.seed), run.seed))
    check_one_training([run for run in runs if run.completed])
    mark_shared_gpus(runs)
    return Study(runs, file, problems)


def read_study_file(path: Path) -> StudyFile:
    """Read what a study was started with. Raises `StudyError` if it is damaged."""
    try:
        return StudyFile.model_validate(read_yaml(path))
    except ValueError as error:
        raise StudyError(f"{path}: is not what a study writes") from error


def check_one_training(runs: list[Run]) -> None:
    """Raise `StudyError` if runs differ in what is trained or in the learning rate of a step, or if
    a run is there twice."""
    found = {}
    for run in runs:
        facts = {key: run.facts.get(key) for key in ONE_TRAINING}
        rates = run.steps["lr"].dropna().map("{:.4g}".format)
        facts |= rates.rename("the learning rate of step {}".format).to_dict()
        facts[f"the folder of {run.name}"] = run.path
        for key, value in facts.items():
            first, path = found.setdefault(key, (value, run.path))
            if value != first:
                raise StudyError(
                    f"these are not the runs of one training, each once: {key} is {first} in "
                    f"{path} and {value} in {run.path}; give the folder of one study"
                )


def mark_shared_gpus(runs: list[Run]) -> None:
    """Mark the places of runs with another run on their GPU at the same time."""
    shared = set()
    for run, other in permutations(runs, 2):
        kept = [run.spans[process] for process in run.steps["process"].unique()]
        for (start, end), (other_start, other_end) in product(kept, other.spans):
            if run.place == other.place and max(start, other_start) < min(end, other_end):
                shared.add(run)
    for run in shared:
        run.place += " beside another run"
