"""Clip gradients by the norm of all of them together; AdamW itself is PyTorch's."""

import math

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn.utils import clip_grads_with_norm_, get_total_norm


def clip(parameters: list[nn.Parameter], max_norm: float) -> torch.Tensor:
    """Scale the gradients down to a norm of `max_norm`, as torch does; an infinite one costs
    nothing.

    Returns the norm before, all ranks' shards included: a scalar. A norm that is not finite changes
    no gradient: scaling by it would make NaN of those that are finite, and hide where the others
    come from.
    """
    norm = get_total_norm([p.grad for p in parameters if p.grad is not None], foreach=True)
    if isinstance(norm, DTensor):
        norm = norm.full_tensor()
    if math.isfinite(max_norm):
        clip_grads_with_norm_(parameters, max_norm, norm.nan_to_num(0, 0), foreach=True)
    return norm
