"""What is asked, validated once: a training, and the sizes of its model."""

import json
import re
from pathlib import Path
from typing import Annotated, Literal

import yaml
from pydantic import BaseModel, BeforeValidator, Field, ValidationError

from experiments.config import recipes
from models.errors import InputError
from models.flops import Dense
from models.gpus import GPUS, find

KNOWN = yaml.safe_load(Path(__file__).with_name("models.yaml").read_text(encoding="utf-8"))
# What surrounds the name of a model: its owner, what it was tuned for, its revision
AROUND = r"^.*/|meta-|-(hf|instruct|chat|base|it|v[\d.]+)\b|[-_ ]"


def plain(text: object) -> float:
    """Read `300`, `100k` or `1.5T`. Raises ValueError."""
    text = str(text).lower()
    for place, letter in enumerate("kmbt", start=1):
        text = text.replace(letter, f"e{3 * place}")
    return float(text)


Number = Annotated[float, BeforeValidator(plain), Field(gt=0, lt=1e18)]
Whole = Annotated[int, BeforeValidator(plain), Field(gt=0, lt=1e18)]
Size = Annotated[Whole, Field(le=10**6)]
Layer = Literal["wq", "wk", "wv", "wo", "w1", "w2", "w3"]


class Model(Dense, BaseModel, extra="forbid", frozen=True, validate_default=True):
    """The sizes of a dense model."""

    dim: Size
    n_layers: Size
    n_heads: Size
    n_kv_heads: Size = Field(default_factory=lambda sizes: sizes["n_heads"])
    head_dim: Size = Field(default_factory=lambda sizes: sizes["dim"] // sizes["n_heads"])
    hidden_dim: Annotated[Number, Field(le=10**6)]
    vocab_size: Size
    enable_weight_tying: bool = False
    qk_norm: bool = False


class Asked(BaseModel, use_attribute_docstrings=True):
    """The options of the command line; a docstring is an option's help."""

    gpu: Annotated[Literal[tuple(GPUS)], BeforeValidator(find)]
    """e.g. h100, h200, b200"""
    gpus: Whole = 1
    """how many (default: 1)"""
    batch: Whole = 1
    """rows a GPU (default: 1)"""
    sequence: Whole = Field(4096, alias="seq_len")
    """tokens a row (default: 4096)"""
    steps: Whole | None = None
    """of the training, e.g. 100k"""
    tokens: Number | None = None
    """of the training, e.g. 15B: in place of steps"""
    price: Number | None = None
    """of a GPU's hour, in any currency"""
    recompute: Literal["none", "full"] | None = None
    """activations: none or full (default: none, if it fits so)"""
    freeze: list[Layer] = Field([], max_length=6)
    """layers that are not trained, e.g. w1 w2 w3"""


def checked(kind: type, values: dict, what: str) -> BaseModel:
    """Validate values. Raises InputError with the first mistake."""
    try:
        return kind(**values)
    except ValidationError as error:
        first = error.errors()[0]
        raise InputError(f"{what}{'.'.join(map(str, first['loc']))}: {first['msg']}") from error


def model(words: list[str]) -> Model:
    """Read a model's name, and sizes that change it or stand alone. Raises InputError."""
    sizes = {}
    if "=" not in words[0]:
        name, *words = words
        sizes = named(name)
    for word in words:
        size, _, sizes[size] = word.partition("=")
    return checked(Model, sizes, "the model's ")


def named(name: str) -> dict:
    """Find the sizes of a model of models.yaml, of a config.json, or of a recipe."""
    path = Path(name)
    if path.suffix == ".json" or path.is_dir():
        return of_config(path / "config.json" if path.is_dir() else path)
    if name in recipes.paths() or path.suffix == ".yaml":
        from models.architectures import model_args  # torch, which no other answer needs

        args = model_args(recipes.load(name).config)
        if getattr(args, "moe_enabled", False):
            raise InputError(f"{name} has experts, for which there is no estimate: measure")
        return {size: getattr(args, size) for size in Model.model_fields}
    short = re.sub(AROUND, "", name.lower())
    if short not in KNOWN["names"]:
        raise InputError(
            f"`{name}` is not a model, a recipe or a file here: give its config.json, its sizes "
            "(dim=, n_layers=, n_heads=, hidden_dim=, vocab_size=), or one of "
            f"{', '.join(KNOWN['models'])}"
        )
    return dict(KNOWN["models"][KNOWN["names"][short]])


def of_config(path: Path) -> dict:
    """Read the sizes of a Hugging Face config.json. Raises InputError."""
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
        family, keys = config["model_type"], KNOWN["config.json"]
        sizes = {size: config[key] for size, key in keys.items() if config.get(key) is not None}
        if family in KNOWN["without a gate"]:  # 2 matrices do the work of 3 of 2/3 of their width
            sizes["hidden_dim"] *= 2 / 3
        return KNOWN["families"][family] | sizes
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path}: not a config.json of a known family: {error!r}") from error
