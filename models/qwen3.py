"""Qwen3, dense and as a mixture of experts: torchtitan's, with a choice of the attention kernel.

Beside a Llama: a head's size is its own and not dim / heads, and queries and keys are normed before
RoPE, head by head. RoPE turns feature i with feature i + head_dim / 2, in the dtype of the
matmuls, as Hugging Face's implementation does.

In a mixture of experts a block's SwiGLU layer is one of many, the experts. A router scores them for
each token, and the token goes through the few best. Nothing keeps the experts equally busy:
torchtitan 0.2.2's Qwen3 has a bias that could, and never moves it from 0. Qwen3's own training had
a loss for it, which torchtitan lacks.
"""

from dataclasses import dataclass, replace
from functools import partial

from models import device  # before torchtitan: see there  # isort: skip
from torchtitan.models.qwen3 import Qwen3Model, Qwen3ModelArgs, qwen3_args

from models.llama import FromRecipe, InnerAttention


@dataclass
class Qwen3Args(FromRecipe, Qwen3ModelArgs):
    """torchtitan's Qwen3 arguments, and those of the recipe."""


_PUBLISHED = ("0.6B", "1.7B", "4B", "8B", "14B", "30B-A3B")
# The same architecture in seconds a step on two cores; heads together wider than dim as in 0.6B.
_small = partial(
    Qwen3Args, dim=256, n_layers=4, n_heads=8, n_kv_heads=4, head_dim=64, vocab_size=4096
)
FLAVORS = {f"qwen3-{size}": Qwen3Args(**vars(qwen3_args[size])) for size in _PUBLISHED} | {
    "qwen3-cpu": _small(hidden_dim=768, enable_weight_tying=True),  # tied as up to 4B
    # A token meets 2 of 8 experts; they have twice the weights of the attention, as the 8 of 128 of
    # 30B-A3B.
    "qwen3-moe-cpu": _small(
        moe_enabled=True,
        moe_inter_dim=512,
        moe_args=replace(qwen3_args["30B-A3B"].moe_args, num_experts=8, top_k=2),
    ),
}


class Qwen3(Qwen3Model):
    """torchtitan's model with the attention kernel that the recipe names."""

    def __init__(self, args: Qwen3Args):
        super().__init__(args)
        for block in self.layers.values():
            block.attention.inner_attention = InnerAttention(args.attention_backend)
            if args.moe_enabled:
                # a GPU computes all experts in one kernel, a CPU one after the other
                block.moe.experts.use_grouped_mm = device.TYPE == "cuda"
