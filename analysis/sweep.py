"""A sweep: the comparison within each of its cells, and how the cells scale with the number of
GPUs."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import yaml

from analysis.comparison import COMPILED, Comparison, compare
from analysis.load import LoadError
from analysis.rates import Rate, SpeedUp, speed_up
from analysis.table import by_recipe, known, rows_of
from experiments.records.files import RecordError
from experiments.records.files import read as read_record
from experiments.records.study import CELL, Cell

STUDY = "sweep"
QUESTION = "Where is FP8 faster than bf16, and by how much?"
PROCESSES = "processes"
ALIKE = (
    "device",
    "torch",
    "torchao",
)  # where cells differ in one of these, their speeds do not compare


@dataclass(frozen=True)
class Row:
    """A recipe in a cell: means over its completed runs, None where there is none; rates over all
    its GPUs.

    Bytes are a GPU's. `needed` and `available` are the estimate and the memory that there was when
    the sweep began. `efficiency` is the speed-up over one process divided by the number of
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

    @property
    def processes(self) -> int:
        return self.values.get(PROCESSES, 1)


@dataclass(frozen=True)
class Sweep:
    """Rows in the order of the axes' values, and what a reader must know."""

    opponent: str  # the bf16 recipe that speeds are compared to
    axes: dict[str, list]
    rows: list[Row]
    notes: list[str]


def is_sweep(path: Path) -> bool:
    """Whether a folder is a sweep's."""
    return isinstance(axes := _plan(path).get("axes"), dict) and bool(axes)


def read(folder: Path) -> Sweep:
    """The sweep in a folder. Raises `LoadError` where no cell is recorded."""
    plan, found = (
        _plan(folder),
        {path.parent: _record(path) for path in sorted(folder.glob(f"*/{CELL}"))},
    )
    axes = dict(_flat(plan["axes"]))
    records = {
        cell: record | {"values": values}
        for cell, record in found.items()
        if (values := _values(record, axes))
    }
    if not records:
        raise LoadError(
            f"{folder}: has a sweep's study.yaml and no cell of it: start it again with experiments.study"
        )
    others = [cell.name for cell in found if cell not in records]
    problems = [
        f"{name}: left out, its {CELL} is damaged or of other axes than study.yaml's"
        for name in others
    ]
    cells = sorted(
        records,
        key=lambda cell: [axes[key].index(value) for key, value in records[cell]["values"].items()],
    )
    compared = {cell: _compared(cell, problems) for cell in cells}
    opponent = COMPILED if COMPILED in plan["recipes"] else plan["baseline"]
    rows = [
        row for cell in cells for row in _rows(cell, records[cell], compared[cell], plan, opponent)
    ]
    notes = _notes([c for c in compared.values() if c], opponent) + [
        f"Note: {problem}" for problem in problems
    ]
    return Sweep(opponent, axes, list(_with_efficiency(rows)), notes)


def _flat(axes: dict, prefix: str = "") -> Iterator[tuple[str, list]]:
    """(key.path, values) of each axis."""
    for key, values in axes.items():
        yield from (
            _flat(values, f"{key}.") if isinstance(values, dict) else [(prefix + key, values)]
        )


def _record(path: Path) -> dict:
    """A cell's record, empty where it is damaged."""
    try:
        return read_record(path, Cell).model_dump()
    except RecordError:
        return {}


def _values(record: dict, axes: dict[str, list]) -> dict | None:
    """A cell's value on each axis, in the order of the axes; None where it has no value of
    theirs."""
    values = record.get("values")
    if (
        not isinstance(values, dict)
        or values.keys() != axes.keys()
        or any(values[k] not in axes[k] for k in axes)
    ):
        return None
    return {key: values[key] for key in axes}


def _plan(folder: Path) -> dict:
    """Its study.yaml; empty where there is none that can be read."""
    try:
        plan = yaml.safe_load((folder / "study.yaml").read_text())
    except (OSError, ValueError, yaml.YAMLError):
        return {}
    return plan if isinstance(plan, dict) else {}


def _compared(cell: Path, problems: list[str]) -> Comparison | None:
    """None where the cell holds no run, or runs that do not compare, which `problems` says."""
    if not any(cell.glob("*/seed*/manifest.json")):
        return None
    try:
        return compare(cell)
    except LoadError as error:
        problems.append(f"{cell.name}: {error}")
        return None


