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
    digits, letter = re.fullmatch(r"(.*?)([kmbt]?)", str(text).lower()).groups()
    return float(digits) * 1000 ** " kmbt".find(letter or " ")


Number = Annotated[float, BeforeValidator(plain), Field(gt=0, lt=1e18)]
Whole = Annotated[int, BeforeValidator(plain), Field(gt=0, lt=1e18)]


class Model(Dense, BaseModel, extra="forbid", frozen=True, validate_default=True):
    """The sizes of a dense model."""

    dim: Whole
    n_layers: Annotated[Whole, Field(lt=1000)]
    n_heads: Whole
    n_kv_heads: Whole = Field(default_factory=lambda sizes: sizes["n_heads"])
    head_dim: Whole = Field(default_factory=lambda sizes: sizes["dim"] // sizes["n_heads"])
    hidden_dim: Number
    vocab_size: Whole
    enable_weight_tying: bool = False
    qk_norm: bool = False


class Asked(BaseModel):
    """A training: the options of the command line, which its help explains."""

    sizes: Model
    gpu: Annotated[Literal[tuple(GPUS)], BeforeValidator(find)]
    gpus: Whole = 1
    batch: Whole = 1
    sequence: Whole = Field(4096, alias="seq_len")
    steps: Whole | None = None
    tokens: Number | None = None
    price: Number | None = None
    recompute: Literal["none", "full"] | None = None
    freeze: list[Literal["wq", "wk", "wv", "wo", "w1", "w2", "w3"]] = Field([], max_length=6)


def checked(kind: type, values: dict) -> BaseModel:
    """Validate values. Raises InputError with the first mistake."""
    try:
        return kind(**values)
    except ValidationError as error:
        raise InputError("{loc[0]}: {msg}".format(**error.errors()[0])) from error


def model(words: list[str]) -> Model:
    """Read a model's name, and sizes that change it or stand alone. Raises InputError."""
    sizes = {}
    if "=" not in words[0]:
        name, *words = words
        sizes = named(name)
    for word in words:
        size, _, sizes[size] = word.partition("=")
    return checked(Model, sizes)


def named(name: str) -> dict:
    """Find the sizes of a model of models.yaml, of a config.json, or of a recipe."""
    short = re.sub(AROUND, "", name.lower())
    if short in KNOWN["names"]:
        return dict(KNOWN["models"][KNOWN["names"][short]])
    if name.endswith(".json"):
        return of_config(Path(name))
    if name in recipes.files(recipes.RECIPES) or name.endswith(".yaml"):
        from models.architectures import model_args  # torch, which no other answer needs

        args = model_args(recipes.load(name).config)
        if getattr(args, "moe_enabled", False):
            raise InputError(f"{name} has experts, for which there is no estimate: measure")
        return {size: getattr(args, size) for size in Model.model_fields}
    raise InputError(
        f"`{name}` is not a model, a recipe or a file here: give its config.json, its sizes (dim=, "
        f"n_layers=, n_heads=, hidden_dim=, vocab_size=), or one of {', '.join(KNOWN['models'])}"
    )


def of_config(path: Path) -> dict:
    """Read the sizes of a Hugging Face config.json. Raises InputError."""
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
        kind = config["model_type"]
        family = KNOWN["families"].get(kind)
        sizes = {size: config.get(key) for size, key in KNOWN["config.json"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{path}: not a config.json of a model: {error!r}") from error
    if family is None:
        raise InputError(
            f"{path}: a model of type `{kind}` may not be built as a Llama is, so there is no "
            "estimate: if it is, give its sizes (dim=, n_layers=, ...)"
        )
    return family | {size: value for size, value in sizes.items() if value is not None}
