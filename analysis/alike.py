"""Check rule 1: the runs of two recipes differ in nothing but the recipes.

All recorded values must be equal in both, except what the recipes' own files set. A new record is
compared as soon as runs have it. Names of runs and folders are not compared. What costs no time is
told.
"""

from collections import ChainMap, Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from analysis.runs import Run, flat, read_yaml
from experiments.config.recipes import RECIPES, yaml_files

MAX_REPORTED = 3  # of the records that differ
MAX_LISTED = 5  # of packages and keys in a sentence

# Names of a run: of itself, its time, its place and its end.
RUN_NAMES = (
    "layout_version",
    "status",
    "number",
    "start",
    "end",
    "error",
    "command",
    "pid",
    "recipe",
    "base",
    "description",
    "name",
    "resolved.",
    "seed",
    "debug.seed",
    "notes",
    "host",
    "machines",
    "gpus",
    "hardware.uuid",
    "hardware.visible_devices",
    "variables.CUDA_VISIBLE_DEVICES",
    "variables.NCCL_COMM_ID",
)
# What follows from the recipe, which rule 2 checks; and what drivers round.
DERIVED = ("compiled", "fp8_matmul", "hardware.memory_bytes")
# Records that may differ: told, and they forbid nothing. What saving and logging cost, the wall
# clock shows.
TOLD = (
    "checkpoint.enable",
    "checkpoint.export_dtype",
    "checkpoint.interval",
    "checkpoint.keep_latest_k",
    "checkpoint.last_save_model_only",
    "comm.init_timeout_seconds",
    "comm.train_timeout_seconds",
    "compile_cache",
    "data.cache_dir",
    "git.commit",
    "hardware.threads",
    "metrics.",
)
# Records of the machine on which a run landed. Rule 3 compares the runs with equal ones.
OF_MACHINE = ("hardware.cpu", "variables.OMP_NUM_THREADS")
# What a study compares. Other keys that recipes' files set are told. Other sections may change a
# step's work too.
COMPARED_SECTIONS = ("quantize.", "compile.")
COMPARED_KEYS = ("quantize.linear.float8.recipe_name", "compile.enable")
RECOMPUTATION = "activation_checkpoint.mode"
ENVIRONMENT = "environment"
OTHER_PACKAGES = "other_packages."
FOLDER = ("/", "./", "../", "~/")  # what a folder begins with


@dataclass
class Differences:
    """How the records of two recipes' runs differ.

    Args:
        forbidden: differences that forbid a verdict.
        remarks: differences that forbid nothing.
        mixed: keys whose values both recipes have, in different shares.
    """

    forbidden: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    mixed: list[str] = field(default_factory=list)


def differences(runs: list[Run], reference_runs: list[Run]) -> Differences:
    """Compare the records of two recipes' runs.

    A value may vary among the runs of one recipe if the other recipe's runs have the same values in
    the same shares, or if both recipes have each value in several runs. A value that the recipes'
    own files set may not vary.
    """
    found = Differences()
    set_by_files = tuple(meant_to_differ(runs[0].recipe, reference_runs[0].recipe))
    packages = []
    settings = []
    for key, values, reference_values in unlike_records(runs, reference_runs):
        sentence = f"{key} is {written(values)} beside {written(reference_values)}"
        if key.startswith(set_by_files) and len(values) == len(reference_values) == 1:
            if key not in COMPARED_KEYS:
                settings.append(sentence)
        elif key.startswith(OTHER_PACKAGES):
            packages.append(sentence.removeprefix(OTHER_PACKAGES))
        elif is_told(key, runs + reference_runs, set_by_files):
            found.remarks.append(sentence)
        elif is_mixed(key, values, reference_values) and not key.startswith(set_by_files):
            found.remarks.append(sentence)
            found.mixed.append(key)
        else:
            found.forbidden.append(sentence)
    found.forbidden = found.forbidden[:MAX_REPORTED]
    if "compile.enable" not in set_by_files:
        found.forbidden += different_graphs(runs + reference_runs)
    if settings:
        found.remarks.append(f"the recipes' files also set {listed(settings)}")
    if packages:
        found.remarks.append(f"packages that torch does not load differ: {listed(packages)}")
    return found


def unlike_records(
    runs: list[Run], reference_runs: list[Run]
) -> Iterator[tuple[str, Counter, Counter]]:
    """Find the records whose values, or their shares, differ between two recipes' runs, or vary.

    A value that varies in both recipes alike is among them only if a recipe's file sets it.
    """
    together = runs + reference_runs
    set_by_files = tuple(meant_to_differ(runs[0].recipe, reference_runs[0].recipe))
    for key in ChainMap(*[run.facts for run in together]):
        values = recorded_values(runs, key)
        reference_values = recorded_values(reference_runs, key)
        if not is_compared(key, values, reference_values):
            continue
        if key == ENVIRONMENT and are_packages_known(together):
            continue
        varies = key.startswith(set_by_files) and len(values | reference_values) > 1
        if varies or shares(values) != shares(reference_values):
            yield key, values, reference_values


