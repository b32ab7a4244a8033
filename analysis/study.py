"""Read all runs of a study, and note missing planned runs. Rule 0: one training.

A copy of a run, and a run of another training, are left out by name.
"""

import math
import os
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import permutations, product
from pathlib import Path

from analysis.packed import read_packed_runs
from analysis.runs import MIN_SEEDS, UNREADABLE, Run, joined, read_run, read_yaml
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
    runs: list[Run]  # by recipe, in the order of the study, and by seed
    file: StudyFile
    problems: list[str]  # records that could not be read, and runs that were left out
    clock_start: str = "the process"  # what wall times count from

    @property
    def recipes(self) -> list[str]:
        return list(dict.fromkeys(run.recipe for run in self.runs))

    @property
    def on_cpu(self) -> bool:
        completed = [run.record.last_attempt for run in self.runs if run.completed]
        return any(attempt.hardware.type == "cpu" for attempt in completed)

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


# ---- reading ----


def read_study(*paths: Path) -> Study:
    """Read all runs at or below some folders. Raises `StudyError` if they cannot be compared."""
    for path in paths:
        if not path.exists():
            raise StudyError(f"{path}: is not there")
    folders = sorted(find_folders(paths))
    studies = [folder for folder in folders if (folder / STUDY_FILE).exists()]
    # A folder within a study may hold another study.
    given = {path.resolve() for path in paths}
    studies = [folder for folder in studies if folder.resolve() in given] or studies
    # Scattered runs have no study.yaml, or several.
    file = read_study_file(studies[0] / STUDY_FILE) if len(studies) == 1 else StudyFile()
    planned = {(recipe, str(seed)) for recipe, seed in product(file.recipes, file.seeds)}
    runs, problems = read_runs(folders, planned)
    if not any(run.record for run in runs):
        raise StudyError("; ".join(problems) or f"{', '.join(map(str, paths))}: holds no run")
    runs, copies = leave_out_copies(runs)
    add_packages(runs)
    locate([run for run in runs if run.record])
    mark_shared_gpus(runs)
    runs, odd_runs = leave_out_other_trainings(runs, file)
    runs, second_runs = leave_out_second_runs(runs)
    recorded = {(run.recipe, run.seed) for run in runs}
    runs += [Run(recipe, seed) for recipe, seed in planned if (recipe, seed) not in recorded]
    order = [*file.recipes, *(run.recipe for run in runs)]
    runs.sort(key=lambda run: (order.index(run.recipe), len(run.seed), run.seed))
    return Study(runs, file, problems + copies + odd_runs + second_runs)


def find_folders(tops: Iterable[Path]) -> list[Path]:
    """List all folders at or below some folders, each once, also behind links."""
    found: dict[Path, Path] = {}
    waiting = [(top, math.inf) for top in tops]
    while waiting:
        top, depth = waiting.pop(0)
        for name, below, _ in os.walk(top):
            folder = Path(name)
            if folder.resolve() in found:
                below.clear()
                continue
            found[folder.resolve()] = folder
            if len(folder.relative_to(top).parts) >= depth:
                below.clear()
            links = [folder / each for each in sorted(below) if is_followed(folder / each)]
            waiting += [(link, LINK_DEPTH) for link in links]
    return [*found.values()]


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

    An unreadable run is a run without records; a damaged copy of a run, whose folder is no planned
    run's, is none.
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
            place = path.parent.name, path.name.removeprefix("seed")
            if is_run and (place in planned or not planned):
                runs.append(Run(*place, path=path, ending=UNREADABLE))
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
    first: dict[tuple, Run] = {}
    sentences = []
    for run in sorted(runs, key=preference):
        if run.spans:
            began, _ = run.spans[0]
            original = first.setdefault((run.recipe, run.seed, began), run)
            if original != run:
                sentences.append(f"{run.path}: is a copy of {original.path}")
    copies = {run for run in runs if run.spans and run not in first.values()}
    return [run for run in runs if run not in copies], sentences


def leave_out_second_runs(runs: list[Run]) -> tuple[list[Run], list[str]]:
    """Leave out second completed runs of a seed: a seed counts once.

    The run in its place in the study counts, else the first that was made. Returns the other runs,
    and a sentence on each second run.
    """
    first: dict[tuple, Run] = {}
    for run in sorted(runs, key=preference):
        if run.completed:
            first.setdefault((run.recipe, run.seed), run)
    second = [run for run in runs if run.completed and run not in first.values()]
    sentences = [
        f"{run.path}: is a second run of {run.name}, and a seed counts once" for run in second
    ]
    return [run for run in runs if run not in second], sentences


def preference(run: Run) -> tuple:
    """Return what decides which of several runs of a seed counts: the lowest."""
    in_place = run.path.parent.name == run.recipe and run.path.name == f"seed{run.seed}"
    began = run.spans[0][0].timestamp() if run.spans else math.inf
    return not run.completed, not in_place, began, str(run.path)


