"""A sweep: the comparison within each of its cells, and how the cells scale with the number of
GPUs."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from analysis.answer import SPOILT, outcome
from analysis.comparison import COMPILED, Comparison, compare, read_plan
from analysis.load import LoadError
from analysis.losses import LOWER, SAME
from analysis.rates import Completed, Ratio, SpeedUp, speed_up
from analysis.runs import flat
from analysis.table import loss_word, speed_word
from experiments.records.files import RecordError
from experiments.records.files import read as read_record
from experiments.records.run import CELL, STUDY_FILE, Fit

STUDY = "sweep"
QUESTION = "Where is FP8 faster than bf16, and by how much?"
PROCESSES = "processes"
ALIKE = ("device", "torch", "torchao")  # speeds of cells that differ in these do not compare


class Value(NamedTuple):
    """What a table and a heat map say, and as a number; None where that is unknown."""

    text: str = "-"
    number: float | None = None


@dataclass(frozen=True)
class Sweep:
    """A row a recipe in a cell, in the order of the axes' values, and what a reader must know.

    Args:
        opponent: the bf16 recipe that speeds and losses are compared with.
        axes: key.path of each axis, and its values.
        outcomes: what a comparison of the cell would answer about its FP8 recipe, see
            `analysis.answer.outcome`; indexed as the table.
        table: a `Value` in each field; indexed by the axes and the recipe.
    """

    opponent: str
    axes: dict[str, list]
    table: pd.DataFrame
    outcomes: pd.Series
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
    rows, outcomes, completed, compared = {}, {}, {}, []
    for path, cell in cells.items():
        comparison = _compared(path, problems)
        if comparison:
            compared.append(comparison)
        for recipe in plan.recipes:
            place = (*(cell.values[key] for key in axes), recipe)
            row = {"memory GiB": Value(f"about {cell.needed / 2**30:.1f}")}
            missing = "not completed" if (path / recipe).exists() else "not run"
            row["state"] = Value(cell.obstacle or missing)
            if comparison:
                row |= _measured(comparison, recipe, opponent, len(plan.seeds))
                completed[place] = comparison.completed.get(recipe)
                if recipe in comparison.doubts:
                    outcomes[place] = outcome(comparison, recipe)
                elif recipe in comparison.spoilt:
                    outcomes[place] = SPOILT
            rows[place] = row
    table = pd.DataFrame.from_dict(rows, orient="index").reindex(columns=COLUMNS)
    table.index = pd.MultiIndex.from_tuples(rows, names=[*axes, "recipe"])
    table["efficiency"] = pd.Series(_efficiencies(completed, [*axes]), dtype=object).reindex(rows)
    table = table.where(table.notna(), Value())
    notes = _notes(compared, opponent) + [f"Note: {problem}" for problem in problems]
    return Sweep(opponent, axes, table, pd.Series(outcomes, dtype=object), notes)


COLUMNS = ["tokens/s", "over bf16", "loss", "MFU", "memory GiB", "efficiency", "state"]


def _cells(folder: Path, axes: dict[str, list], problems: list[str]) -> dict[Path, Fit]:
    """The recorded cells by their folder, in the order of the axes' values."""
    cells = {}
    for path in sorted(folder.glob(f"*/{CELL}")):
        try:
            cell = read_record(path, Fit)
        except RecordError as error:
            problems.append(str(error))
            continue
        if cell.values.keys() == axes.keys() and all(cell.values[k] in axes[k] for k in axes):
            cells[path.parent] = cell
        else:
            problems.append(f"{path}: values: not of the axes in study.yaml")

    def place(path: Path) -> list[int]:
        return [axes[key].index(cells[path].values[key]) for key in axes]

    return {path: cells[path] for path in sorted(cells, key=place)}


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


