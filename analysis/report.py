"""The comparison of some runs, or a sweep: `python -m analysis.report RUNS… [--baseline R] [--html
F] [--json F]`."""

import argparse
import json
import sys
from dataclasses import is_dataclass
from pathlib import Path

import pandas as pd
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from analysis import sweep as sweeps
from analysis.answer import QUESTION, answer, details
from analysis.comparison import Comparison, compare
from analysis.load import LoadError
from analysis.sweep import Sweep
from analysis.table import COLUMNS, cells, known, matrix, notes, rows_of, seed, trained

SPLIT = 5  # columns of the first part of a table that is too wide for one


def tables(rows: list[dict], width: int) -> list[Table]:
    """The table of runs, one line a run, in two parts where `width` characters are too few for
    one."""
    names = ["recipe", "seed"] if len({row["seed"] for row in rows}) > 1 else ["recipe"]
    parts = []
    for part in (slice(None), slice(SPLIT), slice(SPLIT, None)):
        lines = [[row["recipe"], seed(row)][: len(names)] + cells(row)[part] for row in rows]
        parts.append(table([*names, *COLUMNS[part]], lines))
    return parts[:1] if Console(width=1000).measure(parts[0]).maximum <= width else parts[1:]


def table(columns: list[str], lines: list[list[str]], fold: bool = False) -> Table:
    """For the terminal: the first column on the left, the others on the right; `fold` breaks long
    cells into lines."""
    view = Table(box=SIMPLE_HEAD, header_style="bold", padding=(0, int(fold), 0, 0))
    for place, name in enumerate(columns):
        side = "right" if place else "left"
        view.add_column(escape(name), justify=side, overflow="fold", no_wrap=not fold or not place)
    for line in lines:
        view.add_row(*map(escape, line))
    return view


def print_report(
    paths: list[Path], baseline: str | None, console: Console, verbose: bool = False
) -> Comparison | Sweep | None:
    """Print matrix, answer, what it rests on, the runs and notes, for runs below `paths`; None if
    there are none.

    Of a sweep's folder, print its table and notes.
    """

    def say(sentences: list[str], title: str = "") -> None:
        if title and sentences:
            console.print(f"\n[bold]{title}[/]")
        for sentence in sentences:
            console.print(escape(sentence), soft_wrap=True)

    try:
        if len(paths) == 1 and sweeps.is_sweep(paths[0]):
            sweep = sweeps.read(paths[0])
            console.print(f"[bold]{sweeps.QUESTION}[/]", table(*sweeps.matrix(sweep), fold=True))
            say(sweep.notes)
            return sweep
        comparison = compare(paths, baseline)
    except LoadError as error:
        console.print(f"[red]error:[/] {escape(str(error))}", soft_wrap=True)
        return None
    rows = rows_of(comparison)
    say([trained(rows)], QUESTION)
    console.print(table(*matrix(comparison), fold=True))
    say(answer(comparison))
    say(details(comparison), "What this rests on")
    console.print("\n[bold]Runs[/]", *tables(rows, console.width), sep="\n")
    say(notes(rows) + [f"Note: {problem}" for problem in comparison.frames.problems])
    return comparison


def as_json(comparison: Comparison | Sweep) -> str:
    """Answer, rows, rates, ratios, break-even points and verdicts; of a sweep, its rows."""
    if isinstance(comparison, Sweep):
        content = {name: getattr(comparison, name) for name in ("axes", "notes", "rows")}
    else:
        rows = rows_of(comparison)
        gains = comparison.speed_ups.items()
        content = {
            "answer": answer(comparison),
            "details": details(comparison),
            "baseline": comparison.baseline,
            "trained": trained(rows),
            "runs": rows,
            "rates": comparison.rates,
            "speed_ups": [{"recipe": a, "over": b} | vars(gain) for (a, b), gain in gains],
            "break_evens": list(comparison.break_evens.values()),
            "verdicts": list(comparison.verdicts.values()),
            "clock": {recipe: rate.clock for recipe, rate in comparison.rates.items()},
            "diverged": comparison.diverged,
            "problems": comparison.frames.problems,
        }
    return json.dumps(_plain(content), indent=2, allow_nan=False) + "\n"


def _plain(value):
    """`value` as JSON has it: objects and series as dictionaries, what is not finite as null."""
    if is_dataclass(value):
        value = vars(value)
    if isinstance(value, dict | pd.Series):
        return {key: _plain(inner) for key, inner in value.items()}
    return [*map(_plain, value)] if isinstance(value, list | tuple) else known(value)


def write_page(comparison: Comparison | Sweep, path: Path) -> None:
    """Write the comparison, or the sweep, as one self-contained HTML page. Raises OSError."""
    from analysis.page import page, sweep_page  # draw figures

    path.write_text(sweep_page(comparison) if isinstance(comparison, Sweep) else page(comparison))


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m analysis.report", description="Compare runs.")
    kept = "run directories, folders that hold some, published logs"
    parser.add_argument("runs", nargs="+", type=Path, help=kept)
    parser.add_argument("--baseline", help="recipe to compare with (default: the study's)")
    for name, what in ("html", "one self-contained page"), ("json", "the figures for programs"):
        parser.add_argument(f"--{name}", type=Path, metavar="FILE", help=f"write {what}")
    args = parser.parse_args(argv)
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 200)
    comparison = print_report(args.runs, args.baseline, console)
    if comparison is None:
        return 2
    try:
        if args.json:
            args.json.write_text(as_json(comparison))
        if args.html:
            write_page(comparison, args.html)
    except OSError as error:
        place = escape(f"{error.filename}: {error.strerror}")
        console.print(f"[red]error:[/] {place}", soft_wrap=True)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
