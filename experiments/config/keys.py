"""Declare the keys of a recipe: torchtitan's `JobConfig`, and a few keys it lacks.

A key has torchtitan's section, name, default and documentation. `LIMITS` narrows the values of
torchtitan's keys, and `REFUSED_KEYS` lists the keys of torchtitan that no recipe sets. The classes
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

from models import device  # noqa: F401  # before torchtitan: device.py says why  # isort: skip
from torchtitan.config import job_config as titan

from experiments.config.moved_keys import find_move
from experiments.config.unread import FLOAT8_SECTION, SCALING_KEY, explain_unread_keys
from experiments.config.yaml_with_origins import (
    EXTENSIONS,
    Layer,
    flatten_sections,
    make_input_error,
    validate_layer,
)
from experiments.records.run import AtLeast1, Count, Seed, Share, Steps
from models.scaling import SCALINGS, explain_unfit_tokens

ROW_SCALINGS = [name for name, scaling in SCALINGS.items() if scaling.row_scales]

AutoOrCount = Literal[-1] | AtLeast1
OptionalSize = Annotated[int, Field(ge=1, le=1_000_000)] | None
Timeout = Annotated[int, Field(ge=1, le=10**6)]  # s
Beta = Annotated[float, Field(ge=0, lt=1)]
FiniteFloat = Annotated[float, Field(allow_inf_nan=False)]
NonNegative = Annotated[FiniteFloat, Field(ge=0, le=1e38)]  # float32 ends at 3.4e38

BPE_END_OF_TEXT = "<|end_of_text|>"  # of the BPE that is trained on the corpus

FP8_IS_OFF = (
    f"is not read, because without {SCALING_KEY} nothing is in FP8: set that, to tensorwise for "
    "torchtitan's default, or leave this out"
)

LIMITS = {
    "profiling.profile_freq": AtLeast1,
    "profiling.profiler_active": AtLeast1,
    "profiling.profiler_warmup": Count,
    "metrics.log_freq": AtLeast1,
    "optimizer.name": Literal["AdamW"],
    "optimizer.lr": NonNegative,
    "optimizer.beta1": Beta,
    "optimizer.beta2": Beta,
    # With 0, a parameter without a gradient becomes nan; with a large value, gradients do nothing
    "optimizer.eps": Annotated[float, Field(gt=0, le=1e-4)],
    "optimizer.weight_decay": NonNegative,
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
    # not 1: the newest checkpoint may be half written
    "checkpoint.keep_latest_k": Literal[0] | Annotated[int, Field(ge=2)],
    "activation_checkpoint.selective_ac_option": Annotated[str, Field(pattern=r"^(op|[1-9]\d*)$")],
    # Inductor is the compiler; the other two generate no code and help to find its errors
    "compile.backend": Literal["inductor", "aot_eager", "eager"],
    # how operands are scaled; a value turns FP8 on
    SCALING_KEY: Literal[tuple(SCALINGS)] | None,
}
"""The values of torchtitan's keys, where a recipe may have fewer than torchtitan allows."""

