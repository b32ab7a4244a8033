"""The comparison of some runs: `python -m analysis.report RUNS… [--baseline NAME] [--html FILE] [--json FILE]`."""

import argparse
import json
import math
import sys
from pathlib import Path

import yaml
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from analysis.comparison import BASELINE, COMPILED, Comparison, answer, compare
from analysis.load import LoadError
from analysis.plots.style import in_order

NOISY = 0.3  # IQR as a share of the median: the published FP8 gains 6 to 34 %; the README's runs have at most 17 %

SPEED = ("final\nloss", "tokens/s", "IQR", "vs\nBASELINE", "vs\ncompiled", "MFU")
COST = ("warm-up\ns", "wall\ns", "after\nwarm-up", "FP8\nshare", "memory\nGiB", "status")


def rows_of(comparison: Comparison) -> list[dict]:
    """`Frames.runs` as dictionaries, recipe by recipe and seed by seed; what is unknown is None."""
    runs = comparison.frames.runs
    order = {recipe: place for place, recipe in enumerate(in_order(runs["recipe"]))}
    rows = [{key: _known(value) for key, value in row.items()} for row in runs.to_dict("records")]
    return sorted(rows, key=lambda row: (order[row["recipe"]], row["seed"] is None, row["seed"] or 0))


def _known(value):
    return None if isinstance(value, float) and math.isnan(value) else value


def cells(rows: list[dict], baseline: str) -> tuple[list[str], list[list[str]], list[list[str]]]:
    """(names of the first columns, first and `SPEED` columns, `COST` columns); ratios are to runs of the same seed."""
    seeds = len({row["seed"] for row in rows}) > 1
    first = [[row["recipe"], _format(row["seed"], ".0f")] if seeds else [row["recipe"]] for row in rows]
    speed = [a + _speed(row, rows, baseline) for a, row in zip(first, rows, strict=True)]
    return ["recipe", "seed"] if seeds else ["recipe"], speed, [_cost(row) for row in rows]


def _speed(row: dict, rows: list[dict], baseline: str) -> list[str]:
    """Cells of the columns `SPEED`."""
    return [
        _format(row["final_loss"], ".3f"),
        _format(row["tokens_per_s"], ",.0f"),
        _format(_spread(row), ".1%"),
        _format(_ratio(row, rows, baseline), ".2f"),
        _format(_ratio(row, rows, COMPILED), ".2f"),
        _format(row["mfu_bf16_peak"], ".1%"),
    ]


def _cost(row: dict) -> list[str]:
    """Cells of the columns `COST`."""
    return [
        _format(row["warm_up_s"], ".1f"),
        _format(row["wall_s"], ".1f"),
        _format(row["wall_s_without_warm_up"], ".1f"),
        "emulated" if row["fp8_emulated"] else _format(row["fp8_share"], ".1%"),
        _format(row["peak_memory_bytes"] and row["peak_memory_bytes"] / 2**30, ".1f"),
        status(row),
    ]


def status(row: dict) -> str:
    """What became of a run, and where it ended; one that was killed had no time to write that it is not running."""
    if row.get("steps_planned"):
        return f"{row['steps']:.0f} of {row['steps_planned']:.0f}"
    word = "not ended" if row["status"] == "running" else row["status"]
    return word if row["steps_asked"] in (None, row["steps"]) else f"{word} at {row['steps']:.0f}"


def _spread(row: dict) -> float | None:
    """Distance of the quartiles of tokens/s, as a share of the median."""
    median = row["tokens_per_s"]
    return median and (row["tokens_per_s_q3"] - row["tokens_per_s_q1"]) / median


def _ratio(row: dict, rows: list[dict], other: str) -> float | None:
    """Steady tokens/s of `row` over those of the run of recipe `other` with the same seed."""
    theirs = [r["tokens_per_s"] for r in rows if r["recipe"] == other and r["seed"] == row["seed"]]
    if not theirs or theirs[0] is None or row["tokens_per_s"] is None:
        return None
    return row["tokens_per_s"] / theirs[0]


def _format(value: float | None, spec: str) -> str:
    return "-" if value is None else format(value, spec)


def tables(rows: list[dict], baseline: str, width: int) -> list[Table]:
    """The final table, one line a run, in two parts where `width` characters are too few for one."""
    first, speed, cost = cells(rows, baseline)
    whole = _table([*first, *SPEED, *COST], [a + b for a, b in zip(speed, cost, strict=True)], baseline)
    if Console(width=1000).measure(whole).maximum <= width:
        return [whole]
    names = [line[: len(first)] for line in speed]
    second = [name + line for name, line in zip(names, cost, strict=True)]
    return [_table([*first, *SPEED], speed, baseline), _table([*first, *COST], second, baseline)]


def _table(columns: list[str], lines: list[list[str]], baseline: str) -> Table:
    view = Table(box=SIMPLE_HEAD, header_style="bold", padding=0)
    for name in columns:
        justify = "left" if name == "recipe" else "right"
        view.add_column(name.replace("BASELINE", baseline), justify=justify, no_wrap=True)
    for line in lines:
        view.add_row(*map(escape, line))
    return view


