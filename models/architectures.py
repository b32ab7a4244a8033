"""Build the model: torchtitan's Llama 3 with tied embeddings and a choice of the attention kernel.

`model.flavor` chooses an architecture and its size, which `model.sizes` changes. A Llama's sizes
are one line each in `FLAVORS`; extensions bring other architectures.
"""

import importlib
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, NamedTuple

import models.device  # noqa: F401  # before torchtitan: see there  # isort: skip
import torch
import torch._inductor.config
from torch import nn
from torch.nn.attention import SDPBackend
from torchtitan.distributed import ParallelDims
from torchtitan.distributed.activation_checkpoint import apply_ac
from torchtitan.models.attention import ScaledDotProductAttentionWrapper
from torchtitan.models.llama3 import Transformer, TransformerModelArgs, llama3_args
from torchtitan.models.llama3.infra import parallelize as titan
from torchtitan.models.llama3.model.args import RoPEScalingArgs
from torchtitan.protocols.model import BaseModelArgs, ModelProtocol

from models.errors import InputError
from models.flops import Dense, explain_unfit_heads

# PyTorch's fourth, EFFICIENT_ATTENTION, has grouped KV heads from torch 2.14 on (pytorch pull
# request 191085).
ATTENTION_BACKENDS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "math": SDPBackend.MATH,
}


@dataclass
class RecipeArgs(Dense, BaseModelArgs):
    """What torchtitan's arguments of a model lack: keys of the recipe's section `model`, and FLOPs
    of its sizes."""

    attention_backend: str = "auto"  # or a key of `ATTENTION_BACKENDS`

    def update_from_config(self, job_config, **kwargs) -> None:
        """Take the recipe's keys. Raises `InputError` for impossible heads."""
        # a subclass has torchtitan's arguments as its second base
        super().update_from_config(job_config, **kwargs)  # type: ignore[safe-super]
        self.attention_backend = job_config.model.attention_backend
        for name, size in vars(job_config.model.sizes).items():
            if size is not None:
                setattr(self, name, size)
        reason = explain_unfit_heads(self)
        if reason:
            raise InputError(reason)

    def get_nparams_and_flops(self, model: nn.Module, seq_len: int) -> tuple[int, int]:
        """Count from the configuration, not from `model`: the same for every recipe, whatever
        compile or FP8 did to it."""
        return self.parameters(), self.flops_per_token(seq_len)


