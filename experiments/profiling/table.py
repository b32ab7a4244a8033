"""What experiments.bench makes of its rounds: the variants of bench.json, and two tables."""

from operator import itemgetter
from typing import TYPE_CHECKING

import pandas as pd

from experiments.config.rules import check_one_precision
from models.errors import InputError
from models.floors import Work, step_floors, step_work
from models.gpus import GPUS, find

if TYPE_CHECKING:
    from experiments.training.plan import Plan


def work(planned: "Plan") -> list[Work]:
    """List what a step of a recipe has to do. Raises `InputError` where that is not known."""
    check_one_precision(planned.config)
    return step_work(planned.config, planned.args, planned.fp8.layers)


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
    median = sorted(records, key=itemgetter("step_s"))[(len(records) - 1) // 2]  # of two the faster
    figures = {key: median[key] for key in ("step_s", "tokens_per_s", "mfu_bf16_peak", "parts")}
    figures["peak_memory_bytes"] = max(record["peak_memory_bytes"] for record in records)
    # A ratio is of two measurements in the same round, when clocks were about the same.
    rates = pd.Series({record["round"]: record["tokens_per_s"] for record in records})
    ratios = (rates / pd.Series(reference)).dropna()
    if len(ratios):
        figures["ratio"] = ratios.agg(["median", "min", "max"]).to_dict()
    return figures


# ---- tables ----


def tables(summary: dict, plans: dict[str, "Plan"]) -> str:
    """Show the rates, then the parts of a step, with their rooflines where the GPU's rates are
    known."""
    machine, variants = summary["machine"], summary["variants"]
    gpu = find(machine["name"]) if machine["type"] == "cuda" else None
    lines = [f"{machine['name']}, torch {machine['packages']['torch']}"]
    rates, parts = {}, {}
    for number, (label, variant) in enumerate(variants.items(), 1):
        error = f": {variant['error']}" if variant["error"] else ""
        lines.append(f"{number}  {label}{error}")
        rates[number] = _rates(variant)
        if variant["rounds"]:
            parts[f"{number}"] = variant["parts"]
            if gpu:
                parts[f"roofline of {number}"] = roofline(plans[label], gpu)
    lines += ["", pd.DataFrame.from_dict(rates, orient="index").fillna("").to_string(), COMPILED]
    if parts:
        milliseconds = pd.DataFrame.from_dict(parts, orient="index").dropna(how="all") * 1e3
        milliseconds["step"] = milliseconds.sum(axis=1)
        shown = milliseconds.to_string(float_format="{:,.1f}".format, na_rep="")
        lines += ["", "a step by parts, ms", shown]
    return "\n".join(lines)


COMPILED = (
    "compiled: kernels, and what they read and write by inductor's count; a block's graphs serve "
    "all blocks"
)
RATIO = "{median:.3f} ({min:.3f} to {max:.3f})"


def _rates(variant: dict) -> dict:
    rounds = variant["rounds"]
    if not rounds:
        return {"rounds": 0}
    row = {
        "rounds": len(rounds),
        "tokens/s": f"{variant['tokens_per_s']:,.0f}",
        "step, ms": f"{variant['step_s'] * 1e3:,.1f}",
        "memory, GiB": f"{variant['peak_memory_bytes'] / 2**30:.1f}",
        "warm-up, s": _warm_up(rounds),
        "compiled": _compiled(rounds),
    }
    if variant["mfu_bf16_peak"]:
        row["MFU"] = f"{variant['mfu_bf16_peak']:.1%}"
    if "ratio" in variant:
        row["ratio (min to max)"] = RATIO.format(**variant["ratio"])
    return row


def _warm_up(rounds: list[dict]) -> str:
    """Give the median seconds by the state of the compile cache: `cold 31.2, warm 8.9`."""
    seconds = pd.DataFrame([record["warm_up"] for record in rounds])
    medians = seconds.groupby("compile_cache")["s"].median()
    return ", ".join(f"{state} {s:.1f}" for state, s in medians.items()).removeprefix("none ")


def _compiled(rounds: list[dict]) -> str:
    """Count kernels and GB of all graphs, in the round that took fewest of them from the cache:
    `72, 8.97 GB`."""
    graphs = max((record["compiled_graphs"] for record in rounds), key=len)
    if not graphs:
        return ""
    total = pd.DataFrame(graphs).sum()
    return f"{total['kernels']:.0f}, {total['bytes'] / 1e9:.3g} GB"
