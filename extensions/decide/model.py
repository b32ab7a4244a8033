"""The sizes of a model, from what people type."""

import json
import re
from pathlib import Path

from experiments.config import recipes
from extensions.decide import read
from models.errors import InputError
from models.flops import Sizes

KNOWN = read("models.yaml")
# What surrounds the name of a model: its owner, what it was tuned for, its revision
AROUND = r"^.*/|meta-|-(hf|instruct|chat|base|it|v[\d.]+)\b|[-_ ]"
EXPECTED = (
    "give a name or the config.json of a family that extensions/decide/models.yaml lists, a "
    "recipe, or sizes (dim=, n_layers=, n_heads=, n_kv_heads=, head_dim=, hidden_dim=, "
    "vocab_size=), whole numbers above 0; layers times the largest size are below 100 million"
)


def sizes(words: list[str]) -> Sizes:
    """Read a model's name, and sizes that change it or stand alone. Raises InputError."""
    try:
        known = {} if "=" in words[0] else named(words.pop(0))
        given = known | dict(word.split("=") for word in words)
        given = {size: int(value) for size, value in given.items()}
        usual = {"n_kv_heads": given["n_heads"], "head_dim": given["dim"] // given["n_heads"]}
        given = usual | given
        if not all(0 < value < 1e8 / given["n_layers"] for value in given.values()):
            raise ValueError(given)
        return Sizes(**given)
    except (ArithmeticError, KeyError, OSError, TypeError, ValueError) as error:
        raise InputError(f"no such model ({error}): {EXPECTED}") from error


def named(name: str) -> dict:
    """Find the sizes of a config.json, of a model of models.yaml, or of a recipe: its flavor's, and
    its own in their place."""
    if name.endswith(".json"):
        config = json.loads(Path(name).read_bytes())
        config = KNOWN["families"][config["model_type"]] | config
        return {size: config[key] for size, key in KNOWN["config.json"].items() if config.get(key)}
    short = re.sub(AROUND, "", name.lower())
    if short in KNOWN["models"]:
        return KNOWN["models"][short]
    model = recipes.load(name).config.model
    own = {size: value for size, value in vars(model.sizes).items() if value}
    if "dim" in own:
        own.setdefault("hidden_dim", 0)  # follows from another dim: the recipe has to say it
    return named(model.flavor) | own
