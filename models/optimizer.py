"""The optimizer: AdamW fused over all parameters or PyTorch's, or one of torchao's with a smaller state or stochastic
rounding; and clipping."""

from collections.abc import Iterable

import models.device  # noqa: F401  # before torchtitan: see there  # isort: skip
import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torchao import optim
from torchtitan.components.optimizer import OptimizersContainer
from torchtitan.components.optimizer import build_optimizers as build_torch_optimizers
from torchtitan.distributed import ParallelDims

from models import fused_adamw
from models.flops import MOMENT_BLOCK


def build_optimizers(model_parts: list[nn.Module], keys, parallel_dims: ParallelDims, ft_manager=None):
    """torchtitan's container of the optimizer that the section `optimizer` describes."""
    settings = {"lr": keys.lr, "betas": (keys.beta1, keys.beta2), "eps": keys.eps, "weight_decay": keys.weight_decay}
    trainable = [p for model in model_parts for p in model.parameters() if p.requires_grad]
    if not keys.from_torchao:
        if keys.implementation == "fused" and _for_kernels(trainable):
            return OptimizersContainer(model_parts, fused_adamw.FusedAdamW, settings)
        return build_torch_optimizers(model_parts, keys, parallel_dims, ft_manager)
    classes = {"AdamW": optim._AdamW, "AdamW8bit": optim.AdamW8bit, "AdamWFp8": optim.AdamWFp8}
    settings |= {"bf16_stochastic_round": keys.stochastic_rounding}
    settings |= {} if keys.name == "AdamW" else {"block_size": MOMENT_BLOCK}
    return OptimizersContainer(model_parts, classes[keys.name], settings)


def gradient_norm(parameters: Iterable[nn.Parameter]) -> torch.Tensor:
    """The norm of all gradients together, a scalar tensor; of all ranks' shards. In float32 if bf16 ones on a GPU."""
    gradients = [p.grad for p in parameters if p.grad is not None]
    if _for_kernels(gradients):
        return fused_adamw.gradient_norm(gradients)
    norm = torch.nn.utils.get_total_norm(gradients, foreach=True)
    return norm.full_tensor() if isinstance(norm, DTensor) else norm


def clip(
    optimizers: Iterable[torch.optim.Optimizer], parameters: list[nn.Parameter], norm: torch.Tensor, max_norm: float
) -> None:
    """Scale the gradients, whose norm is `norm`, down to `max_norm`: now, or in the next step of `FusedAdamW`.

    If the norm is not finite, gradients that are stay so.
    """
    fused = [each for each in optimizers if isinstance(each, fused_adamw.FusedAdamW)]
    for each in fused:
        each.clip(norm, max_norm)
    if not fused:  # NaN would make all gradients NaN, and 0 scales nothing
        torch.nn.utils.clip_grads_with_norm_(parameters, max_norm, norm.nan_to_num(0, 0), foreach=True)


def _for_kernels(tensors: list[torch.Tensor]) -> bool:
    """Whether they are what fused_adamw's kernels are for."""
    return bool(tensors) and all(each.is_cuda and each.dtype == torch.bfloat16 for each in tensors)