def _measured(comparison: Comparison, recipe: str, opponent: str, asked: int) -> dict[str, Value]:
    """Word what the runs of a recipe have shown in a cell."""
    row, states = {}, []
    if recipe in comparison.completed:
        of = comparison.completed[recipe]
        states.append(f"{len(of.runs)} of {asked} runs")
        planned = of.runs["steps_planned"].iloc[0]
        if planned > 0:
            states.append(f"cut to {of.runs['steps'].iloc[0]:.0f} of {planned:.0f} steps")
        mfu, memory = of.runs["mfu_bf16_peak"].mean(), of.runs["peak_memory_bytes"].mean() / 2**30
        row = {
            "tokens/s": Value(speed_word(comparison, recipe), of.rate.mean),
            "over bf16": Value("1" if recipe == opponent else "-"),
            "loss": Value(loss_word(comparison, recipe)),
            "memory GiB": Value(f"{memory:.1f}", memory),
        }
        if mfu > 0:
            row["MFU"] = Value(f"{mfu:.1%}", mfu)
        if (recipe, opponent) in comparison.speed_ups:
            row["over bf16"] = _value(comparison.speed_ups[recipe, opponent])
    if recipe in comparison.diverged:
        states.append("diverged in {} of {} runs".format(*comparison.diverged[recipe]))
    if states:
        row["state"] = Value(", ".join(states))
    return row


def _value(gain: SpeedUp) -> Value:
    return Value(gain.word, gain.ratio if gain.runs else None)


def _efficiencies(completed: dict[tuple, Completed | None], axes: list[str]) -> dict[tuple, Value]:
    """Divide each speed-up over one process by the number of processes."""
    found = {}
    for place, of in completed.items():
        if PROCESSES not in axes:
            break
        at = axes.index(PROCESSES)
        processes = place[at]
        alone = completed.get((*place[:at], 1, *place[at + 1 :]))
        if of and alone and processes > 1:
            gain = speed_up(of, alone)
            each = Ratio(*(part / processes for part in gain.by["step_s"]))
            found[place] = _value(replace(gain, by={"step_s": each}))
    return found


def _notes(cells: list[Comparison], opponent: str) -> list[str]:
    lines = [
        "tokens/s: of all GPUs of a run together, by the mean steady step. over bf16: over "
        f"{opponent} in the same cell. efficiency: tokens/s over N times those of one GPU. MFU: of "
        "the bf16 peak. memory: a GPU's peak, or the estimate where it did not run. Intervals are "
        "of 95 %, over seeds; one run has none."
    ]
    if not cells:
        return lines
    runs = pd.concat([cell.frames.runs for cell in cells])
    if (runs["device_type"] == "cpu").all():
        lines.append(
            "These are CPUs: processes share the cores, so neither speed-up nor efficiency says "
            "how GPUs do."
        )
    kinds = {column: sorted(runs[column].dropna().unique()) for column in ALIKE}
    lines += [
        f"The cells differ in {column} ({', '.join(names)}), so they do not compare in speed."
        for column, names in kinds.items()
        if len(names) > 1
    ]
    for cell in cells:
        lines += [f"Note: {problem}" for problem in cell.frames.problems]
    return lines


def answer(sweep: Sweep) -> str:
    """Write in how many cells FP8 gets a yes, in speed and loss, what the others are, and by how
    much FP8 is faster."""
    ratios = sweep.table["over bf16"].map(lambda value: value.number)[sweep.outcomes.index].dropna()
    if ratios.empty:
        return "No answer: no cell has runs in FP8 and in bf16 that are long enough for a rate."
    outcomes = sweep.outcomes.replace([SAME, LOWER], "yes").value_counts()
    others = ", ".join(
        f"{case} in {count}" for case, count in outcomes.drop("yes", errors="ignore").items()
    )
    said = (
        f"FP8 is faster than bf16, at the same or a lower loss, in {outcomes.get('yes', 0)} of "
        f"{len(sweep.outcomes)} cells"
    )
    if others:
        said += f" ({others})"
    return f"{said}. It has {ratios.min():.2f} to {ratios.max():.2f} times the tokens/s."


def short_names(sweep: Sweep) -> dict[str, str]:
    """Name the recipes in the table: bf16 and fp8 where the sweep has one of each."""
    recipes = sweep.table.index.unique("recipe")
    if len(recipes) != 2:
        return {recipe: recipe for recipe in recipes}
    return dict.fromkeys(recipes, "fp8") | {sweep.opponent: "bf16"}


def matrix(sweep: Sweep) -> tuple[list[str], list[list[str]]]:
    """(names of the columns, a line a cell and recipe)."""
    names = [key.rpartition(".")[2] for key in sweep.axes]
    lines, recipes = [], short_names(sweep)
    for place, row in zip(sweep.table.index, sweep.table.to_numpy(), strict=True):
        of_axes = [f"{x:,}" if isinstance(x, int) else x for x in place[:-1]]
        lines.append([recipes[place[-1]], *of_axes, *(value.text for value in row)])
    return ["recipe", *names, *sweep.table], lines
