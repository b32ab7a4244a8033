"""AdamW as a recipe asks for it, and the norm by which gradients are clipped."""

from collections.abc import Iterable

import models.device  # noqa: F401  # before torchtitan: see there  # isort: skip
import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn.utils import clip_grads_with_norm_, get_total_norm
from torchao import optim
from torchtitan.components.optimizer import OptimizersContainer
from torchtitan.components.optimizer import build_optimizers as build_torch_optimizers
from torchtitan.distributed import ParallelDims

from models.fp8_adamw import STATES, AdamWFp8LM


def build_optimizers(
    model_parts: list[nn.Module], keys, parallel_dims: ParallelDims, ft_manager=None
):
    """Build torchtitan's container of the optimizer that the section `optimizer` describes.

    PyTorch's AdamW, unless the recipe asks for states in FP8 (ours) or stochastic rounding
    (torchao's).
    """
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
        settings["bf16_stochastic_round"] = True
        return OptimizersContainer(model_parts, optim._AdamW, settings)
    return build_torch_optimizers(model_parts, keys, parallel_dims, ft_manager)


def gradient_norm(parameters: Iterable[nn.Parameter]) -> torch.Tensor:
    """Compute the norm of all gradients together, all ranks' shards included: a scalar."""
    norm = get_total_norm([p.grad for p in parameters if p.grad is not None], foreach=True)
    return norm.full_tensor() if isinstance(norm, DTensor) else norm


def clip(parameters: Iterable[nn.Parameter], norm: torch.Tensor, max_norm: float) -> None:
    """Scale the gradients, whose norm is `norm`, down to `max_norm`.

    A norm that is not finite changes no gradient: scaling by it would make NaN of those that are
    finite, and hide where the others come from.
    """
    clip_grads_with_norm_(parameters, max_norm, norm.nan_to_num(0, 0), foreach=True)
