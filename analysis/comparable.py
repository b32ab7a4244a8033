"""Check if the runs of two recipes can be compared.

Rule 1: they differ in nothing except the recipes. All recorded values must be equal in both, except
what the recipes' own files set. A new record is compared as soon as runs have it. Names of runs and
folders are not compared. A difference that costs no time is a remark.

Rule 2: each run did what its recipe says. All its records must agree on what ran.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from analysis.runs import Run, flatten, read_yaml
from experiments.config.recipes import RECIPES, yaml_files
from experiments.records.run import RunRecord
from models.scaling import SCALINGS

MAX_DIFFERENCES = 3  # that a report names
MAX_LISTED = 5  # packages and keys in a sentence

# Keys of facts, or their beginnings.

# What tells one run from another: its name, its time, its place and its end. Not compared.
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
# Not compared here: what follows from the recipe, which rule 2 checks; what drivers round; and what
# runs begin with, which rule 4 compares.
DERIVED_KEYS = (
    "compiled",
    "fp8_matmul",
    "hardware.memory_bytes",
    "peak_flops",
    "first_weights",
    "first_batch",
)
# A difference in these keys is a remark. If saving or logging costs time, the wall clock shows it.
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
# What depends on the machine that a run happened to get. If it differs between two recipes, rule 3
# compares the runs with equal values.
MACHINE_KEYS = ("hardware.cpu", "variables.OMP_NUM_THREADS")
RECOMPUTATION = "activation_checkpoint.mode"
ENVIRONMENT_FILE = "environment"  # the file's name, which has a digest of its content
CODE_CHANGES = "git.changes"  # a digest of the difference from the commit
OTHER_PACKAGES = "other_packages."  # that torch does not load
PATH_STARTS = ("/", "./", "../", "~/")  # beginnings of values that are paths

FLOAT8 = "quantize.linear.float8.recipe_name"  # the scaling; without this key a run is in bf16
FILTER = "quantize.linear.float8.filter_fqns"
COMPILE = "compile.enable"
# What a study is about: a recipe's file may set these keys without a remark.
COMPARED_KEYS = (FLOAT8, COMPILE)
# FP8 and compilation. They do not change how many FLOPs and parameters a step has.
COMPARED_SECTIONS = ("quantize.", "compile.")
HEAD_FILTERS: tuple[list[str], ...] = ([], ["output"])  # that leave out the head at most
COUNT_TOLERANCE = 0.01  # of shares and bytes that are counted in two ways
MIN_PROMISED_PART = 0.9  # of the promised FP8 share: the rest may be layers too small for FP8


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
    keys_of_files = find_keys_of_files(runs[0].recipe, reference_runs[0].recipe)
    packages = []
    settings = []
    for key, values, reference_values in find_unlike_records(runs, reference_runs, keys_of_files):
        sentence = describe_difference(key, values, reference_values)
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
    if COMPILE not in keys_of_files:
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
    """Find the records whose values, or the shares of their values, differ between two recipes.

    A record that a recipe's file sets is also among them if its values vary in both recipes alike.
    """
    all_runs = runs + reference_runs
    all_facts: dict[str, Any] = {}
    for run in all_runs:
        all_facts |= run.facts
    for key in all_facts:
        values = count_values(runs, key)
        reference_values = count_values(reference_runs, key)
        if not is_compared(key, values, reference_values):
            continue
        if key == ENVIRONMENT_FILE and are_packages_known(all_runs):
            continue
        varies = key.startswith(keys_of_files) and len(values | reference_values) > 1
        if varies or find_shares(values) != find_shares(reference_values):
            yield key, values, reference_values


def count_values(runs: list[Run], key: str) -> Counter[str]:
    """Count the values of a record over runs. Runs whose records do not tell are not counted."""
    values: Counter[str] = Counter()
    for run in runs:
        if key in run.facts:
            values[str(run.facts[key])] += 1
        elif not key.startswith(run.unknown_prefixes):
            values["none"] += 1
    return values


def is_compared(key: str, values: Counter[str], reference_values: Counter[str]) -> bool:
    """Tell if a record is compared: names, folders and what follows from a recipe are not.

    A file is compared if several runs name it, because it can change the code or the speed. A file
    of a single run is the run's log.
    """
    if key.startswith((*RUN_NAMES, *DERIVED_KEYS)) or not values or not reference_values:
        return False
    if key in HARMLESS_KEYS:
        return True
    has_shared_file = False
    for value, count in (values + reference_values).items():
        if value != "none" and not value.startswith(PATH_STARTS):
            return True
        if is_file(value) and count > 1:
            has_shared_file = True
    return has_shared_file


def is_file(path: str) -> bool:
    """Tell by its ending if a path names a file, as `/opt/libnccl-net.so.2` does."""
    return any(suffix[1:].isalpha() for suffix in Path(path).suffixes)


def are_packages_known(runs: list[Run]) -> bool:
    """Tell if the packages of all runs are known. Then the environment files' names add nothing."""
    return not any("packages." in run.unknown_prefixes for run in runs)


