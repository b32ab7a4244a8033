"""What is asked: a model by name, recipe, config.json or sizes; numbers as people write them."""

import json
import math
import re
from argparse import ArgumentTypeError
from dataclasses import fields
from pathlib import Path

import yaml

from experiments.config import recipes
from models.errors import InputError
from models.flops import Sizes
from models.gpus import GPUS, find

MODELS = Path(__file__).with_name("models.yaml")
SUFFIXES = {"": 1, "k": 1e3, "m": 1e6, "b": 1e9, "t": 1e12}
# A model's name: its family, the family's version, and billions of parameters.
NAME = r"(?:.*/)?(?:meta-)?(?:(llama|qwen|mistral)-?([\d.]+)?-)?(?:v[\d.]+-)?([\d.]+)b(?:-\D.*)?"
# Sizes by the names of Hugging Face's config.json, and by what they are where it is silent.
HUGGING_FACE = {
    "dim": "hidden_size",
    "n_layers": "num_hidden_layers",
    "n_heads": "num_attention_heads",
    "hidden_dim": "intermediate_size",
    "vocab_size": "vocab_size",
}
GATED = (
    "llama mistral ministral qwen2 qwen3 gemma gemma2 gemma3_text phi3 olmo olmo2 granite smollm3"
)
PLAIN = (
    "gpt_neox phi starcoder2 opt"  # an FFN of two matrices: as much work as a gated one 2/3 as wide
)
TIED = (
    "gemma gemma2 gemma3_text starcoder2 opt"  # the head is the embedding unless they say otherwise
)
EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_intermediate_size")
OTHER_ATTENTION = ("kv_lora_rank", "text_config", "state_size", "linear_num_value_heads")


def number(text: str) -> float:
    """Read a positive number: `300`, `100k`, `1.5T`."""
    match = re.fullmatch(r"(\d+\.?\d*|\.\d+|\d+e\d+)([kmbt]?)", text.lower().replace(",", ""))
    value = float(match[1]) * SUFFIXES[match[2]] if match else 0
    if not 0 < value < math.inf:
        raise ArgumentTypeError(f"expected a number above 0, e.g. 300, 100k or 1.5T, got {text!r}")
    return value


def whole(text: str) -> int:
    """Read a whole number of 1 and more: `300`, `100k`."""
    value = number(text)
    if value < 1 or value != int(value):
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
    for key, value in given.items():
        sizes[key] = _size(key, value)
    if {"dim", "n_heads"} & set(given) and "head_dim" not in given:
        sizes.pop("head_dim", None)
    return names[0] if names else "your model", _complete(sizes)


def _size(key: str, value: str) -> int:
    known = [field.name for field in fields(Sizes) if field.type in (int, float)]
    if key not in known:
        raise InputError(f"{key}={value}: a model's sizes are {', '.join(known)}")
    try:
        return whole(value)
    except ArgumentTypeError as error:
        raise InputError(f"{key}: {error}") from error


def _complete(sizes: dict) -> Sizes:
    """Fill in what follows from other sizes, and check that heads are alike."""
    missing = [name for name in HUGGING_FACE if name not in sizes]
    if missing:
        raise InputError(f"say {' and '.join(f'{name}=N' for name in missing)} too")
    sizes = {"n_kv_heads": sizes["n_heads"]} | sizes
    sizes = {"head_dim": sizes["dim"] // sizes["n_heads"]} | sizes
    if sizes["n_heads"] % sizes["n_kv_heads"]:
        raise InputError(
            f"n_kv_heads={sizes['n_kv_heads']} should divide n_heads={sizes['n_heads']}"
        )
    if sizes["head_dim"] < 1 or sizes["dim"] > 1e6 or sizes["n_layers"] > 1e4:
        raise InputError(f"these are not the sizes of a model: {sizes}")
    return Sizes(**sizes)


def _named(name: str) -> dict:
    """Sizes of a model of models.yaml, of a config.json, or of a recipe."""
    if Path(name).suffix == ".json" or Path(name).is_dir():
        return _config(Path(name))
    known = yaml.safe_load(MODELS.read_text(encoding="utf-8"))
    if name in recipes.names() or name.endswith(".yaml"):
        from models.architectures import model_args  # torch, which no other answer needs

        return _of_args(model_args(recipes.load(name).config))
    if name in known:
        return known[name]
    asked = re.fullmatch(NAME, name.lower())
    for other, sizes in known.items() if asked else ():
        parts = re.fullmatch(NAME, other.lower())
        if parts and _same(asked, parts):
            return sizes
    raise InputError(
        f"`{name}` is not a model, a recipe or a file here: give its config.json, its sizes (dim=, "
        f"n_layers=, n_heads=, hidden_dim=, vocab_size=), or one of {', '.join(known)}"
    )


def _same(asked: re.Match, known: re.Match) -> bool:
    """Whether a name means a known model: same family, size, and version where one is given; of a
    Llama the version before the point."""
    family, version, billions = asked.groups()
    version = version and (version if family == "qwen" else version.split(".")[0])
    alike = (family or known[1]) == known[1] and float(billions) == float(known[3])
    return alike and (version is None or (known[2] or "").startswith(version))


def _of_args(args) -> dict:
    if getattr(args, "moe_enabled", False):
        raise InputError(_experts("it"))
    return {field.name: getattr(args, field.name) for field in fields(Sizes)}


def _experts(name: str) -> str:
    return (
        f"{name} is a mixture of experts, for which there is no estimate: the recipes leave "
        "experts in bf16, and others, with experts in FP8, measured 0.75 to 1.43 times"
    )


def _config(path: Path) -> dict:
    """Read the sizes of a Hugging Face config.json. Raises `InputError` if it has what is not
    known here."""
    path = path / "config.json" if path.is_dir() else path
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
        family = config.get("model_type")
    except (OSError, ValueError, AttributeError) as error:
        raise InputError(f"{path} cannot be read as a config.json: {error}") from error
    if any(config.get(key) for key in EXPERTS):
        raise InputError(_experts(str(path)))
    other = [key for key in OTHER_ATTENTION if config.get(key)]
    if other or family not in f"{GATED} {PLAIN}".split():
        what = f"`{other[0]}`" if other else f"model_type {family!r}"
        raise InputError(
            f"{path}: {what} is not known here; give sizes instead: dim=, n_layers=, …"
        )
    keys = HUGGING_FACE | {"n_kv_heads": "num_key_value_heads", "head_dim": "head_dim"}
    sizes = {name: config[key] for name, key in keys.items() if config.get(key) is not None}
    for name, value in sizes.items():
        _size(name, str(value))
    if family in PLAIN.split() and "hidden_dim" in sizes:
        sizes["hidden_dim"] *= 2 / 3
    tied = config.get("tie_word_embeddings", family in TIED.split())
    return sizes | {
        "enable_weight_tying": bool(tied),
        "qk_norm": family in ("qwen3", "gemma3_text"),
    }
