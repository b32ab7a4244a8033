"""What FP8 goes with: experiments/config/compatibility.yaml, which tests hold to be true."""

from typing import NamedTuple

import yaml

from analysis.newest import ROOT

SOURCE = ROOT / "experiments/config/compatibility.yaml"


class Cell(NamedTuple):
    """A recipe with a pairing, and what a user is told if the two are refused."""

    pairing: str
    recipe: str
    keys: list[str]  # that the pairing adds to the recipe
    processes: int  # that share the run
    refused: str | None
    why: str


def cells() -> list[Cell]:
    """List every recipe with every pairing, pairing by pairing."""
    source, found = yaml.safe_load(SOURCE.read_text(encoding="utf-8")), []
    for name, pairing in source["pairings"].items():
        keys, processes = pairing.get("keys", []), pairing.get("processes", 1)
        for recipe in source["recipes"]:
            refused = pairing.get("refused")
            if isinstance(refused, dict):
                refused = refused.get(recipe)
            found.append(Cell(name, recipe, keys, processes, refused, pairing.get("why", "")))
    return found
