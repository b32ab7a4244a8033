"""The work of a recipe's step, as models/floors.py counts it."""

from experiments.config import recipes
from experiments.profiling import measured
from experiments.training.plan import plan
from models.floors import Work


def work(name: str, *overrides: str, overlays: tuple = ()) -> list[Work]:
    return measured.work(plan(recipes.load(name, overlays, overrides)))


def total(work: list[Work], field: str, *parts: str) -> float:
    return sum(getattr(w, field) for w in work if w.part in parts)
