"""A sweep: the comparison within each of its cells, and how the cells scale with the number of
GPUs."""

from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd

from analysis.comparison import COMPILED, Comparison, compare, read_plan
from analysis.load import LoadError
from analysis.rates import Rate, SpeedUp, speed_up
from analysis.table import known
from experiments.records.files import RecordError
from experiments.records.files import read as read_record
from experiments.records.study import CELL, Fit

STUDY = "sweep"
QUESTION = "Where is FP8 faster than bf16, and by how much?"
PROCESSES = "processes"
ALIKE = ("device", "torch", "torchao")  # speeds of cells that differ in these do not compare


@dataclass
class Row:
    """A recipe in a cell: means over its completed runs, None where there is none; rates over all
    its GPUs.

    Bytes are of one GPU. `needed` and `available` are the estimate and the memory that there was
    when the sweep began. `efficiency` is the speed-up over one process divided by the number of
    processes.
    """

    cell: str
    values: dict[str, str | int]  # of the axes
    recipe: str
    state: str
    needed: float
    available: float
    rate: Rate | None = None
    over_bf16: SpeedUp | None = None
    mfu: float | None = None
    memory: float | None = None
    efficiency: SpeedUp | None = None


@dataclass(frozen=True)
class Sweep:
    """Rows in the order of the axes' values, and what a reader must know."""

    opponent: str  # the bf16 recipe that speeds are compared to
    axes: dict[str, list]
    rows: list[Row]
    notes: list[str]


def is_sweep(path: Path) -> bool:
    """Whether a folder is a sweep's."""
    return bool(read_plan(path).get("axes"))


def read(folder: Path) -> Sweep:
    """Read the sweep in a folder. Raises `LoadError` where no cell is recorded."""
    plan = read_plan(folder)
    axes = _by_key(plan["axes"])
    problems: list[str] = []
    cells = _cells(folder, axes, problems)
    if not cells:
        raise LoadError(
            f"{folder}: has a sweep's study.yaml and no cell of it: start it again with "
            "experiments.study"
        )
    opponent = COMPILED if COMPILED in plan["recipes"] else plan["baseline"]
    rows, compared = [], []
    for path, cell in cells.items():
        comparison = _compared(path, problems)
        if comparison:
            compared.append(comparison)
        for recipe in plan["recipes"]:
            values = {key: cell.values[key] for key in axes}
            row = Row(path.name, values, recipe, "", cell.needed, cell.available)
            missing = "not completed" if (path / recipe).exists() else "not run"
            row.state = cell.obstacle or missing
            if comparison:
                _fill(row, comparison, opponent, len(plan["seeds"]))
            rows.append(row)
    _set_efficiency(rows)
    notes = _notes(compared, opponent) + [f"Note: {problem}" for problem in problems]
    return Sweep(opponent, axes, rows, notes)


def _by_key(axes: dict) -> dict[str, list]:
    """Key to values of each axis: of {"model": {"flavor": […]}} that of model.flavor."""
    flat = {}
    for section, values in axes.items():
        inner = _by_key(values) if isinstance(values, dict) else {"": values}
        flat |= {f"{section}.{key}".rstrip("."): found for key, found in inner.items()}
    return flat


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


def _fill(row: Row, comparison: Comparison, opponent: str, asked: int) -> None:
    """Fill in what the runs of a recipe have shown."""
    diverged = comparison.diverged.get(row.recipe)
    states = [f"diverged in {diverged[0]} of {diverged[1]} seeds"] if diverged else []
    if row.recipe in comparison.completed:
        runs = comparison.completed[row.recipe].runs
        states.insert(0, f"{len(runs)} of {asked} runs")
        planned = runs["steps_planned"].iloc[0]
        if planned > 0:
            states.append(f"cut to {runs['steps'].iloc[0]:.0f} of {planned:.0f} steps")
        row.rate = comparison.rates[row.recipe]
        row.over_bf16 = comparison.speed_ups.get((row.recipe, opponent))
        row.mfu = known(runs["mfu_bf16_peak"].mean())
        row.memory = known(runs["peak_memory_bytes"].mean())
    row.state = ", ".join(states) or row.state


