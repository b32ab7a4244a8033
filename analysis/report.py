"""The comparison of some runs, or a sweep: `python -m analysis.report RUNS… [--baseline R] [--html
F] [--json F]`."""

import argparse
import json
import os
import sys
from pathlib import Path

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
    parts = [
        table(
            [*names, *COLUMNS[part]],
            [[row["recipe"], seed(row)][: len(names)] + cells(row)[part] for row in rows],
        )
        for part in (slice(None), slice(SPLIT), slice(SPLIT, None))
    ]
    return parts[:1] if Console(width=1000).measure(parts[0]).maximum <= width else parts[1:]


def table(columns: list[str], lines: list[list[str]], fold: bool = False) -> Table:
    """For the terminal: the first column on the left, the others on the right; `fold` breaks long
    cells into lines."""
    view = Table(box=SIMPLE_HEAD, header_style="bold", padding=(0, int(fold), 0, 0))
    for place, name in enumerate(columns):
        view.add_column(
            escape(name),
            justify="right" if place else "left",
            overflow="fold",
            no_wrap=not fold or not place,
        )
    for line in lines:
        view.add_row(*map(escape, line))
    return view


def print_report(
    paths: list[Path], baseline: str | None, console: Console
) -> Comparison | Sweep | None:
    """Print matrix, answer, what it rests on, the runs and notes, for runs below `paths`; None if
    there are none.

    Of a sweep's folder, its table and notes.
    """
    try:
        if len(paths) == 1 and sweeps.is_sweep(paths[0]):
            return _print_sweep(sweeps.read(paths[0]), console)
        comparison = compare(paths, baseline)
    except LoadError as error:
        console.print(f"[red]error:[/] {escape(str(error))}", soft_wrap=True)
        return None

    def say(sentences: list[str], title: str = "") -> None:
        if title and sentences:
            console.print(f"\n[bold]{title}[/]")
        for sentence in sentences:
            console.print(escape(sentence), soft_wrap=True)

    rows = rows_of(comparison)
    say([trained(rows)], QUESTION)
    console.print(table(*matrix(comparison), fold=True))
    say(answer(comparison))
    say(details(comparison), "What this rests on")
    console.print("\n[bold]Runs[/]")
    for view in tables(rows, console.width):
        console.print(view)
    say(notes(rows) + [f"Note: {problem}" for problem in comparison.frames.problems])
    return comparison


def _print_sweep(sweep: Sweep, console: Console) -> Sweep:
    console.print(f"[bold]{sweeps.QUESTION}[/]", table(*sweeps.matrix(sweep), fold=True))
    for sentence in sweep.notes:
        console.print(escape(sentence), soft_wrap=True)
    return sweep


def as_json(comparison: Comparison | Sweep) -> str:
    """Answer, rows, rates, ratios, break-even points and verdicts; what is unknown is null. Of a
    sweep, its rows."""
    if isinstance(comparison, Sweep):
        plain = {
            "axes": comparison.axes,
            "notes": comparison.notes,
            "rows": [*map(sweeps.plain, comparison.rows)],
        }
        return json.dumps(_finite(plain), indent=2, allow_nan=False) + "\n"
    rows = rows_of(comparison)
    plain = {
        "answer": answer(comparison),
        "details": details(comparison),
        "baseline": comparison.baseline,
        "trained": trained(rows),
        "runs": rows,
        "rates": {
            recipe: vars(rate) | {"by_run": dict(rate.by_run)}
            for recipe, rate in comparison.rates.items()
        },
        "speed_ups": [
            {"recipe": a, "over": b} | vars(gain) for (a, b), gain in comparison.speed_ups.items()
        ],
        "break_evens": [*map(vars, comparison.break_evens.values())],
        "verdicts": [*map(vars, comparison.verdicts.values())],
        "clock": comparison.clock,
        "diverged": comparison.diverged | comparison.bf16_diverged,
        "problems": comparison.frames.problems,
    }
    return json.dumps(_finite(plain), indent=2, allow_nan=False, default=str) + "\n"


def _finite(value):
    """`value` with None for each number in it, however deep, that JSON cannot hold."""
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    return [*map(_finite, value)] if isinstance(value, list | tuple) else known(value)


def write_page(comparison: Comparison | Sweep, path: Path) -> None:
    """The comparison, or the sweep, as one self-contained HTML page. Raises OSError."""
    from analysis.page import page, sweep_page  # draw figures

    path.write_text(sweep_page(comparison) if isinstance(comparison, Sweep) else page(comparison))


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m analysis.report", description="Compare runs.")
    parser.add_argument(
        "runs", nargs="+", type=Path, help="run directories, folders that hold some, published logs"
    )
    parser.add_argument("--baseline", help="recipe to compare with (default: the study's)")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write one self-contained page")
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write the figures for other programs"
    )
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
        console.print(
            f"[red]error:[/] {escape(f'{error.filename}: {error.strerror}')}", soft_wrap=True
        )
        return 2
    return 0


def _command() -> int:
    """`main` for a shell, which may have closed the standard output or sent it to a full disk."""
    sys.stdout = sys.stdout or open(os.devnull, "w")
    try:
        return main()
    except OSError as error:
        os.dup2(
            os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno()
        )  # or the interpreter tries again at its end
        print(f"error: the report could not be printed: {error.strerror}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(_command())
