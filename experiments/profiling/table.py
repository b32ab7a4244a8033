"""What experiments.bench makes of its rounds: the variants of bench.json, and two tables."""

import statistics

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from experiments.config.phases import check_one_precision
from experiments.config.recipes import Recipe
from models.errors import InputError
from models.floors import IDLE, PARTS, Work, step_floors, step_work
from models.gpus import GPUS, find


def summarize(rounds: dict[str, list[dict]], errors: dict[str, str]) -> dict[str, dict]:
    """`variants` of bench.json: for each the figures of its median round (of two the faster), and
    all rounds.

    Args:
        rounds: records of experiments.profiling.worker by variant, with their `round`; ratios are
        to the first variant.
        errors: why there is no (further) measurement of a variant.
    """
    reference = {record["round"]: record for record in next(iter(rounds.values()))}
    variants = {}
    for label, records in rounds.items():
        variants[label] = {"error": errors.get(label), "rounds": records}
        if not records:
            continue
        median = sorted(records, key=lambda record: record["step_s"])[(len(records) - 1) // 2]
        variants[label] |= {
            key: median[key] for key in ("step_s", "tokens_per_s", "mfu_bf16_peak", "parts")
        }
        variants[label]["peak_memory_bytes"] = max(
            record["peak_memory_bytes"] for record in records
        )
        # A ratio is of two measurements in the same round, when clocks were about the same.
        pairs = [
            (record, reference[record["round"]])
            for record in records
            if record["round"] in reference
        ]
        if ratios := [record["tokens_per_s"] / first["tokens_per_s"] for record, first in pairs]:
            variants[label]["ratio"] = {
                "median": statistics.median(ratios),
                "min": min(ratios),
                "max": max(ratios),
            }
    return variants


def print_tables(summary: dict, recipes: dict[str, Recipe], console: Console) -> None:
    """Print the rates, then the parts of a step against their floors where the GPU's rates are
    known."""
    machine, variants = summary["machine"], summary["variants"]
    console.print()
    for number, (label, variant) in enumerate(variants.items(), 1):
        error = f": {variant['error']}" if variant["error"] else ""
        console.print(escape(f"{number}  {label}{error}"), soft_wrap=True)
    console.print(_rates_table(machine, variants))
    if any(variant["rounds"] for variant in variants.values()):
        gpu = find(machine["name"]) if machine["type"] == "cuda" else None
        console.print(
            _parts_table(
                variants, {label: floors(recipes[label], gpu) for label in variants} if gpu else {}
            )
        )


def new_table(title: str, columns: list[str], **keys) -> Table:
    """A table of figures, whose first column has a name for each row."""
    table = Table(
        box=SIMPLE_HEAD,
        header_style="bold",
        padding=(0, 1),
        pad_edge=False,
        title=escape(title),
        **keys,
    )
    table.title_justify = table.caption_justify = "left"
    for number, column in enumerate(["", *columns]):
        table.add_column(column, justify="right" if number else "left", no_wrap=not number)
    return table


def _rates_table(machine: dict, variants: dict[str, dict]) -> Table:
    columns = [
        "rounds",
        "tokens/s",
        "step, ms",
        "ratio",
        "min to max",
        "MFU",
        "memory, GiB",
        "warm-up, s",
        "compiled",
    ]
    compiled = {label: _compiled(variant["rounds"]) for label, variant in variants.items()}
    caption = "compiled: kernels, and what they read and write by inductor's count; a block's graphs serve all blocks"
    title = f"{machine['name']}, torch {machine['packages']['torch']}"
    table = new_table(title, columns, caption=caption if any(compiled.values()) else None)
    for number, (label, variant) in enumerate(variants.items(), 1):
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
                compiled[label],
            ]
        table.add_row(str(number), str(len(variant["rounds"])), *cells)
    return table


def _warm_up(rounds: list[dict]) -> str:
    """Median seconds by the state of the compile cache: `cold 31.2, warm 8.9`."""
    by_state: dict[str, list[float]] = {}
    for record in rounds:
        by_state.setdefault(record["warm_up"]["compile_cache"], []).append(record["warm_up"]["s"])
    seconds = {state: f"{statistics.median(s):.1f}" for state, s in by_state.items()}
    return ", ".join(s if state == "none" else f"{state} {s}" for state, s in seconds.items())


def _compiled(rounds: list[dict]) -> str:
    """Kernels and GB of all graphs, in the round that took fewest of them from the cache: `72, 8.97
    GB`."""
    most = max((record["compiled_graphs"] for record in rounds), key=len, default=[])
    kernels, size = (sum(graph[key] for graph in most) for key in ("kernels", "bytes"))
    return f"{kernels}, {size / 1e9:.3g} GB" if most else ""


def work(recipe: Recipe) -> list[Work]:
    """What a step of a resolved recipe has to do. Raises `InputError` where that is not known."""
    from experiments.training.plan import plan  # torch: seconds

    check_one_precision(recipe.config)
    planned = plan(recipe)
    return step_work(recipe.config, planned.args, planned.fp8_layers)


def floors(recipe: Recipe, gpu: str) -> dict[str, float]:
    """Least seconds of each part on a GPU of `models.gpus.GPUS`; empty if the recipe has no
    roofline."""
    try:
        return step_floors(work(recipe), GPUS[gpu].rates)
    except InputError:
        return {}


def _parts_table(variants: dict[str, dict], floors: dict[str, dict[str, float]]) -> Table:
    """Milliseconds; below each variant that was measured its floor, which has no idle time."""
    parts = dict.fromkeys([*PARTS, IDLE])
    for variant in variants.values():
        parts |= dict.fromkeys(variant.get("parts", ()))
    title = "a step by parts, ms" + (", and the least it can take (floor)" if floors else "")
    table = new_table(title, [*parts, "step"])
    for number, (label, variant) in enumerate(variants.items(), 1):
        rows = [(str(number), variant.get("parts"), None), ("floor", floors.get(label), "dim")]
        for name, seconds, style in rows if variant["rounds"] else []:
            if seconds:
                cells = (f"{seconds[part] * 1e3:,.1f}" if part in seconds else "" for part in parts)
                table.add_row(name, *cells, f"{sum(seconds.values()) * 1e3:,.1f}", style=style)
    return table
