"""The sizes of a model, from what people type."""

import json
import re
from pathlib import Path

import yaml

from experiments.config import recipes
from models.errors import InputError
from models.flops import Sizes

KNOWN = yaml.safe_load(Path(__file__).with_name("models.yaml").read_text(encoding="utf-8"))
# What surrounds the name of a model: its owner, what it was tuned for, its revision
AROUND = r"^.*/|meta-|-(hf|instruct|chat|base|it|v[\d.]+)\b|[-_ ]"
EXPECTED = (
    "give a name or the config.json of a family that extensions/decide/models.yaml lists, a "
    "recipe, or sizes (dim=, n_layers=, n_heads=, n_kv_heads=, head_dim=, hidden_dim=, "
    "vocab_size=), whole numbers below a million, and less than 1000 layers"
)


def sizes(words: list[str]) -> Sizes:
    """Read a model's name, and sizes that change it or stand alone. Raises InputError."""
    given = {}
    try:
        if "=" not in words[0]:
            found = named(words.pop(0))
            given = {size: value for size, value in found.items() if value}
        given |= dict(word.split("=") for word in words)
        given = {size: int(value) for size, value in given.items()}
        usual = {"n_kv_heads": given["n_heads"], "head_dim": given["dim"] // given["n_heads"]}
        given = usual | given
        if not 0 < min(given.values()) <= max(given.values()) < 10**6 or given["n_layers"] > 999:
            raise ValueError(given)
        return Sizes(**given)
    except (ArithmeticError, KeyError, OSError, TypeError, ValueError) as error:
        raise InputError(f"no such model ({error}): {EXPECTED}") from error


def named(name: str) -> dict:
    """Find the sizes of a config.json, of a model of models.yaml, or of a recipe."""
    if name.endswith(".json"):
        config = json.loads(Path(name).read_text(encoding="utf-8"))
        config = KNOWN["families"][config["model_type"]] | config
        return {size: config.get(key) for size, key in KNOWN["config.json"].items()}
    short = re.sub(AROUND, "", name.lower())
    if short in KNOWN["names"]:
        return KNOWN["models"][KNOWN["names"][short]]
    config = recipes.load(name).config
    from models.architectures import model_args  # torch, which no other answer needs

    args = model_args(config)
    if getattr(args, "moe_enabled", False):
        raise InputError(f"{name} has experts")
    return {size: getattr(args, size) for size in Sizes.__annotations__}
