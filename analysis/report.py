"""The comparison of some runs, or a sweep.

    python -m analysis.report runs/four_way-2026-11-22 --html report.html

RUNS are run directories, folders that hold some, or published logs. Prints the answer and a table
with a row a recipe; `--verbose` adds what they rest on.

Exit codes: 2 for bad input.
"""

import argparse
import sys
from pathlib import Path
from typing import NoReturn

import pandas as pd
from pydantic_core import to_json
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from analysis import sweep as sweeps
from analysis.answer import QUESTION, answer, details
from analysis.comparison import Comparison, compare
from analysis.load import LoadError
from analysis.sweep import Sweep, Value
from analysis.table import matrix, notes, rows_of, run_table, trained

SPLIT = 5  # columns of the first part of a table that is too wide for one


def tables(runs: pd.DataFrame, width: int) -> list[Table]:
    """The table of runs, one line a run, in two parts where `width` characters are too few for
    one."""
    rows = run_table(runs)
    if runs["seed"].nunique() < 2:
        rows = rows.droplevel("seed")
    whole, *parts = map(table, (rows, rows.iloc[:, :SPLIT], rows.iloc[:, SPLIT:]))
    return [whole] if Console(width=1000).measure(whole).maximum <= width else parts


def table(words: pd.DataFrame, fold: bool = False) -> Table:
    """For the terminal: the first column of the index on the left, the others on the right; `fold`
    breaks long cells into lines."""
    view = Table(box=SIMPLE_HEAD, header_style="bold", padding=(0, int(fold), 0, 0))
    lines = words.reset_index()
    for place, name in enumerate(lines):
        side = "right" if place else "left"
        view.add_column(escape(name), justify=side, overflow="fold", no_wrap=not fold or not place)
    for line in lines.itertuples(index=False):
        view.add_row(*map(escape, line))
    return view


def print_report(
    paths: list[Path], baseline: str | None, console: Console, verbose: bool = False
) -> Comparison | Sweep | None:
    """Print the answer and a row a recipe for runs below `paths`; None if there are none.

    Of a sweep's folder, print a row a cell and recipe. `verbose` adds what they rest on.
    """

    def say(sentences: list[str], title: str = "") -> None:
        if title and sentences:
            console.print(f"\n[bold]{title}[/]")
        for sentence in sentences:
            console.print(escape(sentence), soft_wrap=True)

    try:
        if len(paths) == 1 and sweeps.is_sweep(paths[0]):
            sweep = sweeps.read(paths[0])
            say([sweeps.answer(sweep)], sweeps.QUESTION)
            console.print(table(sweeps.matrix(sweep), fold=True))
            say(sweep.notes if verbose else [])
            return sweep
        comparison = compare(paths, baseline)
    except LoadError as error:
        console.print(f"[red]error:[/] {escape(str(error))}", soft_wrap=True)
        return None
    first, *others = answer(comparison)
    say([first], QUESTION)
    console.print(table(matrix(comparison), fold=True))
    problems = [f"Note: {problem}" for problem in comparison.frames.problems]
    if verbose:
        say([trained(comparison), *others, *details(comparison)], "What this rests on")
        console.print("\n[bold]Runs[/]", *tables(rows_of(comparison), console.width), sep="\n")
        say(notes(comparison) + problems)
    elif problems or others:
        say([f"{len(problems) + len(others)} notes on this: --verbose, or the page."])
    return comparison


def as_json(comparison: Comparison | Sweep) -> bytes:
    """Answer, runs, rates, ratios, break-even points and verdicts; of a sweep, its rows."""
    if isinstance(comparison, Sweep):
        content = {
            "answer": sweeps.answer(comparison),
            "axes": comparison.axes,
            "notes": comparison.notes,
            "rows": comparison.table.map(Value._asdict).reset_index().to_dict("records"),
        }
    else:
        runs, gains = rows_of(comparison), comparison.speed_ups.items()
        content = {
            "answer": answer(comparison),
            "details": details(comparison),
            "opponent": comparison.opponent,
            "trained": trained(comparison),
            "runs": runs.drop(columns="settings").astype(object).to_dict("records"),
            "rates": {recipe: of.rate.mean for recipe, of in comparison.completed.items()},
            "speed_ups": [
                {"recipe": a, "over": b, "ratio": gain.ratio} | vars(gain) for (a, b), gain in gains
            ],
            "break_evens": list(comparison.break_evens.values()),
            "verdicts": list(comparison.verdicts.values()),
            "doubts": comparison.doubts,
            "diverged": comparison.diverged,
            "problems": comparison.frames.problems,
        }
    return to_json(content, indent=2, inf_nan_mode="null", fallback=_plain) + b"\n"


def _plain(value):
    """What pandas and numpy hold as JSON has it."""
    return None if pd.isna(value) else value.item()


def write_page(comparison: Comparison | Sweep, path: Path) -> None:
    """Write the comparison, or the sweep, as one self-contained HTML page. Raises OSError."""
    from analysis.page import page, sweep_page  # draw figures

    text = sweep_page(comparison) if isinstance(comparison, Sweep) else page(comparison)
    path.write_text(text, encoding="utf-8")


def command_line(module: str, docstring: str) -> argparse.ArgumentParser:
    """Make the parser of a command, whose help is the docstring of its module. What is wrong with
    the arguments is said in a sentence, with exit code 2."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        f"python -m {module}", description=docstring, formatter_class=form, allow_abbrev=False
    )
    parser.error = _refuse
    return parser


def _refuse(message: str) -> NoReturn:
    print(f"error: {message}; -h lists what there is", file=sys.stderr)
    sys.exit(2)


def main(argv: list[str] | None = None) -> int:
    parser = command_line("analysis.report", __doc__)
    add = parser.add_argument
    add("runs", nargs="+", type=Path, metavar="RUNS", help="what to compare")
    add("--baseline", metavar="RECIPE", help="recipe to compare with (default: the study's)")
    add("--verbose", action="store_true", help="add what the answer rests on, and each run")
    for name, what in ("html", "one self-contained page"), ("json", "the figures for programs"):
        add(f"--{name}", type=Path, metavar="FILE", help=f"write {what}")
    args = parser.parse_args(argv)
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 200)
    comparison = print_report(args.runs, args.baseline, console, args.verbose)
    if comparison is None:
        return 2
    try:
        if args.json:
            args.json.write_bytes(as_json(comparison))
        if args.html:
            write_page(comparison, args.html)
    except OSError as error:
        place = escape(f"{error.filename}: {error.strerror}")
        console.print(f"[red]error:[/] {place}", soft_wrap=True)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
