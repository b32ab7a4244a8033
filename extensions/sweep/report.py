"""The answer of each cell of a sweep, and how cells scale with the number of GPUs.

    python -m extensions.sweep.report runs/sweep-2026-11-22 --html sweep.html

Exit codes: 2 for bad input.
"""

import math
import os
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pandas as pd
from pydantic_core import to_json
from rich.console import Console

from analysis.answer import SENTENCES, left_out, limits
from analysis.comparison import Comparison, Outcome, compare
from analysis.losses import LOWER, SAME
from analysis.newest import KEPT, ROOT
from analysis.report import command_line, plain, say
from analysis.report import table as rich_table
from analysis.speed import LEVEL, MEAN, Ratio, ratios, timed
from analysis.study import StudyError, read_study
from analysis.table import loss_word, measured, ratio_word, speed_word
from experiments.records.files import RecordError
from experiments.records.files import read as read_record
from extensions.sweep.cells import CELLS, FILE, HERE, Cell, Fit, Fits, Sweep, last, load
from models.errors import InputError

QUESTION = "Where is FP8 faster than bf16, and by how much?"
PROCESSES = "sharded.processes"
# Records of which a difference makes the speeds of cells incomparable.
ALIKE = ("hardware.name", "packages.torch", "packages.torchao")
COLUMNS = ["tokens/s", "over bf16", "loss", "answer", "MFU", "memory GiB", "efficiency", "runs"]
NO_ROOM, NOT_RUN, NOT_COMPARED = "does not fit", "not run", "does not compare"
# Outcomes that say something certain of the speed.
CERTAIN = {Outcome.YES, Outcome.FOR_SPEED, Outcome.NO_GAIN, Outcome.SLOWER, Outcome.HIGHER_LOSS,
           Outcome.CANNOT_TELL}  # fmt: skip
HOW_TO_READ = (
    "tokens/s: of all GPUs of a run together, by the mean steady step. over bf16, loss: beside the "
    "bf16 recipe of the same cell. efficiency: tokens/s over N times those of one GPU. MFU: of the "
    "bf16 peak. memory: a GPU's peak, or the estimate where it did not run. Intervals are of 95 %, "
    "over seeds; one run has none."
)


class Value(NamedTuple):
    """What a table and a heat map say, and as a number; None where that is unknown."""

    text: str = "-"
    number: float | None = None


class Answer(NamedTuple):
    """A cell and what its study shows."""

    cell: Cell
    fit: Fit
    comparison: Comparison | None  # of its runs, if there are some and they compare
    problem: str = ""  # why they do not compare

    def completed(self, recipe: str) -> list:
        return self.comparison.completed.get(recipe, []) if self.comparison else []


@dataclass(frozen=True)
class Found:
    """All cells of a sweep, in the order of the axes' values.

    Args:
        table: a `Value` in each field; indexed by the axes and the recipe.
        outcomes: by FP8 recipe what each cell says of it, an `Outcome`, on a CPU the verdict on the
            loss, or why there is none.
    """

    sweep: Sweep
    answers: list[Answer]
    table: pd.DataFrame
    outcomes: dict[str, list[str]]

    @property
    def on_cpu(self) -> bool:
        compared = [answer.comparison for answer in self.answers if answer.comparison]
        return bool(compared) and all(of.on_cpu for of in compared)


def newest() -> Path:
    """Choose the sweep to show: of the variable RUNS, else the newest under runs/, else the kept
    one."""
    given = os.environ.get("RUNS", "")
    if given and given != KEPT:
        return Path(given) if Path(given).exists() else ROOT / given
    own = [] if given else [*ROOT.glob(f"runs/*/{FILE}")]
    found = own or [*HERE.glob(f"results/*/{FILE}")]
    return max(found, key=lambda file: file.stat().st_mtime).parent


