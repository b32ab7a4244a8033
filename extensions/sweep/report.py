"""The answer of each cell of a sweep, and how cells scale with the number of GPUs.

    python -m extensions.sweep.report runs/sweep_cpu-2026-11-22

Prints a table with a line a cell, and writes report.html with its figure, and report.json for
programs, into that folder. A cell's answer is its study's: about the FP8 recipe that does
best, beside bf16. What it rests on, and the other recipes, are in `report.html` in the cell's
folder.

Exit codes: 2 for bad input.
"""

from pathlib import Path

import pandas as pd
from matplotlib.axes import Axes

from analysis import report
from analysis.agreement import speed_up
from analysis.answer import left_out
from analysis.comparison import Comparison, compare
from analysis.page import render
from analysis.plots.bars import set_rows
from analysis.plots.style import GREY, finding, plot, short_name
from analysis.speed import Ratio
from analysis.study import StudyError, read_study
from analysis.table import loss_word, speed_word
from experiments.jobs.command import COMPLETED, CommandLine, leave
from extensions.sweep.cells import PROCESSES, load

QUESTION = "Where is FP8 faster than bf16, and by how much?"
NOT_COMPARED = "not compared"
HOW_TO_READ = (
    "tokens/s: of the FP8 recipe, of all GPUs of a run together. over bf16, loss: beside the bf16 "
    "recipe of the same cell. efficiency: tokens/s over N times one GPU's. Intervals are of "
    "95 %, over seeds; one run has none. Cells of different GPUs or versions do not compare in "
    "speed. cpu: processes share the cores, so no speed says how GPUs do. no reference: no "
    "completed run of FP8, or of bf16."
)
WORDS = ["answer", "FP8 recipe", "tokens/s", "over bf16", "loss", "efficiency"]
FOR_PROGRAMS = ["mean", "low", "high", "notes"]


def read(folder: Path) -> pd.DataFrame:
    """Read the cells of a sweep: a row a cell, indexed by the cell's folder.

    Columns are `WORDS`, about the FP8 recipe that does best there; how many times as fast as bf16
    the recipe is, as numbers: `mean`, `low` and `high`; and `notes`: which runs are missing, and
    why. Raises `InputError`.
    """
    sweep, rows, compared = load(str(folder)), {}, {}
    for cell in sweep.cells():
        name = sweep.folder(cell)
        try:
            here = compared[name] = compare(read_study(folder / name))
            alone = compared.get(sweep.folder(cell | {PROCESSES: 1}), here)
            rows[name] = best_of(here) | efficiency(here, alone, cell)
        except StudyError as error:
            rows[name] = {"answer": NOT_COMPARED, "notes": [str(error)]}
    return pd.DataFrame([*rows.values()], [*rows], WORDS + FOR_PROGRAMS).rename_axis("cell")


def best_of(comparison: Comparison) -> dict:
    """Take what a comparison says of its best FP8 recipe."""
    best = comparison.best
    return {
        "answer": best.outcome.replace("_", " "),
        "notes": left_out(comparison),
        "FP8 recipe": best.recipe,
        "tokens/s": speed_word(comparison.study.completed[best.recipe]),
        "over bf16": str(best.speed.ratio),
        "loss": loss_word(best),
        **best.speed.ratio._asdict(),
    }


def efficiency(here: Comparison, alone: Comparison, cell: dict) -> dict:
    """Divide the speed-up of a cell's recipe over one process by the number of processes.

    `alone` is the cell of one process, which an axis lists first.
    """
    if alone is here:
        return {}
    gain = speed_up(*(each.study.completed[here.best.recipe] for each in (here, alone)))
    share = Ratio(*(value / cell[PROCESSES] for value in gain.ratio))
    return {"efficiency": str(share)}


# ---- all cells together ----


def answer(cells: pd.DataFrame) -> str:
    """Write in how many cells there are speeds, and how fast FP8 is there."""
    gain = cells["mean"].dropna()
    if gain.empty:
        return "No cell has a speed of FP8 and of bf16."
    most = f"{gain.min():.2f} to {gain.max():.2f} times the tokens/s of bf16"
    return f"FP8 has {most} in {len(gain)} of {len(cells)} cells."


def table(cells: pd.DataFrame) -> pd.DataFrame:
    """Choose what is shown of each cell."""
    return cells[WORDS].fillna("-")


def notes(cells: pd.DataFrame) -> list[str]:
    """Say how to read the table, and why a cell or a run is missing."""
    reasons = cells["notes"].explode().dropna()
    return [HOW_TO_READ, *(f"{name}: {reason}" for name, reason in reasons.items())]


@plot
def speed_ups(axes: Axes, cells: pd.DataFrame) -> None:
    """Draw how many times as fast as bf16 FP8 is in each cell, with its interval and, on the right,
    its answer and scaling efficiency."""
    rows, shown = range(len(cells)), table(cells)
    axes.hlines(rows, cells["low"], cells["high"])
    axes.plot(cells["mean"], rows, "o")
    axes.axvline(1, color=GREY)
    beside = shown["answer"] + "\nefficiency " + shown["efficiency"]
    set_rows(axes, [*map(short_name, cells.index)], "times the tokens/s of bf16", beside)
    finding(axes, answer(cells))


# ---- the command ----


def main(argv: list[str] | None = None) -> int:
    parser = CommandLine("extensions.sweep.report", __doc__)
    parser.add_argument("folder", type=Path, metavar="SWEEP", help="the folder of a sweep")
    folder = parser.parse(argv).folder
    cells = read(folder)
    facts = {"question": QUESTION, "sentences": [answer(cells)], "notes": notes(cells)}
    print(QUESTION, answer(cells), report.drawn(table(cells)), *facts["notes"], sep="\n")
    page = folder / "report.html"
    facts |= {"table": table(cells), "figure": speed_ups(cells)}
    page.write_text(render("extensions/sweep/sweep.html.j2", **facts), encoding="utf-8")
    cells.to_json(page.with_suffix(".json"), orient="index", indent=2)
    print(f"\nPage: {page}")
    return COMPLETED


if __name__ == "__main__":
    leave(main)