USE_FSDP = "not supported: FSDP shards the model instead; leave it out"
USE_FLOAT8 = "not supported: FP8 is quantize.linear.float8; leave it out"
IN_RUN_FOLDER = "always in the run's folder, which is --out; leave it out"
NOT_SUPPORTED = "not supported; leave it out"
REFUSED_KEYS = {
    "job.": "not a recipe key: set the folder with --out and the text with `description`",
    "profiling.save_": IN_RUN_FOLDER,
    "metrics.save_tb_folder": IN_RUN_FOLDER,
    "model.name": "follows from model.flavor; leave it out",
    "model.converters": "follows from quantize.linear.float8.recipe_name: set that, to tensorwise "
    "for torchtitan's default, and leave this out",
    "model.tokenizer_path": "is model.hf_assets_path",
    "model.print_after_conversion": NOT_SUPPORTED,
    "optimizer.early_step_in_backward": "would leave no gradients to look at; leave it out",
    "training.enable_cpu_offload": NOT_SUPPORTED,
    "training.gc_debug": NOT_SUPPORTED,
    "parallelism.tensor_": "compiled, its backward pass fails in torch 2.13, with "
    "and without FP8; leave it out: FSDP shards the model instead",
    "parallelism.pipeline_": USE_FSDP,
    "parallelism.context_": USE_FSDP,
    "parallelism.expert_": USE_FSDP,
    "parallelism.disable_loss_parallel": USE_FSDP,
    "parallelism.enable_async_tensor_parallel": USE_FSDP,
    "parallelism.module_fqns_per_model_part": USE_FSDP,
    "checkpoint.folder": IN_RUN_FOLDER,
    "checkpoint.enable_ft_": NOT_SUPPORTED,
    "checkpoint.initial_load_in_hf": NOT_SUPPORTED,
    "checkpoint.last_save_in_hf": NOT_SUPPORTED,
    "checkpoint.load_": NOT_SUPPORTED,
    "checkpoint.exclude_from_loading": NOT_SUPPORTED,
    "checkpoint.create_seed_checkpoint": NOT_SUPPORTED,
    "compile.artifacts_dir": "PyTorch keeps compiled kernels, in $TORCHINDUCTOR_CACHE_DIR; "
    "leave it out",
    "quantize.linear.mx": USE_FLOAT8,
    "quantize.grouped_mm": USE_FLOAT8,
    "comm.save_": IN_RUN_FOLDER,
    "comm.mode": NOT_SUPPORTED,
    "debug.moe_": NOT_SUPPORTED,
    "memory_estimation": NOT_SUPPORTED,
    "fault_tolerance": NOT_SUPPORTED,
    "experimental": "would run code that the recipe names; leave it out",
    "validation": NOT_SUPPORTED,
}
"""What to do instead of torchtitan's keys that no recipe sets, by the beginning of the key."""


class SizeOverrides:
    """Sizes in place of the flavor's; null keeps them."""

    dim: OptionalSize = None
    """Features of the residual stream."""

    n_layers: OptionalSize = None
    """Transformer blocks."""

    n_heads: OptionalSize = None
    """Heads of queries. A Llama's heads have dim / n_heads features each."""

    n_kv_heads: OptionalSize = None
    """Heads of keys and values, which divide n_heads."""

    head_dim: OptionalSize = None
    """Features of a head; null in a Llama, whose heads have dim / n_heads."""

    hidden_dim: OptionalSize = None
    """Width of the SwiGLU layer; a Llama's null is the flavor's rule for dim (8/3 of it, scaled and
    rounded up)."""

    vocab_size: OptionalSize = None
    """Rows of the embedding and of the output head; `data.bpe_vocab_size` is the tokenizer's."""


class Model(titan.Model):
    sizes: SizeOverrides
    """Sizes in place of the flavor's, as `{dim: 512, n_layers: 8}`."""

    attention_backend: Literal["auto", "flash", "cudnn", "math"] = "auto"
    """Kernel behind scaled_dot_product_attention; `auto` is the first of torchtitan's list (cuDNN,
    flash, math) that can compute it."""


class Compile(titan.Compile):
    components: list[Literal["model", "loss"]] = field(  # type: ignore[assignment] # titan: str
        default_factory=lambda: ["model", "loss"]
    )
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
    """Most thread blocks that NCCL uses for a collective (NCCL_MAX_CTAS), each on one
    multiprocessor; null leaves it to NCCL and the environment. GPUs only."""


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
    """Folder of the prepared token files, one folder per content hash."""


class Config(titan.JobConfig):
    # Holds for its sections too
    __pydantic_config__ = ConfigDict(extra="forbid", strict=True, use_attribute_docstrings=True)

    model: Model
    compile: Compile
    comm: Comm
    debug: Debug
    data: Data


