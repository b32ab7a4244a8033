"""Read a model from what people type: a name, a folder or config.json, a recipe, or sizes."""

import difflib
import itertools
import json
import os
import re
from dataclasses import dataclass, fields
from functools import cache

from experiments.config import recipes
from experiments.config.yaml_with_origins import did_you_mean, yaml_files
from extensions.decide import read
from extensions.decide.sizes import ExpertSizes, UngatedSizes
from models.errors import InputError
from models.flops import Sizes, explain_unfit_heads

MODELS = read("models.yaml")
FAMILIES = read("families.yaml")
TYPED_SIZES = ["dim", "n_layers", "n_heads", "n_kv_heads", "head_dim", "hidden_dim", "vocab_size"]
NECESSARY_SIZES = ["dim", "n_layers", "n_heads", "hidden_dim", "vocab_size"]
LARGEST = 1e8  # layers times the largest size
HEAD = frozenset({"output"})  # the recipes' filter
# Tokens of a name that leave the sizes as they are: tuning, quantization, context, dates, revisions
_TUNING = (
    r"meta|c4ai|unsloth|hf|instruct|chat|base|it|pt|preview|thinking|latest|text|math|coder|python|"
    r"gguf|mlx|awq|gptq|bnb|fp8|bf16|fp16|int[48]|[48]bit|quantized|dpo|sft|rl|rlhf|deduped|\d+k|"
    r"v0?[01]([.]\d+)?|(0[1-9]|1[0-2])[0-3]\d|2[3-6](0[1-9]|1[0-2])"
)
_SIZE = r"(\d+x)?[\d.]+[bm]"  # 8b, 8x7b, 135m
N_PROPOSED = 12  # names, in a question
# Keys of a config.json that only other software than transformers writes
_FOREIGN_KEYS = ("d_model", "n_layers", "n_heads", "n_kv_heads", "mlp_ratio", "mlp_hidden_size")


@dataclass(frozen=True)
class Model:
    """A model that somebody asks about."""

    sizes: Sizes | None  # None for a mixture of experts whose sizes are not known
    parameters: float
    bf16_layers: frozenset[str] = HEAD  # linear layers that a recipe's filters keep in bf16
    name: str = "these sizes"
    recipe: str | None = None  # its name, if it can be compared in a study
    note: str = ""  # what is not asked about

    @property
    def has_experts(self) -> bool:
        """True for a mixture of experts."""
        return self.sizes is None or isinstance(self.sizes, ExpertSizes)


def read_model(words: list[str]) -> Model:
    """Read a model's name, and sizes that change it or stand alone. Raises InputError."""
    names = [word for word in words if "=" not in word]
    typed_words = [word for word in words if "=" in word]
    typed = read_typed_sizes(typed_words)
    if len(names) > 1:
        raise InputError(
            f"{len(names)} models are named, {' and '.join(names)}: name one; options begin with "
            "--, and sizes are written as n_layers=16"
        )
    if not names:
        sizes = make_sizes(typed, " ".join(typed_words) or "no model")
        return Model(sizes, sizes.parameters())
    [name] = names
    if name.endswith(".yaml") or name in yaml_files(recipes.RECIPES):
        return read_recipe(name, typed)
    if os.path.isdir(name) or name.endswith(".json"):
        return read_config(name, typed)
    key = find_name(name)
    if key in MODELS["other_experts"]:
        if typed:
            raise InputError(f"the sizes of {key} are not known here, so none can be changed")
        return Model(None, MODELS["other_experts"][key] * 1e9, name=key)
    sizes = make_sizes(known_sizes(key) | typed, key)
    return Model(sizes, sizes.parameters(), name=" ".join([key, *typed_words]))


def sizes(words: list[str]) -> Sizes:
    """Give the sizes of `read_model`. Raises InputError, also if they are not known."""
    model = read_model(words)
    if model.sizes is None:
        raise InputError(f"the sizes of {words[0]} are not known here")
    return model.sizes


