"""A sweep: the comparison within each of its cells, and how the cells scale with the number of
GPUs."""

import math
from collections import Counter
from dataclasses import dataclass, replace
from itertools import chain, product
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from analysis.answer import (
    NO_ANSWERS,
    SPOILT,
    lost_runs,
    of_runs,
    on_cpu,
    outcome,
    unended_runs,
    worded,
)
from analysis.comparison import BASELINE, COMPILED, Comparison, compare, is_fp8, read_plan
from analysis.load import LoadError
from analysis.losses import HIGHER, LOWER, SAME
from analysis.rates import Completed, Ratio, SpeedUp, speed_up
from analysis.runs import COLUMNS as RUN_COLUMNS
from analysis.runs import flat
from analysis.table import loss_word, speed_word
from experiments.records.files import RecordError
from experiments.records.files import read as read_record
from experiments.records.run import CELL, STUDY_FILE, Fit

QUESTION = "Where is FP8 faster than bf16, and by how much?"
PROCESSES = "processes"
ALIKE = ("device", "torch", "torchao")  # speeds of cells that differ in these do not compare
COLUMNS = ["tokens/s", "over bf16", "loss", "MFU", "memory GiB", "efficiency", "state"]
# What a cell says of an FP8 recipe where the two are not compared.
NO_RECORD, NO_ROOM, NOT_RUN = "no record", "does not fit", "not run"
NOT_COMPLETED, NOT_COMPARED = "no completed FP8 run", "does not compare"
NO_BF16, FROM_CPU = "no bf16 run", "from a CPU"
NOT_COMPARABLE = {NO_RECORD, NO_ROOM, NOT_RUN, NOT_COMPLETED, NOT_COMPARED, NO_BF16, FROM_CPU}
# Outcomes that say nothing certain of the speed.
NO_SPEED = {*NOT_COMPARABLE, SPOILT, "no rate", "compiled alone", "single run", "doubtful speed",
            "doubtful"}  # fmt: skip
# Outcomes of comparisons, for people, where `analysis.answer` calls them otherwise.
WORDS = {SPOILT: "loss spoilt", HIGHER: "higher loss", "no rate": "too short"}


class Value(NamedTuple):
    """What a table and a heat map say, and as a number; None where that is unknown."""

    text: str = "-"
    number: float | None = None


class Cell(NamedTuple):
    """A cell that was planned and recorded."""

    path: Path
    fit: Fit
    comparison: Comparison | None  # of its runs, if these compare

    def completed(self, recipe: str) -> Completed | None:
        return self.comparison.completed.get(recipe) if self.comparison else None


@dataclass(frozen=True)
class Sweep:
    """A row a recipe in a cell, in the order of the axes' values, and what a reader must know.

    Args:
        opponent: the bf16 recipe that speeds and losses are compared with.
        axes: key.path of each axis, and its values.
        table: a `Value` in each field; indexed by the axes and the recipe.
        outcomes: what each planned cell says of an FP8 recipe, also of one that never ran: as
            `analysis.answer.outcome`, where all are CPUs the verdict on the loss, or why there is
            none.
        on_cpu: whether all completed runs are from CPUs.
        lost: what `analysis.answer.lost_runs` says of all cells.
    """

    opponent: str
    axes: dict[str, list]
    table: pd.DataFrame
    outcomes: dict[str, list[str]]
    on_cpu: bool
    lost: list[str]
    notes: list[str]


def is_sweep(path: Path) -> bool:
    """Whether a folder is a sweep's."""
    return bool(read_plan(path).axes)


def read(folder: Path) -> Sweep:
    """Read the sweep in a folder. Raises `LoadError` where no cell is recorded."""
    plan = read_plan(folder)
    missing = {"recipes", "baseline", "seeds"} - plan.model_fields_set
    if missing:
        raise LoadError(f"{folder / STUDY_FILE}: has no {', '.join(sorted(missing))}")
    axes = flat(plan.axes)
    problems: list[str] = []
    cells = _cells(folder, axes, problems)
    if not cells:
        raise LoadError(
            f"{folder}: has a sweep's study.yaml and no cell of it: start it again with "
            "experiments.study"
        )
    opponent = COMPILED if COMPILED in plan.recipes else plan.baseline
    rows = {}
    for cell in cells:
        values = cell.fit.values | {PROCESSES: 1}
        alone = next((other for other in cells if other.fit.values == values), None)
        for recipe in plan.recipes:
            row = _measured(cell, recipe, opponent, len(plan.seeds))
            row["efficiency"] = _efficiency(cell, alone, recipe)
            rows[*(cell.fit.values[key] for key in axes), recipe] = row
    table = pd.DataFrame.from_dict(rows, orient="index", columns=COLUMNS)
    table.index = pd.MultiIndex.from_tuples(rows, names=[*axes, "recipe"])
    compared = {cell.path.name: cell.comparison for cell in cells if cell.comparison}
    runs = [of.frames.runs for of in compared.values()] or [pd.DataFrame(columns=[*RUN_COLUMNS])]
    runs = pd.concat(runs)
    all_on_cpu = bool(compared) and all(map(on_cpu, compared.values()))
    unrecorded = math.prod(map(len, axes.values())) - len(cells)
    outcomes = {}
    for recipe in plan.recipes:
        if recipe not in (opponent, BASELINE) and is_fp8(recipe, runs):
            found = [_outcome(cell, recipe, all_on_cpu) for cell in cells]
            outcomes[recipe] = found + [NO_RECORD] * unrecorded
    return Sweep(
        opponent=opponent,
        axes=axes,
        table=table,
        outcomes=outcomes,
        on_cpu=all_on_cpu,
        lost=[*chain.from_iterable(map(lost_runs, compared.values()))],
        notes=[
            *_notes(compared, runs, opponent, all_on_cpu),
            *(f"Note: {problem}" for problem in problems),
        ],
    )