def make_dataclasses(cls: type, prefix: str = "") -> type:
    """Turn a section's class, and the classes of its sections, into dataclasses.

    Every field has a default. With `LIMITS`, torchtitan's `optimizer.lr: float = 8e-4` becomes
    `lr: NonNegative = 8e-4`. A key of `REFUSED_KEYS` becomes a ClassVar: pydantic refuses it in a
    recipe, and torchtitan reads its default. `prefix` is the section's path with a dot at its end.
    """
    titan_class = cls.__base__ or object
    titan_fields = fields(titan_class) if is_dataclass(titan_class) else ()
    for titan_field in titan_fields:
        name = titan_field.name
        titan_type = titan_field.type
        key = f"{prefix}{name}"
        if key.startswith(tuple(REFUSED_KEYS)):
            cls.__annotations__[name] = ClassVar
            setattr(cls, name, getattr(titan_class(), name))
        elif key in LIMITS:
            cls.__annotations__[name] = LIMITS[key]
        elif name in cls.__annotations__:
            continue
        elif isinstance(titan_type, type) and is_dataclass(titan_type):
            section = type(titan_type.__name__, (titan_type,), {"__module__": __name__})
            cls.__annotations__[name] = section
    for name, annotation in cls.__annotations__.items():
        if getattr(annotation, "__module__", "") == __name__:  # a section's class of this file
            section = make_dataclasses(annotation, f"{prefix}{name}.")
            setattr(cls, name, field(default_factory=section))
    return dataclass(cls)


make_dataclasses(Config)
DEFAULTS = Config()


# ---- validate ----


def import_extensions(layer: Layer | None = None) -> dict[str, ModuleType]:
    """Import the extensions whose sections a recipe has; without a recipe, all with a section."""
    names = [path.parent.name for path in EXTENSIONS.glob("*/__init__.py")]
    if layer:
        names = [key for key in layer if key in names]
    extensions = {}
    for name in names:
        module = importlib.import_module(f"extensions.{name}")
        if hasattr(module, "Section"):
            extensions[name] = module
    return extensions


def validate_recipe(
    layer: Layer, extensions: dict[str, ModuleType], unread_keys: Sequence[str] = ()
) -> Config:
    """Validate the keys of a recipe one by one, then together; fill in defaults.

    Pydantic gets JSON, because its strict Python mode takes no dict for a dataclass. Raises
    `InputError` with a line for each wrong key.

    Args:
        unread_keys: keys of FP8 that are refused where no `recipe_name` turns FP8 on.
    """
    sections = [(name, extension.Section) for name, extension in extensions.items()]
    validator = make_validator(*sections)
    config = validate_layer(
        lambda data: validator.validate_json(json.dumps(data)), layer, list_keys(), find_replacement
    )
    contradictions = [*find_contradictions(config), *explain_unread_keys(layer, config)]
    if config.quantize.linear.float8.recipe_name is None:
        contradictions += [(key, FP8_IS_OFF) for key in unread_keys]
    for extension in extensions.values():
        if hasattr(extension, "contradictions"):
            contradictions += extension.contradictions(config)
    if contradictions:
        raise make_input_error(layer, contradictions)
    return config


@cache  # one class for each set of extensions: dataclasses of two classes are never equal
def make_validator(*sections: tuple[str, type]) -> TypeAdapter:
    """Make the validator of recipes with sections of extensions: (name, dataclass) each."""
    section_fields = [(name, section, field(default=None)) for name, section in sections]
    return TypeAdapter(make_dataclass("WithExtensions", section_fields, bases=(Config,)))


