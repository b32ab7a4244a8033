"""The architecture: torchtitan's Llama 3 with RoPE in real numbers where it is compiled, tied
embeddings, and a choice of the attention kernel. Sizes are one line each
in `FLAVORS`.
"""

from dataclasses import asdict, dataclass
from functools import partial
from typing import ClassVar

import models.device  # noqa: F401  # before torchtitan: see there  # isort: skip
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torchtitan.models.llama3 import Transformer, TransformerModelArgs
from torchtitan.models.llama3.infra import parallelize
from torchtitan.models.llama3.model import model as titan
from torchtitan.models.llama3.model.args import RoPEScalingArgs

from models.errors import InputError
from models.flops import Dense

# PyTorch's fourth, EFFICIENT_ATTENTION, has grouped KV heads from torch 2.14 on (pytorch pull
# request 191085).
ATTENTION_BACKENDS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "math": SDPBackend.MATH,
}


@dataclass
class FromRecipe(Dense):
    """What torchtitan's arguments of a model lack: keys of the recipe's section `model`, and FLOPs
    of its sizes."""

    attention_backend: str = "auto"  # or a key of `ATTENTION_BACKENDS`

    def update_from_config(self, job_config, **kwargs) -> None:
        # Or torchtitan warns of rows longer than its default, although its rotations follow.
        self.max_seq_len = max(self.max_seq_len, job_config.training.seq_len)
        super().update_from_config(job_config, **kwargs)
        keys = job_config.model
        self.attention_backend = keys.attention_backend
        for name, size in asdict(keys.sizes).items():
            if size is not None:
                setattr(self, name, size)

    def get_nparams_and_flops(self, model: nn.Module, seq_len: int) -> tuple[int, int]:
        """From the configuration, not from `model`: the same for every recipe, whatever compile or
        FP8 did to it."""
        return self.parameters(), self.flops_per_token(seq_len)


@dataclass
class LlamaArgs(FromRecipe, TransformerModelArgs):
    """torchtitan's Llama 3 arguments, those of the recipe, and tied embeddings."""

    enable_weight_tying: bool = False  # the output head's matrix is the embedding's
    qk_norm: ClassVar[bool] = False

    def update_from_config(self, job_config, **kwargs) -> None:
        """Take the recipe's keys. Raises `InputError` for sizes that cannot be a Llama's."""
        if job_config.model.sizes.head_dim:
            raise InputError(
                "model.sizes.head_dim is not a Llama's, whose heads have dim / n_heads features: "
                "leave it out"
            )
        super().update_from_config(job_config, **kwargs)
        if self.dim % self.n_heads:
            raise InputError(
                f"model.sizes: n_heads ({self.n_heads}) must divide dim ({self.dim}): change one "
                "of them"
            )

    @property
    def head_dim(self) -> int:
        return self.dim // self.n_heads

    @property
    def hidden_dim(self) -> int:
        """Width of the SwiGLU layer: 8/3 of `dim`, scaled and rounded up as Llama does."""
        hidden = int((self.ffn_dim_multiplier or 1) * int(2 * 4 * self.dim / 3))
        return -(-hidden // self.multiple_of) * self.multiple_of

    @hidden_dim.setter
    def hidden_dim(self, width: int) -> None:
        """By the two arguments that torchtitan computes it from, for the present `dim`; half a unit
        for rounding."""
        self.ffn_dim_multiplier, self.multiple_of = (width + 0.5) / int(2 * 4 * self.dim / 3), 1


def _llama(rope_factor: float = 1.0, **sizes) -> LlamaArgs:
    """Llama 3's arguments; `rope_factor` stretches RoPE's long wavelengths, as Llama 3.1 and 3.2
    do."""
    return LlamaArgs(
        rope_theta=500000, rope_scaling_args=RoPEScalingArgs(scaling_factor=rope_factor), **sizes
    )


_llama_8b = partial(
    _llama, dim=4096, n_layers=32, n_heads=32, n_kv_heads=8, ffn_dim_multiplier=1.3,
    multiple_of=1024,
)  # FFN 14336  # fmt: skip
_llama_3_1 = partial(
    _llama, n_kv_heads=8, vocab_size=128256, rope_factor=8.0, multiple_of=4096
)  # FFN 28672 and 53248
_llama_3_2 = partial(
    _llama, n_kv_heads=8, vocab_size=128256, rope_factor=32.0, enable_weight_tying=True
)  # FFN 8192
FLAVORS = {
    "8B-published": _llama_8b(vocab_size=131072),  # 8.05 B parameters, the published study's
    "llama3.1-8B": _llama_8b(vocab_size=128256, rope_factor=8.0),
    "llama3.1-70B": _llama_3_1(dim=8192, n_layers=80, n_heads=64, ffn_dim_multiplier=1.3),
    "llama3.1-405B": _llama_3_1(dim=16384, n_layers=126, n_heads=128, ffn_dim_multiplier=1.2),
    "llama3.2-3B": _llama_3_2(dim=3072, n_layers=28, n_heads=24),
    "llama3.2-1B": _llama_3_2(dim=2048, n_layers=16, n_heads=32, ffn_dim_multiplier=1.5),
    # The same architecture in seconds a step on two cores; every dimension a multiple of 16, as FP8
    # asks.
    "cpu": _llama(dim=256, n_layers=4, n_heads=8, n_kv_heads=4, vocab_size=4096),  # FFN 768
}


def apply_rope(x: Tensor, rope: Tensor) -> Tensor:
    """Rotate each pair of neighbouring features by its position's angle.

    Compiled in real arithmetic, because inductor has no code for complex tensors; eager in complex,
    as torchtitan's `apply_rotary_emb`: one multiplication instead of six operators on every second
    number.

    Args:
        x: (batch, seq, heads, head_dim), as what is returned; computed in float32.
        rope: (seq, head_dim / 2, 2), float32 cosines and sines.
    """
    pairs = x.float().unflatten(-1, (-1, 2))
    if not torch.compiler.is_compiling():
        turned = torch.view_as_complex(pairs) * torch.view_as_complex(rope).unsqueeze(-2)
        return torch.view_as_real(turned).flatten(-2).type_as(x)
    even, odd = pairs.unbind(-1)
    cos, sin = rope.unsqueeze(-3).unbind(-1)
    turned = torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1)
    return turned.flatten(-2).type_as(x)


