"""Read all runs of a study, also the missing planned runs. Rule 0: the runs are one training.

A copy of a run, and a run of another training, are left out by name.
"""

import math
import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import permutations, product
from pathlib import Path

from analysis.runs import (
    MIN_SEEDS,
    UNREADABLE,
    Run,
    join_records,
    read_packed_runs,
    read_run,
    read_yaml,
)
from experiments.records.run import (
    MANIFEST_OF_LAYOUT_4,
    PACKED_RUNS,
    RUN_RECORD,
    STUDY_FILE,
    RecordError,
    StudyFile,
)
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
OTHER_TRAINING = "of another training"  # the ending of a run
LOADED_PACKAGES = ("torch", "nvidia-", "triton", "pytorch-triton")  # what their names begin with
LINK_DEPTH = 3  # folders below a link that are looked at: STUDY/RECIPE/SEED


class StudyError(InputError):
    """There is nothing to compare; the message says why."""


@dataclass
class Study:
    """The runs of a study.

    Args:
        runs: by recipe, in the order of the study, and by seed.
        file: what the study was started with.
        problems: sentences on records that could not be read, and on runs that were left out.
        clock_start: what wall times count from.
    """

    runs: list[Run]
    file: StudyFile
    problems: list[str]
    clock_start: str = "the process"
    recipes: list[str] = field(init=False)
    runs_by_recipe: dict[str, list[Run]] = field(init=False)
    completed_by_recipe: dict[str, list[Run]] = field(init=False)
    on_cpu: bool = field(init=False)

    def __post_init__(self) -> None:
        """Sort the runs by recipe: all of them, and the completed ones where there are some."""
        self.runs_by_recipe = {}
        self.completed_by_recipe = {}
        self.on_cpu = False
        for run in self.runs:
            self.runs_by_recipe.setdefault(run.recipe, []).append(run)
            if run.completed:
                self.completed_by_recipe.setdefault(run.recipe, []).append(run)
                self.on_cpu |= run.record.last_attempt.hardware.type == "cpu"
        self.recipes = [*self.runs_by_recipe]


# ---- reading ----


def read_study(*paths: Path) -> Study:
    """Read all runs at or below some folders. Raises `StudyError` if they cannot be compared."""
    for path in paths:
        if not path.exists():
            raise StudyError(f"{path}: is not there")
    folders = sorted(find_folders(paths))
    file = find_study_file(folders, paths)
    planned = {(recipe, str(seed)) for recipe, seed in product(file.recipes, file.seeds)}
    runs, problems = read_runs(folders, planned)
    if not any(run.record for run in runs):
        raise StudyError("; ".join(problems) or f"{', '.join(map(str, paths))}: holds no run")
    runs, copies = leave_out_copies(runs)
    add_packages(runs)
    find_machines_and_gpus([run for run in runs if run.record])
    mark_shared_gpus(runs)
    runs, odd_runs = leave_out_other_trainings(runs, file)
    runs, second_runs = leave_out_second_runs(runs)
    recorded = {(run.recipe, run.seed) for run in runs}
    runs += [Run(recipe, seed) for recipe, seed in planned - recorded]
    order = [*file.recipes, *(run.recipe for run in runs)]
    runs.sort(key=lambda run: (order.index(run.recipe), len(run.seed), run.seed))
    return Study(runs, file, problems + copies + odd_runs + second_runs)


def find_study_file(folders: list[Path], paths: tuple[Path, ...]) -> StudyFile:
    """Read the study.yaml of some folders: that of a given path, because a folder within a study
    may hold another study. Scattered runs have none, or several: then nothing is planned."""
    studies = [folder for folder in folders if (folder / STUDY_FILE).exists()]
    resolved_paths = {path.resolve() for path in paths}
    studies = [folder for folder in studies if folder.resolve() in resolved_paths] or studies
    if len(studies) == 1:
        return read_study_file(studies[0] / STUDY_FILE)
    return StudyFile()


def find_folders(tops: Iterable[Path]) -> list[Path]:
    """List all folders at or below some folders, each once, also behind links."""
    folders: dict[Path, Path] = {}  # by their real paths
    queue = [(top, math.inf) for top in tops]
    while queue:
        top, depth = queue.pop(0)
        for name, subfolders, _ in os.walk(top):
            folder = Path(name)
            if folder.resolve() in folders:
                subfolders.clear()
                continue
            folders[folder.resolve()] = folder
            if len(folder.relative_to(top).parts) >= depth:
                subfolders.clear()
            for subfolder in sorted(subfolders):
                if is_followed(folder / subfolder):
                    queue.append((folder / subfolder, LINK_DEPTH))
    return [*folders.values()]