def read(folder: Path) -> Found:
    """Read the sweep in a folder. Raises `InputError` or `RecordError` where it is damaged."""
    sweep, fits = load(str(folder)), read_record(folder / CELLS, Fits).cells
    answers = [answer_of(folder, cell, fits[cell.name]) for cell in sweep.cells()]
    rows = {}
    for answer in answers:
        values = answer.cell.values | {PROCESSES: 1}
        alone = next((other for other in answers if other.cell.values == values), None)
        for recipe in sweep.recipes:
            row = row_of(answer, recipe, len(sweep.seeds))
            row["efficiency"] = efficiency(answer, alone, recipe)
            rows[*answer.cell.values.values(), recipe] = row
    table = pd.DataFrame.from_dict(rows, orient="index", columns=COLUMNS)
    table.index = pd.MultiIndex.from_tuples(rows, names=[*sweep.axes, "recipe"])
    fp8 = {recipe for answer in answers if answer.comparison for recipe in answer.comparison.fp8}
    outcomes = {recipe: [outcome_in(answer, recipe) for answer in answers]
                for recipe in sweep.recipes if recipe in fp8}  # fmt: skip
    return Found(sweep, answers, table, outcomes)


def answer_of(folder: Path, cell: Cell, fit: Fit) -> Answer:
    """Compare the runs of a cell."""
    if not any((folder / cell.name).glob("*/seed*/manifest.json")):
        return Answer(cell, fit, None)
    try:
        return Answer(cell, fit, compare(read_study(folder / cell.name)))
    except StudyError as error:
        return Answer(cell, fit, None, str(error))


# ---- a row of the table ----


def row_of(answer: Answer, recipe: str, asked: int) -> dict[str, Value]:
    """Word what the runs of a recipe have shown in a cell, or the estimate of its memory."""
    row = dict.fromkeys(COLUMNS, Value())
    row["memory GiB"] = Value(f"about {answer.fit.needed / 2**30:.1f}")
    row["answer"] = Value(answer.fit.obstacle or outcome_in(answer, recipe).replace("_", " "))
    runs = answer.completed(recipe)
    if not runs:
        return row
    finding = answer.comparison.findings.get(recipe)
    means = pd.DataFrame(map(measured, runs)).mean(numeric_only=True)
    gain = finding.speed.ratio.mean if finding and finding.speed.runs else None
    if finding is None:  # the reference
        row["answer"] = Value()
    row["tokens/s"] = Value(speed_word(runs), means["tokens_per_s"])
    row["over bf16"] = Value(ratio_word(finding) if finding else "1", gain)
    row["loss"] = Value(loss_word(finding) if finding else f"{means['final_loss']:.3f}")
    row["memory GiB"] = number(means["peak_memory_gib"], "{:.1f}")
    row["MFU"] = number(means["mfu_bf16_peak"], "{:.1%}")
    row["runs"] = Value(f"{len(runs)} of {asked}")
    return row


def number(value: float, form: str) -> Value:
    return Value() if math.isnan(value) else Value(form.format(value), value)


def efficiency(answer: Answer, alone: Answer | None, recipe: str) -> Value:
    """Divide the speed-up over one process by the number of processes."""
    own, of_one = timed(answer.completed(recipe)), timed(alone.completed(recipe) if alone else [])
    if answer is alone or not (own and of_one):
        return Value()
    gain = ratios(own, of_one, LEVEL)[MEAN]
    share = Ratio(*(value / answer.cell.values[PROCESSES] for value in gain))
    return Value(f"{share.mean:.2f}{share.interval}", share.mean)


def outcome_in(answer: Answer, recipe: str) -> str:
    """Find what a cell says of an FP8 recipe."""
    if answer.fit.obstacle:
        return NO_ROOM
    if answer.problem:
        return NOT_COMPARED
    if not (answer.comparison and answer.comparison.study.started(recipe)):
        return NOT_RUN
    finding = answer.comparison.findings.get(recipe)
    if finding is None:
        return Outcome.NO_REFERENCE
    return finding.loss.word if finding.outcome == Outcome.CPU else finding.outcome


# ---- all cells together ----


