"""The comparison of some runs as a table: `python -m analysis.report RUNS… [--baseline NAME]`."""

import argparse
import sys
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from analysis.summary import LayoutError, summarize

COMPILED_BASELINE = "baseline_compiled"
SPEED = ("final\nloss", "tokens/s", "IQR", "vs\nBASELINE", "vs\ncompiled", "MFU")
COST = ("warm-up\ns", "wall\ns", "after\nwarm-up", "FP8\nshare", "memory\nGiB", "status")


def find_runs(paths: list[Path]) -> list[Path]:
    """Run directories at or below `paths`, in the order in which they were started."""
    manifests = [m for path in paths for m in ([path / "manifest.json"] if (path / "manifest.json").exists() else
                                               sorted(path.glob("**/manifest.json")))]  # fmt: skip
    runs = [m.parent for m in manifests if not m.parent.name.startswith("attempt")]
    return sorted(dict.fromkeys(runs), key=lambda run: (run / "recipe.yaml").stat().st_mtime)


def tables(rows: list[dict], baseline: str, width: int) -> list[Table]:
    """The final table, one line a run, in two parts where `width` is small; ratios are to runs of the same seed."""
    speed = [_speed(row, rows, baseline) for row in rows]
    cost = [_cost(row) for row in rows]
    whole = _table(rows, SPEED + COST, [a + b for a, b in zip(speed, cost, strict=True)], baseline)
    if Console(width=1000).measure(whole).maximum <= width:
        return [whole]
    return [_table(rows, SPEED, speed, baseline), _table(rows, COST, cost, baseline)]


def _table(rows: list[dict], columns: tuple[str, ...], cells: list[list[str]], baseline: str) -> Table:
    view = Table(box=SIMPLE_HEAD, header_style="bold", padding=0)
    view.add_column("recipe", no_wrap=True)
    seeds = len({row["seed"] for row in rows}) > 1
    for name in ("seed", *columns) if seeds else columns:
        view.add_column(name.replace("BASELINE", baseline), justify="right", no_wrap=True)
    for row, rest in zip(rows, cells, strict=True):
        view.add_row(row["recipe"], *([str(row["seed"])] if seeds else []), *map(escape, rest))
    return view


def _speed(row: dict, rows: list[dict], baseline: str) -> list[str]:
    """Cells of the columns `SPEED`."""
    median = row["tokens_per_s"]
    return [
        _format(row["final_loss"], ".3f"),
        _format(median, ",.0f"),
        _format(median and (row["tokens_per_s_q3"] - row["tokens_per_s_q1"]) / median, ".1%"),
        _format(_ratio(row, rows, baseline), ".2f"),
        _format(_ratio(row, rows, COMPILED_BASELINE), ".2f"),
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
        row["status"] if row["steps"] == row["steps_asked"] else f"{row['status']} at {row['steps']}",
    ]


def _ratio(row: dict, rows: list[dict], other: str) -> float | None:
    """Steady tokens/s of `row` over those of the run of recipe `other` with the same seed."""
    theirs = [r["tokens_per_s"] for r in rows if r["recipe"] == other and r["seed"] == row["seed"]]
    if not theirs or theirs[0] is None or row["tokens_per_s"] is None:
        return None
    return row["tokens_per_s"] / theirs[0]


def _format(value: float | None, spec: str) -> str:
    return "-" if value is None else format(value, spec)


def notes(rows: list[dict]) -> list[str]:
    """What a reader must know to read the table right."""
    lines = []
    if any(row["device_type"] == "cpu" for row in rows):
        lines.append(
            "Trained on a CPU, which has no FP8 units: FP8 is slower here. This shows the method, not the answer."
        )
    for source in sorted({row["peak_source"] for row in rows}):
        lines.append(f"MFU is of the bf16 peak ({source}).")
    lines.append(
        "tokens/s: median over steady steps (after the first 10), IQR its quartiles' distance; FP8 share: of the FLOPs "
        "of all matrix multiplications, as profiled; wall: from process start, after warm-up: from the end of step 1."
    )
    for state in ("cold", "warm"):
        if names := [row["recipe"] for row in rows if row["compile_cache"] == state]:
            lines.append(f"Compiled with a {state} cache: {', '.join(dict.fromkeys(names))}.")
    if any(row["fp8_emulated"] for row in rows):
        lines.append(
            "emulated: this torch has no such FP8 operator for the device; rounded to FP8, multiplied in bf16."
        )
    short = [row for row in rows if row["tokens_per_s"] is None and row["status"] == "completed"]
    if short:
        lines.append("No steady rate: a run needs more than 11 steps for one.")
    lines += [f"{row['recipe']} seed {row['seed']}: {row['error']}" for row in rows if row["error"]]
    return lines


def print_report(paths: list[Path], baseline: str, console: Console) -> int:
    """Print table and notes for the runs below `paths`, naming those that cannot be read; returns an exit code."""
    rows = []
    for run in find_runs(paths):
        try:
            rows.append(summarize(run))
        except LayoutError as error:
            console.print(f"[red]not in the table:[/] {escape(str(error))}")
    if not rows:
        console.print(f"[red]error:[/] no run directories below {', '.join(map(str, paths))}")
        return 2
    for view in tables(rows, baseline, console.width):
        console.print(view)
    for note in notes(rows):
        console.print(escape(note), soft_wrap=True)
    return 0


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m analysis.report", description="Compare runs.")
    parser.add_argument("runs", nargs="+", type=Path, help="run directories, or folders that hold some")
    parser.add_argument("--baseline", default="baseline", help="recipe that ratios are to (default: baseline)")
    args = parser.parse_args(argv)
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 200)
    return print_report(args.runs, args.baseline, console)


if __name__ == "__main__":
    sys.exit(main())
