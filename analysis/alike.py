"""Rule 1: the runs of two recipes differ in nothing but what the recipes are.

Everything that is recorded must be equal in both, except what the recipes' own files set. A new
record is compared without further ado.
"""

from collections import ChainMap, Counter
from functools import cache
from pathlib import Path

from analysis.runs import Run, flat, read_yaml

ROOT = Path(__file__).resolve().parent.parent
NAMED = 3  # of many records that differ

# Records that name a run, say how it ended, or set what computes nothing.
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
    "comm.trace_buf_size",
    "comm.init_timeout_seconds",
    "comm.train_timeout_seconds",
    "data.cache_dir",
    "compiled",
    "float8",
    "fp8_matmul",
    "host",
    "hardware.memory_bytes",
    "hardware.visible_devices",
    "hardware.uuid",
)
# Records that change no step's arithmetic: they are remarks. Where runs were is judged by rule 3.
MINOR = ("hardware.threads", "git.commit", "compile_cache")


def differences(own: list[Run], others: list[Run]) -> tuple[list[str], list[str]]:
    """Find what differs between the runs of two recipes: what forbids a verdict, and mere
    remarks.

    A record may vary among the runs of a recipe if it does so in the same shares in the other.
    """
    passed_over = (*IGNORED, *meant_to_differ(own[0].recipe, others[0].recipe))
    forbidden, remarks = [], []
    for key in ChainMap(*[run.facts for run in own + others]):
        mine, theirs = values(own, key), values(others, key)
        if mine != theirs and not key.startswith(passed_over):
            differing = remarks if key in MINOR else forbidden
            differing.append(f"{key} is {mine} beside {theirs}")
    fewer, more = sorted([fewest_graphs(own), fewest_graphs(others)])
    # steps in bf16 and in FP8 have graphs of their own
    if "compile.enable" not in passed_over and fewer < more / 2:
        forbidden.append(f"{fewer} graphs were compiled beside {more}")
    if len(forbidden) > NAMED:
        forbidden[NAMED:] = [f"{len(forbidden) - NAMED} other records differ too"]
    return forbidden, remarks


def values(runs: list[Run], key: str) -> str:
    """Write the values of a record, each with its share of the runs if there are several."""
    counts = Counter(str(run.facts.get(key)) for run in runs)
    said = [f"{value} ({count / len(runs):.0%})" for value, count in sorted(counts.items())]
    return ", ".join(said).removesuffix(" (100%)")


def fewest_graphs(runs: list[Run]) -> int:
    return min((run.proof and run.proof.compiled_graphs) or 0 for run in runs)


def meant_to_differ(*recipes: str) -> list[str]:
    """List the keys that the files of two recipes set to different values; those of FP8 where a
    recipe has no file here."""
    mine, theirs = map(said_by, recipes)
    if mine is None or theirs is None:
        return ["quantize."]
    return [key for key in mine | theirs if mine.get(key) != theirs.get(key)]


@cache
def said_by(recipe: str) -> dict | None:
    """Read what the file of a recipe and its parents' set, below base.yaml; None without a file."""
    if recipe == "base":
        return {}
    for place in ("recipes", "extensions/*/recipes"):
        for file in ROOT.glob(f"{place}/{recipe}.yaml"):
            said = read_yaml(file)
            return said_by(said.pop("base", "base")) | flat(said)
    return None
