"""Read a model from what people type: a name, a folder or config.json, a recipe, or sizes."""

import difflib
import itertools
import json
import os
import re
from dataclasses import dataclass, fields
from functools import cache

from experiments.config import recipes
from experiments.config.yaml_with_origins import suggest_names, yaml_files
from extensions.decide import read
from extensions.decide.sizes import ExpertSizes, UngatedSizes
from models.errors import InputError
from models.flops import Sizes, explain_unfit_heads

MODELS = read("models.yaml")
FAMILIES = read("families.yaml")
TYPED_SIZES = ["dim", "n_layers", "n_heads", "n_kv_heads", "head_dim", "hidden_dim", "vocab_size"]
NECESSARY_SIZES = ["dim", "n_layers", "n_heads", "hidden_dim", "vocab_size"]
LARGEST_PRODUCT = 1e8  # layers times the largest size
HEAD = frozenset({"output"})  # the recipes' filter
# Tokens of a name that leave the sizes as they are: tuning, quantization, context, dates, revisions
_TUNING = (
    r"meta|c4ai|unsloth|hf|instruct|chat|base|it|pt|preview|thinking|latest|text|math|coder|python|"
    r"gguf|mlx|awq|gptq|bnb|fp8|bf16|fp16|int[48]|[48]bit|quantized|dpo|sft|rl|rlhf|deduped|\d+k|"
    r"v0?[01]([.]\d+)?|(0[1-9]|1[0-2])[0-3]\d|2[3-6](0[1-9]|1[0-2])"
)
_SIZE = r"(\d+x)?[\d.]+[bm]"  # 8b, 8x7b, 135m
N_PROPOSED = 12  # names, in a question
TYING_KEYS = {"tie_word_embeddings"}  # which a model of text and images has outside of text_config
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


def read_model(typed_words: list[str]) -> Model:
    """Read a model's name, and sizes that change it or stand alone. Raises InputError."""
    model_names = [word for word in typed_words if "=" not in word]
    size_words = [word for word in typed_words if "=" in word]
    typed_sizes = read_typed_sizes(size_words)
    if len(model_names) > 1:
        raise InputError(
            f"{len(model_names)} models are named, {' and '.join(model_names)}: name one; options "
            "begin with --, and sizes are written as n_layers=16"
        )
    if not model_names:
        model_sizes = make_sizes(typed_sizes, " ".join(size_words) or "no model")
        return Model(model_sizes, model_sizes.parameters())
    [model_name] = model_names
    if model_name.endswith(".yaml") or model_name in yaml_files(recipes.RECIPES):
        return read_recipe(model_name, typed_sizes)
    if os.path.isdir(model_name) or model_name.endswith(".json"):
        return read_config(model_name, typed_sizes)
    model_key = find_name(model_name)
    if model_key in MODELS["other_experts"]:
        if typed_sizes:
            raise InputError(f"the sizes of {model_key} are not known here, so none can be changed")
        return Model(None, MODELS["other_experts"][model_key] * 1e9, name=model_key)
    model_sizes = make_sizes(known_sizes(model_key) | typed_sizes, model_key)
    return Model(model_sizes, model_sizes.parameters(), name=" ".join([model_key, *size_words]))


def sizes(typed_words: list[str]) -> Sizes:
    """Give the sizes of `read_model`. Raises InputError, also if they are not known."""
    model = read_model(typed_words)
    if model.sizes is None:
        raise InputError(f"the sizes of {typed_words[0]} are not known here")
    return model.sizes


# ---- sizes ----


def read_typed_sizes(size_words: list[str]) -> dict[str, int]:
    """Read `n_layers=16` and the like. Raises InputError."""
    typed_sizes = {}
    for size_word in size_words:
        size_name, _, size_value = size_word.partition("=")
        if size_name not in TYPED_SIZES:
            near_names = (
                suggest_names(size_name, TYPED_SIZES) or f"; sizes are {', '.join(TYPED_SIZES)}"
            )
            raise InputError(f"{size_word}: {size_name!r} is not a size of a model{near_names}")
        if not re.fullmatch(r"[0-9]{1,12}", size_value) or int(size_value) == 0:
            raise InputError(f"{size_word}: expected a whole number above 0, as {size_name}=64")
        typed_sizes[size_name] = int(size_value)
    return typed_sizes


