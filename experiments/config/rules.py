"""What a recipe may say: the keys and types of `Config`, the values of `VALUES`, and which keys
contradict each other.

torchtitan is imported where it is used: it imports torch, which listing recipes need not.
"""

import difflib
import functools
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from pydantic import TypeAdapter, ValidationError

from experiments.config.phases import first_and_last
from experiments.config.values import VALUES, WITHOUT_EFFECT, shown
from experiments.config.yaml_source import Entries, nested

if TYPE_CHECKING:
    from experiments.config.keys import Config

FLOAT8 = "quantize.linear.float8"


def build(entries: Entries) -> "Config":
    """The config of a recipe's keys, defaults filled in. Raises pydantic's ValidationError."""
    from experiments.config.keys import Config

    return _validator(Config).validate_json(
        json.dumps(nested(entries))
    )  # JSON: the mode in which 1 is a float too


_validator = functools.cache(TypeAdapter)


# ---- each key by itself ----


def check_keys(layer: Entries) -> list[str]:
    """What is wrong with the keys of one layer, whether or not a later layer replaces them."""
    from experiments.config.keys import Config

    messages, known = {}, asdict(Config())
    try:
        build(layer)
    except ValidationError as error:
        messages = explain(error, layer, known)
    for key, rule in VALUES.items():
        if key in layer and key not in messages and (message := rule(layer[key].value)):
            messages[key] = message
    for key, default in flat(known):
        if key in layer and key.startswith(WITHOUT_EFFECT) and layer[key].value != default:
            messages.setdefault(
                key, f"has no effect here; leave it out, got {shown(layer[key].value)}"
            )
    if "job.description" in layer:
        messages["job.description"] = "write it as `description:` at the top of the recipe"
    return [f"{layer[key].origin}: {key}: {message}" for key, message in messages.items()]


def explain(error: ValidationError, entries: Entries, known: dict) -> dict[str, str]:
    """By key, what pydantic refuses in `entries`; `known` holds the keys that there are."""
    messages = {}
    for detail in error.errors(include_url=False):
        key = ".".join(map(str, detail["loc"]))
        while (
            key and key not in entries and detail["type"] != "missing"
        ):  # without list indices and union members
            key = key.rpartition(".")[0]
        messages.setdefault(
            key, _sentence(key, detail, known)
        )  # of a union the first member's error
    return messages


EXPECTED = {
    "bool_type": "true or false",
    "int_type": "an integer",
    "float_type": "a number",
    "string_type": "text",
    "list_type": "a list, as [a, b]",
    "dataclass_type": "keys below it",
}


def _sentence(key: str, detail: dict, known: dict) -> str:
    """One of pydantic's errors."""
    kind, got = detail["type"], shown(detail["input"])
    if kind in ("unexpected_keyword_argument", "extra_forbidden"):
        *sections, name = key.split(".")
        siblings = functools.reduce(dict.__getitem__, sections, known)
        elsewhere = [other for other, _ in flat(known) if other.endswith(f".{name}")]
        near = difflib.get_close_matches(name, siblings, n=1) or elsewhere
        return (
            f"unknown key; did you mean `{near[0]}`?"
            if near
            else f"unknown key; known here: {', '.join(siblings)}"
        )
    if kind == "missing":
        return "is missing"
    if kind not in EXPECTED and kind != "literal_error":
        return (
            str(detail["ctx"]["error"])
            if "error" in detail.get("ctx", {})
            else f"{detail['msg']}, got {got}"
        )
    item = f"item {detail['loc'][-1] + 1}: " if isinstance(detail["loc"][-1], int) else ""
    return f"{item}expected {EXPECTED.get(kind) or detail['ctx']['expected']}, got {got}"


# ---- several keys together ----