def leave_out_other_trainings(runs: list[Run], file: StudyFile) -> tuple[list[Run], list[str]]:
    """Leave out the runs that differ from most in what is trained or in a step's learning rate.

    Returns the other runs, with a planned one as a run that does not count; and a sentence on each
    that is left out. Raises `StudyError` if too little of a recipe is left: then two trainings were
    made, and not one with an odd run.
    """
    recorded = [run for run in runs if run.record]
    trainings = {run: training(run) for run in recorded}
    usual = most_usual([run for run in recorded if run.completed] or recorded, trainings)
    expected = trainings[usual]
    differing = [run for run in recorded if first_difference(trainings[run], expected)]
    others = [run for run in runs if run not in differing]
    completed = Counter(run.recipe for run in others if run.completed)
    made = {(run.recipe, run.seed) for run in others}
    seeds = {str(seed) for seed in file.seeds} or {run.seed for run in others}
    paths_by_difference: dict[str, list[Path]] = {}
    for run in differing:
        key = first_difference(trainings[run], expected)
        difference = f"{key} is {expected[key]} in {usual.path} and {trainings[run][key]}"
        is_of_study = run.recipe in file.recipes or not file.recipes
        is_missed = is_of_study and run.seed in seeds and (run.recipe, run.seed) not in made
        needed = MIN_SEEDS if is_missed else int(is_of_study)
        if run.completed and completed[run.recipe] < needed:
            raise StudyError(
                f"these are not the runs of one training: {difference} in {run.path}; give the "
                "folder of one study"
            )
        paths_by_difference.setdefault(difference, []).append(run.path)
        if is_missed:
            run.ending = OTHER_TRAINING
            others.append(run)
    sentences = []
    for difference, paths in paths_by_difference.items():
        verb = "is" if len(paths) == 1 else "are"
        sentences.append(f"{name_paths(paths)}: {verb} {OTHER_TRAINING}: {difference} there")
    return others, sentences


def name_paths(paths: list[Path]) -> str:
    """List paths, several by the folder that they share: `runs/x: baseline/seed0, trial`."""
    is_mixed = len({path.is_absolute() for path in paths}) > 1
    if len(paths) == 1 or is_mixed:
        return ", ".join(map(str, paths))
    folder = os.path.commonpath(paths) or "."
    return f"{folder}: {', '.join(os.path.relpath(path, folder) for path in paths)}"


def most_usual(runs: list[Run], trainings: dict[Run, dict]) -> Run:
    """Choose the run whose training is that of most runs."""
    counts = {}
    for run in runs:
        alike = [first_difference(trainings[other], trainings[run]) is None for other in runs]
        counts[run] = sum(alike)
    return max(runs, key=counts.get)


def first_difference(facts: dict[str, str], expected: dict[str, str]) -> str | None:
    """Find the first key in which two runs are not one training; None if they are."""
    for key in expected:
        if key in facts and facts[key] != expected[key]:
            return key
    return None


def training(run: Run) -> dict[str, str]:
    """Collect what a run trained: `ONE_TRAINING`, and the learning rate of each logged step.

    A run that made no step has no tokens a step to compare.
    """
    facts = {key: run.facts.get(key) for key in ONE_TRAINING}
    if not run.length:
        del facts["tokens_per_step"]
    rates = run.steps["lr"].dropna().map("{:.4g}".format)
    return facts | rates.rename("the learning rate of step {}".format).to_dict()


# ---- what runs share ----


def add_packages(runs: list[Run]) -> None:
    """Add installed packages to the facts of runs, by the environment files of all of them.

    What torch loads stands under `packages`, the others under `other_packages`. Without its file a
    run's packages are unknown.
    """
    known: dict[str, dict] = {}
    for run in runs:
        known |= {name: packages for name, packages in run.packages.items() if packages}
    for run in runs:
        if not run.packages or run.packages.keys() - known.keys():
            run.unknown += ("packages.", "other_packages.")
            continue
        records = []
        for name in run.packages:
            loaded = {}
            others = {}
            for package, version in known[name].items():
                group = loaded if package.lower().startswith(LOADED_PACKAGES) else others
                group[package] = version
            records.append({"packages": loaded, "other_packages": others})
        run.facts = joined(records) | run.facts


def locate(runs: list[Run]) -> None:
    """Find the machines and GPUs of runs.

    A machine is its boot id. Where none is on record it is a host name that several runs share: a
    container invents a host name, and no other run has it. A GPU is its UUID, else its number on a
    known machine.
    """
    hosts = Counter()
    for run in runs:
        hosts.update({attempt.host for attempt in run.attempts})
    for run in runs:
        machines: set[str] = set()
        gpus: set[str] = set()
        for attempt in run.attempts:
            boot_ids = {machine for machine in attempt.machines if machine}
            shared_host = {attempt.host} if hosts[attempt.host] > 1 else set()
            here = boot_ids or shared_host
            uuids = {gpu for gpu in [attempt.hardware.uuid, *attempt.gpus] if gpu}
            numbers = (attempt.hardware.visible_devices or "None").split(",")
            numbered = {f"GPU {number} of {machine}" for number in numbers for machine in here}
            machines |= here
            gpus |= uuids or numbered
        run.machines = frozenset(machines)
        run.gpus = frozenset(gpus)


def mark_shared_gpus(runs: list[Run]) -> None:
    """Mark the GPUs of runs with another run on their GPU at the same time: they are slower."""
    shared = set()
    for run, other in permutations(runs, 2):
        kept = [run.spans[process] for process in run.steps["process"].unique()]
        for (start, end), (other_start, other_end) in product(kept, other.spans):
            if run.gpus & other.gpus and max(start, other_start) < min(end, other_end):
                shared.add(run)
    for run in shared:
        run.gpus = frozenset(f"{gpu} beside another run" for gpu in run.gpus)
        run.place += " beside another run"