def _cells(folder: Path, axes: dict[str, list], problems: list[str]) -> list[Cell]:
    """Read the recorded cells in the order of the axes' values, and compare the runs of each."""
    planned = [dict(zip(axes, values, strict=True)) for values in product(*axes.values())]
    cells = {}
    for path in sorted(folder.glob(f"*/{CELL}")):
        try:
            fit = read_record(path, Fit)
        except RecordError as error:
            problems.append(str(error))
            continue
        if fit.values in planned:
            place = planned.index(fit.values)
            cells[place] = Cell(path.parent, fit, _compared(path.parent, problems))
        else:
            problems.append(f"{path}: values: not of the axes in study.yaml")
    return [cells[place] for place in sorted(cells)]


def _compared(cell: Path, problems: list[str]) -> Comparison | None:
    """Compare the runs of a cell; None where it holds none, or `problems` says why they do not
    compare."""
    if not any(cell.glob("*/seed*/manifest.json")):
        return None
    try:
        return compare(cell)
    except LoadError as error:
        problems.append(f"{cell.name}: {error}")
        return None


# ---- a row of the table ----


def _measured(cell: Cell, recipe: str, opponent: str, asked: int) -> dict[str, Value]:
    """Word what the runs of a recipe have shown in a cell, or the estimate of its memory and why
    it has none."""
    row, states = dict.fromkeys(COLUMNS, Value()), []
    row["memory GiB"] = Value(f"about {cell.fit.needed / 2**30:.1f}")
    comparison, of = cell.comparison, cell.completed(recipe)
    if of:
        facts = ["steps", "steps_planned", "mfu_bf16_peak", "peak_memory_bytes"]
        steps, planned, mfu, memory = of.runs[facts].mean()
        states.append(of_runs(len(of.runs), asked))
        if planned > 0:
            states.append(f"cut to {steps:.0f} of {planned:.0f} steps")
        row["tokens/s"] = Value(speed_word(comparison, recipe), of.rate.mean)
        row["loss"] = Value(loss_word(comparison, recipe))
        row["memory GiB"] = Value(f"{memory / 2**30:.1f}", memory / 2**30)
        if mfu > 0:
            row["MFU"] = Value(f"{mfu:.1%}", mfu)
        if recipe == opponent:
            row["over bf16"] = Value("1")
        elif (recipe, opponent) in comparison.speed_ups:
            row["over bf16"] = _ratio(comparison.speed_ups[recipe, opponent])
    if comparison and recipe in comparison.diverged:
        states.append(f"diverged in {of_runs(*comparison.diverged[recipe])}")
    missing = "not completed" if comparison else NOT_COMPARED
    if not (cell.path / recipe).exists():
        missing = NOT_RUN
    row["state"] = Value(", ".join(states) or cell.fit.obstacle or missing)
    return row


def _ratio(gain: SpeedUp) -> Value:
    return Value(gain.word, gain.ratio if gain.runs else None)


def _efficiency(cell: Cell, alone: Cell | None, recipe: str) -> Value:
    """Divide the speed-up over one process by the number of processes."""
    own, of_one = cell.completed(recipe), alone and alone.completed(recipe)
    if cell is alone or not (own and of_one):
        return Value()
    gain, processes = speed_up(own, of_one), cell.fit.values[PROCESSES]
    each = Ratio(*(part / processes for part in gain.by["step_s"]))
    return _ratio(replace(gain, by={"step_s": each}))


# ---- what the cells say ----


