"""The answer of each cell of a sweep, and how cells scale with the number of GPUs.

    python -m extensions.sweep.report runs/sweep_cpu-2026-11-22

Prints a table with a line a cell, and writes report.html with its figure, and report.json for
programs, into that folder. A cell's answer is its study's: about the FP8 recipe that does
best, beside bf16. What it rests on, and the other recipes, are in `report.html` in the cell's
folder.

Exit codes: 2 for bad input.
"""

import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from pydantic_core import to_json
from rich.console import Console

from analysis import report
from analysis.answer import limits
from analysis.comparison import Comparison, Outcome, compare
from analysis.speed import LEVEL, MEAN, Ratio, ratios, timed
from analysis.study import StudyError, read_study
from analysis.table import loss_word, speed_word
from experiments.jobs.command import CommandLine, leave
from extensions.sweep.cells import OBSTACLE, Values, last, load

QUESTION = "Where is FP8 faster than bf16, and by how much?"
PROCESSES = "sharded.processes"
NO_ROOM, NOT_COMPARED, INCOMPLETE = "does not fit", "not compared", "incomplete"
ON_CPU = "no answer on a CPU"
HOW_TO_READ = (
    "tokens/s: of the FP8 recipe, of all GPUs of a run together. over bf16, loss: beside the bf16 "
    "recipe of the same cell. efficiency: tokens/s over N times one GPU's. Intervals are of "
    "95 %, over seeds; one run has none. Cells of different GPUs or versions do not compare in "
    "speed. cpu: processes share the cores, so no speed says how GPUs do."
)


@dataclass
class SweepCell:
    """What a cell's study shows.

    Args:
        answer: the outcome of the best FP8 recipe, or a word in its place.
        notes: what limits the answer, or why there is none.
        gain: how many times as fast as bf16 the recipe is.
        efficiency: its speed-up over one process, divided by the number of processes.
    """

    values: Values
    answer: str
    notes: list[str]
    recipe: str = "-"
    tokens_per_s: str = "-"
    gain: Ratio | None = None
    loss: str = "-"
    efficiency: Ratio | None = None


def read(folder: Path) -> dict[str, SweepCell]:
    """Read the cells of a sweep, in the order of its axes' values. Raises `InputError`."""
    sweep, cells, compared = load(str(folder)), {}, {}
    for name, values in sweep.cells().items():
        obstacle = folder / name / OBSTACLE
        try:
            compared[name] = compare(read_study(folder / name))
            cells[name] = read_cell(values, compared[name])
        except StudyError as error:
            cells[name] = SweepCell(values, NOT_COMPARED, [str(error)])
            if obstacle.exists():
                cells[name] = SweepCell(values, NO_ROOM, [obstacle.read_text()])
    for name, cell in cells.items():
        alone = sweep.name(cell.values | {PROCESSES: 1})
        if name != alone and {name, alone} <= {*compared}:
            cell.efficiency = efficiency(cell, compared[name], compared[alone])
    return cells


def read_cell(values: Values, comparison: Comparison) -> SweepCell:
    """Take what a comparison says of its best FP8 recipe."""
    notes, best = limits(comparison), comparison.best
    if best.outcome == Outcome.NO_REFERENCE:
        return SweepCell(values, INCOMPLETE, notes)
    return SweepCell(
        values=values,
        answer=ON_CPU if comparison.on_cpu else best.outcome.replace("_", " "),
        notes=notes,
        recipe=best.recipe,
        tokens_per_s=speed_word(comparison.study.completed(best.recipe)),
        gain=best.speed.ratio if best.speed.runs else None,
        loss=loss_word(best),
    )


def efficiency(cell: SweepCell, here: Comparison, alone: Comparison) -> Ratio | None:
    """Divide the speed-up of a cell's recipe over one process by the number of processes."""
    own, others = (timed(each.study.completed(cell.recipe)) for each in (here, alone))
    if not (own and others):
        return None
    gain = ratios(own, others, LEVEL)[MEAN]
    return Ratio(*(value / cell.values[PROCESSES] for value in gain))


# ---- all cells together ----


def answer(cells: dict[str, SweepCell]) -> list[str]:
    """Write in how many cells FP8 has which outcome, and how fast it is."""
    outcomes = Counter(cell.answer for cell in cells.values())
    said = [f"{len(cells)} cells: {', '.join(f'{word} in {n}' for word, n in outcomes.items())}."]
    gains = sorted(cell.gain.mean for cell in cells.values() if cell.gain)
    if gains:
        said.append(f"FP8 has {gains[0]:.2f} to {gains[-1]:.2f} times the tokens/s of bf16.")
    return said


def table(cells: dict[str, SweepCell]) -> pd.DataFrame:
    """Word a row a cell, indexed by the first axis."""
    rows = []
    for cell in cells.values():
        row = {last(key): value for key, value in cell.values.items()}
        row |= {"answer": cell.answer, "FP8 recipe": cell.recipe, "tokens/s": cell.tokens_per_s}
        row |= {"over bf16": word(cell.gain), "loss": cell.loss}
        rows.append(row | {"efficiency": word(cell.efficiency)})
    table = pd.DataFrame(rows)
    return table.set_index(table.columns[0])


def word(ratio: Ratio | None) -> str:
    return f"{ratio.mean:.2f}{ratio.interval}" if ratio else "-"


def notes(cells: dict[str, SweepCell]) -> list[str]:
    """Say how to read the table, and what limits each cell's answer."""
    lines = [HOW_TO_READ]
    for name, cell in cells.items():
        lines += [f"{name}: {sentence}" for sentence in cell.notes]
    return lines


# ---- the command ----


def main(argv: list[str] | None = None) -> int:
    parser = CommandLine("extensions.sweep.report", __doc__)
    parser.add_argument("folder", type=Path, metavar="SWEEP", help="the folder of a sweep")
    folder = parser.parse(argv).folder
    cells = read(folder)
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 200)
    report.say(console, answer(cells), QUESTION)
    console.print(report.table(table(cells)))
    report.say(console, notes(cells))
    page = folder / "report.html"
    page.write_text(page_of(cells), encoding="utf-8")
    page.with_suffix(".json").write_bytes(to_json(cells, indent=2, inf_nan_mode="null"))
    print(f"\nPage: {page}")
    return 0


def page_of(cells: dict[str, SweepCell]) -> str:
    """Write the page of a sweep."""
    from analysis.page import render
    from extensions.sweep.figure import speed_ups

    facts = {"question": QUESTION, "sentences": answer(cells), "notes": notes(cells)}
    return render(
        "extensions/sweep/sweep.html.j2", **facts, table=table(cells), figure=speed_ups(cells)
    )


if __name__ == "__main__":
    leave(main)
