"""Qwen3's dense models: torchtitan's, with a choice of the attention kernel.

Beside a Llama: a head's size is its own and not dim / heads, and queries and keys are normed before RoPE, head by head.
RoPE turns feature i with feature i + head_dim / 2, in the dtype of the products, as Hugging Face's implementation does.
"""

from dataclasses import dataclass, fields

import models.device  # noqa: F401  # before torchtitan: see there  # isort: skip
from torchtitan.models.qwen3 import Qwen3Model, Qwen3ModelArgs, qwen3_args

from models.llama import FromRecipe, InnerAttention


@dataclass
class Qwen3Args(FromRecipe, Qwen3ModelArgs):
    """torchtitan's Qwen3 arguments, and those of the recipe."""


def _published(size: str) -> Qwen3Args:
    return Qwen3Args(**{field.name: getattr(qwen3_args[size], field.name) for field in fields(Qwen3ModelArgs)})


FLAVORS = {f"qwen3-{size}": _published(size) for size in ("0.6B", "1.7B", "4B", "8B", "14B")} | {
    # The same architecture in seconds a step on two cores; tied as up to 4B, heads together wider than dim as in 0.6B.
    "qwen3-cpu": Qwen3Args(dim=256, n_layers=4, n_heads=8, n_kv_heads=4, head_dim=64, hidden_dim=768, vocab_size=4096,
                           enable_weight_tying=True),
}  # fmt: skip


class Qwen3(Qwen3Model):
    """torchtitan's model with the attention kernel that the recipe names."""

    def __init__(self, args: Qwen3Args):
        super().__init__(args)
        for block in self.layers.values():
            block.attention.inner_attention = InnerAttention(args.attention_backend)
