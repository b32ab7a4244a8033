"""The recipe's types: torchtitan's `JobConfig`, and the few keys that torchtitan has no name for.

A key keeps torchtitan's section, name, default and documentation. Declared here are the keys that
this project adds, and torchtitan's keys with fewer values that make sense: a bare annotation
narrows the values and keeps the default. `LEFT_OUT` has torchtitan's keys that no recipe sets.
"""

from dataclasses import dataclass, field, make_dataclass
from functools import cache
from typing import Annotated, ClassVar, Literal

from pydantic import ConfigDict, Field, TypeAdapter

from models import device  # noqa: F401  # before torchtitan: see there  # isort: skip
from torchtitan.config import job_config as titan

from experiments.records.run import AtLeast1, Count, Seed, Share
from models.scaling import SCALINGS

AutoOrCount = Literal[-1] | AtLeast1
Size = Annotated[int, Field(ge=1, le=1_000_000)] | None
Beta = Annotated[float, Field(ge=0, lt=1)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]

NOT_BUILT = "not supported: FSDP shards the model instead; leave it out"
NOT_FLOAT8 = "not supported: FP8 is quantize.linear.float8; leave it out"
IN_FOLDER = "always in the run's folder, which is --out; leave it out"
UNUSED = "not supported; leave it out"
LEFT_OUT = {
    "job.": "a run's folder is --out, its line the recipe's `description`; leave it out",
    "profiling.save_": IN_FOLDER,
    "metrics.save_tb_folder": IN_FOLDER,
    "model.name": "follows from model.flavor; leave it out",
    "model.converters": "follows from quantize.linear.float8; leave it out",
    "model.tokenizer_path": "is model.hf_assets_path",
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


class Job(titan.Job):
    """Set by the run, not by its recipe."""


class Profiling(titan.Profiling):
    profile_freq: AtLeast1
    profiler_active: AtLeast1
    profiler_warmup: Count


class Metrics(titan.Metrics):
    log_freq: AtLeast1


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
    """Kernel behind scaled_dot_product_attention; `auto` lets PyTorch choose by shape and
    device."""


class Optimizer(titan.Optimizer):
    name: Literal["AdamW"]
    lr: NotNegative
    beta1: Beta
    beta2: Beta
    eps: Annotated[float, Field(gt=0, le=1e-4)]
    """Epsilon. With 0, a parameter without a gradient becomes nan; beside a large one, gradients
    count for nothing."""
    weight_decay: NotNegative


class LRScheduler(titan.LRScheduler):
    warmup_steps: Count
    total_steps: AtLeast1 | None
    decay_ratio: Share | None
    min_lr_factor: Share


class DataLoader(titan.DataLoader):
    num_workers: Count
    prefetch_factor: AtLeast1 | None


class Training(titan.Training):
    local_batch_size: AtLeast1
    global_batch_size: AutoOrCount
    seq_len: Annotated[int, Field(ge=2, lt=2**31)]
    max_norm: Annotated[float, Field(gt=0)]
    steps: AtLeast1
    gc_freq: AtLeast1
    dataloader: DataLoader


class Parallelism(titan.Parallelism):
    data_parallel_replicate_degree: AtLeast1
    data_parallel_shard_degree: AutoOrCount


class Checkpoint(titan.Checkpoint):
    interval: AtLeast1
    keep_latest_k: Literal[0] | Annotated[int, Field(ge=2)]  # the last may be half written


class ActivationCheckpoint(titan.ActivationCheckpoint):
    selective_ac_option: Annotated[str, Field(pattern=r"^(op|[1-9]\d*)$")]
    memory_budget: Share
    determinism_check: Literal["default", "none"]


class Compile(titan.Compile):
    components: list[Literal["model", "loss"]] = field(default_factory=lambda: ["model", "loss"])
    """What is compiled."""

    backend: Literal["inductor", "aot_eager", "eager"] = "inductor"
    """The compiler behind torch.compile; the other two, which generate no code, are for looking for
    its errors."""

    scope: Literal["block", "model"] = "block"
    """Compile each TransformerBlock (one graph, reused by every layer), or the whole model as one
    graph."""

    emulate_precision_casts: bool = False
    """Let compiled kernels round intermediates to bf16 where eager would
    (torch._inductor.config)."""


class Float8Linear(titan.Float8Linear):
    """FP8 of linear layers."""

    recipe_name: Literal[tuple(SCALINGS)] | None = None
    """How operands are scaled, a row of models/scaling.py, which turns FP8 on: models/float8.py.
    null: no FP8."""

    filter_fqns: list[str] = field(default_factory=list)
    """Linear layers that stay in bf16, by their full names: `output`, or `layers.*.attention.wq` of
    all blocks; `first_and_last_block` are these two blocks', `auto_filter_small_kn` those that
    torchao holds to be too small to gain."""


class QuantizedLinear(titan.QuantizedLinear):
    float8: Float8Linear


class Quantize(titan.Quantize):
    linear: QuantizedLinear


class Comm(titan.Comm):
    init_timeout_seconds: AtLeast1
    train_timeout_seconds: AtLeast1
    trace_buf_size: Count

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

    cache_dir: str = ".cache/data"
    """Where prepared token files are kept, one folder per content hash."""


class Config(titan.JobConfig):
    # for its sections too
    __pydantic_config__ = ConfigDict(extra="forbid", strict=True, use_attribute_docstrings=True)

    job: Job
    profiling: Profiling
    metrics: Metrics
    model: Model
    optimizer: Optimizer
    lr_scheduler: LRScheduler
    training: Training
    parallelism: Parallelism
    checkpoint: Checkpoint
    activation_checkpoint: ActivationCheckpoint
    compile: Compile
    quantize: Quantize
    comm: Comm
    debug: Debug
    data: Data


def finish(cls: type, path: str = "") -> type:
    """Make dataclasses of a section and of those below it, which begin with their defaults.

    torchtitan reads the keys of `LEFT_OUT` too: they become attributes of the class, with
    torchtitan's values.
    """
    for name in getattr(cls.__base__, "__dataclass_fields__", ()):
        if f"{path}{name}".startswith(tuple(LEFT_OUT)):
            cls.__annotations__[name] = ClassVar
            setattr(cls, name, getattr(cls.__base__(), name))
    for name, kind in cls.__annotations__.items():
        if getattr(kind, "__module__", "") == __name__:
            setattr(cls, name, field(default_factory=finish(kind, f"{path}{name}.")))
    return dataclass(cls)


finish(Config)


@cache  # so that equal recipes are of one class
def validator(*extensions: tuple[str, type]) -> TypeAdapter:
    """Validate recipes with the sections of extensions, each its name and a dataclass."""
    sections = [(name, keys, field(default=None)) for name, keys in extensions]
    return TypeAdapter(make_dataclass("WithExtensions", sections, bases=(Config,)))
