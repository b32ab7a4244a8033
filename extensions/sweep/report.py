"""The answer of each cell of a sweep, and how cells scale with the number of GPUs.

    python -m extensions.sweep.report runs/sweep_cpu-2026-11-22

Prints a table with a line a cell, and writes report.html with its figure, and report.json for
programs, into that folder. A cell's answer is its study's: it compares the best FP8 recipe with
bf16. The evidence, and the other recipes, are in `report.html` in the cell's folder.

Exit codes: 2 for bad input.
"""

from pathlib import Path

import pandas as pd
from matplotlib.axes import Axes

from analysis import report
from analysis.answer import list_left_out
from analysis.comparison import Comparison, compare
from analysis.plots.bars import set_rows
from analysis.plots.style import GREY, PanelDrawing, short_name, write_headline
from analysis.report import render
from analysis.speed import Ratio, compare_speeds
from analysis.study import StudyError, read_study
from analysis.tables import format_loss_difference, format_speed
from experiments.jobs.command import EXIT_COMPLETED, CommandLine, exit_with
from extensions.sweep.cells import PROCESSES, load_sweep

QUESTION = "Where is FP8 faster than bf16, and by how much?"
NOT_COMPARED = "not compared"
HOW_TO_READ = (
    "tokens/s: of the FP8 recipe, all GPUs of a run added up. over bf16, loss: compared to the "
    "bf16 recipe of the same cell. efficiency: tokens/s over N times one GPU's. Intervals are of "
    "95 %, over seeds; one run has none. Cells of different GPUs or versions do not compare in "
    "speed. cpu: processes share the cores, so no speed says how GPUs do. no reference: no "
    "completed run of FP8, or of bf16."
)
TABLE_COLUMNS = ["answer", "FP8 recipe", "tokens/s", "over bf16", "loss", "efficiency"]
JSON_COLUMNS = ["mean", "low", "high", "notes"]


def read_cells(folder: Path) -> pd.DataFrame:
    """Read the cells of a sweep: a row a cell, indexed by the cell's folder.

    Columns are `TABLE_COLUMNS`, about the FP8 recipe that does best there; how many times as fast
    as bf16 the recipe is, as numbers: `mean`, `low` and `high`; and `notes`: which runs are
    missing, and why. Raises `InputError`.
    """
    sweep = load_sweep(str(folder))
    rows = {}
    comparisons = {}
    for cell in sweep.cells():
        name = sweep.folder(cell)
        try:
            comparison = compare(read_study(folder / name))
        except StudyError as error:
            rows[name] = {"answer": NOT_COMPARED, "notes": [str(error)]}
            continue
        comparisons[name] = comparison
        rows[name] = describe_best(comparison)
        # An axis lists one process first
        one_process = comparisons.get(sweep.folder(cell | {PROCESSES: 1}), comparison)
        if one_process is not comparison:
            rows[name]["efficiency"] = efficiency(comparison, one_process, cell[PROCESSES])
    columns = TABLE_COLUMNS + JSON_COLUMNS
    return pd.DataFrame([*rows.values()], [*rows], columns).rename_axis("cell")


def describe_best(comparison: Comparison) -> dict:
    """List what a comparison says of its best FP8 recipe, by column."""
    best = comparison.best
    return {
        "answer": best.outcome.replace("_", " "),
        "notes": list_left_out(comparison),
        "FP8 recipe": best.recipe,
        "tokens/s": format_speed(comparison.study.completed_by_recipe.get(best.recipe, [])),
        "over bf16": str(best.speed.ratio),
        "loss": format_loss_difference(best),
        **best.speed.ratio._asdict(),
    }


def efficiency(comparison: Comparison, one_process: Comparison, processes: int) -> str:
    """Divide the speed-up of a cell's recipe over one process by the number of processes."""
    recipe = comparison.best.recipe
    runs = comparison.study.completed_by_recipe.get(recipe, [])
    ratio = compare_speeds(runs, one_process.study.completed_by_recipe.get(recipe, [])).ratio
    return str(Ratio(*(value / processes for value in ratio)))


# ---- all cells together ----


def answer(cells: pd.DataFrame) -> str:
    """Write in how many cells there are speeds, and how fast FP8 is in them."""
    ratios = cells["mean"].dropna()
    if ratios.empty:
        return "No cell has a speed of FP8 and of bf16."
    span = f"{ratios.min():.2f} to {ratios.max():.2f}"
    return f"FP8 has {span} times the tokens/s of bf16 in {len(ratios)} of {len(cells)} cells."


def table(cells: pd.DataFrame) -> pd.DataFrame:
    """Choose the columns that a reader sees."""
    return cells[TABLE_COLUMNS].fillna("-")


def notes(cells: pd.DataFrame) -> list[str]:
    """Say how to read the table, and why a cell or a run is missing."""
    reasons = cells["notes"].explode().dropna()
    return [HOW_TO_READ, *(f"{name}: {reason}" for name, reason in reasons.items())]


@PanelDrawing
def speed_ups(axes: Axes, cells: pd.DataFrame) -> None:
    """Draw how many times as fast as bf16 FP8 is in each cell, with its interval and, on the right,
    its answer and scaling efficiency."""
    rows = range(len(cells))
    axes.hlines(rows, cells["low"], cells["high"])
    axes.plot(cells["mean"], rows, "o")
    axes.axvline(1, color=GREY)
    words = table(cells)
    right_labels = words["answer"] + "\nefficiency " + words["efficiency"]
    row_labels = [short_name(cell) for cell in cells.index]
    set_rows(axes, row_labels, "times the tokens/s of bf16", right_labels)
    write_headline(axes, answer(cells))


# ---- the command ----


def main(argv: list[str] | None = None) -> int:
    parser = CommandLine("extensions.sweep.report", __doc__)
    parser.add_argument("folder", type=Path, metavar="SWEEP", help="the folder of a sweep")
    folder = parser.parse_arguments(argv).folder
    cells = read_cells(folder)
    print(QUESTION, answer(cells), report.format_table(table(cells)), *notes(cells), sep="\n")
    html = render(
        "extensions/sweep/sweep.html.j2",
        question=QUESTION,
        sentences=[answer(cells)],
        notes=notes(cells),
        table=table(cells),
        figure=speed_ups(cells),
    )
    page = folder / "report.html"
    page.write_text(html, encoding="utf-8")
    cells.to_json(folder / "report.json", orient="index", indent=2)
    print(f"\nPage: {page}")
    return EXIT_COMPLETED


if __name__ == "__main__":
    exit_with(main)
