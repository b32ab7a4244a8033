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
COLUMNS = ("seed", "final\nloss", "tokens/s", "IQR", "vs\nBASELINE", "vs\ncompiled", "MFU", "warm-up\ns",
           "compile\ncache", "wall\ns", "after\nwarm-up", "FP8\nshare", "memory\nGiB", "status")  # fmt: skip


def find_runs(paths: list[Path]) -> list[Path]:
    """Run directories at or below `paths`, in the order in which they were started."""
    manifests = [m for path in paths for m in ([path / "manifest.json"] if (path / "manifest.json").exists() else
                                               sorted(path.glob("**/manifest.json")))]  # fmt: skip
    runs = [m.parent for m in manifests if not m.parent.name.startswith("attempt")]
    return sorted(dict.fromkeys(runs), key=lambda run: (run / "recipe.yaml").stat().st_mtime)


def table(rows: list[dict], baseline: str) -> Table:
    """The final table: one line a run; ratios are to the runs of the same seed."""
    seeds = len({row["seed"] for row in rows}) > 1
    view = Table(box=SIMPLE_HEAD, header_style="bold", padding=(0, 1, 0, 0), pad_edge=False)
    view.add_column("recipe", no_wrap=True)
    for name in COLUMNS if seeds else COLUMNS[1:]:
        view.add_column(name.replace("BASELINE", baseline), justify="right")
    for row in rows:
        spread = None
        if row["tokens_per_s"]:
            spread = (row["tokens_per_s_q3"] - row["tokens_per_s_q1"]) / row["tokens_per_s"]
        cells = [
            str(row["seed"]),
            _format(row["final_loss"], ".3f"),
            _format(row["tokens_per_s"], ",.0f"),
            _format(spread, ".1%"),
            _format(_ratio(row, rows, baseline), ".2f"),
            _format(_ratio(row, rows, COMPILED_BASELINE), ".2f"),
            _format(row["mfu_bf16_peak"], ".1%"),
            _format(row["warm_up_s"], ".1f"),
            row["compile_cache"] or "-",
            _format(row["wall_s"], ".1f"),
            _format(row["wall_s_without_warm_up"], ".1f"),
            "emulated" if row["fp8_emulated"] else _format(row["fp8_share"], ".1%"),
            _format(row["peak_memory_bytes"] and row["peak_memory_bytes"] / 2**30, ".1f"),
            row["status"] if row["steps"] == row["steps_asked"] else f"{row['status']} at {row['steps']}",
        ]
        view.add_row(row["recipe"], *map(escape, cells if seeds else cells[1:]))
    return view


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
    console.print(table(rows, baseline))
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
