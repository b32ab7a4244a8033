"""Declare the keys of a recipe: torchtitan's `JobConfig`, and a few keys it lacks.

A key keeps torchtitan's section, name, default and documentation. `LIMITS` narrows the values of
torchtitan's keys, and `LEFT_OUT` lists the keys of torchtitan that no recipe sets. The classes
declare the keys that this project adds.
"""

import importlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, fields, is_dataclass, make_dataclass
from functools import cache
from types import ModuleType
from typing import Annotated, ClassVar, Literal

from pydantic import ConfigDict, Field, TypeAdapter

from models import device  # noqa: F401  # before torchtitan: see there  # isort: skip
from torchtitan.config import job_config as titan

from experiments.config.moved_keys import find_move
from experiments.config.unread import FLOAT8, SCALING, explain_unread_keys
from experiments.config.yaml_with_origins import (
    EXTENSIONS,
    Keys,
    flat,
    refusal,
    validated,
)
from experiments.records.run import AtLeast1, Count, Seed, Share, Steps
from models.scaling import SCALINGS, explain_unfit_tokens

BY_ROWS = [name for name, scaling in SCALINGS.items() if scaling.by_rows]

AutoOrCount = Literal[-1] | AtLeast1
Size = Annotated[int, Field(ge=1, le=1_000_000)] | None
Timeout = Annotated[int, Field(ge=1, le=10**6)]  # s
Beta = Annotated[float, Field(ge=0, lt=1)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
NotNegative = Annotated[Finite, Field(ge=0, le=1e38)]  # float32 ends at 3.4e38

BPE_END_OF_TEXT = "<|end_of_text|>"  # of the BPE that is trained on the corpus

NOTHING_IN_FP8 = (
    f"is not read, because without {SCALING} nothing is in FP8: set that, to tensorwise for "
    "torchtitan's default, or leave this out"
)

LIMITS = {
    "profiling.profile_freq": AtLeast1,
    "profiling.profiler_active": AtLeast1,
    "profiling.profiler_warmup": Count,
    "metrics.log_freq": AtLeast1,
    "optimizer.name": Literal["AdamW"],
    "optimizer.lr": NotNegative,
    "optimizer.beta1": Beta,
    "optimizer.beta2": Beta,
    # With 0, a parameter without a gradient becomes nan; beside a large one, gradients count for
    # nothing
    "optimizer.eps": Annotated[float, Field(gt=0, le=1e-4)],
    "optimizer.weight_decay": NotNegative,
    "lr_scheduler.warmup_steps": Count,
    "lr_scheduler.total_steps": AtLeast1 | None,
    "lr_scheduler.decay_ratio": Share | None,
    "lr_scheduler.min_lr_factor": Share,
    "training.local_batch_size": AtLeast1,
    "training.global_batch_size": AutoOrCount,
    "training.seq_len": Annotated[int, Field(ge=2, lt=2**31)],
    "training.max_norm": Annotated[float, Field(gt=0)],
    "training.steps": Steps,
    "training.gc_freq": AtLeast1,
    "training.dataloader.num_workers": Count,
    "training.dataloader.prefetch_factor": AtLeast1 | None,
    "parallelism.data_parallel_replicate_degree": AtLeast1,
    "parallelism.data_parallel_shard_degree": AutoOrCount,
    "comm.init_timeout_seconds": Timeout,
    "comm.train_timeout_seconds": Timeout,
    "comm.trace_buf_size": Count,
    "checkpoint.interval": AtLeast1,
    # not 1: the last may be half written
    "checkpoint.keep_latest_k": Literal[0] | Annotated[int, Field(ge=2)],
    "activation_checkpoint.selective_ac_option": Annotated[str, Field(pattern=r"^(op|[1-9]\d*)$")],
    # the compiler; the other two, which generate no code, are for looking for its errors
    "compile.backend": Literal["inductor", "aot_eager", "eager"],
    # how operands are scaled, which turns FP8 on
    SCALING: Literal[tuple(SCALINGS)] | None,
}
"""Values of torchtitan's keys, where they are fewer than torchtitan's."""

NOT_BUILT = "not supported: FSDP shards the model instead; leave it out"
NOT_FLOAT8 = "not supported: FP8 is quantize.linear.float8; leave it out"
IN_FOLDER = "always in the run's folder, which is --out; leave it out"
UNUSED = "not supported; leave it out"
LEFT_OUT = {
    "job.": "not a recipe key: set the folder with --out and the text with `description`",
    "profiling.save_": IN_FOLDER,
    "metrics.save_tb_folder": IN_FOLDER,
    "model.name": "follows from model.flavor; leave it out",
    "model.converters": "follows from quantize.linear.float8.recipe_name: set that, to tensorwise "
    "for torchtitan's default, and leave this out",
    "model.tokenizer_path": "is model.hf_assets_path",
    "model.print_after_conversion": UNUSED,
    "optimizer.early_step_in_backward": "would leave no gradients to look at; leave it out",
    "training.enable_cpu_offload": UNUSED,
    "training.gc_debug": UNUSED,
    "parallelism.tensor_": "compiled, its backward pass fails in torch 2.13, with "
    "and without FP8; leave it out: FSDP shards the model instead",
    "parallelism.pipeline_": NOT_BUILT,
    "parallelism.context_": NOT_BUILT,
    "parallelism.expert_": NOT_BUILT,
    "parallelism.disable_loss_parallel": NOT_BUILT,
    "parallelism.enable_async_tensor_parallel": NOT_BUILT,
    "parallelism.module_fqns_per_model_part": NOT_BUILT,
    "checkpoint.folder": IN_FOLDER,
    "checkpoint.enable_ft_": UNUSED,
    "checkpoint.initial_load_in_hf": UNUSED,
    "checkpoint.last_save_in_hf": UNUSED,
    "checkpoint.load_": UNUSED,
    "checkpoint.exclude_from_loading": UNUSED,
    "checkpoint.create_seed_checkpoint": UNUSED,
    "compile.artifacts_dir": "PyTorch keeps compiled kernels, in $TORCHINDUCTOR_CACHE_DIR; "
    "leave it out",
    "quantize.linear.mx": NOT_FLOAT8,
    "quantize.grouped_mm": NOT_FLOAT8,
    "comm.save_": IN_FOLDER,
    "comm.mode": UNUSED,
    "debug.moe_": UNUSED,
    "memory_estimation": UNUSED,
    "fault_tolerance": UNUSED,
    "experimental": "would run code that the recipe names; leave it out",
    "validation": UNUSED,
}
"""torchtitan's keys that no recipe sets, by how they begin, and what to do instead."""


class Sizes:
    """Sizes in place of the flavor's; null keeps them."""

    dim: Size = None
    """Features of the residual stream."""

    n_layers: Size = None
    """Transformer blocks."""

    n_heads: Size = None
    """Heads of queries. A Llama's heads have dim / n_heads features each."""

    n_kv_heads: Size = None
    """Heads of keys and values, which divide n_heads."""

    head_dim: Size = None
    """Features of a head; null in a Llama, whose heads have dim / n_heads."""

    hidden_dim: Size = None
    """Width of the SwiGLU layer; a Llama's null is the flavor's rule for dim (8/3 of it, scaled and
    rounded up)."""

    vocab_size: Size = None
    """Rows of the embedding and of the output head; `data.bpe_vocab_size` is the tokenizer's."""


class Model(titan.Model):
    sizes: Sizes
    """Sizes in place of the flavor's, as `{dim: 512, n_layers: 8}`."""

    attention_backend: Literal["auto", "flash", "cudnn", "math"] = "auto"
    """Kernel behind scaled_dot_product_attention; `auto` is the first of torchtitan's list (cuDNN,
    flash, math) that can compute it."""


class Compile(titan.Compile):
    components: list[Literal["model", "loss"]] = field(default_factory=lambda: ["model", "loss"])
    """What is compiled."""

    scope: Literal["block", "model"] = "block"
    """Compile each TransformerBlock (one graph, reused by every layer), or the whole model as one
    graph."""

    emulate_precision_casts: bool = False
    """Let compiled kernels round intermediates to bf16 where eager would
    (torch._inductor.config)."""

    @property
    def compiles_model(self) -> bool:
        """True if the blocks, or the whole model, are compiled; the loss alone does not count."""
        return self.enable and "model" in self.components


class Comm(titan.Comm):
    nccl_max_ctas: Annotated[int, Field(ge=1, le=64)] | None = None
    """Most thread blocks, each on a multiprocessor of its own, that NCCL uses for a collective
    (NCCL_MAX_CTAS); null leaves it to NCCL and the environment. GPUs only."""


class Debug(titan.Debug):
    seed: Seed = 0
    """Seed of the weights and of the order of the data; every run has one."""


class Data:
    layout: Literal["packed", "padded"] = "packed"
    """`packed`: documents joined by end-of-text, every token counts. `padded`: one document a row,
    cut or padded."""

    text_column: str = "text"
    """Column that holds the text, for parquet files and Hugging Face datasets."""

    subset: str | None = None
    """Configuration name of a Hugging Face dataset, e.g. `sample-10BT`."""

    split: str = "train"
    """Split of a Hugging Face dataset."""

    max_tokens: AtLeast1 | None = None
    """Stop after this many tokens. Hugging Face datasets are streamed and need it; null reads
    everything."""

    bpe_vocab_size: Annotated[int, Field(ge=257, le=10**6)] = 32768  # 256 bytes and end-of-text
    """Size of the byte-level BPE trained on the corpus itself, where `model.hf_assets_path` is
    empty."""

    end_of_text: str | None = None
    """Token at the end of each document, one of the tokenizer's; null: the `eos_token` of the
    tokenizer's tokenizer_config.json, else a special token of a usual name, as `<eos>`."""

    cache_dir: str = ".cache/data"
    """Where prepared token files are kept, one folder per content hash."""


class Config(titan.JobConfig):
    # for its sections too
    __pydantic_config__ = ConfigDict(extra="forbid", strict=True, use_attribute_docstrings=True)

    model: Model
    compile: Compile
    comm: Comm
    debug: Debug
    data: Data


def finish(cls: type, path: str = "") -> type:
    """Turn a section's class, and the classes of its sections, into dataclasses.

    Every field has a default. With `LIMITS`, torchtitan's `optimizer.lr: float = 8e-4` becomes
    `lr: NotNegative = 8e-4`. A key of `LEFT_OUT` becomes a ClassVar: pydantic refuses it in a
    recipe, and torchtitan reads its own value. `path` is the section's, with a dot at its end.
    """
    for key in fields(cls.__base__) if is_dataclass(cls.__base__) else ():
        name = f"{path}{key.name}"
        if name.startswith(tuple(LEFT_OUT)):
            cls.__annotations__[key.name] = ClassVar
            setattr(cls, key.name, getattr(cls.__base__(), key.name))
        elif name in LIMITS:
            cls.__annotations__[key.name] = LIMITS[name]
        elif is_dataclass(key.type) and key.name not in cls.__annotations__:
            section = type(key.type.__name__, (key.type,), {"__module__": __name__})
            cls.__annotations__[key.name] = section
    for name, kind in cls.__annotations__.items():
        if getattr(kind, "__module__", "") == __name__:
            setattr(cls, name, field(default_factory=finish(kind, f"{path}{name}.")))
    return dataclass(cls)


finish(Config)
DEFAULTS = Config()


# ---- validate ----


def extensions_of(keys: Keys | None = None) -> dict[str, ModuleType]:
    """Import the extensions whose sections a recipe has; without a recipe, all with a section."""
    there = [path.parent.name for path in EXTENSIONS.glob("*/__init__.py")]
    entered = [name for name in keys or there if name in there]
    modules = {name: importlib.import_module(f"extensions.{name}") for name in entered}
    return {name: module for name, module in modules.items() if hasattr(module, "Keys")}


def validate(keys: Keys, extensions: dict[str, ModuleType], unread: Sequence[str] = ()) -> Config:
    """Validate keys one by one, then together; fill in defaults.

    Validates JSON, because in strict Python mode pydantic takes no dict for a dataclass. Raises
    `InputError` with a line for each wrong key.

    Args:
        unread: keys of FP8 that are refused where no `recipe_name` turns FP8 on.
    """
    own = [(name, extension.Keys) for name, extension in extensions.items()]
    sections = validator(*own)
    config = validated(
        lambda data: sections.validate_json(json.dumps(data)), keys, known_keys(), find_replacement
    )
    found = [*contradictions(config), *explain_unread_keys(keys, config)]
    if config.quantize.linear.float8.recipe_name is None:
        found += [(key, NOTHING_IN_FP8) for key in unread]
    for extension in extensions.values():
        if hasattr(extension, "contradictions"):
            found += extension.contradictions(config)
    if found:
        raise refusal(keys, found)
    return config


@cache  # one class for each set of extensions: dataclasses of two classes are never equal
def validator(*extensions: tuple[str, type]) -> TypeAdapter:
    """Make the validator of recipes with these sections of extensions: (name, dataclass) each."""
    sections = [(name, keys, field(default=None)) for name, keys in extensions]
    return TypeAdapter(make_dataclass("WithExtensions", sections, bases=(Config,)))


def contradictions(config: Config) -> list[tuple[str, str]]:
    """List contradictions between keys: (the key to look at, what to do) each."""
    training, float8 = config.training, config.quantize.linear.float8
    local, whole = training.local_batch_size, training.global_batch_size
    total_steps = config.lr_scheduler.total_steps
    unfit_tokens = explain_unfit_tokens(training.seq_len, local)
    profiling, dataloader = config.profiling, training.dataloader
    traced = profiling.profiler_warmup + profiling.profiler_active
    rules = [
        (
            whole > 0 and whole % local,
            "training.global_batch_size",
            f"should be a multiple of local_batch_size ({local}), got {whole}",
        ),
        (
            total_steps and total_steps < training.steps,
            "lr_scheduler.total_steps",
            f"should be at least training.steps ({training.steps}), got {total_steps}",
        ),
        (
            profiling.enable_profiling and profiling.profile_freq <= traced,
            "profiling.profile_freq",
            f"should be more than profiler_warmup + profiler_active ({traced})",
        ),
        (
            config.compile.enable and not config.compile.components,
            "compile.components",
            "leaves nothing to compile; set compile.enable to false, or this to [model, loss]",
        ),
        (
            config.activation_checkpoint.mode == "memory_budget"
            and not config.compile.compiles_model,
            "activation_checkpoint.mode",
            "memory_budget is the compiler's; set compile.enable to true, with model among "
            "compile.components",
        ),
        (
            dataloader.persistent_workers and not dataloader.num_workers,
            "training.dataloader.persistent_workers",
            "needs num_workers of at least 1; set that, or this to false",
        ),
        (
            dataloader.prefetch_factor and not dataloader.num_workers,
            "training.dataloader.prefetch_factor",
            "needs num_workers of at least 1; set that, or this to null",
        ),
        (
            training.dataset_path and training.dataset != "parquet",
            "training.dataset_path",
            "is read with training.dataset=parquet alone; set that, or leave the path out",
        ),
        (
            config.data.end_of_text not in (None, BPE_END_OF_TEXT)
            and not config.model.hf_assets_path,
            "data.end_of_text",
            f"names a token of model.hf_assets_path, and the BPE trained in its place has "
            f"{BPE_END_OF_TEXT}; leave it out, or set that path",
        ),
        (
            float8.recipe_name and unfit_tokens,
            "training.seq_len",
            unfit_tokens,
        ),
        (
            float8.enable_fsdp_float8_all_gather and float8.recipe_name in BY_ROWS,
            f"{FLOAT8}.enable_fsdp_float8_all_gather",
            f"needs recipe_name: tensorwise, got {float8.recipe_name}; set it to false",
        ),
        (
            float8.recipe_name
            and float8.precompute_float8_dynamic_scale_for_fsdp
            and not float8.enable_fsdp_float8_all_gather,
            f"{FLOAT8}.precompute_float8_dynamic_scale_for_fsdp",
            "is not read without enable_fsdp_float8_all_gather: set that to true, or this to false",
        ),
    ]
    return [(key, message) for broken, key, message in rules if broken]


# ---- say what is wrong ----


def find_replacement(key: str) -> str | None:
    """Say what to do instead of a key unknown to recipes; None if nothing is known of it."""
    move = find_move(key)
    if move and not move.key:
        return f"torchtitan has dropped it: {move.note}"
    if move:
        return _describe_move(*move)
    reasons = [reason for start, reason in LEFT_OUT.items() if key.startswith(start)]
    return reasons[0] if reasons else None


def _describe_move(key: str, note: str) -> str | None:
    """Say where torchtitan has moved a key; None if there is no such place."""
    place = f"torchtitan has moved it to {key}"
    reason = find_replacement(key)
    if reason:
        return f"{place}, and that is not a key here: {reason}"
    if any(f"{name}.".startswith(f"{key}.") for name in flat(asdict(DEFAULTS))):
        return f"{place}: set that{note and f', {note}'}"
    return None


def known_keys() -> Iterator[str]:
    """Name all sections and keys, with the sections of extensions."""
    sections = asdict(DEFAULTS)
    yield from [*sections, *flat(sections)]
    for name, extension in extensions_of().items():
        yield from (f"{name}.{key.name}" for key in fields(extension.Keys))