def contradictions(config: "Config", entries: Entries) -> list[str]:
    """What is wrong with the whole recipe: torchtitan's defaults that do not suit, and keys that
    contradict others."""
    values = dict(flat(asdict(config)))
    defaults = [(key, message) for key, rule in VALUES.items() if (message := rule(values[key]))]
    return [
        f"{entries[key].origin if key in entries else 'torchtitan default'}: {key}: {message}"
        for key, message in (
            *defaults,
            *_conflicts(config),
            *_data_conflicts(config),
            *_fp8_conflicts(config),
            *_phase_conflicts(config),
        )
    ]


def _conflicts(config: "Config") -> Iterator[tuple[str, str]]:
    """(key to look at, what to do)."""
    training, optimizer, compiled = config.training, config.optimizer, config.compile
    loader, total_steps = training.dataloader, config.lr_scheduler.total_steps
    local, whole = training.local_batch_size, training.global_batch_size
    if whole > 0 and whole % local:
        yield (
            "training.global_batch_size",
            f"expected a multiple of local_batch_size ({local}), got {whole}",
        )
    if not loader.num_workers and (loader.persistent_workers or loader.prefetch_factor):
        yield (
            "training.dataloader.num_workers",
            "expected 1 or more with persistent_workers or prefetch_factor, got 0",
        )
    if total_steps and total_steps < training.steps:
        yield (
            "lr_scheduler.total_steps",
            f"expected at least training.steps ({training.steps}), got {total_steps}",
        )
    if config.checkpoint.initial_load_path and not config.checkpoint.enable:
        yield (
            "checkpoint.initial_load_path",
            "is not read without checkpoints; set checkpoint.enable to true",
        )
    if optimizer.stochastic_rounding and training.dtype != "bfloat16":
        message = f"rounds bf16 weights, and training.dtype is {training.dtype}; set one of them otherwise"
        yield "optimizer.stochastic_rounding", message
    yield from _state_conflicts(config)
    if optimizer.built == "before_conversion" and compiled.enable:
        yield (
            "optimizer.built",
            "its late conversion would find compiled blocks; set compile.enable to false",
        )
    if compiled.cuda_graphs and not compiled.enable:
        yield "compile.cuda_graphs", "records compiled graphs; set compile.enable to true"
    if compiled.cuda_graphs and whole > local:
        message = "a step's second pass overwrites the gradients of its first; set training.global_batch_size to -1"
        yield "compile.cuda_graphs", message
    by_blocks = compiled.enable and compiled.scope == "block" and "model" in compiled.components
    if config.activation_checkpoint.mode == "memory_budget" and not by_blocks:
        message = "memory_budget is the compiler's; set compile.enable to true, scope to block, components to [model]"
        yield "activation_checkpoint.mode", message


def _state_conflicts(config: "Config") -> Iterator[tuple[str, str]]:
    states = asdict(config.optimizer.states)
    if not any(states.values()):
        return
    if missing := [name for name, dtype in states.items() if dtype is None]:
        yield (
            "optimizer.states",
            f"expected a dtype for {' and '.join(missing)} too, or null for all three",
        )
    if config.training.dtype != "bfloat16":
        message = (
            f"master weights are for bf16 parameters, and training.dtype is {config.training.dtype}"
        )
        yield "optimizer.states", f"{message}; set it to bfloat16, or the states to null"
    if config.optimizer.stochastic_rounding:
        message = "rounds bf16 weights for want of master weights, which optimizer.states has; set one of them to false"
        yield "optimizer.stochastic_rounding", f"{message} or null"


def _data_conflicts(config: "Config") -> Iterator[tuple[str, str]]:
    """Keys of the data that the chosen kind of dataset does not read."""
    dataset, data = config.training.dataset, config.data
    is_parquet, is_stdlib = dataset == "parquet", dataset.startswith("python_stdlib")
    for key, is_given, is_read, other in (
        ("training.dataset_path", config.training.dataset_path, is_parquet, "parquet"),
        ("data.text_column", data.text_column != "text", not is_stdlib, "parquet"),
        ("data.subset", data.subset, not is_stdlib and not is_parquet, "a name on Hugging Face"),
        (
            "data.split",
            data.split != "train",
            not is_stdlib and not is_parquet,
            "a name on Hugging Face",
        ),
    ):
        if is_given and not is_read:
            yield (
                key,
                f"is not read with training.dataset={dataset}; leave it out, or set training.dataset to {other}",
            )