def answer(found: Found) -> str:
    """Write in how many cells each FP8 recipe gets a yes, and by how much it is faster there."""
    said = [SENTENCES[Outcome.CPU]] if found.on_cpu else []
    gain = "is faster than bf16, at the same or a lower loss,"
    if found.on_cpu:
        gain = "ends at the same or a lower loss"
    for recipe, outcomes in found.outcomes.items():
        good = {Outcome.YES, SAME, LOWER}
        others = Counter(case.replace("_", " ") for case in outcomes if case not in good)
        yes = sum(case in good for case in outcomes)
        sentence = f"{recipe} {gain} in {yes} of {len(outcomes)} cells"
        if others:
            sentence += f" ({', '.join(f'{case} in {n}' for case, n in others.items())})"
        said.append(f"{sentence}.")
        gains = found.table["over bf16"].xs(recipe, level="recipe")
        certain = [value.number for value, case in zip(gains, outcomes, strict=True)
                   if case in CERTAIN]  # fmt: skip
        if certain:
            span = dict.fromkeys(f"{end:.2f}" for end in (min(certain), max(certain)))
            said.append(f"It has {' to '.join(span)} times the tokens/s in {len(certain)} of them.")
    return " ".join(said) or "No answer: no cell has completed runs in FP8 and in bf16."


def notes(found: Found) -> list[str]:
    """Say how to read the table, and what limits each cell's answer."""
    lines, runs = [HOW_TO_READ], []
    if found.on_cpu:
        lines.append(
            "These are CPUs: processes share the cores, so neither speed-up nor efficiency says "
            "how GPUs do."
        )
    for answer in found.answers:
        words = [answer.problem] if answer.problem else []
        if answer.comparison:
            words = [*limits(answer.comparison), *left_out(answer.comparison)]
            runs += [run for run in answer.comparison.study.runs if run.completed]
        lines += [f"{answer.cell.name}: {sentence}" for sentence in words]
    for key in ALIKE:
        kinds = sorted({str(run.facts.get(key)) for run in runs})
        if len(kinds) > 1:
            lines.append(f"The cells differ in {key} ({', '.join(kinds)}), so they do not compare "
                         "in speed.")  # fmt: skip
    return lines


def matrix(found: Found) -> pd.DataFrame:
    """Word the table, a row a cell and recipe, indexed by the recipe's name."""
    words = found.table.map(lambda value: value.text).reset_index().set_index("recipe")
    return words.rename(columns=last)


# ---- the command ----


def print_report(found: Found, console: Console, verbose: bool = False) -> None:
    """Print the answer and a row a cell and recipe; `verbose` adds what limits them."""
    say(console, [answer(found)], QUESTION)
    console.print(rich_table(matrix(found)))
    say(console, notes(found) if verbose else [])


def as_json(found: Found) -> bytes:
    content = {
        "answer": answer(found),
        "axes": found.sweep.axes,
        "outcomes": found.outcomes,
        "notes": notes(found),
        "rows": found.table.map(Value._asdict).reset_index().to_dict("records"),
    }
    return to_json(content, indent=2, inf_nan_mode="null", fallback=plain) + b"\n"


def write_page(found: Found, path: Path) -> None:
    """Write the page of a sweep, with two heat maps of each FP8 recipe. Raises OSError."""
    from analysis.page import render
    from extensions.sweep.figure import FINDINGS, heat_map

    maps = [heat_map(found, quantity, recipe) for recipe in found.outcomes for quantity in FINDINGS]
    text = render("sweep/sweep.html.j2", question=QUESTION, sentences=[answer(found)],
                  table=matrix(found), notes_below=notes(found), figures=maps)  # fmt: skip
    path.write_text(text, encoding="utf-8")


def main(argv: list[str] | None = None) -> int:
    parser = command_line("extensions.sweep.report", __doc__)
    parser.add_argument("folder", type=Path, metavar="SWEEP", help="the folder of a sweep")
    parser.add_argument("--verbose", action="store_true", help="add what limits the answers")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write one self-contained page")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures for programs")
    args = parser.parse_args(argv)
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 200)
    try:
        found = read(args.folder)
        print_report(found, console, args.verbose)
        if args.json:
            args.json.write_bytes(as_json(found))
        if args.html:
            write_page(found, args.html)
    except (InputError, RecordError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
