"""The work of a recipe's step, as models/floors.py counts it."""

from experiments.config import recipes
from experiments.training import preflight
from models import floors


def work(name: str, *overrides: str, overlays: tuple = ()) -> list[floors.Work]:
    config = recipes.load(name, overlays, overrides).config
    return floors.step_work(config, preflight.model_args(config), preflight.fp8_layers(config))


def total(work: list[floors.Work], field: str, *parts: str) -> float:
    return sum(getattr(w, field) for w in work if w.part in parts)