def find_contradictions(config: Config) -> list[tuple[str, str]]:
    """List contradictions between keys: (the key to look at, what to do) each."""
    training = config.training
    dataloader = training.dataloader
    batch_size = training.local_batch_size
    global_batch_size = training.global_batch_size
    contradictions = []

    def add(key: str, sentence: str) -> None:
        contradictions.append((key, sentence))

    if global_batch_size > 0 and global_batch_size % batch_size:
        add(
            "training.global_batch_size",
            f"should be a multiple of local_batch_size ({batch_size}), got {global_batch_size}",
        )
    total_steps = config.lr_scheduler.total_steps
    if total_steps and total_steps < training.steps:
        add(
            "lr_scheduler.total_steps",
            f"should be at least training.steps ({training.steps}), got {total_steps}",
        )
    profiling = config.profiling
    profiled_steps = profiling.profiler_warmup + profiling.profiler_active
    if profiling.enable_profiling and profiling.profile_freq <= profiled_steps:
        add(
            "profiling.profile_freq",
            f"should be more than profiler_warmup + profiler_active ({profiled_steps})",
        )
    if config.compile.enable and not config.compile.components:
        add(
            "compile.components",
            "leaves nothing to compile; set compile.enable to false, or this to [model, loss]",
        )
    if config.activation_checkpoint.mode == "memory_budget" and not config.compile.compiles_model:
        add(
            "activation_checkpoint.mode",
            "memory_budget is the compiler's; set compile.enable to true, with model among "
            "compile.components",
        )
    if dataloader.persistent_workers and not dataloader.num_workers:
        add(
            "training.dataloader.persistent_workers",
            "needs num_workers of at least 1; set that, or this to false",
        )
    if dataloader.prefetch_factor and not dataloader.num_workers:
        add(
            "training.dataloader.prefetch_factor",
            "needs num_workers of at least 1; set that, or this to null",
        )
    if training.dataset_path and training.dataset != "parquet":
        add(
            "training.dataset_path",
            "is read with training.dataset=parquet alone; set that, or leave the path out",
        )
    end_of_text = config.data.end_of_text
    if end_of_text not in (None, BPE_END_OF_TEXT) and not config.model.hf_assets_path:
        add(
            "data.end_of_text",
            f"names a token of model.hf_assets_path, and the BPE trained in its place has "
            f"{BPE_END_OF_TEXT}; leave it out, or set that path",
        )
    return contradictions + _find_float8_contradictions(config)


def _find_float8_contradictions(config: Config) -> list[tuple[str, str]]:
    """List contradictions of the keys of FP8: (the key to look at, what to do) each."""
    float8_config = config.quantize.linear.float8
    training = config.training
    gathers_fp8 = float8_config.enable_fsdp_float8_all_gather
    if float8_config.recipe_name is None:
        return []
    contradictions = []
    unfit_tokens = explain_unfit_tokens(training.seq_len, training.local_batch_size)
    if unfit_tokens:
        contradictions.append(("training.seq_len", unfit_tokens))
    if gathers_fp8 and float8_config.recipe_name in ROW_SCALINGS:
        key = f"{FLOAT8_SECTION}.enable_fsdp_float8_all_gather"
        sentence = (
            f"needs recipe_name: tensorwise, got {float8_config.recipe_name}; set it to false"
        )
        contradictions.append((key, sentence))
    if float8_config.precompute_float8_dynamic_scale_for_fsdp and not gathers_fp8:
        key = f"{FLOAT8_SECTION}.precompute_float8_dynamic_scale_for_fsdp"
        sentence = (
            "is not read without enable_fsdp_float8_all_gather: set that to true, or this to false"
        )
        contradictions.append((key, sentence))
    return contradictions


# ---- advice ----


def find_replacement(key: str) -> str | None:
    """Say what to do instead of a key that recipes do not have; None without such advice."""
    move = find_move(key)
    if move and not move.key:
        return f"torchtitan has dropped it: {move.note}"
    if move:
        return _describe_move(*move)
    for beginning, advice in REFUSED_KEYS.items():
        if key.startswith(beginning):
            return advice
    return None


def _describe_move(key: str, note: str) -> str | None:
    """Say where torchtitan has moved a key; None if there is no such place."""
    sentence = f"torchtitan has moved it to {key}"
    advice = find_replacement(key)
    if advice:
        return f"{sentence}, and that is not a key here: {advice}"
    if not any(f"{name}.".startswith(f"{key}.") for name in flatten_sections(asdict(DEFAULTS))):
        return None
    sentence += ": set that"
    return f"{sentence}, {note}" if note else sentence


def list_keys() -> Iterator[str]:
    """List all sections and keys, with the keys of extensions."""
    sections = asdict(DEFAULTS)
    yield from [*sections, *flatten_sections(sections)]
    for name, extension in import_extensions().items():
        yield from (f"{name}.{key.name}" for key in fields(extension.Section))
