"""What FP8 goes with: the README's table from experiments/config/compatibility.yaml, which tests
hold to be true."""

from collections.abc import Iterator
from typing import NamedTuple

import yaml

from analysis.newest import ROOT

SOURCE = ROOT / "experiments/config/compatibility.yaml"


class Cell(NamedTuple):
    """A recipe with a pairing: the keys that the pairing adds, how many processes share the run,
    and the refusal."""

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
                name,
                recipe,
                pairing.get("keys", []),
                pairing.get("processes", 1),
                sentence,
                pairing.get("why", ""),
            )


def table() -> tuple[list[str], list[list[str]]]:
    """(columns, lines): a pairing a line, a recipe a column."""
    by_pairing: dict[str, list[Cell]] = {}
    for cell in cells():
        by_pairing.setdefault(cell.pairing, []).append(cell)
    columns = [
        "FP8 with",
        *(f"`{cell.recipe}`" for cell in next(iter(by_pairing.values()))),
        "how, and why not",
    ]
    words = {
        name: ["refused" if cell.refused else "works" for cell in row]
        for name, row in by_pairing.items()
    }
    return columns, [[name, *words[name], _how(row)] for name, row in by_pairing.items()]


def _how(row: list[Cell]) -> str:
    """How a pairing is asked for, what refuses it, and why."""
    cell = row[0]
    asked = ", ".join(
        [f"{cell.processes} processes"] * (cell.processes > 1) + [f"`{key}`" for key in cell.keys]
    )
    refusal = next((f"“… {cell.refused} …”." for cell in row if cell.refused), "")
    return " ".join(filter(None, [f"{asked}.", refusal, cell.why]))
