"""What FP8 goes with, as tests see it: compatibility.yaml of the core and of extensions."""

from typing import NamedTuple

import yaml

from experiments.config.recipes import ROOT

RECIPES = ("tensorwise_fp8_compiled", "rowwise_fp8_compiled")


class Cell(NamedTuple):
    """A recipe with a pairing, and the error if the two are refused."""

    pairing: str
    recipe: str
    keys: list[str]  # that the pairing adds to the recipe
    refusal: str | None
    reason: str
    needed_extensions: list[str]


def list_cells() -> list[Cell]:
    """List every recipe with every pairing, pairing by pairing. Pairings that need an extension
    which is not installed are left out."""
    pairings: dict[str, dict] = {}
    for path in sorted(ROOT.glob("ex*/*/compatibility.yaml")):  # the core's first
        pairings |= yaml.safe_load(path.read_text(encoding="utf-8"))
    cells = []
    for name, pairing in pairings.items():
        needed_extensions = pairing.get("needs", [])
        if not all((ROOT / "extensions" / extension).is_dir() for extension in needed_extensions):
            continue
        for recipe in RECIPES:
            refusal = pairing.get("refused")
            if isinstance(refusal, dict):
                refusal = refusal.get(recipe)
            reason = pairing.get("why", "")
            cells.append(Cell(name, recipe, pairing["keys"], refusal, reason, needed_extensions))
    return cells
