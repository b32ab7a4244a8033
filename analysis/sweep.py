"""A sweep: the comparison within each of its cells, and how the cells scale with the number of
GPUs.

    python -m analysis.sweep runs/sweep-2026-11-22 --html sweep.html

Exit codes: 2 for bad input.
"""

import math
import sys
from collections import Counter
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import NamedTuple

import pandas as pd
from pydantic_core import to_json
from rich.console import Console

from analysis.answer import SENTENCES, left_out, limits
from analysis.comparison import COMPILED, Comparison, Outcome, compare
from analysis.losses import LOWER, SAME
from analysis.report import command_line, plain, say
from analysis.report import table as rich_table
from analysis.runs import flat
from analysis.speed import LEVEL, MEAN, Ratio, ratios, timed
from analysis.study import StudyError, StudyFile, read_study, read_study_file
from analysis.table import loss_word, measured, ratio_word, speed_word
from experiments.records.files import RecordError
from experiments.records.files import read as read_record
from experiments.records.run import CELL, STUDY_FILE, Fit

QUESTION = "Where is FP8 faster than bf16, and by how much?"
PROCESSES = "processes"
# Records of which a difference makes the speeds of cells incomparable.
ALIKE = ("hardware.name", "packages.torch", "packages.torchao")
COLUMNS = ["tokens/s", "over bf16", "loss", "MFU", "memory GiB", "efficiency", "state"]
# What a cell says of an FP8 recipe where the two are not compared.
NO_RECORD, NO_ROOM, NOT_RUN, NOT_COMPARED = (
    "no record", "does not fit", "not run", "does not compare"
)  # fmt: skip
# Outcomes that say something certain of the speed.
CERTAIN = {Outcome.YES, Outcome.FOR_SPEED, Outcome.NO_GAIN, Outcome.SLOWER, Outcome.HIGHER_LOSS,
           Outcome.CANNOT_TELL}  # fmt: skip
HOW_TO_READ = (
    "tokens/s: of all GPUs of a run together, by the mean steady step. over bf16: over {reference} "
    "in the same cell. efficiency: tokens/s over N times those of one GPU. MFU: of the bf16 peak. "
    "memory: a GPU's peak, or the estimate where it did not run. Intervals are of 95 %, over "
    "seeds; one run has none."
)


class Value(NamedTuple):
    """What a table and a heat map say, and as a number; None where that is unknown."""

    text: str = "-"
    number: float | None = None


class SweepCell(NamedTuple):
    """A cell that was planned and recorded."""

    path: Path
    fit: Fit
    comparison: Comparison | None  # of its runs, if there are some and they compare

    def completed(self, recipe: str) -> list:
        return self.comparison.completed.get(recipe, []) if self.comparison else []


@dataclass(frozen=True)
class Sweep:
    """A row a recipe in a cell, in the order of the axes' values.

    Args:
        reference: the bf16 recipe that speeds and losses are compared with.
        axes: key.path of each axis, and its values.
        table: a `Value` in each field; indexed by the axes and the recipe.
        outcomes: by FP8 recipe what each planned cell says of it, an `Outcome`, on a CPU the
            verdict on the loss, or why there is none.
        notes: what a reader must know.
    """

    reference: str
    axes: dict[str, list]
    cells: list[SweepCell]
    table: pd.DataFrame
    outcomes: dict[str, list[str]]
    notes: list[str]

    @property
    def on_cpu(self) -> bool:
        compared = [cell.comparison for cell in self.cells if cell.comparison]
        return bool(compared) and all(of.on_cpu for of in compared)


def is_sweep(folder: Path) -> bool:
    """Whether a folder is a sweep's."""
    file = folder / STUDY_FILE
    return file.exists() and bool(read_study_file(file).axes)


def read(folder: Path) -> Sweep:
    """Read the sweep in a folder. Raises `StudyError` where no cell is recorded."""
    file = read_study_file(folder / STUDY_FILE)
    if not (file.axes and file.recipes):
        raise StudyError(f"{folder / STUDY_FILE}: has no axes or no recipes, so it is no sweep's")
    axes, notes = flat(file.axes), []
    cells = read_cells(folder, axes, notes)
    if not cells:
        raise StudyError(
            f"{folder}: has a sweep's study.yaml and no cell of it: start it again with "
            "experiments.study"
        )
    reference = COMPILED if COMPILED in file.recipes else file.baseline
    rows = {}
    for cell in cells:
        values = cell.fit.values | {PROCESSES: 1}
        alone = next((other for other in cells if other.fit.values == values), None)
        for recipe in file.recipes:
            row = measured_in(cell, recipe, reference, len(file.seeds))
            row["efficiency"] = efficiency(cell, alone, recipe)
            rows[*(cell.fit.values[key] for key in axes), recipe] = row
    table = pd.DataFrame.from_dict(rows, orient="index", columns=COLUMNS)
    table.index = pd.MultiIndex.from_tuples(rows, names=[*axes, "recipe"])
    planned = math.prod(map(len, axes.values()))
    return Sweep(
        reference=reference,
        axes=axes,
        cells=cells,
        table=table,
        outcomes=outcomes_of(cells, file, planned),
        notes=[HOW_TO_READ.format(reference=reference), *notes, *notes_of(cells)],
    )


