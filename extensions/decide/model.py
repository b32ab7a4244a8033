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
WRONG = (ArithmeticError, AttributeError, KeyError, OSError, TypeError, ValueError)


def sizes(words: list[str]) -> Sizes:
    """Read a model's name, and sizes that change it or stand alone. Raises InputError."""
    given = {}
    if "=" not in words[0]:
        name, *words = words
        given |= named(name)
    try:
        given |= dict(word.split("=") for word in words)
        given = {size: int(value) for size, value in given.items()}
        derived = {"n_kv_heads": given["n_heads"], "head_dim": given["dim"] // given["n_heads"]}
        given = derived | given
        if 0 < min(given.values()) <= max(given.values()) < 10**6 and given["n_layers"] < 1000:
            return Sizes(**given)
    except WRONG as error:
        raise InputError(f"sizes are whole numbers, {SIZES}; wrong is {error}") from error
    raise InputError(f"sizes lie between 0 and a million, layers below 1000: {given}")


SIZES = "dim=, n_layers=, n_heads=, n_kv_heads=, head_dim=, hidden_dim=, vocab_size="


def named(name: str) -> dict:
    """Find the sizes of a model of models.yaml, of a config.json, or of a recipe."""
    short = re.sub(AROUND, "", name.lower())
    if short in KNOWN["names"]:
        return KNOWN["models"][KNOWN["names"][short]]
    if name.endswith(".json"):
        return of_config(Path(name))
    if name not in recipes.files(recipes.RECIPES) and not name.endswith(".yaml"):
        raise InputError(
            f"`{name}` is not a model, a recipe or a file here: give its config.json, its sizes "
            f"({SIZES}), or one of {', '.join(KNOWN['models'])}"
        )
    from models.architectures import model_args  # torch, which no other answer needs

    args = model_args(recipes.load(name).config)
    if getattr(args, "moe_enabled", False):
        raise InputError(f"{name} has experts, for which there is no estimate: measure")
    found = {size: getattr(args, size) for size in Sizes.__annotations__}
    return {size: value for size, value in found.items() if value}


def of_config(path: Path) -> dict:
    """Read the sizes of a Hugging Face config.json. Raises InputError."""
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
        found = dict(KNOWN["families"][config["model_type"]])
        for size, key in KNOWN["config.json"].items():
            if config.get(key):
                found[size] = config[key]
        return found
    except WRONG as error:
        families = ", ".join(KNOWN["families"])
        raise InputError(
            f"{path}: not the config.json of a model that is known to be built as a Llama is "
            f"({families}): {error!r}; if yours is, give its sizes ({SIZES})"
        ) from error
