"""What FP8 goes with, as tests see it: compatibility.yaml of the core and of extensions."""

from typing import NamedTuple

import yaml

from analysis.newest import ROOT

RECIPES = ("tensorwise_fp8_compiled", "rowwise_fp8_compiled")


class Cell(NamedTuple):
    """A recipe with a pairing, and the error if the two are refused."""

    pairing: str
    recipe: str
    keys: list[str]  # that the pairing adds to the recipe
    refused: str | None
    why: str
    needs: list[str]  # extensions


def cells() -> list[Cell]:
    """List every recipe with every pairing, pairing by pairing; none that needs an extension that
    is not there."""
    pairings = {}
    for path in sorted(ROOT.glob("ex*/*/compatibility.yaml")):  # the core's first
        pairings |= yaml.safe_load(path.read_text(encoding="utf-8"))
    found = []
    for name, pairing in pairings.items():
        needs = pairing.get("needs", [])
        if not all((ROOT / "extensions" / each).is_dir() for each in needs):
            continue
        refused = pairing.get("refused")
        for recipe in RECIPES:
            sentence = refused.get(recipe) if isinstance(refused, dict) else refused
            found.append(
                Cell(name, recipe, pairing["keys"], sentence, pairing.get("why", ""), needs)
            )
    return found