def is_harmless(key: str, runs: list[Run], keys_of_files: tuple[str, ...]) -> bool:
    """Tell if a difference forbids nothing.

    A step's FLOPs and parameters, which the proof shows, may differ if the recipes' files set more
    than FP8 and compilation. The FLOPs may also differ if activations are recomputed: compiled code
    chooses which ones.
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


def is_mixed(key: str, values: Counter[str], reference_values: Counter[str]) -> bool:
    """Tell if both recipes have runs with equal values of a record, which rule 3 then compares.

    For a machine one common value is enough. Otherwise both recipes need all values, each in
    several runs.
    """
    if key.startswith(MACHINE_KEYS):
        return bool(values.keys() & reference_values.keys())
    lowest_count = min([*values.values(), *reference_values.values()])
    return values.keys() == reference_values.keys() and lowest_count > 1


def find_shares(values: Counter[str]) -> dict[str, float]:
    """Divide the counts of values by their sum."""
    return {value: count / values.total() for value, count in values.items()}


def describe_difference(key: str, values: Counter[str], reference_values: Counter[str]) -> str:
    """Say in a sentence how the values of a record differ between a recipe and its reference."""
    sentence = f"{key} is {describe_values(values)}"
    sentence += f", and {describe_values(reference_values)} in the reference"
    if key == CODE_CHANGES:
        return f"the code was edited between runs ({sentence})"
    return sentence


def describe_values(values: Counter[str]) -> str:
    """Write values, each with its share of the runs if there are several."""
    if len(values) == 1:
        return "".join(values)
    shares = sorted(find_shares(values).items())
    return ", ".join(f"{value} ({share:.0%})" for value, share in shares)


def list_first(sentences: list[str]) -> str:
    """Write the first sentences of a list, and how many more there are."""
    listed = "; ".join(sentences[:MAX_LISTED])
    if len(sentences) > MAX_LISTED:
        listed += f"; and {len(sentences) - MAX_LISTED} more"
    return listed


def compare_graphs(runs: list[Run]) -> list[str]:
    """Say if some runs compiled more than twice as many graphs as others.

    Twice as many are right: a recipe with steps in bf16 and in FP8 compiles each graph twice.
    """
    graphs = []
    for run in runs:
        if run.record.proof:
            graphs.append(run.record.proof.compiled_graphs or 0)
    if graphs and 2 * min(graphs) < max(graphs):
        return [f"from {min(graphs)} to {max(graphs)} graphs were compiled"]
    return []


def find_keys_of_files(recipe: str, reference: str) -> tuple[str, ...]:
    """Find the keys that two recipes' files set differently; all keys of FP8 if a recipe has no
    file."""
    keys = read_recipe_keys(recipe)
    reference_keys = read_recipe_keys(reference)
    if not keys or not reference_keys:
        return ("quantize.",)
    differing_keys = []
    for key in keys | reference_keys:
        if keys.get(key) != reference_keys.get(key):
            differing_keys.append(key)
    return tuple(differing_keys)


@cache
def read_recipe_keys(recipe: str) -> dict[str, Any]:
    """Read what a recipe's file and its parents set, without base.yaml, by key.path.

    Empty without a file.
    """
    file = yaml_files(RECIPES).get(recipe)
    if recipe == "base" or not file:
        return {}
    sections = read_yaml(file)
    return read_recipe_keys(sections.pop("base", "base")) | flatten(sections)


def is_fp8(recipe: str, runs: list[Run]) -> bool:
    """Tell if a recipe is in FP8, by the records of its runs, else by its file."""
    for run in runs:
        if FLOAT8 in run.facts:
            return True
    return FLOAT8 in read_recipe_keys(recipe)


# ---- rule 2 ----


def find_record_faults(runs: list[Run]) -> list[str]:
    """List the contradictions within the records of a recipe's runs, each with its runs."""
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
    """Say where the recipe's file, the resolved recipe and the proof of a run contradict.

    The FP8 FLOPs of each layer, and the number of compiled graphs, are not checked here: the run
    itself checks them before it ends.
    """
    proof = run.record.proof
    if not proof or not run.timings:
        yield "its records do not show what ran in FP8, and when"
        return
    resolved_scaling = run.facts.get(FLOAT8)
    keys = read_recipe_keys(run.recipe)
    file_scaling = keys.get(FLOAT8) if keys else resolved_scaling
    scaling_names = [file_scaling, resolved_scaling, proof.recipe_name]
    if len(set(scaling_names)) > 1:
        names = ", ".join(scaling or "bf16" for scaling in scaling_names)
        yield f"recipe, resolved recipe and proof do not name one scaling: {names}"
    promised = 0.0
    if run.facts.get(FILTER) in HEAD_FILTERS:
        promised = find_promised_share(run.record, proof.recipe_name)
    if proof.emulated:
        yield "its FP8 matmuls were emulated"
    elif proof.fp8_share < MIN_PROMISED_PART * promised:
        share = f"{proof.fp8_share:.0%} of its matmul FLOPs ran in FP8"
        yield f"{share}; its filter promises {promised:.0%}"
    if proof.parameters.orphans:
        yield f"{len(proof.parameters.orphans)} of its parameters are in no optimizer"
    if proof.parameters.still_in_first_step:
        yield f"{len(proof.parameters.still_in_first_step)} of its parameters did not move"
    for evidence in (proof.model_extra or {}).values():  # of extensions
        for name, value in evidence.items():
            expected = evidence.get(f"{name}_expected")
            if expected and value > expected * (1 + COUNT_TOLERANCE):
                yield f"{name} is {value / expected:.2f} times the expected"


def find_promised_share(record: RunRecord, scaling_name: str | None) -> float:
    """Work out which share of the matmul FLOPs runs in FP8 if all layers except the head do.

    0 in bf16, and if head and embedding are one tensor: the head's size is then unknown. With
    experts the share comes out too small, because a token meets only some of the parameters.
    """
    scaling = SCALINGS.get(scaling_name) if scaling_name else None
    if not scaling:
        return 0.0
    # A causal mask halves the FLOPs of attention, so the two counts differ by this half.
    attention_flops = 2 * (record.flops_per_token - record.flops_per_token_causal)
    # 2 FLOPs for each of three matmuls: of the forward pass, of the inputs' gradient, of the
    # weights' gradient. The embedding is not multiplied.
    multiplied_parameters = (record.flops_per_token - attention_flops) / 6
    embedding_parameters = record.parameters - multiplied_parameters
    if embedding_parameters <= 1:  # rounding
        return 0.0
    head_share = embedding_parameters / multiplied_parameters  # the head is as large
    return (1 - head_share) * scaling.matmuls / 3
