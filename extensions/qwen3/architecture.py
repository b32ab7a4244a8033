"""Qwen3, dense and as a mixture of experts: torchtitan's, with a choice of the attention kernel.

Unlike a Llama's, a head's size is a number of the model and not dim / heads, and queries and keys
are normed before RoPE, head by head. RoPE turns feature i with feature i + head_dim / 2, in the
dtype of the matmuls, as Hugging Face's implementation does.

In a mixture of experts a block's SwiGLU layer is one of many, the experts. A router scores them for
each token, and the token goes through the few best. Nothing keeps the experts equally busy:
torchtitan 0.2.2's Qwen3 has a bias that could, and never moves it from 0. Qwen3's own training had
a loss for it, which torchtitan lacks.
"""

from dataclasses import dataclass, replace
from functools import partialmethod

from models import device  # before torchtitan: see there  # isort: skip
import torch
from torch import nn
from torchtitan.models.llama4.infra.parallelize import apply_compile
from torchtitan.models.qwen3 import Qwen3Model, Qwen3ModelArgs, qwen3_args

from models.architectures import Architecture, InnerAttention, RecipeArgs, RecipeModel
from models.errors import InputError
from models.flops import format_parameters

# ---- sizes ----


@dataclass
class Qwen3Args(RecipeArgs, Qwen3ModelArgs):
    """torchtitan's arguments of Qwen3, and the recipe's."""


@dataclass
class ExpertsArgs(Qwen3Args):
    """Arguments of a mixture of experts, three matrices each. A token goes through the `top_k`
    best, whose widths add up to `hidden_dim`."""

    moe_enabled: bool = True

    def update_from_config(self, job_config, **kwargs) -> None:
        """Take the recipe's keys. Raises `InputError` for a width that is none of these models'."""
        if job_config.model.sizes.hidden_dim:
            raise InputError("model.sizes.hidden_dim: experts have one width, leave it out")
        super().update_from_config(job_config, **kwargs)

    def block_shapes(self) -> dict[str, tuple[int, int]]:
        """List (out_features, in_features) of a block's linear layers; torch has experts in other
        modules."""
        shapes = super().block_shapes()
        for name in ("w1", "w2", "w3"):
            del shapes[f"feed_forward.{name}"]
        shapes["moe.router.gate"] = (self.moe_args.num_experts, self.dim)
        return shapes

    def expert_parameters(self, experts_per_block: int) -> int:
        """Count the parameters of so many experts in each block."""
        return self.n_layers * experts_per_block * 3 * self.dim * self.moe_inter_dim

    def parameters(self) -> int:
        """Count the parameters, all experts included."""
        return super().parameters() + self.expert_parameters(self.moe_args.num_experts)

    def unused_parameters(self) -> int:
        """Count the parameters of the experts that a token does not go through."""
        return self.expert_parameters(self.moe_args.num_experts - self.moe_args.top_k)

    def describe(self) -> str:
        """Say how large the model is, and how much of it a token uses."""
        active_parameters = self.parameters() - self.unused_parameters()
        return f"{super().describe()} ({format_parameters(active_parameters)} active)"

    def saved_features(self, recomputed: bool, in_fp8: bool) -> int:
        """Count the features of a layer that are saved for a token's backward pass.

        Experts stay in bf16. For the product with the router's score, each that a token goes
        through also saves its input, and in float32 its output.
        """
        saved_by_experts = 3 * self.moe_args.top_k * self.dim
        return super().saved_features(recomputed, False) + saved_by_experts


_DENSE = ("0.6B", "1.7B", "4B", "8B", "14B")
# As 0.6B, the heads are wider than dim in sum. A step takes seconds on two cores.
_SMALL = {
    "dim": 256,
    "n_layers": 4,
    "n_heads": 8,
    "n_kv_heads": 4,
    "head_dim": 64,
    "vocab_size": 4096,
}
_A3B = vars(qwen3_args["30B-A3B"])
FLAVORS = {f"qwen3-{size}": Qwen3Args(**vars(qwen3_args[size])) for size in _DENSE} | {
    "qwen3-30B-A3B": ExpertsArgs(**_A3B),
    "qwen3-cpu": Qwen3Args(**_SMALL, hidden_dim=768, enable_weight_tying=True),  # as up to 4B
    # A token goes through 2 of 8 experts; they have twice the weights of the attention, as the 8 of
    # 128 of 30B-A3B.
    "qwen3-moe-cpu": ExpertsArgs(
        **_SMALL,
        hidden_dim=2 * 512,
        moe_inter_dim=512,
        moe_args=replace(_A3B["moe_args"], num_experts=8, top_k=2),
    ),
}


# ---- model ----


class Router(nn.Linear):
    """Score the experts, in bf16: the FP8 conversion takes only plain linear layers.

    A router has 1 in 100 of the FLOPs or less, and where FP8 rounds its scores a token goes to
    other experts.
    """


class Qwen3(Qwen3Model, RecipeModel):
    """torchtitan's model with the attention kernel that the recipe names."""

    # A graph cannot hold how many tokens each expert gets: only the code around experts is
    # compiled.
    compile_blocks = partialmethod(apply_compile, ep_enabled=False)

    def __init__(self, args: Qwen3Args):
        super().__init__(args)
        for block in self.layers.values():
            block.attention.inner_attention = InnerAttention(args.attention_backend)
            if args.moe_enabled:
                block.moe.router.gate.__class__ = Router
                # a GPU computes all experts in one kernel, a CPU one after the other
                block.moe.experts.use_grouped_mm = device.TYPE == "cuda"


ARCHITECTURE = Architecture(Qwen3, FLAVORS)


# torchtitan counts the tokens of each expert by histc of integers, which only CUDA has.
_histc = torch.histc
if device.TYPE == "cpu":
    torch.histc = lambda x, **kwargs: _histc(x.float(), **kwargs).to(x.dtype)
