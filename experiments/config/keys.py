"""The recipe's types: torchtitan's `JobConfig`, and the few keys that torchtitan has no name for.

A key keeps torchtitan's section, name and type, so torchtitan's documentation applies. Declared
here are the keys that this project adds, and those of which it takes fewer values.
"""

from dataclasses import dataclass, field
from typing import Literal

from pydantic import ConfigDict

from models import device  # noqa: F401  # before torchtitan: see there  # isort: skip
from torchtitan.config import job_config as titan


@dataclass
class Sizes:
    """Sizes in place of the flavor's; null keeps them."""

    dim: int | None = None
    """Features of the residual stream."""

    n_layers: int | None = None
    """Transformer blocks."""

    n_heads: int | None = None
    """Heads of queries. A Llama's heads have dim / n_heads features each."""

    n_kv_heads: int | None = None
    """Heads of keys and values, which divide n_heads."""

    head_dim: int | None = None
    """Features of a head, where model.name is qwen3."""

    hidden_dim: int | None = None
    """Width of the SwiGLU layer; a Llama's null is the flavor's rule for dim (8/3 of it, scaled and
    rounded up)."""

    vocab_size: int | None = None
    """Rows of the embedding and of the output head; `data.bpe_vocab_size` is the tokenizer's."""


@dataclass
class Model(titan.Model):
    name: Literal["llama", "qwen3"] = "llama"
    """The architecture: `llama` (Llama 3) or `qwen3`; its flavors are in models/NAME.py."""

    sizes: Sizes = field(default_factory=Sizes)
    """Sizes in place of the flavor's, as `{dim: 512, n_layers: 8}`."""

    attention_backend: Literal["auto", "flash", "cudnn", "math"] = "auto"
    """Kernel behind scaled_dot_product_attention; `auto` lets PyTorch choose by shape and
    device."""

    freeze: list[str] = field(default_factory=list)
    """Parameters that are not trained: full names, or shell patterns over them, as
    `layers.*.attention.wq.weight`."""

    fused_projections: bool = False
    """One matrix, `wqkv`, for wq, wk and wv, and one, `w13`, for w1 and w3: fewer and larger matrix
    products."""


StateDtype = Literal["float32", "bfloat16", "float16", "float8_e4m3fn"] | None


@dataclass
class States:
    """Dtypes of AdamW's states, all three or none, see models/fp8_adamw.py. null: moments in the
    parameters' dtype, and no weights beside the parameters. In FP8 and FP16 each tensor has a
    scale."""

    first_moment: StateDtype = None
    """Of the mean of the gradients."""

    second_moment: StateDtype = None
    """Of the mean of their squares."""

    master_weights: StateDtype = None
    """Of the weights that are stepped, of which the bf16 parameters are a rounded copy."""


@dataclass
class Optimizer(titan.Optimizer):
    states: States = field(default_factory=States)
    """Dtypes of the states, as `{first_moment: float8_e4m3fn, second_moment: float16,
    master_weights: float16}`; with them `implementation` has no meaning."""

    stochastic_rounding: bool = False
    """Round bf16 weights up or down at random, in proportion to the distance, instead of to the
    nearest: updates too small for bf16 then happen on average (torchao's AdamW, for which
    `implementation` has no meaning)."""

    built: Literal["before_conversion", "after_conversion"] | None = None
    """Only for the study `one_gpu_puzzle`, on one device: build the optimizer before or after the
    FP8 conversion, and let `enable_fsdp_float8_all_gather` replace parameters without FSDP. null:
    after, and that key needs FSDP."""


@dataclass
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

    cuda_graphs: bool = False
    """Record each compiled graph's kernels once and launch them together
    (torch._inductor.config.triton.cudagraphs)."""

    max_autotune_pointwise: bool = False
    """Try several configurations of each element-wise kernel and keep the fastest
    (torch._inductor.config)."""


@dataclass
class Float8Linear(titan.Float8Linear):
    implementation: Literal["torchao", "fast"] = "torchao"
    """The FP8 layer: `torchao`'s, or `fast`, models/fast_float8.py, which computes the same and
    moves fewer bytes."""

    fast_accumulation_in_backward: bool = False
    """Let the backward products, too, add up within the tensor cores, as the forward one does: less
    exact."""

    first_step: int | str | None = None
    """First step in FP8, those before it are in bf16: a number, or `after_warmup` of
    `lr_scheduler.warmup_steps`;
    null: the run starts in FP8."""

    last_step: int | str | None = None
    """Last step in FP8, those after it are in bf16: a number, or `before_last_tenth` of
    `training.steps`; null: the run ends in FP8."""


@dataclass
class QuantizedLinear(titan.QuantizedLinear):
    float8: Float8Linear = field(default_factory=Float8Linear)


@dataclass
class Quantize(titan.Quantize):
    linear: QuantizedLinear = field(default_factory=QuantizedLinear)

    gradients: Literal["float8"] | None = None
    """Send gradients in FP8 where FSDP2 reduce-scatters them, with a scale for each block of 256
    values, and add them up in float32; null: send them in float32. With or without FP8 products;
    needs no FP8 units."""


@dataclass
class Metrics(titan.Metrics):
    fp8_ranges_every: int = 20
    """Log windows from one look at the ranges of FP8's weights and gradients to the next, from the
    second window on;
    0: never. The curves are in TensorBoard and in metrics.jsonl."""


@dataclass
class Comm(titan.Comm):
    nccl_max_ctas: int | None = None
    """Most thread blocks, each on a multiprocessor of its own, that NCCL uses for a collective
    (NCCL_MAX_CTAS); null leaves it to NCCL and the environment. GPUs only."""


@dataclass
class Debug(titan.Debug):
    seed: int = 0
    """Seed of the weights and of the order of the data; every run has one."""


@dataclass
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

    max_tokens: int | None = None
    """Stop after this many tokens. Hugging Face datasets are streamed and need it; null reads
    everything."""

    bpe_vocab_size: int = 32768
    """Size of the byte-level BPE trained on the corpus itself, where `model.hf_assets_path` is
    empty."""

    cache_dir: str = ".cache/data"
    """Where prepared token files are kept, one folder per content hash."""


@dataclass
class Config(titan.JobConfig):
    __pydantic_config__ = ConfigDict(
        extra="forbid", strict=True, use_attribute_docstrings=True
    )  # for its sections too

    model: Model = field(default_factory=Model)
    optimizer: Optimizer = field(default_factory=Optimizer)
    compile: Compile = field(default_factory=Compile)
    quantize: Quantize = field(default_factory=Quantize)
    metrics: Metrics = field(default_factory=Metrics)
    comm: Comm = field(default_factory=Comm)
    debug: Debug = field(default_factory=Debug)
    data: Data = field(default_factory=Data)
