"""Check if the runs of two recipes can be compared.

Rule 1: they differ in nothing but the recipes. All recorded values must be equal in both, except
what the recipes' own files set. A new record is compared as soon as runs have it. Names of runs and
folders are not compared. A difference that costs no time is a remark.

Rule 2: each run did what its recipe says. All its records must agree on what ran.
"""

from collections import ChainMap, Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from analysis.runs import Run, flatten, read_yaml
from experiments.config.recipes import RECIPES, yaml_files
from models.scaling import SCALINGS

MAX_DIFFERENCES = 3  # that are reported
MAX_LISTED = 5  # packages and keys in a sentence

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
# What follows from the recipe, which rule 2 checks; what drivers round; and what rule 4 compares.
DERIVED_KEYS = (
    "compiled",
    "fp8_matmul",
    "hardware.memory_bytes",
    "first_weights",
    "first_batch",
)
# Records that may differ: a difference is a remark. What saving and logging cost, the wall clock
# shows.
HARMLESS_KEYS = (
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
MACHINE_KEYS = ("hardware.cpu", "variables.OMP_NUM_THREADS")
# What a study compares. A difference in other keys that recipes' files set is a remark. Other
# sections may change a step's work too.
COMPARED_SECTIONS = ("quantize.", "compile.")
COMPARED_KEYS = ("quantize.linear.float8.recipe_name", "compile.enable")
RECOMPUTATION = "activation_checkpoint.mode"
ENVIRONMENT_FILE = "environment"
OTHER_PACKAGES = "other_packages."
FOLDER_STARTS = ("/", "./", "../", "~/")

FLOAT8 = "quantize.linear.float8.recipe_name"  # the scaling; without this key a run is in bf16
FILTER = "quantize.linear.float8.filter_fqns"
HEAD_FILTERS = ([], ["output"])  # filters that leave out no layer but the head
COUNT_TOLERANCE = 0.01  # of shares and bytes that are counted in two ways
MIN_PROMISED_PART = 0.9  # of the promised FP8 share: layers too small for FP8 are left out


# ---- rule 1 ----


@dataclass
class Differences:
    """How the records of two recipes' runs differ.

    Args:
        forbidden: differences that forbid a verdict.
        remarks: differences that forbid nothing.
        mixed_keys: keys whose values both recipes have, in different shares.
    """

    forbidden: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    mixed_keys: list[str] = field(default_factory=list)


def compare_records(runs: list[Run], reference_runs: list[Run]) -> Differences:
    """Compare the records of two recipes' runs.

    A value may vary among the runs of one recipe if the other recipe's runs have the same values in
    the same shares, or if both recipes have each value in several runs. A value that the recipes'
    own files set may not vary.
    """
    differences = Differences()
    keys_of_files = tuple(differing_keys(runs[0].recipe, reference_runs[0].recipe))
    packages = []
    settings = []
    for key, values, reference_values in find_unlike_records(runs, reference_runs, keys_of_files):
        sentence = f"{key} is {describe_values(values)} beside {describe_values(reference_values)}"
        is_set_by_files = key.startswith(keys_of_files)
        if is_set_by_files and len(values) == len(reference_values) == 1:
            if key not in COMPARED_KEYS:
                settings.append(sentence)
        elif key.startswith(OTHER_PACKAGES):
            packages.append(sentence.removeprefix(OTHER_PACKAGES))
        elif is_harmless(key, runs + reference_runs, keys_of_files):
            differences.remarks.append(sentence)
        elif is_mixed(key, values, reference_values) and not is_set_by_files:
            differences.remarks.append(sentence)
            differences.mixed_keys.append(key)
        else:
            differences.forbidden.append(sentence)
    differences.forbidden = differences.forbidden[:MAX_DIFFERENCES]
    if "compile.enable" not in keys_of_files:
        differences.forbidden += compare_graphs(runs + reference_runs)
    if settings:
        differences.remarks.append(f"the recipes' files also set {list_first(settings)}")
    if packages:
        listed = list_first(packages)
        differences.remarks.append(f"packages that torch does not load differ: {listed}")
    return differences


def find_unlike_records(
    runs: list[Run], reference_runs: list[Run], keys_of_files: tuple[str, ...]
) -> Iterator[tuple[str, Counter, Counter]]:
    """Find the records whose values, or their shares, differ between two recipes' runs, or vary.

    A value that varies in both recipes alike is among them only if a recipe's file sets it.
    """
    all_runs = runs + reference_runs
    for key in ChainMap(*[run.facts for run in all_runs]):
        values = count_values(runs, key)
        reference_values = count_values(reference_runs, key)
        if not is_compared(key, values, reference_values):
            continue
        if key == ENVIRONMENT_FILE and are_packages_known(all_runs):
            continue
        varies = key.startswith(keys_of_files) and len(values | reference_values) > 1
        if varies or find_shares(values) != find_shares(reference_values):
            yield key, values, reference_values


def count_values(runs: list[Run], key: str) -> Counter:
    """Count the values of a record. A run whose records do not tell has none."""
    values: Counter[str] = Counter()
    for run in runs:
        if key in run.facts:
            values[str(run.facts[key])] += 1
        elif not run.unknown_keys or not key.startswith(run.unknown_keys):
            values["none"] += 1
    return values


def is_compared(key: str, values: Counter, reference_values: Counter) -> bool:
    """Tell if a record is compared: names, folders and what follows from a recipe are not.

    A file that several runs name can change the code or the speed. A file of a single run is its
    log.
    """
    if key.startswith((*RUN_NAMES, *DERIVED_KEYS)) or not values or not reference_values:
        return False
    recorded_values = values + reference_values
    del recorded_values["none"]
    if key in HARMLESS_KEYS or not all(text.startswith(FOLDER_STARTS) for text in recorded_values):
        return True
    return any(is_file(path) and count > 1 for path, count in recorded_values.items())


def is_file(path: str) -> bool:
    """Tell by its ending if a path names a file, as `/opt/libnccl-net.so.2` does."""
    return any(suffix[1:].isalpha() for suffix in Path(path).suffixes)


def are_packages_known(runs: list[Run]) -> bool:
    """Tell if the packages of all runs are known: otherwise the names of environment files stand
    for them."""
    return not any("packages." in run.unknown_keys for run in runs)


def is_harmless(key: str, runs: list[Run], keys_of_files: tuple[str, ...]) -> bool:
    """Tell if a difference forbids nothing.

    A step's work may differ where the recipes' files set more than FP8 and compilation. Compiled
    code chooses what it recomputes.
    """
    if key == "proof.matmul_flops" and any(has_recomputation(run) for run in runs):
        return True
    if key.startswith("proof."):
        return any(changes_work(key_of_file, runs) for key_of_file in keys_of_files)
    return key.startswith(HARMLESS_KEYS)


def changes_work(key: str, runs: list[Run]) -> bool:
    """Tell if runs differ in a key that can change a step's work, besides FP8 and compilation."""
    values = {str(run.facts.get(key)) for run in runs}
    return len(values) > 1 and not key.startswith((*COMPARED_SECTIONS, *RUN_NAMES, *HARMLESS_KEYS))


def has_recomputation(run: Run) -> bool:
    """Tell if a run recomputes activations."""
    return run.facts.get(RECOMPUTATION, "none") != "none"


def is_mixed(key: str, values: Counter, reference_values: Counter) -> bool:
    """Tell if both recipes have the values of a record, so that runs with equal ones compare.

    Software and settings: both have the same values, each in several runs. Machines: both have one
    of the values.
    """
    if key.startswith(MACHINE_KEYS):
        return bool(values.keys() & reference_values.keys())
    lowest_count = min([*values.values(), *reference_values.values()])
    return values.keys() == reference_values.keys() and lowest_count > 1


def find_shares(values: Counter) -> dict[str, float]:
    """Divide the counts of values by their sum."""
    return {value: count / values.total() for value, count in values.items()}


def describe_values(values: Counter) -> str:
    """Write values, each with its share of the runs if there are several."""
    if len(values) == 1:
        return next(iter(values))
    shares = sorted(find_shares(values).items())
    return ", ".join(f"{value} ({share:.0%})" for value, share in shares)


def list_first(sentences: list[str]) -> str:
    """Write the first sentences of a list, and how many more there are."""
    listed = "; ".join(sentences[:MAX_LISTED])
    if len(sentences) > MAX_LISTED:
        listed += f"; and {len(sentences) - MAX_LISTED} more"
    return listed


def compare_graphs(runs: list[Run]) -> list[str]:
    """Compare the numbers of compiled graphs, which a recipe in two precisions has twice."""
    graphs = [run.proof.compiled_graphs or 0 for run in runs if run.proof]
    if graphs and 2 * min(graphs) < max(graphs):
        return [f"from {min(graphs)} to {max(graphs)} graphs were compiled"]
    return []


def differing_keys(recipe: str, reference: str) -> list[str]:
    """List the keys that two recipes' files set differently; all keys of FP8 if a recipe has no
    file."""
    keys = read_recipe_keys(recipe)
    reference_keys = read_recipe_keys(reference)
    if not keys or not reference_keys:
        return ["quantize."]
    all_keys = keys | reference_keys
    return [key for key in all_keys if keys.get(key) != reference_keys.get(key)]


@cache
def read_recipe_keys(recipe: str) -> dict:
    """Read the keys set by a recipe's file and its parents over base.yaml; none without a file."""
    file = yaml_files(RECIPES).get(recipe)
    if recipe == "base" or not file:
        return {}
    sections = read_yaml(file)
    return read_recipe_keys(sections.pop("base", "base")) | flatten(sections)


def is_fp8(recipe: str, runs: list[Run]) -> bool:
    """Tell if a recipe is in FP8, by the records of its runs, else by its file."""
    recorded = [run.facts[FLOAT8] for run in runs if FLOAT8 in run.facts]
    return bool(recorded or read_recipe_keys(recipe).get(FLOAT8))


# ---- rule 2 ----


def find_record_faults(runs: list[Run]) -> list[str]:
    """List the contradictions between records of a recipe's runs, each with its runs."""
    names_by_fault = defaultdict(list)
    for run in runs:
        for fault in check_records(run):
            names_by_fault[fault].append(run.name)
    shares = [run.fp8_share for run in runs]
    if max(shares) - min(shares) > COUNT_TOLERANCE:
        fault = f"{min(shares):.0%} to {max(shares):.0%} of the matmul FLOPs ran in FP8"
        names_by_fault[fault] = [runs[0].recipe]
    return [f"{fault} ({', '.join(names)})" for fault, names in names_by_fault.items()]


def check_records(run: Run) -> Iterator[str]:
    """Compare the recipe's file, the resolved recipe and the proof.

    What a run checks before it ends is trusted: the FP8 FLOPs of its layers, compiled graphs.
    """
    proof = run.proof
    if not proof or not run.timings:
        yield "its records do not show what ran in FP8, and when"
        return
    resolved = run.facts.get(FLOAT8)
    keys = read_recipe_keys(run.recipe)
    scaling_names = [keys.get(FLOAT8) if keys else resolved, resolved, proof.recipe_name]
    if len(set(scaling_names)) > 1:
        names = ", ".join(scaling or "bf16" for scaling in scaling_names)
        yield f"recipe, resolved recipe and proof do not name one scaling: {names}"
    promised = promised_share(run)
    if proof.emulated:
        yield "its FP8 matmuls were emulated"
    elif proof.fp8_share < MIN_PROMISED_PART * promised:
        share = f"{proof.fp8_share:.0%} of its matmul FLOPs ran in FP8"
        yield f"{share}; its filter promises {promised:.0%}"
    if proof.parameters.orphans:
        yield f"{len(proof.parameters.orphans)} of its parameters are in no optimizer"
    if proof.parameters.still_in_first_step:
        yield f"{len(proof.parameters.still_in_first_step)} of its parameters did not move"
    for evidence in proof.model_extra.values():  # of extensions
        for name, value in evidence.items():
            expected = evidence.get(f"{name}_expected")
            if expected and value > expected * (1 + COUNT_TOLERANCE):
                yield f"{name} is {value / expected:.2f} times the expected"


def promised_share(run: Run) -> float:
    """Work out the share of matmul FLOPs that the recipe's scaling runs in FP8 outside the head: 0,
    no promise, if the filter leaves out more than the head.

    With experts the share comes out too small, because a token meets only some of the parameters.
    """
    record = run.record
    # Causality halves attention, so the two counts differ by half of it.
    attention = 2 * (record.flops_per_token - record.flops_per_token_causal)
    multiplied = (record.flops_per_token - attention) / 6  # parameters without the embedding
    head = record.parameters - multiplied  # as large as the embedding; 0 if they are one tensor
    scaling = SCALINGS.get(run.proof.recipe_name)
    if not scaling or run.facts.get(FILTER) not in HEAD_FILTERS or head <= 1:
        return 0.0
    return (1 - head / multiplied) * scaling.matmuls / 3