def read_cells(folder: Path, axes: dict[str, list], problems: list[str]) -> list[SweepCell]:
    """Read the recorded cells in the order of the axes' values, and compare the runs of each."""
    planned = [dict(zip(axes, values, strict=True)) for values in product(*axes.values())]
    cells = {}
    for path in sorted(folder.glob(f"*/{CELL}")):
        try:
            fit = read_record(path, Fit)
        except RecordError as error:
            problems.append(f"Note: {error}")
            continue
        if fit.values in planned:
            compared = compare_cell(path.parent, problems)
            cells[planned.index(fit.values)] = SweepCell(path.parent, fit, compared)
        else:
            problems.append(f"Note: {path}: values: not of the axes in study.yaml")
    return [cells[place] for place in sorted(cells)]


def compare_cell(cell: Path, problems: list[str]) -> Comparison | None:
    """Compare the runs of a cell; None where it has none, or `problems` says why they do not
    compare."""
    if not any(cell.glob("*/seed*/manifest.json")):
        return None
    try:
        return compare(read_study(cell))
    except StudyError as error:
        problems.append(f"Note: {cell.name}: {error}")
        return None


# ---- a row of the table ----


def measured_in(cell: SweepCell, recipe: str, reference: str, asked: int) -> dict[str, Value]:
    """Word what the runs of a recipe have shown in a cell, or the estimate of its memory and why
    the recipe has none."""
    row = dict.fromkeys(COLUMNS, Value())
    row["memory GiB"] = Value(f"about {cell.fit.needed / 2**30:.1f}")
    finding = cell.comparison.findings.get(recipe) if cell.comparison else None
    runs = cell.completed(recipe)
    states = list(finding.diverged) if finding else []
    if runs:
        states.insert(0, f"{len(runs)} of {asked} runs")
        means = pd.DataFrame(map(measured, runs)).mean(numeric_only=True)
        row["tokens/s"] = Value(speed_word(runs), means["tokens_per_s"])
        row["loss"] = Value(loss_word(runs, finding))
        row["memory GiB"] = number(means["peak_memory_gib"], "{:.1f}")
        row["MFU"] = number(means["mfu_bf16_peak"], "{:.1%}")
        row["over bf16"] = Value("1")
        if recipe != reference:
            known = finding and finding.speed.runs
            row["over bf16"] = Value(
                ratio_word(finding), finding.speed.ratio.mean if known else None
            )
    row["state"] = Value(", ".join(states) or why_missing(cell, recipe))
    return row


def number(value: float, form: str) -> Value:
    return Value() if math.isnan(value) else Value(form.format(value), value)


def why_missing(cell: SweepCell, recipe: str) -> str:
    """Say why a cell has no completed run of a recipe."""
    if cell.fit.obstacle:
        return cell.fit.obstacle
    if not (cell.path / recipe).exists():
        return NOT_RUN
    return "not completed" if cell.comparison else NOT_COMPARED


def efficiency(cell: SweepCell, alone: SweepCell | None, recipe: str) -> Value:
    """Divide the speed-up over one process by the number of processes."""
    own, of_one = timed(cell.completed(recipe)), timed(alone.completed(recipe) if alone else [])
    if cell is alone or not (own and of_one):
        return Value()
    gain = ratios(own, of_one, LEVEL)[MEAN]
    share = Ratio(*(value / cell.fit.values[PROCESSES] for value in gain))
    return Value(f"{share.mean:.2f}{share.interval}", share.mean)


# ---- what the cells say ----


def outcomes_of(cells: list[SweepCell], file: StudyFile, planned: int) -> dict[str, list[str]]:
    """Find what each planned cell says of each FP8 recipe, see `Sweep.outcomes`."""
    fp8 = {recipe for cell in cells if cell.comparison for recipe in cell.comparison.fp8}
    unrecorded = [NO_RECORD] * (planned - len(cells))
    return {recipe: [outcome_in(cell, recipe) for cell in cells] + unrecorded
            for recipe in file.recipes if recipe in fp8}  # fmt: skip


def outcome_in(cell: SweepCell, recipe: str) -> str:
    """Find what a cell says of an FP8 recipe."""
    if not (cell.path / recipe).exists():
        return NO_ROOM if cell.fit.obstacle else NOT_RUN
    if cell.comparison is None:
        return NOT_COMPARED
    finding = cell.comparison.findings.get(recipe)
    if finding is None:
        return Outcome.NO_REFERENCE
    return finding.loss.word if finding.outcome == Outcome.CPU else finding.outcome


