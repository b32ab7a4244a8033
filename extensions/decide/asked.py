"""What is asked: a model by name, recipe, config.json or sizes; numbers as people write them."""

import json
import re
from argparse import ArgumentTypeError
from dataclasses import fields
from pathlib import Path

import yaml

from experiments.config import recipes
from models.errors import InputError
from models.flops import Sizes
from models.gpus import GPUS, find

KNOWN = yaml.safe_load(Path(__file__).with_name("models.yaml").read_text(encoding="utf-8"))
MOST = 1e18  # of any number
SUFFIXES = {"": 1, "k": 1e3, "m": 1e6, "b": 1e9, "t": 1e12}
SIZES = [field.name for field in fields(Sizes) if field.type in (int, float)]
NEEDED = ("dim", "n_layers", "n_heads", "hidden_dim", "vocab_size")
# What surrounds the name of a model: its owner, what it was tuned for, its revision
AROUND = r"^.*/|meta-|-(hf|instruct|chat|base|it|v[\d.]+)\b|[-_ ]"


def number(text: str) -> float:
    """Read a positive number: `300`, `100k`, `1.5T`."""
    match = re.fullmatch(r"(\d+\.?\d*|\.\d+|\d+e\d+)([kmbt]?)", text.lower().replace(",", ""))
    value = float(match[1]) * SUFFIXES[match[2]] if match else 0
    if not 0 < value < MOST:
        raise ArgumentTypeError(f"expected a number above 0, e.g. 300, 100k or 1.5T, got {text!r}")
    return value


def whole(text: str) -> int:
    """Read a whole number of 1 and more: `300`, `100k`."""
    value = number(text)
    if value != int(value):
        raise ArgumentTypeError(f"expected a whole number of 1 and more, got {text!r}")
    return int(value)


def gpu(name: str | None) -> str:
    """Find the key in `GPUS`. Raises `InputError` if the name is not known."""
    known = f"name one of {', '.join(GPUS)}"
    if not name:
        raise InputError(f"which GPU? With --gpu, {known}")
    key = name.lower() if name.lower() in GPUS else find(name)
    if key is None:
        raise InputError(f"--gpu {name} is not known here: {known}; or add it to models/gpus.py")
    return key


def model(words: list[str]) -> tuple[str, Sizes]:
    """Find a model's name and sizes from the words of the command line.

    Raises `InputError` for a model that is not known, or whose sizes are not those of a model.
    """
    names = [word for word in words if "=" not in word]
    given = dict(word.split("=", 1) for word in words if "=" in word)
    if len(names) > 1:
        raise InputError(f"ask about one model at a time: {' and '.join(names)} are two")
    if not words:
        raise InputError("which model? Name one, e.g. llama3.1-8B, a config.json, or its sizes")
    sizes = _named(names[0]) if names else {}
    if {"dim", "n_heads"} & set(given):
        sizes.pop("head_dim", None)
    sizes |= {key: _size(key, value) for key, value in given.items()}
    changed = [", changed"] if given else []
    return "".join(names + changed) if names else "your model", _complete(sizes)


def _size(key: str, value: object) -> int:
    if key not in SIZES:
        raise InputError(f"{key}={value}: a model's sizes are {', '.join(SIZES)}")
    try:
        return whole(str(value))
    except ArgumentTypeError as error:
        raise InputError(f"{key}: {error}") from error


def _complete(sizes: dict) -> Sizes:
    """Fill in what follows from other sizes, and check that they are those of a model."""
    missing = [f"{name}=N" for name in NEEDED if name not in sizes]
    if missing:
        raise InputError(f"say {' and '.join(missing)} too")
    heads, dim = sizes["n_heads"], sizes["dim"]
    sizes = {"n_kv_heads": heads, "head_dim": dim // heads} | sizes
    if heads % sizes["n_kv_heads"]:
        raise InputError(f"n_kv_heads={sizes['n_kv_heads']} should divide n_heads={heads}")
    if sizes["head_dim"] < 1 or dim > 1e6 or sizes["n_layers"] > 1e4:
        raise InputError(f"these are not the sizes of a model: {sizes}")
    return Sizes(**sizes)


def _named(name: str) -> dict:
    """Find the sizes of a model of models.yaml, of a config.json, or of a recipe."""
    if Path(name).suffix == ".json" or Path(name).is_dir():
        return _config(Path(name))
    if name in recipes.names() or name.endswith(".yaml"):
        from models.architectures import model_args  # torch, which no other answer needs

        args = model_args(recipes.load(name).config)
        _refuse_experts(name, getattr(args, "moe_enabled", False))
        return {field.name: getattr(args, field.name) for field in fields(Sizes)}
    short = re.sub(AROUND, "", name.lower())
    for known, entry in KNOWN["models"].items():
        if short in (known.lower().replace("-", ""), *entry.get("also", [])):
            return {key: value for key, value in entry.items() if key != "also"}
    raise InputError(
        f"`{name}` is not a model, a recipe or a file here: give its config.json, its sizes (dim=, "
        f"n_layers=, n_heads=, hidden_dim=, vocab_size=), or one of {', '.join(KNOWN['models'])}"
    )


def _refuse_experts(name: object, experts: bool) -> None:
    if experts:
        raise InputError(
            f"{name} is a mixture of experts, for which there is no estimate: the recipes leave "
            "experts in bf16, and others, with experts in FP8, measured 0.75 to 1.43 times"
        )


def _config(path: Path) -> dict:
    """Read the sizes of a Hugging Face config.json. Raises `InputError` if it has what is not
    known here."""
    path = path / "config.json" if path.is_dir() else path
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
        family = str(config.get("model_type"))
    except (OSError, ValueError, AttributeError) as error:
        raise InputError(f"{path} cannot be read as a config.json: {error}") from error
    _refuse_experts(path, any(config.get(key) for key in KNOWN["keys of experts"]))
    other = [key for key in KNOWN["keys of other layers"] if config.get(key)]
    if other or family not in KNOWN["families"]:
        what = other[0] if other else f"model_type {family}"
        raise InputError(f"{path}: {what} is not known here; give sizes: dim=, n_layers=, …")
    sizes = dict(KNOWN["families"][family])
    for name, key in KNOWN["config.json"].items():
        if config.get(key) is not None:
            sizes[name] = _size(name, config[key])
    if not sizes.pop("gated", True) and "hidden_dim" in sizes:
        sizes["hidden_dim"] *= 2 / 3  # two matrices are as much work as three of such a width
    if "tie_word_embeddings" in config:
        sizes["enable_weight_tying"] = bool(config["tie_word_embeddings"])
    return sizes
