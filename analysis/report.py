"""Print the comparison of some runs.

    python -m analysis.report runs/four_way-2026-11-22 --html report.html

RUNS are run directories, or folders that hold some. Prints the answer, a table with a row a recipe,
and what limits them; `--verbose` adds other recipes and each run.

Exit codes: 2 for bad input.
"""

from pathlib import Path
from shutil import get_terminal_size

import pandas as pd
from pydantic_core import to_json

from analysis.answer import QUESTION, answer, details, limits
from analysis.comparison import Comparison, compare
from analysis.study import read_study
from analysis.table import measured, notes, recipe_table, run_table
from experiments.jobs.command import EXIT_COMPLETED, CommandLine, exit_with
from experiments.records.files import disk_full
from models.errors import InputError


def print_report(comparison: Comparison, verbose: bool) -> None:
    """Print the answer, a row a recipe, and what limits them; `verbose` adds the rest."""
    said = answer(comparison)
    said += [drawn(recipe_table(comparison)), *limits(comparison, said[0])]
    print(f"\n{QUESTION}", *said, sep="\n")
    if verbose:
        print(drawn(run_table(comparison)), *details(comparison), *notes(comparison), sep="\n")


def drawn(table: pd.DataFrame) -> str:
    """Draw a table in lines: as wide as the screen, or with all columns side by side in a file."""
    return "\n" + table.to_string(line_width=get_terminal_size((200, 50)).columns) + "\n"


def as_json(comparison: Comparison) -> bytes:
    """Write all figures for programs, the answer first. Unknown numbers are null."""
    best = comparison.best
    ratio = best.speed.ratio
    content = {
        "answer": {
            "outcome": best.outcome,
            "recipe": best.recipe or None,
            "ratio": ratio.mean,
            "low": ratio.low,
            "high": ratio.high,
            "reasons": best.reasons,
            # Faster recipes with an undecided loss, beside a plain yes.
            "undecided": [
                {
                    "recipe": each.recipe,
                    **each.speed.ratio._asdict(),
                    "runs_needed": each.loss.runs_needed,
                }
                for each in comparison.undecided
            ],
        },
        "reference": comparison.reference,
        "findings": list(comparison.findings.values()),
        "runs": [measured(run) for run in comparison.study.runs],
    }
    return to_json(content, indent=2, inf_nan_mode="null", fallback=float) + b"\n"


def write(path: Path, content: bytes) -> None:
    """Write a file. Raises OSError, `DiskFull` among them."""
    with disk_full(path, len(content)):
        path.write_bytes(content)


def main(argv: list[str] | None = None) -> int:
    parser = CommandLine("analysis.report", __doc__)
    add = parser.add_argument
    add("RUNS", nargs="+", type=Path, help="what to compare")
    add("--reference", metavar="RECIPE", help="recipe to compare with (default: the study's)")
    add("--verbose", action="store_true", help="add the other recipes, and each run")
    add("--html", type=Path, metavar="FILE", help="write one self-contained page")
    add("--json", type=Path, metavar="FILE", help="write the figures for programs")
    args = parser.parse_arguments(argv)
    comparison = compare(read_study(*args.RUNS), args.reference)
    print_report(comparison, args.verbose)
    try:
        if args.json:
            write(args.json, as_json(comparison))
        if args.html:
            from analysis.page import page  # draws figures

            write(args.html, page(comparison).encode(errors="backslashreplace"))
    except OSError as error:
        raise InputError(f"{error}: choose another file") from error
    return EXIT_COMPLETED


if __name__ == "__main__":
    exit_with(main)
