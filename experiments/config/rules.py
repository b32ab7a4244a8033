"""What a recipe may say: the keys and types of `Config`, the values of `VALUES`, and which keys contradict each other.

torchtitan and pydantic are imported where they are used: torchtitan imports torch, which listing recipes need not.
"""

import difflib
import functools
import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, get_type_hints

from experiments.config.values import VALUES, shown
from experiments.config.yaml_source import Entry, find, plain

if TYPE_CHECKING:
    from experiments.config.keys import Config

FLOAT8 = "quantize.linear.float8"


@functools.cache
def _model(config_class: type):
    """The pydantic model of a recipe's sections: unknown keys forbidden, types strict."""
    from pydantic import ConfigDict, Field, create_model

    sections = {name: (kind, Field(default_factory=kind)) for name, kind in get_type_hints(config_class).items()}
    rules = ConfigDict(extra="forbid", strict=True, use_attribute_docstrings=True)
    return create_model("Recipe", __config__=rules, **sections)


def build(tree: Entry) -> "Config":
    """The config of the sections in `tree`, defaults filled in. Raises pydantic's ValidationError."""
    from experiments.config.keys import Config

    sections = _model(Config).model_validate_json(json.dumps(plain(tree)))  # JSON: the mode in which 1 is a float too
    return Config(**dict(sections))


# ---- each key by itself ----


def check_keys(layer: Entry, problems: list[str]) -> None:
    """Add to `problems` what is wrong with the keys of one layer, whether or not a later layer replaces them."""
    messages = _wrong_types(layer)
    for key, rule in VALUES.items():
        path = tuple(key.split("."))
        entry = find(layer, path)
        if entry and path not in messages and (message := rule(entry.value)):
            messages[path] = message
    if find(layer, ("job", "description")):
        messages["job", "description"] = "write it as `description:` at the top of the recipe"
    problems += [f"{find(layer, path).origin}: {'.'.join(path)}: {message}" for path, message in messages.items()]


def _wrong_types(layer: Entry) -> dict[tuple[str, ...], str]:
    """Keys that are unknown or of another type, and what to say of each."""
    from pydantic import ValidationError

    from experiments.config.keys import Config

    messages = {}
    try:
        build(layer)
    except ValidationError as error:
        for detail in error.errors(include_url=False):
            path = _key_path(detail["loc"], plain(layer))
            messages.setdefault(path, _explain(path, detail, asdict(Config())))  # of a union the first member's error
    return messages


def _key_path(location: tuple, data: dict) -> tuple[str, ...]:
    """pydantic's location without list indices and union members."""
    path = []
    for part in location:
        if not isinstance(data, dict) or part not in data:
            break
        path.append(part)
        data = data[part]
    return tuple(path)


EXPECTED = {
    "bool_type": "true or false",
    "int_type": "an integer",
    "float_type": "a number",
    "string_type": "text",
    "list_type": "a list, as [a, b]",
    "dataclass_type": "keys below it",
}


def _explain(path: tuple[str, ...], detail: dict, defaults: dict) -> str:
    """One of pydantic's errors as a sentence."""
    kind, got = detail["type"], shown(detail["input"])
    if kind in ("unexpected_keyword_argument", "extra_forbidden"):
        siblings = functools.reduce(dict.__getitem__, path[:-1], defaults)
        elsewhere = [key for key, _ in flat(defaults) if key.split(".")[-1] == path[-1]]
        near = difflib.get_close_matches(path[-1], siblings, n=1) or elsewhere
        hint = f"did you mean `{near[0]}`?" if near else f"known here: {', '.join(siblings)}"
        return f"unknown {'key' if path[1:] else 'section'}; {hint}"
    if kind != "literal_error" and kind not in EXPECTED:
        return str(detail["ctx"]["error"]) if "error" in detail.get("ctx", {}) else f"{detail['msg']}, got {got}"
    item = f"item {detail['loc'][-1] + 1}: " if isinstance(detail["loc"][-1], int) else ""
    return f"{item}expected {EXPECTED.get(kind) or detail['ctx']['expected']}, got {got}"


# ---- several keys together ----


def contradictions(config: "Config", tree: Entry) -> list[str]:
    """What is wrong with the whole recipe: defaults that do not suit, and keys that are fine by themselves."""
    problems = []
    for key, message in (*_unsuitable_defaults(config), *_conflicts(config), *_fp8_conflicts(config)):
        entry = find(tree, key.split("."))
        problems.append(f"{entry.origin if entry else 'torchtitan default'}: {key}: {message}")
    return problems


