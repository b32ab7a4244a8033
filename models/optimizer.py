"""Clip gradients by the norm of all of them together; AdamW itself is PyTorch's."""

import math
from collections.abc import Iterable

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn.utils import clip_grads_with_norm_, get_total_norm


def gradient_norm(parameters: Iterable[nn.Parameter]) -> torch.Tensor:
    """Compute the norm of all gradients together, all ranks' shards included: a scalar."""
    norm = get_total_norm([p.grad for p in parameters if p.grad is not None], foreach=True)
    return norm.full_tensor() if isinstance(norm, DTensor) else norm


def clip(parameters: Iterable[nn.Parameter], norm: torch.Tensor, max_norm: float) -> None:
    """Scale the gradients, whose norm is `norm`, down to `max_norm`, as torch does; an infinite
    `max_norm` costs nothing.

    A norm that is not finite changes no gradient: scaling by it would make NaN of those that are
    finite, and hide where the others come from.
    """
    if math.isfinite(max_norm):
        clip_grads_with_norm_(parameters, max_norm, norm.nan_to_num(0, 0), foreach=True)