# ---- sizes ----


def read_typed_sizes(words: list[str]) -> dict[str, int]:
    """Read `n_layers=16` and the like. Raises InputError."""
    typed = {}
    for word in words:
        name, _, value = word.partition("=")
        if name not in TYPED_SIZES:
            near = did_you_mean(name, TYPED_SIZES) or f"; sizes are {', '.join(TYPED_SIZES)}"
            raise InputError(f"{word}: {name!r} is not a size of a model{near}")
        if not re.fullmatch(r"[0-9]{1,12}", value) or int(value) == 0:
            raise InputError(f"{word}: expected a whole number above 0, as {name}=64")
        typed[name] = int(value)
    return typed


def make_sizes(known: dict, owner: str) -> Sizes:
    """Make sizes of what is known of them; `owner` has them. Raises InputError."""
    missing = [name for name in NECESSARY_SIZES if not known.get(name)]
    if missing:
        raise InputError(
            f"{owner}: {', '.join(missing)} missing: add {' '.join(f'{name}=' for name in missing)}"
            ", or begin with a model's name"
        )
    known = {name: value for name, value in known.items() if value is not None}
    dim, n_heads = known["dim"], known["n_heads"]
    if "head_dim" not in known and dim % n_heads:
        raise InputError(f"{owner}: n_heads ({n_heads}) must divide dim ({dim}), or give head_dim=")
    known = {"n_kv_heads": n_heads, "head_dim": dim // n_heads} | known
    if (
        max(value for value in known.values() if isinstance(value, int)) * known["n_layers"]
        > LARGEST
    ):
        raise InputError(f"{owner}: layers times the largest size must be below 100 million")
    sizes_class = choose_class(known)
    names = {field.name for field in fields(sizes_class)}
    made = sizes_class(**{name: value for name, value in known.items() if name in names})
    unfit = explain_unfit_heads(made)
    if unfit:
        raise InputError(f"{owner}: {unfit}")
    return made


def choose_class(known: dict) -> type[Sizes]:
    """Choose the class for sizes, by what is known of them."""
    if known.get("n_experts"):
        return ExpertSizes
    if known.get("family") in FAMILIES["ungated"]:
        return UngatedSizes
    return Sizes


def family_defaults(family: str) -> dict | None:
    """Give the sizes that a family's config.json may leave unsaid; None for an unknown family."""
    for kind in ("gated", "ungated", "experts"):
        if family in FAMILIES[kind]:
            return FAMILIES[kind][family] | {"family": family}
    return None


# ---- a name ----


def known_sizes(key: str) -> dict:
    """Give the sizes of a model of models.yaml."""
    entry = MODELS["models"][key]
    defaults = family_defaults(entry["family"])
    flags = {name: value for name, value in defaults.items() if isinstance(value, bool)}
    return flags | entry


def find_name(name: str) -> str:
    """Find the name in models.yaml of a model that people write in other ways. Raises
    InputError."""
    tokens, known = split_name(name), short_names()
    short = "".join(tokens)
    if short in known:
        return known[short]
    # a fine-tuned model: the known one's name, with its size, and words after it
    for end in range(len(tokens) - 1, 0, -1):
        key = known.get("".join(tokens[:end]))
        rest_has_size = any(re.fullmatch(_SIZE, token) for token in tokens[end:])
        has_size = re.fullmatch(_SIZE, tokens[end - 1]) and not rest_has_size
        if key and (has_size or key in MODELS["other_experts"]):
            return key
    whole = {
        key
        for key in known.values()
        if short in itertools.accumulate(split_name(key)) and not re.fullmatch(_SIZE, short)
    }
    if len(whole) == 1:
        return whole.pop()
    raise InputError(explain_unknown_name(name, short))


def explain_unknown_name(name: str, short: str) -> str:
    """Say in a sentence which models may be meant by a name."""
    known = short_names()
    near = [key for key in known.values() if short and has_part(key, short)]
    if near:
        near = [*dict.fromkeys(near)]
        more = " …" if len(near) > N_PROPOSED else ""
        asks = "which of" if len(near) > 1 else "did you mean"
        proposed = f": {asks} {', '.join(near[:N_PROPOSED])}{more}?"
    else:
        near = [known[other] for other in difflib.get_close_matches(short, known, 4, 0.6)]
        proposed = f": did you mean {' or '.join(dict.fromkeys(near))}?"
    if not near:
        proposed = ": give the folder of its config.json, or its sizes (dim=4096 n_layers=32 …)"
    return f"{name!r:.80} is not a model known here{proposed} (--list has all names)"


def has_part(key: str, short: str) -> bool:
    """Return true if a name begins or ends with a shorter one, and not within a number."""
    tokens = split_name(key)
    ends = [*itertools.accumulate(tokens)]
    whole = ends[-1]
    if short in ends or tokens[-1] == short:
        return True
    return whole.startswith(short) and not re.match(r"\d\d", whole[len(short) - 1 :])


def split_name(name: str) -> list[str]:
    """Split a model's name into words, without its owner and without what leaves its sizes as they
    are.

    `meta-llama/Llama-3.1-8B-Instruct` is llama, 3.1, 8b; `llama3.1:8b-q4_K_M` is llama3.1, 8b.
    """
    text = re.sub(r"[-_]q\d\w*$", "", name.lower().strip().rpartition("/")[2])
    text = re.sub(r"(?<=\d)_(?=\d)", ".", text)  # 1_6b
    tokens = re.split(r"[-_:\s]+", text)
    return [token for token in tokens if token and not re.fullmatch(_TUNING, token)]


@cache
def short_names() -> dict[str, str]:
    """Map all names, without separators, to the names of models.yaml."""
    names = {}
    for key in MODELS["other_experts"]:
        names["".join(split_name(key))] = key
    for key, entry in MODELS["models"].items():
        for name in [key, *entry.get("also", [])]:
            names["".join(split_name(name))] = key
    return names


# ---- a config.json ----


def read_config(path: str, typed: dict[str, int]) -> Model:
    """Read a Hugging Face config.json, or Meta's params.json, or a folder with one of them.

    What it leaves unsaid is its family's. Raises InputError.
    """
    if os.path.isdir(path):
        found = [os.path.join(path, name) for name in ("config.json", "params.json")]
        found = [name for name in found if os.path.isfile(name)]
        if not found:
            raise InputError(f"{path}: the folder has no config.json")
        path = found[0]
    config, note = read_json(path), ""
    if isinstance(config.get("text_config"), dict):
        tied = {key: config[key] for key in ("tie_word_embeddings",) if key in config}
        config, note = tied | config["text_config"], "the text model alone, without its encoders"
    if "model_type" not in config and "dim" in config:
        sizes = make_sizes(params_sizes(config, path) | typed, path)
        return Model(sizes, sizes.parameters(), name=path)
    family = config.get("model_type", "no model_type")
    if has_unknown_experts(config):
        if typed:
            raise InputError(f"{path}: the sizes of {family} are not read, so none can be changed")
        note = f"{family} is a mixture of experts whose sizes are not read: memory is not counted"
        return Model(None, float("nan"), name=path, note=note)
    sizes = make_sizes(config_sizes(config, path) | typed, path)
    return Model(sizes, sizes.parameters(), name=path, note=note)


def read_json(path: str) -> dict:
    """Read a file as a JSON object. Raises InputError."""
    try:
        with open(path, "rb") as file:
            config = json.loads(file.read())
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: is not JSON: {error}") from error
    if not isinstance(config, dict):
        raise InputError(f"{path}: expected the sizes of a model, as a config.json has them")
    return config


def has_unknown_experts(config: dict) -> bool:
    """Return true for a mixture of experts whose family's sizes cannot be read."""
    family = str(config.get("model_type"))
    if family_defaults(family):
        return False
    counts = [value for key, value in config.items() if "experts" in key]
    many = any(isinstance(count, int) and count > 1 for count in counts)
    return many or "moe" in family or family in FAMILIES["other_experts"]


def config_sizes(config: dict, path: str) -> dict:
    """Read the sizes in a config.json. Raises InputError."""
    family = config.get("model_type")
    if not isinstance(family, str):
        raise InputError(f"{path}: no model_type, which says how the model is built: add it")
    defaults = family_defaults(family)
    if defaults is None:
        known = [*FAMILIES["gated"], *FAMILIES["ungated"], *FAMILIES["experts"]]
        raise InputError(
            f"{path}: a model_type {family!r:.40} is not known, so its layers are not "
            f"counted{did_you_mean(family, known) or ': ' + ', '.join(known)}"
        )
    foreign = [key for key in _FOREIGN_KEYS if key in config]
    if foreign:
        raise InputError(
            f"{path}: {' and '.join(foreign)} are not keys of transformers for {family}: give the "
            "config.json of the converted model, or its sizes (dim=4096 n_layers=32 …)"
        )
    sizes = dict(defaults)
    for size, keys in FAMILIES["keys"].items():
        for key in keys:
            if key in config:
                sizes[size] = check_size(config[key], f"{path}: {key}")
    for size in ("dim", "n_layers"):
        keys = FAMILIES["keys"][size]
        if not any(key in config for key in keys):
            raise InputError(f"{path}: no {' or '.join(keys)}: is it the model's config.json?")
    if sizes.get("hidden_dim") is None:
        sizes["hidden_dim"] = 4 * sizes["dim"]
    sizes["hidden_dim"] = sizes.get("expert_dim") or sizes["hidden_dim"]
    return sizes


def check_size(value: object, where: str) -> int | bool | None:
    """Return a size of a file: a whole number, true or false, or none. Raises InputError."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int) and value > 0:
        return value
    raise InputError(f"{where}: expected a whole number above 0, got {value!r:.40}")


def params_sizes(config: dict, path: str) -> dict:
    """Read the sizes in Meta's params.json: a Llama's width follows from dim. Raises
    InputError."""
    names = ("dim", "n_layers", "n_heads", "n_kv_heads", "vocab_size", "multiple_of")
    read_sizes = {name: check_size(config.get(name), f"{path}: {name}") for name in names}
    multiplier = config.get("ffn_dim_multiplier") or 1
    if not isinstance(multiplier, int | float) or not 0 < multiplier < 100:
        raise InputError(f"{path}: ffn_dim_multiplier: expected a number, got {multiplier!r:.40}")
    multiple = read_sizes.pop("multiple_of") or 256
    width = int(multiplier * int(8 * (read_sizes["dim"] or 0) / 3))
    return read_sizes | {"hidden_dim": -(-width // multiple) * multiple}


# ---- a recipe ----


def read_recipe(name: str, typed: dict[str, int]) -> Model:
    """Read a recipe's model, and which of its layers run in FP8. Raises InputError."""
    overrides = [f"model.sizes.{size}={value}" for size, value in typed.items()]
    recipe = recipes.load(name, overrides=overrides)
    from experiments.training.plan import plan  # torch: seconds, for a recipe alone

    planned = plan(recipe)
    args = planned.args
    known = {size: getattr(args, size) for size in TYPED_SIZES}
    known |= {"enable_weight_tying": args.enable_weight_tying, "qk_norm": bool(args.qk_norm)}
    if getattr(args, "moe_enabled", False):
        experts = args.moe_args
        known |= {"n_experts": experts.num_experts, "n_active": experts.top_k}
        known["hidden_dim"] = args.moe_inter_dim
    made = make_sizes(known, name)
    bf16_layers = HEAD
    if planned.fp8.layers:
        bf16_layers = frozenset(made.linear_shapes()) - planned.fp8.layers
    comparable = name if planned.fp8.layers and not name.endswith(".yaml") else None
    return Model(made, made.parameters(), bf16_layers, name, comparable)
