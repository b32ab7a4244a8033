"""Check rule 1: the runs of two recipes differ in nothing but the recipes.

All recorded values must be equal in both, except what the recipes' own files set. A new record is
compared as soon as runs have it.
"""

from collections import ChainMap, Counter
from functools import cache

from analysis.runs import Run, flat, read_yaml
from experiments.config.recipes import RECIPES, yaml_files

NAMED = 3  # at most, of the records that differ

# Records that name a run or its end, and keys that compute nothing.
IGNORED = (
    "layout_version",
    "status",
    "attempt",
    "start",
    "end",
    "error",
    "command",
    "pid",
    "environment",
    "recipe",
    "base",
    "description",
    "name",
    "resolved.",
    "seed",
    "debug.seed",
    "notes",
    "study_budget_s",
    "metrics.",
    "profiling.",
    "checkpoint.",
    "comm.",
    "data.cache_dir",
    "compiled",
    "float8",
    "fp8_matmul",
    "host",
    "hardware.memory_bytes",
    "hardware.visible_devices",
    "hardware.uuid",
)
# Records that may differ: told, and they forbid nothing.
MINOR = ("hardware.threads", "git.commit", "compile_cache")


def differences(own: list[Run], others: list[Run]) -> tuple[list[str], list[str]]:
    """Compare the records of two recipes' runs.

    Returns the differences that forbid a verdict, and remarks on the others. A value may vary among
    the runs of one recipe if the other recipe's runs have the same values in the same shares; a
    value that the recipes' own files set may not vary.
    """
    meant = tuple(meant_to_differ(own[0].recipe, others[0].recipe))
    forbidden = []
    remarks = []
    for key in ChainMap(*[run.facts for run in own + others]):
        mine = values(own, key)
        theirs = values(others, key)
        # A share is written only where the runs of a recipe differ.
        varies = "%)" in mine + theirs if key.startswith(meant) else mine != theirs
        if varies and not key.startswith(IGNORED):
            differing = remarks if key in MINOR else forbidden
            differing.append(f"{key} is {mine} beside {theirs}")
    graphs = [run.proof.compiled_graphs or 0 for run in own + others if run.proof]
    # A recipe with steps in bf16 and in FP8 compiles twice as many.
    if "compile.enable" not in meant and graphs and 2 * min(graphs) < max(graphs):
        forbidden.append(f"from {min(graphs)} to {max(graphs)} graphs were compiled")
    return forbidden[:NAMED], remarks


def values(runs: list[Run], key: str) -> str:
    """Write the values of a record, each with its share of the runs if there are several."""
    counts = Counter(str(run.facts.get(key, "none")) for run in runs)
    said = [f"{value} ({count / len(runs):.0%})" for value, count in sorted(counts.items())]
    return ", ".join(said).removesuffix(" (100%)")


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