def recorded_values(runs: list[Run], key: str) -> Counter:
    """Count the values of a record. A run whose records do not tell has none."""
    values = Counter()
    for run in runs:
        if key in run.facts:
            values[str(run.facts[key])] += 1
        elif not run.unknown or not key.startswith(run.unknown):
            values["none"] += 1
    return values


def is_compared(key: str, values: Counter, reference_values: Counter) -> bool:
    """Tell if a record is compared: names and folders are not, nor what a recipe does not know."""
    if key.startswith((*RUN_NAMES, *DERIVED)) or not values or not reference_values:
        return False
    recorded = values + reference_values
    del recorded["none"]
    if key in TOLD or not all(value.startswith(FOLDER) for value in recorded):
        return True
    # A file that several runs share can change the code or the speed; a log is a run's own
    return any(is_file(path) and count > 1 for path, count in recorded.items())


def is_file(path: str) -> bool:
    """Tell by its ending if a path names a file, as `/opt/libnccl-net.so.2` does."""
    return any(suffix[1:].isalpha() for suffix in Path(path).suffixes)


def are_packages_known(runs: list[Run]) -> bool:
    """Tell if the packages of all runs are known: else the names of environment files stand for
    them."""
    return not any("packages." in run.unknown for run in runs)


def is_told(key: str, runs: list[Run], set_by_files: tuple[str, ...]) -> bool:
    """Tell if a difference forbids nothing.

    A step's work may differ where the recipes' files set more than FP8 and compilation. Compiled
    code chooses what it recomputes.
    """
    if key == "proof.matmul_flops" and any(recomputes(run) for run in runs):
        return True
    if key.startswith("proof."):
        return any(is_changed(each, runs) for each in set_by_files)
    return key.startswith(TOLD)


def is_changed(key: str, runs: list[Run]) -> bool:
    """Tell if runs differ in a key that can change a step's work, besides FP8 and compilation."""
    values = {str(run.facts.get(key)) for run in runs}
    return len(values) > 1 and not key.startswith((*COMPARED_SECTIONS, *RUN_NAMES, *TOLD))


def recomputes(run: Run) -> bool:
    """Tell if a run recomputes activations."""
    return run.facts.get(RECOMPUTATION, "none") != "none"


def is_mixed(key: str, values: Counter, reference_values: Counter) -> bool:
    """Tell if both recipes have the values of a record, so that runs with equal ones compare.

    Software and settings: both have the same values, each in several runs. Machines: both have one
    of the values.
    """
    if key.startswith(OF_MACHINE):
        return bool(values.keys() & reference_values.keys())
    fewest = min([*values.values(), *reference_values.values()])
    return values.keys() == reference_values.keys() and fewest > 1


def shares(values: Counter) -> dict[str, float]:
    """Divide the counts of values by their sum."""
    return {value: count / values.total() for value, count in values.items()}


def written(values: Counter) -> str:
    """Write values, each with its share of the runs if there are several."""
    if len(values) == 1:
        return next(iter(values))
    return ", ".join(f"{value} ({share:.0%})" for value, share in sorted(shares(values).items()))


def listed(sentences: list[str]) -> str:
    """Write the first sentences of a list, and how many more there are."""
    more = len(sentences) - MAX_LISTED
    rest = f"; and {more} more" if more > 0 else ""
    return "; ".join(sentences[:MAX_LISTED]) + rest


def different_graphs(runs: list[Run]) -> list[str]:
    """Compare the numbers of compiled graphs, which a recipe in two precisions has twice."""
    graphs = [run.proof.compiled_graphs or 0 for run in runs if run.proof]
    if graphs and 2 * min(graphs) < max(graphs):
        return [f"from {min(graphs)} to {max(graphs)} graphs were compiled"]
    return []


def meant_to_differ(*recipes: str) -> list[str]:
    """List keys set differently by two recipes' files; all keys of FP8 if a recipe has no file."""
    mine, theirs = map(set_in_file, recipes)
    if not (mine and theirs):
        return ["quantize."]
    return [key for key in mine | theirs if mine.get(key) != theirs.get(key)]


@cache
def set_in_file(recipe: str) -> dict:
    """Read the keys set by a recipe's file and its parents over base.yaml; none without a file."""
    file = yaml_files(RECIPES).get(recipe)
    if recipe == "base" or not file:
        return {}
    keys = read_yaml(file)
    return set_in_file(keys.pop("base", "base")) | flat(keys)