def is_followed(path: Path) -> bool:
    """Tell if a folder is a link that may be followed.

    A link in a folder that somebody else sent must not lead out of what is theirs: a link is
    followed if this user made it, or if it leads to a folder of whoever made it. A link to a folder
    above it leads to other studies.
    """
    if not path.is_symlink():
        return False
    target = path.resolve()
    if path.parent.resolve().is_relative_to(target):
        return False
    return path.lstat().st_uid in (os.geteuid(), target.stat().st_uid)


def read_runs(folders: list[Path], planned: set[tuple[str, str]]) -> tuple[list[Run], list[str]]:
    """Read the runs in some folders. Returns them, and a sentence on each unreadable one.

    An unreadable run is a run without records. A damaged copy, whose folder is not that of a
    planned run, does not count as a run.
    """
    runs = []
    problems = []
    for path in folders:
        is_run = (path / RUN_RECORD).exists() or (path / MANIFEST_OF_LAYOUT_4).exists()
        # In layout 4 an earlier attempt has a folder below its run's.
        is_run = is_run and not (path.parent / MANIFEST_OF_LAYOUT_4).exists()
        try:
            if is_run:
                runs.append(read_run(path))
            elif (path / PACKED_RUNS).exists():
                runs += read_packed_runs(path)
        except RecordError as error:
            problems.append(str(error))
            recipe = path.parent.name
            seed = path.name.removeprefix("seed")
            if is_run and ((recipe, seed) in planned or not planned):
                runs.append(Run(recipe, seed, path=path, ending=UNREADABLE))
    return runs, problems


def read_study_file(path: Path) -> StudyFile:
    """Read what a study was started with. Raises `StudyError` if it is damaged."""
    try:
        return StudyFile.model_validate(read_yaml(path))
    except ValueError as error:
        raise StudyError(f"{path}: is not what a study writes") from error


# ---- one training, each run once ----


def leave_out_copies(runs: list[Run]) -> tuple[list[Run], list[str]]:
    """Leave out copies: runs of one recipe and seed that began at one time.

    Returns the other runs, and a sentence on each copy. Of a run and its copies the completed one
    counts, and the one in its place in the study.
    """
    originals: dict[tuple, Run] = {}
    copies = []
    sentences = []
    for run in sorted(runs, key=rank_run):
        if run.spans:
            start = run.spans[0][0]
            original = originals.setdefault((run.recipe, run.seed, start), run)
            if original != run:
                copies.append(run)
                sentences.append(f"{run.path}: is a copy of {original.path}")
    return [run for run in runs if run not in copies], sentences


def leave_out_second_runs(runs: list[Run]) -> tuple[list[Run], list[str]]:
    """Leave out second completed runs of a seed: a seed counts once.

    The run in its place in the study counts, else the first that was made. Returns the other runs,
    and a sentence on each second run.
    """
    first_runs: dict[tuple, Run] = {}
    for run in sorted(runs, key=rank_run):
        if run.completed:
            first_runs.setdefault((run.recipe, run.seed), run)
    second_runs = [run for run in runs if run.completed and run not in first_runs.values()]
    sentences = [
        f"{run.path}: is a second run of {run.name}, and a seed counts once" for run in second_runs
    ]
    return [run for run in runs if run not in second_runs], sentences


def rank_run(run: Run) -> tuple:
    """Return what decides which of several runs of a seed counts: the lowest."""
    in_place = run.path.parent.name == run.recipe and run.path.name == f"seed{run.seed}"
    start = run.spans[0][0].timestamp() if run.spans else math.inf
    return not run.completed, not in_place, start, str(run.path)


def leave_out_other_trainings(runs: list[Run], file: StudyFile) -> tuple[list[Run], list[str]]:
    """Leave out the runs that differ from most in what is trained or in a step's learning rate.

    Returns the other runs, with a planned one as a run that does not count; and a sentence on each
    that is left out. Raises `StudyError` if too little of a recipe is left: then two trainings were
    made, and not one with an odd run.
    """
    recorded = [run for run in runs if run.record]
    trainings = {run: describe_training(run) for run in recorded}
    usual = most_usual([run for run in recorded if run.completed] or recorded, trainings)
    expected = trainings[usual]
    differing = [run for run in recorded if first_difference(trainings[run], expected)]
    remaining = [run for run in runs if run not in differing]
    completed = Counter(run.recipe for run in remaining if run.completed)
    remaining_seeds = {(run.recipe, run.seed) for run in remaining}
    seeds = {str(seed) for seed in file.seeds} or {run.seed for run in remaining}
    paths_by_difference: dict[str, list[Path]] = {}
    for run in differing:
        key = first_difference(trainings[run], expected)
        difference = f"{key} is {expected[key]} in {usual.path} and {trainings[run][key]}"
        is_of_study = run.recipe in file.recipes or not file.recipes
        is_missed = is_of_study and run.seed in seeds
        is_missed = is_missed and (run.recipe, run.seed) not in remaining_seeds
        needed_runs = MIN_SEEDS if is_missed else int(is_of_study)
        if run.completed and completed[run.recipe] < needed_runs:
            raise StudyError(
                f"these are not the runs of one training: {difference} in {run.path}; give the "
                "folder of one study"
            )
        paths_by_difference.setdefault(difference, []).append(run.path)
        if is_missed:
            run.ending = OTHER_TRAINING
            remaining.append(run)
    sentences = []
    for difference, paths in paths_by_difference.items():
        verb = "is" if len(paths) == 1 else "are"
        sentences.append(f"{list_paths(paths)}: {verb} {OTHER_TRAINING}: {difference} there")
    return remaining, sentences