def notes(rows: list[dict]) -> list[str]:
    """What a reader must know to read the table right."""
    lines = []
    for source in dict.fromkeys(row["peak_source"] for row in rows if row["peak_source"]):
        lines.append(f"MFU is of the bf16 peak ({source}).")
    peaks = [row["peak_bf16"] for row in rows if row.get("peak_bf16")]
    if peaks and max(peaks) > 1.01 * min(peaks):
        lines.append(
            f"That peak differs by {max(peaks) / min(peaks) - 1:.0%} between the runs: compare tokens/s, not MFU."
        )
    lines.append(
        "tokens/s: median over steady steps (after the first 10), IQR its quartiles' distance; FP8 share: of the FLOPs "
        "of the linear layers, as profiled; wall: from process start, after warm-up: from the end of step 1."
    )
    for first, planned in {(row["steps"], row["steps_planned"]) for row in rows if row.get("steps_planned")}:
        lines.append(
            f"The study's time budget ended before its runs: all are compared over their first {first:,.0f} of "
            f"{planned:,.0f} steps."
        )
    if any(row["source"] != "run directory" for row in rows if "source" in row):
        lines.append("Logs of other programs: their clock starts with the training loop, not with the process.")
    for state in ("cold", "warm"):
        if names := [_run_name(row) for row in rows if row["compile_cache"] == state]:
            lines.append(f"Compiled with a {state} cache: {', '.join(names)}.")
    for product in dict.fromkeys(row["fp8_product"] for row in rows if row["fp8_product"]):
        names = [_run_name(row) for row in rows if row["fp8_product"] == product]
        lines.append(f"FP8 products: {product} ({', '.join(names)}).")
    if len({kernels for row in rows if (kernels := row.get("attention"))}) > 1:
        names = [f"{_run_name(row)} {row['attention']}" for row in rows if row.get("attention")]
        lines.append(
            f"Attention was computed by other kernels: {', '.join(names)}. Part of a difference may be theirs."
        )
    if names := [f"{_run_name(row)} ({row['orphans']:.0f})" for row in rows if row["orphans"]]:
        lines.append(f"With trainable parameters in no optimizer, which never learn, as asked: {', '.join(names)}.")
    if any(row["tokens_per_s"] is None and row["status"] == "completed" for row in rows):
        lines.append("No steady rate: a run needs more than 11 steps for one.")
    if names := [f"{_run_name(row)} ({spread:.0%})" for row in rows if (spread := _spread(row) or 0) > NOISY]:
        lines.append(
            f"Steps vary much (IQR), as where something else runs on the machine: {', '.join(names)}. Repeat such runs "
            "before comparing speeds."
        )
    return lines


def _run_name(row: dict) -> str:
    return row["recipe"] if row["seed"] is None else f"{row['recipe']} seed {row['seed']:.0f}"


def baseline_of(paths: list[Path]) -> str:
    """The recipe that a study compares with, where `paths` is the directory of one; else the default."""
    try:
        (path,) = paths
        return yaml.safe_load((path / "study.yaml").read_text())["baseline"]
    except (OSError, ValueError, KeyError, TypeError, yaml.YAMLError):
        return BASELINE


def print_report(paths: list[Path], baseline: str, console: Console) -> Comparison | None:
    """Print table, notes, what could not be used, and the answer, for runs below `paths`; None if there are none."""
    try:
        comparison = compare(paths, baseline)
    except LoadError as error:
        console.print(f"[red]error:[/] {escape(str(error))}", soft_wrap=True)
        return None
    rows = rows_of(comparison)
    for view in tables(rows, baseline, console.width):
        console.print(view)
    for sentence in notes(rows) + [f"Note: {problem}" for problem in comparison.frames.problems]:
        console.print(escape(sentence), soft_wrap=True)
    console.print("\n[bold]Should this Llama be trained in FP8?[/]")
    for sentence in answer(comparison):
        console.print(escape(sentence), soft_wrap=True)
    return comparison


def as_json(comparison: Comparison) -> str:
    """Answer, rows, rates, ratios, break-even points and verdicts; what is unknown is null."""
    plain = {
        "answer": answer(comparison),
        "baseline": comparison.baseline,
        "runs": rows_of(comparison),
        "rates": {
            recipe: {key: _known(getattr(rate, key)) for key in ("median", "q1", "q3", "low", "high", "steps", "runs")}
            for recipe, rate in comparison.rates.items()
        },
        "speed_ups": [{"recipe": a, "over": b, **_plain(s)} for (a, b), s in comparison.speed_ups.items()],
        "break_evens": [_plain(b) for b in comparison.break_evens],
        "verdicts": [_plain(v) for v in comparison.verdicts.values()],
        "problems": comparison.frames.problems,
    }
    return json.dumps(plain, indent=2, allow_nan=False) + "\n"


def _plain(result) -> dict:
    return {key: _known(value) for key, value in vars(result).items()}


def write_page(comparison: Comparison, path: Path) -> None:
    """The comparison as one self-contained HTML page. Raises OSError."""
    from analysis.page import page  # draws figures

    path.write_text(page(comparison))


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m analysis.report", description="Compare runs.")
    parser.add_argument("runs", nargs="+", type=Path, help="run directories, folders that hold some, published logs")
    parser.add_argument("--baseline", help="recipe to compare with (default: the study's)")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write one self-contained page")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures for other programs")
    args = parser.parse_args(argv)
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 200)
    comparison = print_report(args.runs, args.baseline or baseline_of(args.runs), console)
    if comparison is None:
        return 2
    try:
        if args.json:
            args.json.write_text(as_json(comparison))
        if args.html:
            write_page(comparison, args.html)
    except OSError as error:
        console.print(f"[red]error:[/] {escape(f'{error.filename}: {error.strerror}')}", soft_wrap=True)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
