"""Read all runs of a study, also planned runs without records. Rule 0: the runs are one training.

A copy of a run is left out, and so is a run of another training. A sentence names each of them.
"""

import math
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import permutations, product
from pathlib import Path
from typing import Any

from analysis.runs import (
    MIN_SEEDS,
    UNREADABLE,
    PlannedRun,
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
LINK_DEPTH = 3  # levels of folders that are searched below a link: STUDY/RECIPE/SEED


class StudyError(InputError):
    """There is nothing to compare; the message says why."""


@dataclass
class Study:
    """The runs of a study.

    Args:
        runs: all runs, sorted by recipe, in the order of the study, and by seed.
        file: what the study was started with.
        problems: sentences on records that could not be read, and on runs that were left out.
        recipes: in the order of the study.
        runs_by_recipe: all runs.
        recorded_by_recipe: the runs with records. A recipe without such runs has an empty list.
        completed_by_recipe: the completed runs. A recipe without such runs is missing.
        completed: the completed runs of all recipes.
        on_cpu: whether a completed run was made on a CPU.
    """

    runs: Sequence[PlannedRun]
    file: StudyFile
    problems: list[str]
    recipes: list[str] = field(init=False)
    runs_by_recipe: dict[str, list[PlannedRun]] = field(init=False)
    recorded_by_recipe: dict[str, list[Run]] = field(init=False)
    completed_by_recipe: dict[str, list[Run]] = field(init=False)
    completed: list[Run] = field(init=False)
    on_cpu: bool = field(init=False)

    def __post_init__(self) -> None:
        self.runs_by_recipe = {}
        self.recorded_by_recipe = {}
        self.completed_by_recipe = {}
        self.completed = []
        self.on_cpu = False
        for run in self.runs:
            self.runs_by_recipe.setdefault(run.recipe, []).append(run)
            recorded_runs = self.recorded_by_recipe.setdefault(run.recipe, [])
            if isinstance(run, Run):
                recorded_runs.append(run)
            if isinstance(run, Run) and run.completed:
                self.completed_by_recipe.setdefault(run.recipe, []).append(run)
                self.completed.append(run)
                if run.record.last_attempt.hardware.type == "cpu":
                    self.on_cpu = True
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
    runs, unreadable_runs, problems = read_runs(folders, planned)
    if not runs:
        raise StudyError("; ".join(problems) or f"{', '.join(map(str, paths))}: holds no run")
    runs, copies = leave_out_copies(runs)
    add_packages(runs)
    find_machines_and_gpus(runs)
    mark_shared_gpus(runs)
    runs, odd_runs = leave_out_other_trainings(runs, unreadable_runs, file)
    runs, second_runs = leave_out_second_runs(runs)
    all_runs = [*runs, *unreadable_runs]
    missing = planned - {(run.recipe, run.seed) for run in all_runs}
    all_runs += [PlannedRun(recipe, seed) for recipe, seed in missing]
    sort_runs(all_runs, file.recipes)
    return Study(all_runs, file, problems + copies + odd_runs + second_runs)


def sort_runs(runs: list[PlannedRun], recipes: list[str]) -> None:
    """Sort runs in place: by recipe, those of `recipes` first, and by seed."""
    order = [*recipes]
    for run in runs:
        if run.recipe not in order:
            order.append(run.recipe)
    # By length first: a seed is text, and 10 comes after 9.
    runs.sort(key=lambda run: (order.index(run.recipe), len(run.seed), run.seed))


def find_study_file(folders: list[Path], paths: tuple[Path, ...]) -> StudyFile:
    """Read the study.yaml of some folders. Without a single one nothing is planned.

    A folder that the user named counts first: a folder within a study may hold another study.

    Args:
        paths: what the user named.
    """
    studies = [folder for folder in folders if (folder / STUDY_FILE).exists()]
    resolved_paths = [path.resolve() for path in paths]
    named_studies = [folder for folder in studies if folder.resolve() in resolved_paths]
    if named_studies:
        studies = named_studies
    if len(studies) == 1:
        return read_study_file(studies[0] / STUDY_FILE)
    return StudyFile()


def find_folders(tops: Iterable[Path]) -> list[Path]:
    """List all folders at or below some folders, each once, also behind links."""
    folders: dict[Path, Path] = {}  # by their real paths
    queue = [(top, math.inf) for top in tops]
    while queue:
        top, max_depth = queue.pop(0)
        for name, subfolders, _ in os.walk(top):
            folder = Path(name)
            if folder.resolve() in folders:
                subfolders.clear()  # os.walk then skips them
                continue
            folders[folder.resolve()] = folder
            if len(folder.relative_to(top).parts) >= max_depth:
                subfolders.clear()
            for subfolder in sorted(subfolders):
                if is_followed(folder / subfolder):
                    queue.append((folder / subfolder, LINK_DEPTH))
    return [*folders.values()]


def is_followed(path: Path) -> bool:
    """Tell if a folder is a link that may be followed.

    A link is followed if this user made it, or if whoever made it owns the folder that it leads to:
    a link in a folder that somebody else sent must not open this user's folders. A link to a folder
    above the link is not followed: other studies may be there.
    """
    if not path.is_symlink():
        return False
    target = path.resolve()
    if path.parent.resolve().is_relative_to(target):
        return False
    return path.lstat().st_uid in (os.geteuid(), target.stat().st_uid)


def read_runs(
    folders: list[Path], planned: set[tuple[str, str]]
) -> tuple[list[Run], list[PlannedRun], list[str]]:
    """Read the runs in some folders.

    Args:
        planned: recipe and seed of each planned run; empty without a plan.

    Returns:
        The runs; the unreadable runs; and a sentence on each problem. An unreadable folder counts
        as a run if a run is planned there, or if there is no plan. Otherwise it may be a copy.
    """
    runs = []
    unreadable_runs = []
    problems = []
    for path in folders:
        try:
            if is_run_directory(path):
                runs.append(read_run(path))
            elif (path / PACKED_RUNS).exists():
                runs += read_packed_runs(path)
        except RecordError as error:
            problems.append(str(error))
            recipe = path.parent.name
            seed = path.name.removeprefix("seed")
            is_planned = not planned or (recipe, seed) in planned
            if is_run_directory(path) and is_planned:
                unreadable_runs.append(PlannedRun(recipe, seed, ending=UNREADABLE))
    return runs, unreadable_runs, problems


def is_run_directory(path: Path) -> bool:
    """Tell if a folder is the directory of a run, of this layout or of layout 4."""
    # In layout 4 an earlier attempt has a folder below the run's.
    if (path.parent / MANIFEST_OF_LAYOUT_4).exists():
        return False
    return (path / RUN_RECORD).exists() or (path / MANIFEST_OF_LAYOUT_4).exists()


def read_study_file(path: Path) -> StudyFile:
    """Read what a study was started with. Raises `StudyError` if it is damaged."""
    try:
        return StudyFile.model_validate(read_yaml(path))
    except ValueError as error:
        raise StudyError(f"{path}: is not what a study writes") from error


# ---- one training, each run once ----


def leave_out_copies(runs: list[Run]) -> tuple[list[Run], list[str]]:
    """Leave out copies: runs of one recipe and seed that began at one time.

    The first of them by `rank_run` counts. Returns the other runs, and a sentence on each copy.
    """
    originals: dict[tuple, Run] = {}
    copies = []
    sentences = []
    for run in sorted(runs, key=rank_run):
        start, _ = run.spans[0]
        original = originals.setdefault((run.recipe, run.seed, start), run)
        if original is not run:
            copies.append(run)
            sentences.append(f"{run.path}: is a copy of {original.path}")
    return [run for run in runs if run not in copies], sentences


def leave_out_second_runs(runs: list[Run]) -> tuple[list[Run], list[str]]:
    """Leave out second completed runs of a seed: a seed counts once.

    The first of them by `rank_run` counts. Returns the other runs, and a sentence on each second
    run.
    """
    first_runs: dict[tuple, Run] = {}
    second_runs = []
    sentences = []
    for run in sorted(runs, key=rank_run):
        if run.completed:
            first_run = first_runs.setdefault((run.recipe, run.seed), run)
            if first_run is not run:
                second_runs.append(run)
                sentences.append(
                    f"{run.path}: is a second run of {run.name}, and a seed counts once"
                )
    return [run for run in runs if run not in second_runs], sentences


def rank_run(run: Run) -> tuple:
    """Return a key to sort by. Of several runs of a seed the first one counts: a completed run
    before others, a run in its place in the study before others, and an earlier run before later
    ones."""
    is_in_place = run.path.parent.name == run.recipe and run.path.name == f"seed{run.seed}"
    start, _ = run.spans[0]
    return not run.completed, not is_in_place, start, str(run.path)


def leave_out_other_trainings(
    runs: list[Run], unreadable_runs: list[PlannedRun], file: StudyFile
) -> tuple[list[Run], list[str]]:
    """Leave out the runs that differ from most runs in what is trained, or in a learning rate.

    A run that would leave a gap in the study stays, but its ending becomes `OTHER_TRAINING`: it
    does not count as completed.

    Returns:
        The other runs, and a sentence on the runs of each other training.

    Raises:
        StudyError: too few runs of a recipe are left. Then two trainings were made, and not one
            with an odd run.
    """
    trainings = {run: collect_training(run) for run in runs}
    usual_run = find_usual_run(trainings)
    usual_training = trainings[usual_run]
    remaining = []
    completed: Counter[str] = Counter()  # the remaining completed runs, by recipe
    odd_runs: dict[Run, str] = {}  # and the key that differs
    for run in runs:
        key = first_difference(trainings[run], usual_training)
        if key is not None:
            odd_runs[run] = key
            continue
        remaining.append(run)
        if run.completed:
            completed[run.recipe] += 1
    gaps = find_gaps(remaining, unreadable_runs, file, odd_runs)
    paths_by_difference: dict[str, list[Path]] = {}
    for run, key in odd_runs.items():
        usual_value = usual_training[key]
        difference = f"{key} is {usual_value} in {usual_run.path} and {trainings[run][key]}"
        if run in gaps:
            needed_runs = MIN_SEEDS
        elif run.recipe in file.recipes or not file.recipes:
            needed_runs = 1
        else:
            needed_runs = 0
        if run.completed and completed[run.recipe] < needed_runs:
            raise StudyError(
                f"these are not the runs of one training: {difference} in {run.path}; give the "
                "folder of one study"
            )
        paths_by_difference.setdefault(difference, []).append(run.path)
        if run in gaps:
            run.ending = OTHER_TRAINING
            remaining.append(run)
    sentences = []
    for difference, paths in paths_by_difference.items():
        verb = "is" if len(paths) == 1 else "are"
        sentences.append(f"{list_paths(paths)}: {verb} {OTHER_TRAINING}: {difference} there")
    return remaining, sentences


def find_gaps(
    remaining: list[Run],
    unreadable_runs: list[PlannedRun],
    file: StudyFile,
    odd_runs: Iterable[Run],
) -> list[Run]:
    """List the odd runs that would leave a gap in the study: no other run has the recipe and seed.

    Without a plan a study has all recipes, and the seeds of the remaining runs.
    """
    present_runs = [*remaining, *unreadable_runs]
    present = {(run.recipe, run.seed) for run in present_runs}
    seeds = {*map(str, file.seeds)}
    if not file.seeds:
        seeds = {run.seed for run in present_runs}
    gaps = []
    for run in odd_runs:
        is_of_study = run.seed in seeds and (run.recipe in file.recipes or not file.recipes)
        if is_of_study and (run.recipe, run.seed) not in present:
            gaps.append(run)
    return gaps


def list_paths(paths: list[Path]) -> str:
    """List paths. Several are listed below the folder that they share, as in
    `runs/x: baseline/seed0, trial`."""
    is_mixed = len({path.is_absolute() for path in paths}) > 1
    if len(paths) == 1 or is_mixed:
        return ", ".join(map(str, paths))
    folder = os.path.commonpath(paths) or "."
    return f"{folder}: {', '.join(os.path.relpath(path, folder) for path in paths)}"


def find_usual_run(trainings: dict[Run, dict[str, Any]]) -> Run:
    """Find a run whose training most runs share: a completed run, if there is one."""
    runs = [run for run in trainings if run.completed] or [*trainings]
    counts: Counter[Run] = Counter()
    for run, other_run in product(runs, runs):
        if first_difference(trainings[other_run], trainings[run]) is None:
            counts[run] += 1
    return max(runs, key=counts.__getitem__)


def first_difference(training: dict[str, Any], usual_training: dict[str, Any]) -> str | None:
    """Find the first key that two trainings have with different values; None if they are one."""
    for key, usual_value in usual_training.items():
        if key in training and training[key] != usual_value:
            return key
    return None


def collect_training(run: Run) -> dict[str, Any]:
    """Collect what a run trained: `ONE_TRAINING`, and the learning rate of each logged step."""
    facts = {key: run.facts.get(key) for key in ONE_TRAINING}
    if not run.length:  # a run without steps shows no tokens per step
        del facts["tokens_per_step"]
    for step, lr in run.steps["lr"].dropna().items():
        facts[f"the learning rate of step {step}"] = f"{lr:.4g}"
    return facts


# ---- what runs share ----


def add_packages(runs: list[Run]) -> None:
    """Add the installed packages to the facts of runs.

    Packages that torch loads stand under `packages`, other packages under `other_packages`. A run
    without its environment file has the packages of another run's file of the same name. Without
    such a file the packages are unknown.
    """
    packages_by_file: dict[str, dict[str, str]] = {}
    for run in runs:
        for name, packages in run.packages.items():
            if packages:
                packages_by_file[name] = packages
    for run in runs:
        if not run.packages.keys() <= packages_by_file.keys():
            run.unknown_prefixes += ("packages.", "other_packages.")
            continue
        records = [sort_packages(packages_by_file[name]) for name in run.packages]
        run.facts = join_records(records) | run.facts


def sort_packages(packages: dict[str, str]) -> dict[str, dict[str, str]]:
    """Sort packages into those that torch loads and other packages."""
    loaded_packages = {}
    other_packages = {}
    for package, version in packages.items():
        if package.lower().startswith(LOADED_PACKAGES):
            loaded_packages[package] = version
        else:
            other_packages[package] = version
    return {"packages": loaded_packages, "other_packages": other_packages}


def find_machines_and_gpus(runs: list[Run]) -> None:
    """Find the machines and GPUs of runs.

    A machine is named by its boot id. Without a boot id it is named by its host name, if several
    runs have this name: a container invents a host name that no other run has. A GPU is named by
    its UUID, or else by its number on a known machine.
    """
    runs_by_host: Counter[str] = Counter()
    for run in runs:
        runs_by_host.update({attempt.host for attempt in run.attempts})
    for run in runs:
        machines: set[str] = set()
        gpus: set[str] = set()
        for attempt in run.attempts:
            attempt_machines = {boot_id for boot_id in attempt.machines if boot_id}
            if not attempt_machines and runs_by_host[attempt.host] > 1:
                attempt_machines = {attempt.host}
            machines |= attempt_machines
            attempt_gpus = {uuid for uuid in [attempt.hardware.uuid, *attempt.gpus] if uuid}
            if not attempt_gpus:
                numbers = (attempt.hardware.visible_devices or "of unknown number").split(",")
                for number, machine in product(numbers, attempt_machines):
                    attempt_gpus.add(f"GPU {number} of {machine}")
            gpus |= attempt_gpus
        run.machines = frozenset(machines)
        run.gpus = frozenset(gpus)


def mark_shared_gpus(runs: list[Run]) -> None:
    """Mark the GPUs of runs that shared a GPU with another run: both runs were slower."""
    slowed_runs = set()
    for run, other_run in permutations(runs, 2):
        if run.gpus & other_run.gpus:
            counted_spans = [run.spans[number - 1] for number in run.steps["attempt"].unique()]
            for (start, end), (other_start, other_end) in product(counted_spans, other_run.spans):
                if max(start, other_start) < min(end, other_end):
                    slowed_runs.add(run)
    for run in slowed_runs:
        run.gpus = frozenset(f"{gpu} beside another run" for gpu in run.gpus)
        run.place += " beside another run"