def list_paths(paths: list[Path]) -> str:
    """List paths, several by the folder that they share: `runs/x: baseline/seed0, trial`."""
    is_mixed = len({path.is_absolute() for path in paths}) > 1
    if len(paths) == 1 or is_mixed:
        return ", ".join(map(str, paths))
    folder = os.path.commonpath(paths) or "."
    return f"{folder}: {', '.join(os.path.relpath(path, folder) for path in paths)}"


def most_usual(runs: list[Run], trainings: dict[Run, dict]) -> Run:
    """Choose the run whose training is that of most runs."""
    counts: Counter[Run] = Counter()
    for run, other_run in product(runs, runs):
        counts[run] += first_difference(trainings[other_run], trainings[run]) is None
    return max(runs, key=lambda run: counts[run])


def first_difference(facts: dict[str, str], expected: dict[str, str]) -> str | None:
    """Find the first key in which two runs are not one training; None if they are."""
    for key in expected:
        if key in facts and facts[key] != expected[key]:
            return key
    return None


def describe_training(run: Run) -> dict[str, str]:
    """Collect what a run trained: `ONE_TRAINING`, and the learning rate of each logged step.

    A run that made no step has no tokens a step to compare.
    """
    facts = {key: run.facts.get(key) for key in ONE_TRAINING}
    if not run.length:
        del facts["tokens_per_step"]
    for step, lr in run.steps["lr"].dropna().items():
        facts[f"the learning rate of step {step}"] = f"{lr:.4g}"
    return facts


# ---- what runs share ----


def add_packages(runs: list[Run]) -> None:
    """Add installed packages to the facts of runs, by the environment files of all of them.

    What torch loads stands under `packages`, the rest under `other_packages`. Without its file a
    run's packages are unknown.
    """
    packages_by_file: dict[str, dict[str, str]] = {}
    for run in runs:
        for name, packages in run.packages.items():
            if packages:
                packages_by_file[name] = packages
    for run in runs:
        if not run.packages or run.packages.keys() - packages_by_file.keys():
            run.unknown_keys += ("packages.", "other_packages.")
            continue
        records = []
        for name in run.packages:
            record: dict[str, dict[str, str]] = {"packages": {}, "other_packages": {}}
            for package, version in packages_by_file[name].items():
                is_loaded = package.lower().startswith(LOADED_PACKAGES)
                record["packages" if is_loaded else "other_packages"][package] = version
            records.append(record)
        run.facts = join_records(records) | run.facts


def find_machines_and_gpus(runs: list[Run]) -> None:
    """Find the machines and GPUs of runs.

    A machine is its boot id. Where none is on record it is a host name that several runs share: a
    container invents a host name, and no other run has it. A GPU is its UUID, else its number on a
    known machine.
    """
    runs_by_host: Counter[str] = Counter()
    for run in runs:
        runs_by_host.update({attempt.host for attempt in run.attempts})
    for run in runs:
        machines: set[str] = set()
        gpus: set[str] = set()
        for attempt in run.attempts:
            boot_ids = {boot_id for boot_id in attempt.machines if boot_id}
            shared_host = {attempt.host} if runs_by_host[attempt.host] > 1 else set()
            machines_of_attempt = boot_ids or shared_host
            uuids = {uuid for uuid in [attempt.hardware.uuid, *attempt.gpus] if uuid}
            numbers = (attempt.hardware.visible_devices or "None").split(",")
            machines |= machines_of_attempt
            if uuids:
                gpus |= uuids
            else:
                gpus |= {f"GPU {n} of {name}" for n, name in product(numbers, machines_of_attempt)}
        run.machines = frozenset(machines)
        run.gpus = frozenset(gpus)


def mark_shared_gpus(runs: list[Run]) -> None:
    """Mark the GPUs of runs with another run on their GPU at the same time: they are slower."""
    slowed_runs = set()
    for run, other_run in permutations(runs, 2):
        if run.gpus & other_run.gpus:
            spans = [run.spans[number - 1] for number in run.steps["attempt"].unique()]
            for (start, end), (other_start, other_end) in product(spans, other_run.spans):
                if max(start, other_start) < min(end, other_end):
                    slowed_runs.add(run)
    for run in slowed_runs:
        run.gpus = frozenset(f"{gpu} beside another run" for gpu in run.gpus)
        run.place += " beside another run"
