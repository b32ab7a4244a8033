"""AdamW and gradient clipping: fused over all bf16 parameters of a GPU, PyTorch's elsewhere, or as
a key asks."""

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
from models.fp8_adamw import STATES, AdamWFp8LM


def build_optimizers(
    model_parts: list[nn.Module], keys, parallel_dims: ParallelDims, ft_manager=None
):
    """torchtitan's container of the optimizer that the section `optimizer` describes."""
    settings = {
        "lr": keys.lr,
        "betas": (keys.beta1, keys.beta2),
        "eps": keys.eps,
        "weight_decay": keys.weight_decay,
    }
    if keys.states.master_weights:
        dtypes = {name: getattr(torch, getattr(keys.states, name)) for name in STATES}
        return OptimizersContainer(model_parts, AdamWFp8LM, settings | {"dtypes": dtypes})
    if keys.stochastic_rounding:
        return OptimizersContainer(
            model_parts, optim._AdamW, settings | {"bf16_stochastic_round": True}
        )
    trainable = [p for model in model_parts for p in model.parameters() if p.requires_grad]
    if keys.implementation == "fused" and _for_kernels(trainable):
        return OptimizersContainer(model_parts, fused_adamw.FusedAdamW, settings)
    return build_torch_optimizers(model_parts, keys, parallel_dims, ft_manager)


def gradient_norm(parameters: Iterable[nn.Parameter]) -> torch.Tensor:
    """The norm of all gradients together, all ranks' shards included: a scalar, float32 for bf16
    gradients on a GPU."""
    gradients = [p.grad for p in parameters if p.grad is not None]
    if _for_kernels(gradients):
        return fused_adamw.gradient_norm(gradients)
    norm = torch.nn.utils.get_total_norm(gradients, foreach=True)
    return norm.full_tensor() if isinstance(norm, DTensor) else norm


def clip(
    optimizers: Iterable[torch.optim.Optimizer],
    parameters: list[nn.Parameter],
    norm: torch.Tensor,
    max_norm: float,
) -> None:
    """Scale the gradients, whose norm is `norm`, down to `max_norm`: now, or in the next step of
    `FusedAdamW`.

    A norm that is not finite changes no gradient, so that those which are finite stay so.
    """
    fused = [optimizer for optimizer in optimizers if isinstance(optimizer, fused_adamw.FusedAdamW)]
    for optimizer in fused:
        optimizer.clip(norm, max_norm)
    if (
        not fused
    ):  # 0 for a norm that is not finite: it scales nothing, where NaN would make all gradients NaN
        torch.nn.utils.clip_grads_with_norm_(
            parameters, max_norm, norm.nan_to_num(0, 0), foreach=True
        )


def _for_kernels(tensors: list[torch.Tensor]) -> bool:
    """Whether the kernels of models/fused_adamw.py take these: bf16 tensors on a GPU."""
    return bool(tensors) and all(
        tensor.is_cuda and tensor.dtype == torch.bfloat16 for tensor in tensors
    )
