"""What a recipe may say: the keys and types of `Config`, which keys contradict each other, and the JSON schema.

torchtitan and pydantic are imported where they are used: torchtitan imports torch, which listing recipes need not.
"""

import difflib
import functools
import json
import math
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, get_type_hints

from experiments.config.yaml_source import Entry, find, plain

if TYPE_CHECKING:
    from experiments.config.keys import Config


@functools.cache
def _model(config_class: type):
    """The pydantic model of a recipe's sections: unknown keys forbidden, types strict."""
    from pydantic import ConfigDict, Field, create_model

    sections = {name: (kind, Field(default_factory=kind)) for name, kind in get_type_hints(config_class).items()}
    rules = ConfigDict(extra="forbid", strict=True, use_attribute_docstrings=True)
    return create_model("Recipe", __config__=rules, **sections)


def validate(tree: Entry, problems: list[str]) -> tuple["Config", set[tuple[str, ...]]]:
    """The config, and the paths that were rejected: they are reported and left at their defaults."""
    from pydantic import ValidationError

    from experiments.config.keys import Config

    data, rejected = plain(tree), set()
    while True:  # again after each rejection: a section's own check runs once all of its keys are fine
        try:
            sections = _model(Config).model_validate_json(json.dumps(data))  # JSON: the mode in which 1 is a float too
            return Config(**dict(sections)), rejected
        except ValidationError as error:
            found = {}
            for detail in error.errors(include_url=False):
                found.setdefault(_key_path(detail["loc"], data), detail)  # of a union the first member's error
        for path, detail in found.items():
            message = _explain(path, detail, asdict(Config()))
            problems.append(f"{find(tree, path).origin}: {'.'.join(path)}: {message}")
            functools.reduce(dict.__getitem__, path[:-1], data).pop(path[-1])
        rejected |= found.keys()


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
    if kind == "literal_error":
        return f"expected {detail['ctx']['expected']}, got {got}"
    if kind in EXPECTED:
        item = f"item {detail['loc'][-1] + 1}: " if isinstance(detail["loc"][-1], int) else ""
        return f"{item}expected {EXPECTED[kind]}, got {got}"
    return str(detail["ctx"]["error"]) if "error" in detail.get("ctx", {}) else f"{detail['msg']}, got {got}"


def contradictions(config: "Config", rejected: set[tuple[str, ...]], tree: Entry) -> Iterator[str]:
    """Problems between keys that are fine by themselves; not where one of the keys was rejected."""
    if twin := find(tree, ("job", "description")):
        yield f"{twin.origin}: job.description: write it as `description:` at the top of the recipe"
    for keys, message in _conflicts(config):
        paths = [tuple(key.split(".")) for key in keys]
        if not any(path[: len(bad)] == bad for path in paths for bad in rejected):
            entry = find(tree, paths[0])
            yield f"{entry.origin if entry else 'torchtitan default'}: {keys[0]}: {message}"


def _conflicts(config: "Config") -> Iterator[tuple[list[str], str]]:
    """(keys concerned, what to do); the first key is the one to look at."""
    yield from _unsupported(config)
    yield from _optimizer_conflicts(config)
    yield from _fp8_conflicts(config)
    training = config.training
    if config.compile.cuda_graphs and not config.compile.enable:
        yield ["compile.cuda_graphs", "compile.enable"], "records compiled graphs; set compile.enable to true"
    if config.compile.cuda_graphs and training.global_batch_size > training.local_batch_size:
        message = "a step's second pass overwrites the gradients of its first; set training.global_batch_size to -1"
        yield ["compile.cuda_graphs", "training.global_batch_size", "training.local_batch_size"], message


