"""A sweep's cells: which can run here, in which order, and their list."""

from collections import Counter
from collections.abc import Iterable
from itertools import combinations

from experiments.config.studies import Cell, Study
from models.flops import memory_finding
from models.gpus import GPUS


def can_run(cells: list[Cell]) -> list[Cell]:
    """Order the cells that can run so that any beginning covers the axes evenly."""
    return balanced(cell for cell in cells if not (cell.fit and cell.fit.obstacle))


def balanced(cells: Iterable[Cell]) -> list[Cell]:
    """Order cells so that every beginning covers the axes evenly: each value, then each pair of
    values of two axes.

    The next cell is always the one whose values were there least often; of equal ones, the first.
    """
    left, order, seen = list(cells), [], Counter()

    def often(cell: Cell) -> list[int]:
        values = cell.values.items()
        return [sum(seen[group] for group in combinations(values, size)) for size in (1, 2)]

    while left:
        cell = min(left, key=often)
        left.remove(cell)
        order.append(cell)
        for size in (1, 2):
            seen.update(combinations(cell.values.items(), size))
    return order


def list_cells(study: Study, cells: list[Cell], gpu: str | None) -> None:
    """Print which cells would run, in their order, and which not, by their memory."""
    runnable = can_run(cells)
    where = GPUS[gpu].driver_name if gpu else "this machine"
    names, seeds = ", ".join(study.recipes), ", ".join(map(str, study.seeds))
    print(f"{len(cells)} cells, {len(runnable)} of which {where} can run: {names}; seeds {seeds}")
    for cell in runnable:
        memory = memory_finding(cell.fit.needed, cell.fit.available)
        print(f"{cell.name}: would run: {memory}")
    for cell in cells:
        if cell.fit.obstacle:
            print(f"{cell.name}: cannot run: {cell.fit.obstacle}")