@dataclass
class LlamaArgs(RecipeArgs, TransformerModelArgs):
    """torchtitan's Llama 3 arguments, the recipe's, and tied embeddings."""

    enable_weight_tying: bool = False  # the output head's matrix is the embedding's
    qk_norm: ClassVar[bool] = False

    def update_from_config(self, job_config, **kwargs) -> None:
        """Take the recipe's keys. Raises `InputError` for sizes impossible in a Llama."""
        if job_config.model.sizes.head_dim:
            raise InputError("model.sizes.head_dim is dim / n_heads in a Llama: leave it out")
        super().update_from_config(job_config, **kwargs)
        if self.dim % self.n_heads:
            raise InputError(f"model.sizes: n_heads ({self.n_heads}) must divide dim ({self.dim})")

    @property
    def head_dim(self) -> int:
        return self.dim // self.n_heads

    @property
    def hidden_dim(self) -> int:
        """Compute the SwiGLU layer's width: 8/3 of `dim`, scaled and rounded up as Llama does."""
        hidden = int((self.ffn_dim_multiplier or 1) * int(2 * 4 * self.dim / 3))
        return -(-hidden // self.multiple_of) * self.multiple_of

    @hidden_dim.setter
    def hidden_dim(self, width: int) -> None:
        """Set torchtitan's two arguments, from which it computes the width.

        Any width from 1 on is rounded up to a multiple of `width`: at `dim` 256,
        int(0.5 / 256 * int(2 * 4 * 256 / 3)) = 1, and 1 becomes `width`.
        """
        self.ffn_dim_multiplier = 0.5 / self.dim
        self.multiple_of = width


_UNSCALED_ROPE = RoPEScalingArgs(scaling_factor=1.0)
_8B = LlamaArgs(**vars(llama3_args["8B"]))
_LLAMA_3_2 = replace(
    _8B,
    rope_scaling_args=RoPEScalingArgs(scaling_factor=32.0),
    multiple_of=256,  # FFN 8192
    enable_weight_tying=True,
)
FLAVORS = {
    # 8.05 B parameters, the published study's
    "8B-published": replace(_8B, vocab_size=131072, rope_scaling_args=_UNSCALED_ROPE),
    "llama3.1-8B": _8B,
    "llama3.1-70B": LlamaArgs(**vars(llama3_args["70B"])),
    "llama3.1-405B": LlamaArgs(**vars(llama3_args["405B"])),
    "llama3.2-3B": replace(
        _LLAMA_3_2, dim=3072, n_layers=28, n_heads=24, ffn_dim_multiplier=1.0
    ),
    "llama3.2-1B": replace(_LLAMA_3_2, dim=2048, n_layers=16, ffn_dim_multiplier=1.5),
    # 0.63 B, for GPUs with 8 GB; no published model
    "llama3.2-1B-6-layers": replace(
        _LLAMA_3_2, dim=2048, n_layers=6, ffn_dim_multiplier=1.5
    ),
    # The same architecture in seconds a step on two cores; every dimension a multiple of 16, as FP8
    # asks.
    "cpu": replace(
        _8B, dim=256, n_layers=4, n_heads=8, n_kv_heads=4, ffn_dim_multiplier=1.0, multiple_of=256,
        vocab_size=4096, rope_scaling_args=_UNSCALED_ROPE,
    ),  # FFN 768
}  # fmt: skip


# ---- the model ----


class InnerAttention(ScaledDotProductAttentionWrapper):
    """Causal scaled_dot_product_attention by the recipe's kernel.

    `auto` is the first of torchtitan's list that can compute it: cuDNN's, flash attention's, math.
    """

    def __init__(self, backend: str):
        super().__init__()
        if backend != "auto":
            self.sdpa_backends = [ATTENTION_BACKENDS[backend]]
        elif os.environ.get("TORCH_CUDNN_SDPA_DEPRIORITIZED") == "1":
            # PyTorch's variable for cuDNN after flash attention
            self.sdpa_backends = [ATTENTION_BACKENDS[name] for name in ("flash", "cudnn", "math")]


class RecipeModel(ModelProtocol):
    """What the core calls of a model, besides torchtitan's methods."""

    compile_blocks: Callable  # compiles each block in its place, by the recipe's section `compile`


class Llama(Transformer, RecipeModel):
    """torchtitan's Transformer with the recipe's attention kernel and, by flavor, a tied head."""

    model_args: LlamaArgs
    compile_blocks = titan.apply_compile  # all blocks share the graph of one

    def __init__(self, args: LlamaArgs):
        super().__init__(args)
        for block in self.layers.values():
            attention = block.get_submodule("attention")
            attention.inner_attention = InnerAttention(args.attention_backend)
        self._tie()

    def _tie(self):
        if self.model_args.enable_weight_tying:
            self.output.weight = self.tok_embeddings.weight

    def init_weights(self, buffer_device: torch.device | None = None):
        self._tie()  # again: Module.to_empty() gave the two modules separate tensors
        super().init_weights(buffer_device)


# ---- which model ----


class Architecture(NamedTuple):
    """A model's class, and its arguments by flavor."""

    model: type[RecipeModel]
    flavors: Mapping[str, RecipeArgs]


def list_architectures() -> Iterator[Architecture]:
    """Give Llama, and the architectures of extensions: `ARCHITECTURE` in their architecture.py."""
    yield Architecture(Llama, FLAVORS)
    for path in sorted(Path(__file__).parents[1].glob("extensions/*/architecture.py")):
        yield importlib.import_module(f"extensions.{path.parent.name}.architecture").ARCHITECTURE


def find_architecture(config) -> Architecture:
    """Find the architecture of the recipe's flavor. Raises `InputError` if none has it."""
    flavors: list[str] = []
    for candidate in list_architectures():
        if config.model.flavor in candidate.flavors:
            return candidate
        flavors += candidate.flavors
    raise InputError(
        f"model.flavor {config.model.flavor!r} is not one of {', '.join(flavors)}; "
        "for other sizes: 'model.sizes={dim: 2048}'"
    )


def model_args(config) -> RecipeArgs:
    """Give the flavor's arguments with the recipe's keys in them.

    Raises `InputError` for an unknown flavor or impossible sizes.
    """
    args = replace(
        find_architecture(config).flavors[config.model.flavor]
    )  # the flavor stays as it is
    args.update_from_config(config)
    return args


def build_model(config) -> RecipeModel:
    """Build the recipe's model. Raises as `model_args`."""
    return find_architecture(config).model(model_args(config))


# ---- what becomes of a model ----


def parallelize_model(
    model: RecipeModel, parallel_dims: ParallelDims, job_config, shard: Callable | None = None
) -> RecipeModel:
    """Recompute, compile and `shard` a model as the recipe asks, in torchtitan's order."""
    compile_config = job_config.compile
    compiles_blocks = compile_config.compiles_model and compile_config.scope == "block"
    torch._inductor.config.emulate_precision_casts = compile_config.emulate_precision_casts

    if job_config.activation_checkpoint.mode != "none":
        apply_ac(
            model,
            job_config.activation_checkpoint,
            model_compile_enabled=compiles_blocks,
            # torchtitan's list is not of the type that torchtitan asks for
            op_sac_save_list=titan._op_sac_save_list,  # type: ignore[arg-type]
            base_folder=job_config.job.dump_folder,
        )
    if compiles_blocks:
        model.compile_blocks(compile_config)
    if shard:
        shard(model, parallel_dims, job_config)
    if compile_config.compiles_model and not compiles_blocks:
        model.compile(backend=compile_config.backend)
    return model