def _outcome(cell: Cell, recipe: str, all_on_cpu: bool) -> str:
    """Find what a cell says of an FP8 recipe, see `Sweep.outcomes`."""
    comparison = cell.comparison
    if not (cell.path / recipe).exists():
        return NO_ROOM if cell.fit.obstacle else NOT_RUN
    if comparison is None:
        return NOT_COMPARED
    if recipe in comparison.spoilt:
        return SPOILT
    if recipe not in comparison.completed:
        return NOT_COMPLETED
    if recipe not in comparison.verdicts:
        return NO_BF16
    if on_cpu(comparison):
        return comparison.verdicts[recipe].word if all_on_cpu else FROM_CPU
    return outcome(comparison, recipe)


def _notes(
    compared: dict[str, Comparison], runs: pd.DataFrame, opponent: str, all_on_cpu: bool
) -> list[str]:
    """Write what a reader must know of all runs, and of each cell by its name."""
    lines = [
        "tokens/s: of all GPUs of a run together, by the mean steady step. over bf16: over "
        f"{opponent} in the same cell. efficiency: tokens/s over N times those of one GPU. MFU: of "
        "the bf16 peak. memory: a GPU's peak, or the estimate where it did not run. Intervals are "
        "of 95 %, over seeds; one run has none."
    ]
    if all_on_cpu:
        lines.append(
            "These are CPUs: processes share the cores, so neither speed-up nor efficiency says "
            "how GPUs do."
        )
    for column in ALIKE:
        kinds = sorted(runs[column].dropna().unique())
        if len(kinds) > 1:
            lines.append(
                f"The cells differ in {column} ({', '.join(kinds)}), so they do not compare in "
                "speed."
            )
    for name, cell in compared.items():
        lines += [f"Note: {problem}" for problem in cell.frames.problems]
        lines += [f"Note: {name}: {words}." for words in lost_runs(cell) + unended_runs(cell)]
        for recipe, doubts in cell.doubts.items():
            lines += [f"Note: {name}: {recipe}: {words}." for words in worded(cell, doubts)]
    return lines


def answer(sweep: Sweep) -> str:
    """Write what the cells say together, and of each FP8 recipe in how many of the planned ones it
    gets a yes, what the others are, and by how much it is faster."""
    ratios = sweep.table["over bf16"].map(lambda value: value.number).astype(float)
    compared = set().union(*sweep.outcomes.values()) - NOT_COMPARABLE
    said, gain = [], "is faster than bf16, at the same or a lower loss,"
    if sweep.on_cpu:
        said.append(NO_ANSWERS["cpu"])
        gain = "ends at the same or a lower loss"
    elif compared == {SPOILT}:
        kinds = Counter(sweep.lost).items()
        lost = "; ".join(f"{words}, in {n} cell{'s' * (n > 1)}" for words, n in kinds)
        said.append(f"No: {lost}.")
    elif compared <= {"no rate"}:
        said.append(
            "No answer: no cell has runs in FP8 and in bf16 that are long enough for a rate."
        )
    for recipe, outcomes in sweep.outcomes.items():
        name = recipe if len(sweep.outcomes) > 1 else "FP8"
        words = ["yes" if case in (SAME, LOWER) else WORDS.get(case, case) for case in outcomes]
        counts = Counter(words)
        found = f"{name} {gain} in {counts.pop('yes', 0)} of {len(outcomes)} cells"
        if counts:
            found += f" ({', '.join(f'{case} in {n}' for case, n in counts.items())})"
        said.append(f"{found}.")
        cells = ratios.xs(recipe, level="recipe")
        measured, counts_for = cells.dropna(), [case not in NO_SPEED for case in outcomes]
        own = cells[counts_for[: len(cells)]]
        if len(own) and not sweep.on_cpu:
            span = " to ".join(dict.fromkeys(f"{end:.2f}" for end in (own.min(), own.max())))
            where = f" in {len(own)} of them" * (len(own) < len(measured))
            said.append(f"It has {span} times the tokens/s{where}.")
    return " ".join(said)


def short_names(sweep: Sweep) -> dict[str, str]:
    """Name the recipes in the table: bf16 and fp8 where the sweep has one of each."""
    recipes = sweep.table.index.unique("recipe")
    if len(recipes) != 2:
        return {recipe: recipe for recipe in recipes}
    return dict.fromkeys(recipes, "fp8") | {sweep.opponent: "bf16"}


def matrix(sweep: Sweep) -> pd.DataFrame:
    """Word the table, a row a cell and recipe, indexed by the recipe's name."""
    places = sweep.table.index.to_frame(index=False)
    places["recipe"] = places["recipe"].map(short_names(sweep))
    places = places.map(lambda x: f"{x:,}" if isinstance(x, int) else x)
    words = sweep.table.map(lambda value: value.text).reset_index(drop=True)
    table = places.join(words).set_index("recipe")
    return table.rename(columns=lambda name: name.rpartition(".")[2])