def _unsuitable_defaults(config: "Config") -> Iterator[tuple[str, str]]:
    """torchtitan's defaults that a recipe without `base` must replace."""
    for key, rule in VALUES.items():
        if message := rule(functools.reduce(getattr, key.split("."), config)):
            yield key, message


def _conflicts(config: "Config") -> Iterator[tuple[str, str]]:
    """(key to look at, what to do)."""
    training, optimizer, compiled = config.training, config.optimizer, config.compile
    loader, schedule, profiling = training.dataloader, config.lr_scheduler, config.profiling
    local, whole = training.local_batch_size, training.global_batch_size
    if training.dataset_path and training.dataset.startswith("python_stdlib"):
        message = f"is not read with training.dataset={training.dataset}; set training.dataset to parquet"
        yield "training.dataset_path", message
    if whole > 0 and whole % local:
        yield "training.global_batch_size", f"expected a multiple of local_batch_size ({local}), got {whole}"
    if not loader.num_workers and (loader.persistent_workers or loader.prefetch_factor):
        yield "training.dataloader.num_workers", "expected 1 or more with persistent_workers or prefetch_factor, got 0"
    if schedule.total_steps and schedule.total_steps < training.steps:
        message = f"expected at least training.steps ({training.steps}), got {schedule.total_steps}"
        yield "lr_scheduler.total_steps", message
    if profiling.profile_freq < profiling.profiler_warmup + profiling.profiler_active:
        message = f"expected at least profiler_warmup + profiler_active, got {profiling.profile_freq}"
        yield "profiling.profile_freq", message
    if optimizer.stochastic_rounding and training.dtype != "bfloat16":
        message = f"rounds bf16 weights, and training.dtype is {training.dtype}; set one of them otherwise"
        yield "optimizer.stochastic_rounding", message
    if optimizer.built == "before_conversion" and compiled.enable:
        message = "its late conversion would find the blocks compiled already; set compile.enable to false"
        yield "optimizer.built", message
    if compiled.cuda_graphs and not compiled.enable:
        yield "compile.cuda_graphs", "records compiled graphs; set compile.enable to true"
    if compiled.cuda_graphs and whole > local:
        message = "a step's second pass overwrites the gradients of its first; set training.global_batch_size to -1"
        yield "compile.cuda_graphs", message
    by_blocks = compiled.enable and compiled.scope == "block" and "model" in compiled.components
    if config.activation_checkpoint.mode == "memory_budget" and not by_blocks:
        message = "memory_budget is the compiler's; set compile.enable to true, scope to block, components to [model]"
        yield "activation_checkpoint.mode", message


def _fp8_conflicts(config: "Config") -> Iterator[tuple[str, str]]:
    keys, training = config.quantize.linear.float8, config.training
    tokens = training.seq_len * training.local_batch_size
    if keys.recipe_name is None and keys.fast_accumulation_in_backward:
        yield f"{FLOAT8}.fast_accumulation_in_backward", "does nothing without a recipe_name; set it to false"
    if keys.recipe_name and tokens % 16:
        message = f"seq_len x local_batch_size is {tokens}; FP8 needs a multiple of 16, since the weight-gradient GEMM"
        yield "training.seq_len", f"{message} contracts over tokens"
    if keys.enable_fsdp_float8_all_gather and keys.recipe_name != "tensorwise":
        message = f"needs recipe_name: tensorwise, got {shown(keys.recipe_name)}; set it to false"
        yield f"{FLOAT8}.enable_fsdp_float8_all_gather", message
    if keys.precompute_float8_dynamic_scale_for_fsdp and not keys.enable_fsdp_float8_all_gather:
        message = "needs enable_fsdp_float8_all_gather: true; set that, or set this to false"
        yield f"{FLOAT8}.precompute_float8_dynamic_scale_for_fsdp", message


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

    recipe, inherited = (_model(kind).model_json_schema() for kind in (Config, Config.__base__))
    for name, section in recipe["$defs"].items():  # pydantic misses the docstrings of inherited fields
        documented = inherited["$defs"].get(name, section)["properties"]
        section["properties"] = {key: documented.get(key, {}) | value for key, value in section["properties"].items()}
    del recipe["$defs"]["Job"]["properties"]["description"]
    own = {
        "base": {"type": "string", "description": "The parent recipe's name"},
        "description": {"type": "string", "description": "One line that says what this recipe is"},
    }
    recipe["properties"] = own | recipe["properties"]
    recipe["required"] = ["description"]
    return recipe