def _fp8_conflicts(config: "Config") -> Iterator[tuple[str, str]]:
    keys, tokens = (
        config.quantize.linear.float8,
        config.training.seq_len * config.training.local_batch_size,
    )
    for key in ("fast_accumulation_in_backward", "emulate"):
        if keys.recipe_name is None and getattr(keys, key):
            yield f"{FLOAT8}.{key}", "does nothing without a recipe_name; set it to false"
    if keys.recipe_name and tokens % 16:
        message = f"seq_len x local_batch_size is {tokens}; FP8 needs a multiple of 16, since the weight-gradient GEMM"
        yield "training.seq_len", f"{message} contracts over tokens"
    if keys.enable_fsdp_float8_all_gather and keys.recipe_name != "tensorwise":
        message = f"needs recipe_name: tensorwise, got {shown(keys.recipe_name)}; set it to false"
        yield f"{FLOAT8}.enable_fsdp_float8_all_gather", message
    if keys.enable_fsdp_float8_all_gather and keys.implementation != "torchao":
        message = "casts weights itself, not what FSDP gathers in FP8; set it to torchao"
        yield f"{FLOAT8}.implementation", message
    if keys.precompute_float8_dynamic_scale_for_fsdp and not keys.enable_fsdp_float8_all_gather:
        message = "needs enable_fsdp_float8_all_gather: true; set that, or set this to false"
        yield f"{FLOAT8}.precompute_float8_dynamic_scale_for_fsdp", message


def _phase_conflicts(config: "Config") -> Iterator[tuple[str, str]]:
    keys, (first, last) = config.quantize.linear.float8, first_and_last(config)
    if (first, last) == (None, None):
        return
    phases = f"first_step and last_step of {FLOAT8}"
    if keys.recipe_name is None:
        yield (
            f"{FLOAT8}.recipe_name",
            f"is null, so there is no FP8 to switch; set it, or {phases} to null",
        )
    if last is not None and last < (first or 1):
        yield (
            f"{FLOAT8}.last_step",
            f"is step {last}, before first_step, which is {first or 1}: FP8 would never run",
        )
    if keys.enable_fsdp_float8_all_gather:
        message = f"gathers weights in FP8, of which bf16 steps cannot be made; set it to false, or {phases} to null"
        yield f"{FLOAT8}.enable_fsdp_float8_all_gather", message
    if config.compile.cuda_graphs:
        message = f"leaves nothing to prove a later phase by; set it to false, or {phases} to null"
        yield "compile.cuda_graphs", message


# ---- for people and editors ----


def flat(section: dict, prefix: str = "") -> Iterator[tuple[str, object]]:
    """(key.path, value) of every key that isn't a section."""
    for key, value in section.items():
        if isinstance(value, dict):
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def schema() -> dict:
    """The JSON schema of a recipe file, with torchtitan's own documentation of each key."""
    from experiments.config.keys import Config

    titans = type("Titans", (Config.__base__,), {"__pydantic_config__": Config.__pydantic_config__})
    recipe, inherited = (TypeAdapter(kind).json_schema() for kind in (Config, dataclass(titans)))
    for name, section in recipe[
        "$defs"
    ].items():  # pydantic misses the docstrings of inherited fields
        documented = inherited["$defs"].get(name, section)["properties"]
        section["properties"] = {
            key: documented.get(key, {}) | value for key, value in section["properties"].items()
        }
    del recipe["$defs"]["Job"]["properties"]["description"]
    own = {
        "base": {"type": "string", "description": "The parent recipe's name"},
        "description": {"type": "string", "description": "One line that says what this recipe is"},
    }
    recipe["properties"] = own | recipe["properties"]
    recipe["required"] = ["description"]
    return recipe
