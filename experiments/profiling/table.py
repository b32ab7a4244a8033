"""What experiments/bench.py makes of its rounds: the variants of bench.json, and two tables."""

import statistics

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from experiments.config.recipes import Recipe
from models import floors as roofline
from models import gpus
from models.errors import InputError


def summarize(rounds: dict[str, list[dict]], errors: dict[str, str]) -> dict[str, dict]:
    """`variants` of bench.json: for each the figures of its median round (of two the faster), and all rounds.

    Args:
        rounds: records of experiments.profiling.worker by variant, with their `round`; ratios are to the first variant.
        errors: why there is no (further) measurement of a variant.
    """
    reference = {r["round"]: r for r in next(iter(rounds.values()))}
    variants = {}
    for label, mine in rounds.items():
        variants[label] = {"error": errors.get(label), "rounds": mine}
        if mine:
            middle = statistics.median_low(r["step_s"] for r in mine)
            same = ("step_s", "tokens_per_s", "mfu_bf16_peak", "parts")
            of_middle = next(r for r in mine if r["step_s"] == middle)
            variants[label] |= {key: of_middle[key] for key in same}
            variants[label]["peak_memory_bytes"] = max(r["peak_memory_bytes"] for r in mine)
            # within a round, where both had about the same clocks
            both = [r["tokens_per_s"] / reference[r["round"]]["tokens_per_s"] for r in mine if r["round"] in reference]
            if both:
                variants[label]["ratio"] = {"median": statistics.median(both), "min": min(both), "max": max(both)}
    return variants


def print_tables(summary: dict, recipes: dict[str, Recipe], console: Console) -> None:
    """Print the rates, then the parts of a step against their floors where the GPU's rates are known."""
    machine, variants = summary["machine"], summary["variants"]
    console.print()
    for number, (label, variant) in enumerate(variants.items(), 1):
        error = f": {variant['error']}" if variant["error"] else ""
        console.print(escape(f"{number}  {label}{error}"), soft_wrap=True)
    console.print(_rates(machine, variants))
    if measured := [label for label, variant in variants.items() if variant["rounds"]]:
        name = gpus.find(machine["name"]) if machine["type"] == "cuda" else None
        console.print(_parts(variants, {label: floors(recipes[label], name) for label in measured} if name else {}))


def floors(recipe: Recipe, gpu: str) -> dict[str, float]:
    """Least seconds by part, from sustained rates where they are known; empty if the recipe has no roofline."""
    from experiments.roofline import predict

    try:
        parts = predict(recipe, gpu)["parts"]
    except InputError:
        return {}
    return {part: row.get("sustained", row["datasheet"])["s"] for part, row in parts.items()}


def _table(title: str, columns: list[str]) -> Table:
    view = Table(box=SIMPLE_HEAD, header_style="bold", padding=(0, 1), pad_edge=False, title=escape(title))
    view.title_justify = "left"
    view.add_column("")
    for column in columns:
        view.add_column(column, justify="right")
    return view


def _rates(machine: dict, variants: dict[str, dict]) -> Table:
    columns = ["rounds", "tokens/s", "step, ms", "ratio", "min to max", "MFU", "memory, GiB", "warm-up, s"]
    view = _table(f"{machine['name']}, torch {machine['packages']['torch']}", columns)
    for number, variant in enumerate(variants.values(), 1):
        cells = []
        if variant["rounds"]:
            ratio = variant.get("ratio")
            cells = [
                f"{variant['tokens_per_s']:,.0f}",
                f"{variant['step_s'] * 1e3:,.1f}",
                f"{ratio['median']:.3f}" if ratio else "",
                f"{ratio['min']:.3f} to {ratio['max']:.3f}" if ratio else "",
                f"{variant['mfu_bf16_peak']:.1%}",
                f"{variant['peak_memory_bytes'] / 2**30:.1f}",
                _warm_up(variant["rounds"]),
            ]
        view.add_row(str(number), str(len(variant["rounds"])), *cells)
    return view


def _warm_up(rounds: list[dict]) -> str:
    """Median seconds by the state of the compile cache: `cold 31.2, warm 8.9`."""
    by_state: dict[str, list[float]] = {}
    for r in rounds:
        by_state.setdefault(r["warm_up"]["compile_cache"], []).append(r["warm_up"]["s"])
    seconds = {state: f"{statistics.median(s):.1f}" for state, s in by_state.items()}
    return ", ".join(s if state == "none" else f"{state} {s}" for state, s in seconds.items())


def _parts(variants: dict[str, dict], floors: dict[str, dict[str, float]]) -> Table:
    """Milliseconds; below each variant that was measured its floor, which has no idle time."""
    known = [*roofline.PARTS, roofline.IDLE]
    others = sorted({part for variant in variants.values() for part in variant.get("parts", ())} - set(known))
    columns = [*known, *others, "step"]
    view = _table("a step by parts, ms" + (", and the least it can take (floor)" if floors else ""), columns)
    for number, (label, variant) in enumerate(variants.items(), 1):
        if not variant["rounds"]:
            continue
        measured = variant["parts"] | {"step": variant["step_s"]}
        view.add_row(str(number), *(f"{measured[part] * 1e3:,.1f}" if part in measured else "" for part in columns))
        if floor := floors.get(label):
            floor = floor | {"step": sum(floor.values())}
            cells = (f"{floor[part] * 1e3:,.1f}" if part in floor else "" for part in columns)
            view.add_row("floor", *cells, style="dim")
    return view
