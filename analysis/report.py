"""Print the comparison of some runs.

    python -m analysis.report runs/four_way-2026-11-22 --html report.html

RUNS are run directories, or folders that hold some. Prints the answer, a table of the recipes, and
what limits the answer; `--verbose` adds the evidence on the other recipes, and a table of the runs.

Exit codes: 2 for bad input.
"""

from pathlib import Path
from shutil import get_terminal_size

import jinja2
import pandas as pd
from pydantic_core import to_json

from analysis import answer, tables
from analysis.comparison import Comparison, compare
from analysis.study import read_study
from experiments.config.recipes import ROOT
from experiments.jobs.command import EXIT_COMPLETED, CommandLine, exit_with
from experiments.records.files import disk_full
from models.errors import InputError


def print_report(comparison: Comparison, verbose: bool) -> None:
    """Print the answer, the table of recipes, and what limits the answer.

    Args:
        verbose: also print the evidence on the other recipes, the table of runs, and notes.
    """
    sentences = answer.write_answer(comparison)
    limits = answer.write_limits(comparison, sentences[0])
    print(f"\n{answer.QUESTION}", *sentences, sep="\n")
    print(format_table(tables.recipe_table(comparison)), *limits, sep="\n")
    if verbose:
        details = answer.write_details(comparison)
        print(format_table(tables.run_table(comparison)), *details, sep="\n")
        print(*tables.write_notes(comparison), sep="\n")


def format_table(table: pd.DataFrame) -> str:
    """Write a table in lines: as wide as the screen, or with all columns side by side in a file."""
    return "\n" + table.to_string(line_width=get_terminal_size((200, 50)).columns) + "\n"


def write_json(comparison: Comparison) -> bytes:
    """Write all numbers for programs as JSON, the answer first. Unknown numbers are null."""
    best = comparison.best
    undecided = []
    for result in comparison.undecided:
        ratio = result.speed.ratio._asdict()
        runs_needed = result.loss.runs_needed
        undecided.append({"recipe": result.recipe, **ratio, "runs_needed": runs_needed})
    content = {
        "answer": {
            "outcome": best.outcome,
            "recipe": best.recipe or None,
            "ratio": best.speed.ratio.mean,
            "low": best.speed.ratio.low,
            "high": best.speed.ratio.high,
            "reasons": best.reasons,
            "undecided": undecided,
        },
        "reference": comparison.reference,
        "results": list(comparison.results.values()),
        "runs": [tables.measure_run(run) for run in comparison.study.runs],
    }
    return to_json(content, indent=2, inf_nan_mode="null", fallback=float) + b"\n"


# ---- a page ----


def render(template: str, **values) -> str:
    """Fill in a template.

    Args:
        template: the name of a file in analysis/templates/, or a path in the project.
        values: of the template's variables.
    """
    from analysis import plots  # here, because matplotlib takes a second

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader([Path(__file__).with_name("templates"), ROOT]),
        autoescape=jinja2.select_autoescape(["html.j2"]),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
    )
    environment.globals.update(svg=plots.to_svg, answer=answer, tables=tables)
    return environment.get_template(template).render(values)


def write_page(comparison: Comparison) -> str:
    """Write a self-contained HTML page: nothing in it is fetched from elsewhere."""
    from analysis import plots

    figures = [draw(comparison) for draw in plots.FIGURES]
    return render("report.html.j2", comparison=comparison, figures=figures)


# ---- the command ----


def write_file(path: Path, content: bytes) -> None:
    """Write a file. Raises OSError, `DiskFull` among them."""
    with disk_full(path, len(content)):
        path.write_bytes(content)


def write_csv(folder: Path, comparison: Comparison) -> None:
    """Write the tables of steps, runs and recipes as CSV. Raises OSError."""
    frames = {
        "steps": tables.tabulate_steps(comparison.study),
        "runs": tables.measure_runs(comparison.study),
        "recipes": tables.recipe_table(comparison).reset_index(),
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name, frame in frames.items():
        write_file(folder / f"{name}.csv", frame.to_csv(index=False).encode())


def main(argv: list[str] | None = None) -> int:
    parser = CommandLine("analysis.report", __doc__)
    add = parser.add_argument
    add("RUNS", nargs="+", type=Path, help="what to compare")
    add("--reference", metavar="RECIPE", help="recipe to compare with (default: the study's)")
    add("--verbose", action="store_true", help="add the other recipes, and each run")
    add("--html", type=Path, metavar="FILE", help="write one self-contained page")
    add("--json", type=Path, metavar="FILE", help="write the figures for programs")
    add("--csv", type=Path, metavar="DIR", help="write steps.csv, runs.csv and recipes.csv")
    args = parser.parse_arguments(argv)
    comparison = compare(read_study(*args.RUNS), args.reference)
    print_report(comparison, args.verbose)
    try:
        if args.json:
            write_file(args.json, write_json(comparison))
        if args.html:
            page = write_page(comparison)
            write_file(args.html, page.encode(errors="backslashreplace"))
        if args.csv:
            write_csv(args.csv, comparison)
    except OSError as error:
        raise InputError(f"{error}: choose another file") from error
    return EXIT_COMPLETED


if __name__ == "__main__":
    exit_with(main)