def make_sizes(size_values: dict, size_owner: str) -> Sizes:
    """Make sizes of what is known of them; `size_owner` begins a sentence. Raises InputError."""
    missing_sizes = [name for name in NECESSARY_SIZES if not size_values.get(name)]
    if missing_sizes:
        added_words = " ".join(f"{name}=" for name in missing_sizes)
        raise InputError(
            f"{size_owner}: {', '.join(missing_sizes)} missing: add {added_words}, or begin with a "
            "model's name"
        )
    size_values = {name: value for name, value in size_values.items() if value is not None}
    dim, n_heads = size_values["dim"], size_values["n_heads"]
    if "head_dim" not in size_values and dim % n_heads:
        raise InputError(
            f"{size_owner}: n_heads ({n_heads}) must divide dim ({dim}), or give head_dim="
        )
    size_values = {"n_kv_heads": n_heads, "head_dim": dim // n_heads} | size_values
    largest_size = max(value for value in size_values.values() if isinstance(value, int))
    if largest_size * size_values["n_layers"] > LARGEST_PRODUCT:
        raise InputError(f"{size_owner}: layers times the largest size must be below 100 million")
    sizes_class = choose_class(size_values)
    field_names = {field.name for field in fields(sizes_class)}
    model_sizes = sizes_class(**{name: size_values[name] for name in field_names & {*size_values}})
    unfit_heads = explain_unfit_heads(model_sizes)
    if unfit_heads:
        raise InputError(f"{size_owner}: {unfit_heads}")
    return model_sizes


def choose_class(size_values: dict) -> type[Sizes]:
    """Choose the class for sizes, by what is known of them."""
    if size_values.get("n_experts"):
        return ExpertSizes
    if size_values.get("family") in FAMILIES["ungated"]:
        return UngatedSizes
    return Sizes


def family_defaults(family_name: str) -> dict | None:
    """Give the sizes that a family's config.json may leave unsaid; None for an unknown family."""
    for family_kind in ("gated", "ungated", "experts"):
        if family_name in FAMILIES[family_kind]:
            return FAMILIES[family_kind][family_name] | {"family": family_name}
    return None


# ---- a name ----


def known_sizes(model_key: str) -> dict:
    """Give the sizes of a model of models.yaml."""
    model_entry = MODELS["models"][model_key]
    family_sizes = family_defaults(model_entry["family"])
    family_flags = {name: value for name, value in family_sizes.items() if isinstance(value, bool)}
    return family_flags | model_entry


def find_name(typed_name: str) -> str:
    """Find the name in models.yaml of a model that people write in other ways. Raises
    InputError."""
    name_tokens, key_by_name = split_name(typed_name), short_names()
    short_name = "".join(name_tokens)
    if short_name in key_by_name:
        return key_by_name[short_name]
    # a fine-tuned model: the known one's name, with its size, and words after it
    for token_end in range(len(name_tokens) - 1, 0, -1):
        model_key = key_by_name.get("".join(name_tokens[:token_end]))
        rest_has_size = any(re.fullmatch(_SIZE, token) for token in name_tokens[token_end:])
        has_size = re.fullmatch(_SIZE, name_tokens[token_end - 1]) and not rest_has_size
        if model_key and (has_size or model_key in MODELS["other_experts"]):
            return model_key
    longer_keys = {
        key
        for key in key_by_name.values()
        if short_name in itertools.accumulate(split_name(key))
        and not re.fullmatch(_SIZE, short_name)
    }
    if len(longer_keys) == 1:
        return longer_keys.pop()
    raise InputError(explain_unknown_name(typed_name, short_name))


def explain_unknown_name(typed_name: str, short_name: str) -> str:
    """Say in a sentence which models may be meant by a name."""
    key_by_name = short_names()
    near_keys = [key for key in key_by_name.values() if short_name and has_part(key, short_name)]
    if near_keys:
        near_keys = [*dict.fromkeys(near_keys)]
        more_text = " …" if len(near_keys) > N_PROPOSED else ""
        question_word = "which of" if len(near_keys) > 1 else "did you mean"
        proposed_text = f": {question_word} {', '.join(near_keys[:N_PROPOSED])}{more_text}?"
    else:
        near_keys = [
            key_by_name[near_name]
            for near_name in difflib.get_close_matches(short_name, key_by_name, 4, 0.6)
        ]
        proposed_text = f": did you mean {' or '.join(dict.fromkeys(near_keys))}?"
    if not near_keys:
        proposed_text = (
            ": give the folder of its config.json, or its sizes (dim=4096 n_layers=32 …)"
        )
    return f"{typed_name!r:.80} is not a model known here{proposed_text} (--list has all names)"


def has_part(model_key: str, short_name: str) -> bool:
    """Return true if a name begins or ends with a shorter one, and not within a number."""
    name_tokens = split_name(model_key)
    token_ends = [*itertools.accumulate(name_tokens)]
    whole_name = token_ends[-1]
    if short_name in token_ends or name_tokens[-1] == short_name:
        return True
    return whole_name.startswith(short_name) and not re.match(
        r"\d\d", whole_name[len(short_name) - 1 :]
    )


def split_name(typed_name: str) -> list[str]:
    """Split a model's name into words, without its owner and without what leaves its sizes as they
    are.

    `meta-llama/Llama-3.1-8B-Instruct` is llama, 3.1, 8b; `llama3.1:8b-q4_K_M` is llama3.1, 8b.
    """
    clean_name = re.sub(r"[-_]q\d\w*$", "", typed_name.lower().strip().rpartition("/")[2])
    clean_name = re.sub(r"(?<=\d)_(?=\d)", ".", clean_name)  # 1_6b
    name_tokens = re.split(r"[-_:\s]+", clean_name)
    return [token for token in name_tokens if token and not re.fullmatch(_TUNING, token)]


@cache
def short_names() -> dict[str, str]:
    """Map all names, without separators, to the names of models.yaml."""
    key_by_name = {}
    for model_key in MODELS["other_experts"]:
        key_by_name["".join(split_name(model_key))] = model_key
    for model_key, model_entry in MODELS["models"].items():
        for model_name in [model_key, *model_entry.get("also", [])]:
            key_by_name["".join(split_name(model_name))] = model_key
    return key_by_name


# ---- a config.json ----


def read_config(config_path: str, typed_sizes: dict[str, int]) -> Model:
    """Read a Hugging Face config.json, or Meta's params.json, or a folder with one of them.

    What it leaves unsaid is its family's. Raises InputError.
    """
    if os.path.isdir(config_path):
        file_paths = [os.path.join(config_path, name) for name in ("config.json", "params.json")]
        file_paths = [name for name in file_paths if os.path.isfile(name)]
        if not file_paths:
            raise InputError(f"{config_path}: the folder has no config.json")
        config_path = file_paths[0]
    config_values, note = read_json(config_path), ""
    if isinstance(config_values.get("text_config"), dict):
        whole_flags = {key: config_values[key] for key in TYING_KEYS & {*config_values}}
        config_values = whole_flags | config_values["text_config"]
        note = "the text model alone, without its encoders"
    if "model_type" not in config_values and "dim" in config_values:
        model_sizes = make_sizes(
            params_sizes(config_values, config_path) | typed_sizes, config_path
        )
        return Model(model_sizes, model_sizes.parameters(), name=config_path)
    family_name = config_values.get("model_type", "no model_type")
    if has_unknown_experts(config_values):
        if typed_sizes:
            raise InputError(
                f"{config_path}: the sizes of {family_name} are not read, so none can be changed"
            )
        note = (
            f"{family_name} is a mixture of experts whose sizes are not read: memory is not counted"
        )
        return Model(None, float("nan"), name=config_path, note=note)
    model_sizes = make_sizes(config_sizes(config_values, config_path) | typed_sizes, config_path)
    return Model(model_sizes, model_sizes.parameters(), name=config_path, note=note)


def read_json(config_path: str) -> dict:
    """Read a file as a JSON object. Raises InputError."""
    try:
        with open(config_path, "rb") as json_file:
            config_values = json.loads(json_file.read())
    except OSError as error:
        raise InputError(f"{config_path}: cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{config_path}: is not JSON: {error}") from error
    if not isinstance(config_values, dict):
        raise InputError(f"{config_path}: expected the sizes of a model, as a config.json has them")
    return config_values


def has_unknown_experts(config_values: dict) -> bool:
    """Return true for a mixture of experts whose family's sizes cannot be read."""
    family_name = str(config_values.get("model_type"))
    if family_defaults(family_name):
        return False
    expert_counts = [value for key, value in config_values.items() if "experts" in key]
    has_many = any(isinstance(n, int) and n > 1 for n in expert_counts)
    return has_many or "moe" in family_name or family_name in FAMILIES["other_experts"]


def config_sizes(config_values: dict, config_path: str) -> dict:
    """Read the sizes in a config.json. Raises InputError."""
    family_name = config_values.get("model_type")
    if not isinstance(family_name, str):
        raise InputError(f"{config_path}: no model_type, which says how the model is built: add it")
    family_sizes = family_defaults(family_name)
    if family_sizes is None:
        known_families = [*FAMILIES["gated"], *FAMILIES["ungated"], *FAMILIES["experts"]]
        near_names = suggest_names(family_name, known_families) or f": {', '.join(known_families)}"
        raise InputError(
            f"{config_path}: a model_type {family_name!r:.40} is not known, so its layers are not "
            f"counted{near_names}"
        )
    foreign_keys = [key for key in _FOREIGN_KEYS if key in config_values]
    if foreign_keys:
        raise InputError(
            f"{config_path}: {' and '.join(foreign_keys)} are not keys of transformers for "
            f"{family_name}: give the config.json of the converted model, or its sizes (dim=4096 "
            "n_layers=32 …)"
        )
    size_values = dict(family_sizes)
    for size_name, config_keys in FAMILIES["keys"].items():
        for config_key in config_keys:
            if config_key in config_values:
                size_values[size_name] = check_size(
                    config_values[config_key], f"{config_path}: {config_key}"
                )
    for size_name in ("dim", "n_layers"):
        config_keys = FAMILIES["keys"][size_name]
        if not any(key in config_values for key in config_keys):
            raise InputError(
                f"{config_path}: no {' or '.join(config_keys)}: is it the model's config.json?"
            )
    if size_values.get("hidden_dim") is None:
        size_values["hidden_dim"] = 4 * size_values["dim"]
    size_values["hidden_dim"] = size_values.get("expert_dim") or size_values["hidden_dim"]
    return size_values


def check_size(size_value: object, key_place: str) -> int | bool | None:
    """Return a size of a file: a whole number, true or false, or none. Raises InputError."""
    if size_value is None or isinstance(size_value, bool):
        return size_value
    if isinstance(size_value, int) and size_value > 0:
        return size_value
    raise InputError(f"{key_place}: expected a whole number above 0, got {size_value!r:.40}")


def params_sizes(config_values: dict, config_path: str) -> dict:
    """Read the sizes in Meta's params.json: a Llama's width follows from dim. Raises
    InputError."""
    size_names = ("dim", "n_layers", "n_heads", "n_kv_heads", "vocab_size", "multiple_of")
    read_sizes = {
        name: check_size(config_values.get(name), f"{config_path}: {name}") for name in size_names
    }
    width_multiplier = config_values.get("ffn_dim_multiplier") or 1
    if not isinstance(width_multiplier, int | float) or not 0 < width_multiplier < 100:
        raise InputError(
            f"{config_path}: ffn_dim_multiplier: expected a number, got {width_multiplier!r:.40}"
        )
    width_multiple = read_sizes.pop("multiple_of") or 256
    width = int(width_multiplier * int(8 * (read_sizes["dim"] or 0) / 3))
    return read_sizes | {"hidden_dim": -(-width // width_multiple) * width_multiple}


# ---- a recipe ----


def read_recipe(recipe_name: str, typed_sizes: dict[str, int]) -> Model:
    """Read a recipe's model, and which of its layers run in FP8. Raises InputError."""
    size_overrides = [f"model.sizes.{name}={value}" for name, value in typed_sizes.items()]
    recipe = recipes.load(recipe_name, overrides=size_overrides)
    from experiments.training.plan import plan  # torch: seconds, for a recipe alone

    run_plan = plan(recipe)
    model_args = run_plan.args
    size_values = {name: getattr(model_args, name) for name in TYPED_SIZES}
    size_values |= {
        "enable_weight_tying": model_args.enable_weight_tying,
        "qk_norm": bool(model_args.qk_norm),
    }
    if getattr(model_args, "moe_enabled", False):
        expert_args = model_args.moe_args
        size_values |= {"n_experts": expert_args.num_experts, "n_active": expert_args.top_k}
        size_values["hidden_dim"] = model_args.moe_inter_dim
    model_sizes = make_sizes(size_values, recipe_name)
    bf16_layers = HEAD
    if run_plan.fp8.layers:
        bf16_layers = frozenset(model_sizes.linear_shapes()) - run_plan.fp8.layers
    study_recipe = (
        recipe_name if run_plan.fp8.layers and not recipe_name.endswith(".yaml") else None
    )
    return Model(model_sizes, model_sizes.parameters(), bf16_layers, recipe_name, study_recipe)
