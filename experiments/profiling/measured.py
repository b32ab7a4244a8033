"""What experiments.bench measured: bench.json, as the bench writes and experiments.roofline reads
it, and its tables.

Times are in seconds, sizes in bytes, rates per second. null is unknown.
"""

from statistics import median
from typing import TYPE_CHECKING

import pandas as pd

from experiments.records.run import Hardware, Record
from models.errors import InputError
from models.floors import Work, step_floors, step_of, step_work
from models.gpus import GPUS, find

if TYPE_CHECKING:
    from experiments.training.plan import Plan


class Round(Record):
    """One measurement of a variant, by experiments/profiling/worker.py."""

    round: int
    wall_s: float
    step_s: float
    tokens_per_s: float
    mfu_bf16_peak: float | None
    parts: dict[str, float]  # of a step
    peak_memory_bytes: int
    warm_up: dict[str, float | str | dict[str, float]]  # to the end of the first step
    steady_step_s: list[float]
    profiled_step_s: list[float]
    compiled_graphs: list[dict[str, int]]  # `kernels`, and `bytes` that they read and write


class Variant(Record):
    """A variant's rounds, and the figures of its median round; none before the first round."""

    error: str | None  # why there is no (further) round
    rounds: list[Round]
    step_s: float | None = None
    tokens_per_s: float | None = None
    mfu_bf16_peak: float | None = None
    parts: dict[str, float] = {}
    peak_memory_bytes: int | None = None
    ratio: dict[str, float] | None = None  # of tokens/s to the first variant's: median, min, max

    def work_out(self, reference: dict[int, float]) -> None:
        """Work out the figures; `reference` has the first variant's tokens/s by round."""
        by_time = sorted(self.rounds, key=lambda one: one.step_s)
        middle = by_time[(len(by_time) - 1) // 2]  # of two the faster
        self.step_s, self.tokens_per_s = middle.step_s, middle.tokens_per_s
        self.mfu_bf16_peak, self.parts = middle.mfu_bf16_peak, middle.parts
        self.peak_memory_bytes = max(one.peak_memory_bytes for one in self.rounds)
        # A ratio is of two measurements in the same round, when clocks were about the same.
        both = [one for one in self.rounds if one.round in reference]
        ratios = [one.tokens_per_s / reference[one.round] for one in both]
        if ratios:
            self.ratio = {"median": median(ratios), "min": min(ratios), "max": max(ratios)}


class Machine(Hardware):
    packages: dict[str, str]


class Bench(Record):
    """The contents of bench.json."""

    command: str
    start: str
    git: dict[str, str | bool | None]
    machine: Machine
    overlays: list[str]
    overrides: list[str]
    steps: int
    budget_s: float
    variants: dict[str, Variant]

    def work_out(self) -> None:
        """Work out the figures of all variants that have rounds."""
        first, *_ = self.variants.values()
        reference = {one.round: one.tokens_per_s for one in first.rounds}
        for variant in self.variants.values():
            if variant.rounds:
                variant.work_out(reference)


# ---- tables ----

COMPILED = (
    "compiled: kernels, and what they read and write by inductor's count; a block's graphs serve "
    "all blocks"
)
RATIO = "{median:.3f} ({min:.3f} to {max:.3f})"


def work(planned: "Plan") -> list[Work]:
    """List what a step of a recipe has to do. Raises `InputError` where that is not known."""
    planned.recipe.check_one_pace()
    step = step_of(planned.config, planned.passes)
    return step_work(step, planned.args, planned.fp8.layers)


def roofline(planned: "Plan", gpu: str | None) -> dict[str, float]:
    """Work out the least seconds of each part; empty if the GPU or the recipe has no roofline."""
    try:
        return step_floors(work(planned), GPUS[gpu].rates) if gpu else {}
    except InputError:
        return {}


def tables(bench: Bench, plans: dict[str, "Plan"]) -> str:
    """Show the rates, then the parts of a step, with their rooflines where the GPU's rates are
    known."""
    machine = bench.machine
    lines, rates, parts = [f"{machine.name}, torch {machine.packages['torch']}"], {}, {}
    for number, (label, variant) in enumerate(bench.variants.items(), 1):
        error = f": {variant.error}" if variant.error else ""
        lines.append(f"{number}  {label}{error}")
        rates[number] = {"rounds": len(variant.rounds)}
        if variant.rounds:
            rates[number] |= _rates(variant)
            parts[f"{number}"] = variant.parts
            parts[f"roofline of {number}"] = roofline(plans[label], find(machine.name))
    lines += ["", pd.DataFrame.from_dict(rates, orient="index").fillna("").to_string(), COMPILED]
    if parts:
        milliseconds = pd.DataFrame.from_dict(parts, orient="index").dropna(how="all") * 1e3
        milliseconds["step"] = milliseconds.sum(axis=1)
        shown = milliseconds.to_string(float_format="{:,.1f}".format, na_rep="")
        lines += ["", "a step by parts, ms", shown]
    return "\n".join(lines)


def _rates(variant: Variant) -> dict[str, str]:
    warm_ups = pd.DataFrame([one.warm_up for one in variant.rounds])
    by_cache = warm_ups.groupby("compile_cache")["s"].median().items()  # cold 31.2, warm 8.9
    # of the round that took fewest graphs from the cache
    graphs = max((one.compiled_graphs for one in variant.rounds), key=len)
    row = {
        "tokens/s": f"{variant.tokens_per_s:,.0f}",
        "step, ms": f"{variant.step_s * 1e3:,.1f}",
        "memory, GiB": f"{variant.peak_memory_bytes / 2**30:.1f}",
        "warm-up, s": ", ".join(f"{cache} {s:.1f}" for cache, s in by_cache).removeprefix("none "),
        "compiled": "",
    }
    if graphs:
        counted = pd.DataFrame(graphs).sum()
        row["compiled"] = f"{counted['kernels']}, {counted['bytes'] / 1e9:.3g} GB"
    if variant.mfu_bf16_peak:
        row["MFU"] = f"{variant.mfu_bf16_peak:.1%}"
    if variant.ratio:
        row["ratio (min to max)"] = RATIO.format(**variant.ratio)
    return row
