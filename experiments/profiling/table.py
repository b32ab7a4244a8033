"""What experiments.bench makes of its rounds: the variants of bench.json, and two tables."""

import statistics
from operator import itemgetter
from typing import TYPE_CHECKING

import pandas as pd

from experiments.config.phases import check_one_precision
from models.errors import InputError
from models.floors import Work, step_floors, step_work
from models.gpus import GPUS, find

if TYPE_CHECKING:
    from experiments.training.plan import Plan


def work(planned: "Plan") -> list[Work]:
    """List what a step of a recipe has to do. Raises `InputError` where that is not known."""
    check_one_precision(planned.config)
    return step_work(planned.config, planned.args, planned.fp8_layers)


def roofline(planned: "Plan", gpu: str) -> dict[str, float]:
    """Work out the least seconds of each part on a GPU of `models.gpus.GPUS`; empty if the recipe
    has no roofline."""
    try:
        return step_floors(work(planned), GPUS[gpu].rates)
    except InputError:
        return {}


# ---- bench.json ----


def summarize(rounds: dict[str, list[dict]], errors: dict[str, str]) -> dict[str, dict]:
    """Make the `variants` of bench.json: for each the figures of its median round, and all rounds.

    Args:
        rounds: records of experiments.profiling.worker by variant, with their `round`; ratios are
            to the first variant.
        errors: why there is no (further) measurement of a variant.
    """
    first, *_ = rounds.values()
    reference = {record["round"]: record["tokens_per_s"] for record in first}
    variants = {}
    for label, records in rounds.items():
        variants[label] = {"error": errors.get(label), "rounds": records}
        if records:
            variants[label] |= _figures(records, reference)
    return variants


def _figures(records: list[dict], reference: dict[int, float]) -> dict:
    by_time = sorted(records, key=itemgetter("step_s"))
    median = by_time[(len(records) - 1) // 2]  # of two the faster
    figures = {key: median[key] for key in ("step_s", "tokens_per_s", "mfu_bf16_peak", "parts")}
    figures["peak_memory_bytes"] = max(record["peak_memory_bytes"] for record in records)
    # A ratio is of two measurements in the same round, when clocks were about the same.
    ratios = [
        record["tokens_per_s"] / reference[record["round"]]
        for record in records
        if record["round"] in reference
    ]
    if ratios:
        median_ratio = statistics.median(ratios)
        figures["ratio"] = {"median": median_ratio, "min": min(ratios), "max": max(ratios)}
    return figures


# ---- tables ----


def tables(summary: dict, plans: dict[str, "Plan"]) -> str:
    """Show the rates, then the parts of a step, with their rooflines where the GPU's rates are
    known."""
    machine, variants = summary["machine"], summary["variants"]
    names = [f"{machine['name']}, torch {machine['packages']['torch']}"]
    for number, (label, variant) in enumerate(variants.items(), 1):
        error = f": {variant['error']}" if variant["error"] else ""
        names.append(f"{number}  {label}{error}")
    texts = ["\n".join(names), _rates(variants)]
    if any(variant["rounds"] for variant in variants.values()):
        gpu = find(machine["name"]) if machine["type"] == "cuda" else None
        rooflines = {label: roofline(plans[label], gpu) for label in variants if gpu}
        texts.append(_parts(variants, rooflines))
    return "\n\n".join(texts)


def _rates(variants: dict[str, dict]) -> str:
    rows = {}
    for number, variant in enumerate(variants.values(), 1):
        rounds = variant["rounds"]
        rows[number] = {"rounds": len(rounds)}
        if rounds:
            rows[number] |= {
                "tokens/s": f"{variant['tokens_per_s']:,.0f}",
                "step, ms": f"{variant['step_s'] * 1e3:,.1f}",
                "MFU": f"{variant['mfu_bf16_peak']:.1%}",
                "memory, GiB": f"{variant['peak_memory_bytes'] / 2**30:.1f}",
                "warm-up, s": _warm_up(rounds),
                "compiled": _compiled(rounds),
            }
            if "ratio" in variant:
                rows[number]["ratio (min to max)"] = RATIO.format(**variant["ratio"])
    table = pd.DataFrame.from_dict(rows, orient="index").fillna("").to_string()
    if any(_compiled(variant["rounds"]) for variant in variants.values()):
        table += f"\n{COMPILED}"
    return table


RATIO = "{median:.3f} ({min:.3f} to {max:.3f})"
COMPILED = (
    "compiled: kernels, and what they read and write by inductor's count; a block's graphs serve "
    "all blocks"
)


def _warm_up(rounds: list[dict]) -> str:
    """Give the median seconds by the state of the compile cache: `cold 31.2, warm 8.9`."""
    seconds = pd.DataFrame([record["warm_up"] for record in rounds])
    medians = seconds.groupby("compile_cache")["s"].median()
    return ", ".join(f"{state} {s:.1f}" for state, s in medians.items()).removeprefix("none ")


def _compiled(rounds: list[dict]) -> str:
    """Count kernels and GB of all graphs, in the round that took fewest of them from the cache:
    `72, 8.97 GB`."""
    graphs = max((record["compiled_graphs"] for record in rounds), key=len, default=[])
    kernels = sum(graph["kernels"] for graph in graphs)
    size = sum(graph["bytes"] for graph in graphs)
    return f"{kernels}, {size / 1e9:.3g} GB" if graphs else ""


def _parts(variants: dict[str, dict], rooflines: dict[str, dict[str, float]]) -> str:
    """Show milliseconds; below each variant that was measured its roofline, which has no idle
    time."""
    rows = {}
    for number, (label, variant) in enumerate(variants.items(), 1):
        if variant["rounds"]:
            rows[str(number)] = variant["parts"]
            if rooflines.get(label):
                rows[f"roofline of {number}"] = rooflines[label]
    parts = pd.DataFrame.from_dict(rows, orient="index") * 1e3
    parts["step"] = parts.sum(axis=1)
    return "a step by parts, ms\n" + parts.to_string(float_format="{:,.1f}".format, na_rep="")
