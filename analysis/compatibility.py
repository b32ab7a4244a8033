"""What FP8 goes with: the README's table from experiments/config/compatibility.yaml, which tests hold to be true."""

from collections.abc import Iterator
from typing import NamedTuple

import yaml

from analysis.newest import ROOT

SOURCE = ROOT / "experiments/config/compatibility.yaml"


class Cell(NamedTuple):
    """A recipe with a pairing: the keys that the pairing adds, how many processes share the run, and the refusal."""

    pairing: str
    recipe: str
    keys: list[str]
    processes: int
    refused: str | None  # what a user is told; None where it works
    why: str


def cells() -> Iterator[Cell]:
    """Every cell, pairing by pairing."""
    source = yaml.safe_load(SOURCE.read_text(encoding="utf-8"))
    for name, pairing in source["pairings"].items():
        refused = pairing.get("refused")
        for recipe in source["recipes"]:
            sentence = refused.get(recipe) if isinstance(refused, dict) else refused
            yield Cell(
                name, recipe, pairing.get("keys", []), pairing.get("processes", 1), sentence, pairing.get("why", "")
            )


def table() -> tuple[list[str], list[list[str]]]:
    """(columns, lines): a pairing a line, a recipe a column."""
    by_pairing: dict[str, list[Cell]] = {}
    for cell in cells():
        by_pairing.setdefault(cell.pairing, []).append(cell)
    columns = ["FP8 with", *(f"`{cell.recipe}`" for cell in next(iter(by_pairing.values()))), "tried with"]
    lines = [[name, *map(_word, row), _tried(row[0])] for name, row in by_pairing.items()]
    return columns, lines


def _word(cell: Cell) -> str:
    return "refused" if cell.refused else "works"


def _tried(cell: Cell) -> str:
    keys = ", ".join(f"`{key}`" for key in cell.keys)
    processes = f"{cell.processes} processes" if cell.processes > 1 else "1 process"
    return f"{processes}{', ' if keys else ''}{keys}{'. ' if cell.why else ''}{cell.why}"