def _unsupported(config: "Config") -> Iterator[tuple[list[str], str]]:
    training = config.training
    if config.model.converters != ["fp8"]:
        message = (
            "expected [fp8], as base.yaml has it (it does nothing until quantize.linear.float8.recipe_name is set)"
        )
        yield ["model.converters"], f"{message}, got {shown(config.model.converters)}"
    least = {"training.steps": 1, "training.seq_len": 1, "training.local_batch_size": 1, "metrics.log_freq": 1,
             "checkpoint.interval": 1, "debug.seed": 0, "data.max_tokens": 1, "data.bpe_vocab_size": 257,
             "optimizer.lr": 0, "optimizer.eps": 0, "optimizer.weight_decay": 0}  # fmt: skip
    for key, bound in least.items():
        value = functools.reduce(getattr, key.split("."), config)
        if value is None and key == "debug.seed" or value is not None and value < bound:
            yield [key], f"expected at least {bound}, got {shown(value)}"
        elif value == math.inf:
            yield [key], f"expected a finite number, got {shown(value)}"
    if training.dataset_path and training.dataset.startswith("python_stdlib"):
        message = f"is not read with training.dataset={training.dataset}; set training.dataset to parquet"
        yield ["training.dataset_path", "training.dataset"], message
    if config.validation.enable:
        yield ["validation.enable"], "there is no validation here; set it to false"
    if config.optimizer.early_step_in_backward:
        yield ["optimizer.early_step_in_backward"], "leaves no gradients for the proof to look at; set it to false"
    for key in ("tensor_parallel_degree", "context_parallel_degree", "pipeline_parallel_degree"):
        if (degree := getattr(config.parallelism, key)) > 1:
            yield [f"parallelism.{key}"], f"not supported: FSDP shards the model instead; set it to 1, got {degree}"
    whole, local = training.global_batch_size, training.local_batch_size
    if local > 0 and whole > 0 and whole % local:
        yield ["training.global_batch_size"], f"expected a multiple of local_batch_size ({local}), got {whole}"


def _optimizer_conflicts(config: "Config") -> Iterator[tuple[list[str], str]]:
    keys, dtype = config.optimizer, config.training.dtype
    if keys.stochastic_rounding and dtype != "bfloat16":
        message = f"rounds bf16 weights, and training.dtype is {dtype}; set one of them otherwise"
        yield ["optimizer.stochastic_rounding", "training.dtype"], message
    if keys.name in ("AdamW8bit", "AdamWFp8") and config.checkpoint.async_mode != "disabled":
        message = f"{keys.name}'s moments can only be saved with disabled, got {config.checkpoint.async_mode}"
        yield ["checkpoint.async_mode", "optimizer.name"], message
    if keys.built == "before_conversion" and config.compile.enable:
        message = "its late conversion would find the blocks compiled already; set compile.enable to false"
        yield ["optimizer.built", "compile.enable"], message


def _fp8_conflicts(config: "Config") -> Iterator[tuple[list[str], str]]:
    keys, training, section = config.quantize.linear.float8, config.training, "quantize.linear.float8"
    recipe_name, all_gather = f"{section}.recipe_name", f"{section}.enable_fsdp_float8_all_gather"
    tokens = training.seq_len * training.local_batch_size
    if keys.recipe_name is None:
        if keys.fast_accumulation_in_backward:
            message = "does nothing without a recipe_name; set it to false"
            yield [f"{section}.fast_accumulation_in_backward", recipe_name], message
    if keys.recipe_name and tokens % 16:
        message = f"seq_len x local_batch_size is {tokens}; FP8 needs a multiple of 16, since the weight-gradient GEMM"
        yield ["training.seq_len", "training.local_batch_size", recipe_name], f"{message} contracts over tokens"
    if keys.enable_fsdp_float8_all_gather and keys.recipe_name != "tensorwise":
        message = f"needs recipe_name: tensorwise, got {shown(keys.recipe_name)}; set it to false"
        yield [all_gather, recipe_name], message
    if keys.precompute_float8_dynamic_scale_for_fsdp and not keys.enable_fsdp_float8_all_gather:
        message = "needs enable_fsdp_float8_all_gather: true; set that, or set this to false"
        yield [f"{section}.precompute_float8_dynamic_scale_for_fsdp", all_gather], message


def flat(section: dict, prefix: str = "") -> Iterator[tuple[str, object]]:
    """(key.path, value) of every key that isn't a section."""
    for key, value in section.items():
        if isinstance(value, dict):
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def shown(value: object) -> str:
    """A value as a message quotes it."""
    return repr(value) if isinstance(value, str) else json.dumps(value)


def schema() -> dict:
    """The JSON schema of a recipe file, with torchtitan's own documentation of each key."""
    from experiments.config.keys import Config

    ours, titans = (_model(kind).model_json_schema() for kind in (Config, Config.__base__))
    for name, section in ours["$defs"].items():  # pydantic misses the docstrings of inherited fields
        inherited = titans["$defs"].get(name, section)["properties"]
        section["properties"] = {key: inherited.get(key, {}) | value for key, value in section["properties"].items()}
    del ours["$defs"]["Job"]["properties"]["description"]
    own = {
        "base": {"type": "string", "description": "The parent recipe's name"},
        "description": {"type": "string", "description": "One line that says what this recipe is"},
    }
    ours["properties"] = own | ours["properties"]
    ours["required"] = ["description"]
    return ours