class InnerAttention(nn.Module):
    """Causal scaled_dot_product_attention by the kernel that the recipe names."""

    def __init__(self, backend: str):
        super().__init__()
        self.backend = backend

    def forward(self, q: Tensor, k: Tensor, v: Tensor, *, enable_gqa: bool, **_) -> Tensor:
        """q: (batch, heads, seq, head_dim); k, v: (batch, kv_heads, seq, head_dim); returns the
        shape of q.

        Scores are scaled by head_dim^-0.5, which some of torchtitan's models also pass as `scale`.
        """
        keys = {"is_causal": True, "enable_gqa": enable_gqa}
        if self.backend == "auto":
            return F.scaled_dot_product_attention(q, k, v, **keys)
        with sdpa_kernel(ATTENTION_BACKENDS[self.backend]):
            return F.scaled_dot_product_attention(q, k, v, **keys)


class Attention(titan.Attention):
    """torchtitan's attention with `apply_rope`; `freqs_cis` is `Llama`'s buffer, (seq, head_dim /
    2, 2) in int32."""

    def __init__(self, args: LlamaArgs):
        super().__init__(args)
        self.inner_attention = InnerAttention(args.attention_backend)

    def forward(self, x, freqs_cis, attention_masks=None, positions=None):
        """x: (batch, seq, dim); returns the same shape."""
        batch, seq, _ = x.shape
        rope = freqs_cis[:seq].view(torch.float32)
        projected = self.wq(x), self.wk(x), self.wv(x)
        q, k, v = (t.view(batch, seq, -1, self.head_dim) for t in projected)
        q, k = apply_rope(q, rope), apply_rope(k, rope)
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        out = self.inner_attention(q, k, v, enable_gqa=self.enable_gqa)
        return self.wo(out.transpose(1, 2).reshape(batch, seq, -1))


class Llama(Transformer):
    """torchtitan's Transformer with the attention above and, where the flavor says so, a tied
    output head."""

    def __init__(self, args: LlamaArgs):
        super().__init__(args)
        for block in self.layers.values():
            block.attention = Attention(args)
        self._tie()

    def _tie(self):
        if self.model_args.enable_weight_tying:
            self.output.weight = self.tok_embeddings.weight

    def init_weights(self, buffer_device: torch.device | None = None):
        self._tie()  # again: Module.to_empty() gave the two modules separate tensors
        super().init_weights(buffer_device)

    def compile_blocks(self, keys) -> None:
        """Compile block by block; all blocks share the graph of one."""
        parallelize.apply_compile(self, keys)

    def _precompute_freqs_cis(self) -> Tensor:
        """float32 rotations, as integers: FSDP2 would cast them to bf16, as it does a block's other
        arguments."""
        return torch.view_as_real(super()._precompute_freqs_cis()).view(torch.int32)