def notes_of(cells: list[SweepCell]) -> list[str]:
    """Write what a reader must know of all runs, and of each cell by its name."""
    compared = {cell.path.name: cell.comparison for cell in cells if cell.comparison}
    runs = [run for of in compared.values() for run in of.study.runs if run.completed]
    lines = []
    if compared and all(of.on_cpu for of in compared.values()):
        lines.append(
            "These are CPUs: processes share the cores, so neither speed-up nor efficiency says "
            "how GPUs do."
        )
    for key in ALIKE:
        kinds = sorted({str(run.facts.get(key)) for run in runs})
        if len(kinds) > 1:
            lines.append(f"The cells differ in {key} ({', '.join(kinds)}), so they do not compare "
                         "in speed.")  # fmt: skip
    for name, of in compared.items():
        lines += [f"Note: {name}: {words}" for words in [*limits(of), *left_out(of)]]
    return lines


def answer(sweep: Sweep) -> str:
    """Write of each FP8 recipe in how many of the planned cells it gets a yes, what the others say,
    and by how much it is faster where that is certain."""
    said = [SENTENCES[Outcome.CPU]] if sweep.on_cpu else []
    gain = "is faster than bf16, at the same or a lower loss,"
    if sweep.on_cpu:
        gain = "ends at the same or a lower loss"
    for recipe, outcomes in sweep.outcomes.items():
        name = recipe if len(sweep.outcomes) > 1 else "FP8"
        good = {Outcome.YES, SAME, LOWER}
        others = Counter(case.replace("_", " ") for case in outcomes if case not in good)
        yes = sum(case in good for case in outcomes)
        found = f"{name} {gain} in {yes} of {len(outcomes)} cells"
        if others:
            found += f" ({', '.join(f'{case} in {n}' for case, n in others.items())})"
        said.append(f"{found}.")
        ratios = sweep.table["over bf16"].xs(recipe, level="recipe")
        certain = [value.number for value, case in zip(ratios, outcomes, strict=False)
                   if case in CERTAIN]  # fmt: skip
        if certain:
            span = dict.fromkeys(f"{end:.2f}" for end in (min(certain), max(certain)))
            said.append(f"It has {' to '.join(span)} times the tokens/s in {len(certain)} of them.")
    return " ".join(said) or "No answer: no cell has completed runs in FP8 and in bf16."


def short_names(sweep: Sweep) -> dict[str, str]:
    """Name the recipes in the table: bf16 and fp8 where the sweep has one of each."""
    recipes = sweep.table.index.unique("recipe")
    if len(recipes) != 2:
        return {recipe: recipe for recipe in recipes}
    return dict.fromkeys(recipes, "fp8") | {sweep.reference: "bf16"}


def matrix(sweep: Sweep) -> pd.DataFrame:
    """Word the table, a row a cell and recipe, indexed by the recipe's name."""
    places = sweep.table.index.to_frame(index=False)
    places["recipe"] = places["recipe"].map(short_names(sweep))
    places = places.map(lambda x: f"{x:,}" if isinstance(x, int) else x)
    words = sweep.table.map(lambda value: value.text).reset_index(drop=True)
    table = places.join(words).set_index("recipe")
    return table.rename(columns=lambda name: name.rpartition(".")[2])


# ---- the command ----


def print_report(sweep: Sweep, console: Console, verbose: bool = False) -> None:
    """Print the answer and a row a cell and recipe; `verbose` adds what a reader must know."""
    say(console, [answer(sweep)], QUESTION)
    console.print(rich_table(matrix(sweep)))
    say(console, sweep.notes if verbose else [])


def as_json(sweep: Sweep) -> bytes:
    content = {
        "answer": answer(sweep),
        "axes": sweep.axes,
        "outcomes": sweep.outcomes,
        "notes": sweep.notes,
        "rows": sweep.table.map(Value._asdict).reset_index().to_dict("records"),
    }
    return to_json(content, indent=2, inf_nan_mode="null", fallback=plain) + b"\n"


def write_page(sweep: Sweep, path: Path) -> None:
    """Write the page of a sweep, with two heat maps of each FP8 recipe. Raises OSError."""
    from analysis import plots  # draws
    from analysis.page import render
    from analysis.plots.studies import FINDINGS

    maps = [plots.heat_map(sweep, quantity, recipe)
            for recipe, quantity in product(sweep.outcomes, FINDINGS)]  # fmt: skip
    text = render("sweep.html.j2", question=QUESTION, sentences=[answer(sweep)],
                  table=matrix(sweep), sentences_below=sweep.notes, figures=maps)  # fmt: skip
    path.write_text(text, encoding="utf-8")


def main(argv: list[str] | None = None) -> int:
    parser = command_line("analysis.sweep", __doc__)
    parser.add_argument("folder", type=Path, metavar="SWEEP", help="the folder of a sweep")
    parser.add_argument("--verbose", action="store_true", help="add what a reader must know")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write one self-contained page")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures for programs")
    args = parser.parse_args(argv)
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 200)
    try:
        sweep = read(args.folder)
        print_report(sweep, console, args.verbose)
        if args.json:
            args.json.write_bytes(as_json(sweep))
        if args.html:
            write_page(sweep, args.html)
    except (StudyError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