def _rows(
    cell: Path, record: dict, comparison: Comparison | None, plan: dict, opponent: str
) -> Iterator[Row]:
    means = (
        dict((mean["recipe"], mean) for mean, _ in by_recipe(rows_of(comparison)))
        if comparison
        else {}
    )
    asked = len(plan["seeds"])
    for recipe in plan["recipes"]:
        facts = (cell.name, record["values"], recipe)
        memory = {"needed": record["needed"], "available": record["available"]}
        done = comparison.completed(recipe) if comparison else 0
        lost = (comparison.diverged | comparison.bf16_diverged).get(recipe) if comparison else None
        diverged = [f"diverged in {lost[0]} of {lost[1]} seeds"] if lost else []
        if not done:
            [state] = diverged or ["not completed" if (cell / recipe).exists() else "not run"]
            yield Row(*facts, record["obstacle"] or state, **memory)
            continue
        mean = means[recipe]
        cut = (
            [f"cut to {mean['steps']:.0f} of {mean['steps_planned']:.0f} steps"]
            if mean["steps_planned"]
            else []
        )
        state = ", ".join([f"{done} of {asked} run{'s' * (asked > 1)}", *diverged, *cut])
        yield Row(*facts, state, **memory, rate=comparison.rates[recipe],
                  over_bf16=comparison.speed_ups.get((recipe, opponent)), mfu=mean["mfu_bf16_peak"],
                  memory=mean["peak_memory_bytes"])  # fmt: skip


def _with_efficiency(rows: list[Row]) -> Iterator[Row]:
    def twin(row: Row) -> tuple:
        return row.recipe, *(value for key, value in row.values.items() if key != PROCESSES)

    alone = {twin(row): row.rate for row in rows if row.processes == 1 and row.rate}
    for row in rows:
        if row.rate and row.processes > 1 and twin(row) in alone:
            yield replace(
                row, efficiency=_shared(speed_up(row.rate, alone[twin(row)]), row.processes)
            )
        else:
            yield row


def _shared(gain: SpeedUp, processes: int) -> SpeedUp:
    """Of each process its part in a speed-up over one."""
    ratios = {
        name: getattr(gain, name) / processes for name in ("ratio", "by_median", "low", "high")
    }
    return replace(gain, **ratios, needed=None)


def _notes(cells: list[Comparison], opponent: str) -> list[str]:
    lines = [
        f"tokens/s: of all GPUs of a run together, by the mean steady step. over bf16: over {opponent} in the same "
        "cell. efficiency: tokens/s over N times those of one GPU. MFU: of the bf16 peak, by the median step. memory: "
        "a GPU's peak, or the estimate where it did not run. Intervals are of 95 %, over seeds; one run has none.",
    ]
    runs = [run for cell in cells for run in cell.frames.runs.to_dict("records")]
    if runs and all(run["device_type"] == "cpu" for run in runs):
        lines.append(
            "These are CPUs: processes share the cores, so neither speed-up nor efficiency says how GPUs do."
        )
    for column in ALIKE:
        if len(kinds := {str(run[column]) for run in runs if known(run[column]) is not None}) > 1:
            lines.append(
                f"The cells differ in {column} ({', '.join(sorted(kinds))}), so they do not compare in speed."
            )
    return lines + [f"Note: {problem}" for cell in cells for problem in cell.frames.problems]


def matrix(sweep: Sweep) -> tuple[list[str], list[list[str]]]:
    """(names of the columns, a line a cell and recipe)."""
    names = [key.rpartition(".")[2] for key in sweep.axes]
    columns = [
        "recipe",
        *names,
        "tokens/s",
        "over bf16",
        "MFU",
        "memory GiB",
        "efficiency",
        "state",
    ]
    return columns, [
        [row.recipe, *(f"{value:,}" if isinstance(value, int) else value for value in row.values.values()),
         *cells(row, sweep.opponent).values(), row.state]
        for row in sweep.rows
    ]  # fmt: skip


def cells(row: Row, opponent: str) -> dict[str, str]:
    """What tables and heat maps say of a row, by quantity."""
    ran = row.rate is not None
    return {
        "tokens/s": "-" if not ran else f"{row.rate.mean:,.0f}" if row.rate.runs else "too short",
        "over bf16": row.over_bf16.word
        if row.over_bf16
        else "1"
        if ran and row.recipe == opponent
        else "-",
        "MFU": "-" if row.mfu is None else f"{row.mfu:.1%}",
        "memory GiB": f"{row.memory / 2**30:.1f}"
        if row.memory
        else f"about {row.needed / 2**30:.1f}",
        "efficiency": row.efficiency.word if row.efficiency else "-",
    }


def values(row: Row) -> dict[str, float | None]:
    """The same as numbers; None where it is unknown."""
    return {
        "tokens/s": row.rate and known(row.rate.mean),
        "over bf16": row.over_bf16 and known(row.over_bf16.ratio),
        "MFU": row.mfu,
        "memory GiB": row.memory and row.memory / 2**30,
        "efficiency": row.efficiency and known(row.efficiency.ratio),
    }


def plain(row: Row) -> dict:
    """For JSON."""
    rate = row.rate and vars(row.rate) | {"by_run": dict(row.rate.by_run)}
    ratios = {
        name: (gain := getattr(row, name)) and vars(gain) for name in ("over_bf16", "efficiency")
    }
    return vars(row) | {"rate": rate} | ratios
