"""The optimizer: torchtitan's fused AdamW, or one of torchao's with a smaller state or stochastic rounding."""

from collections.abc import Iterable

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torchao import optim
from torchtitan.components.optimizer import OptimizersContainer
from torchtitan.components.optimizer import build_optimizers as build_torch_optimizers
from torchtitan.distributed import ParallelDims

from models.flops import MOMENT_BLOCK


def build_optimizers(model_parts: list[nn.Module], keys, parallel_dims: ParallelDims, ft_manager=None):
    """torchtitan's container of the optimizer that the section `optimizer` describes."""
    if not keys.from_torchao:
        return build_torch_optimizers(model_parts, keys, parallel_dims, ft_manager)
    classes = {"AdamW": optim._AdamW, "AdamW8bit": optim.AdamW8bit, "AdamWFp8": optim.AdamWFp8}
    settings = {
        "lr": keys.lr,
        "betas": (keys.beta1, keys.beta2),
        "eps": keys.eps,
        "weight_decay": keys.weight_decay,
        "bf16_stochastic_round": keys.stochastic_rounding,
    } | ({} if keys.name == "AdamW" else {"block_size": MOMENT_BLOCK})
    return OptimizersContainer(model_parts, classes[keys.name], settings)


def gradient_norm(parameters: Iterable[nn.Parameter]) -> torch.Tensor:
    """The norm of all gradients together, a scalar tensor; of all ranks' shards."""
    norm = torch.nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None], foreach=True)
    return norm.full_tensor() if isinstance(norm, DTensor) else norm


def clip_in_step(optimizers: Iterable[torch.optim.Optimizer], norm: torch.Tensor, max_norm: float) -> None:
    """Have the next step of fused optimizers scale the gradients, whose norm is `norm`, as it reads them.

    `torch.nn.utils.clip_grads_with_norm_` reads and writes all gradients for it, even where nothing is to be clipped.
    PyTorch's fused optimizers divide by `grad_scale`, made for loss scaling, in float32.
    """
    scale = torch.clamp((norm.float() + 1e-6) / max_norm, min=1.0)  # 1e-6 as in clip_grad_norm_
    for optimizer in optimizers:
        optimizer.grad_scale = scale