def _set_efficiency(rows: list[Row]) -> None:
    """Divide each speed-up over one process by the number of processes."""
    for row in rows:
        processes = row.values.get(PROCESSES, 1)
        on_one = row.values | {PROCESSES: 1}
        alone = [other.rate for other in rows
                 if other.recipe == row.recipe and other.values == on_one]  # fmt: skip
        if processes > 1 and row.rate and any(alone):
            gain = speed_up(row.rate, alone[0])
            parts = ("ratio", "by_median", "by_clock", "low", "high")
            shares = {part: getattr(gain, part) / processes for part in parts}
            row.efficiency = replace(gain, **shares, needed=None)


def _notes(cells: list[Comparison], opponent: str) -> list[str]:
    lines = [
        f"tokens/s: of all GPUs of a run together, by the mean steady step. over bf16: over "
        f"{opponent} in the same cell. efficiency: tokens/s over N times those of one GPU. MFU: of "
        "the bf16 peak, by the median step. memory: a GPU's peak, or the estimate where it did not "
        "run. Intervals are of 95 %, over seeds; one run has none."
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
    """Write in how many cells FP8 is faster than bf16, and by how much."""
    gains = [row.over_bf16.ratio for row in sweep.rows if row.over_bf16 and row.over_bf16.runs]
    if not gains:
        return "No answer: no cell has runs in FP8 and in bf16 that are long enough for a rate."
    faster = sum(gain > 1 for gain in gains)
    return (
        f"FP8 is faster than bf16 in {faster} of {len(gains)} cells: it has {min(gains):.2f} to "
        f"{max(gains):.2f} times the tokens/s."
    )


def short_names(sweep: Sweep) -> dict[str, str]:
    """Name the recipes in the table: bf16 and fp8 where the sweep has one of each."""
    recipes = dict.fromkeys(row.recipe for row in sweep.rows)
    if len(recipes) != 2:
        return {recipe: recipe for recipe in recipes}
    return dict.fromkeys(recipes, "fp8") | {sweep.opponent: "bf16"}


def matrix(sweep: Sweep) -> tuple[list[str], list[list[str]]]:
    """(names of the columns, a line a cell and recipe)."""
    names = [key.rpartition(".")[2] for key in sweep.axes]
    columns = ["recipe", *names, *values(sweep.rows[0]), "state"]
    lines, recipes = [], short_names(sweep)
    for row in sweep.rows:
        of_axes = [f"{x:,}" if isinstance(x, int) else x for x in row.values.values()]
        lines.append(
            [recipes[row.recipe], *of_axes, *cells(row, sweep.opponent).values(), row.state]
        )
    return columns, lines


def cells(row: Row, opponent: str) -> dict[str, str]:
    """What tables and heat maps say of a row, by quantity."""
    memory = row.memory or row.needed
    found = dict.fromkeys(values(row), "-")
    found["memory GiB"] = f"{'' if row.memory else 'about '}{memory / 2**30:.1f}"
    if row.rate:
        found["tokens/s"] = f"{row.rate.mean:,.0f}" if row.rate.runs else "too short"
    if row.rate and row.recipe == opponent:
        found["over bf16"] = "1"
    if row.over_bf16:
        found["over bf16"] = row.over_bf16.word
    if row.mfu is not None:
        found["MFU"] = f"{row.mfu:.1%}"
    if row.efficiency:
        found["efficiency"] = row.efficiency.word
    return found


def values(row: Row) -> dict[str, float | None]:
    """The same as numbers; None where it is unknown."""
    return {
        "tokens/s": row.rate and known(row.rate.mean),
        "over bf16": row.over_bf16 and known(row.over_bf16.ratio),
        "MFU": row.mfu,
        "memory GiB": row.memory and row.memory / 2**30,
        "efficiency": row.efficiency and known(row.efficiency.ratio),
    }
