"""Clipping."""

import math

import pytest
import torch
from torch import nn

from experiments.training.trainer import clip_gradients


@pytest.mark.parametrize(
    ("last", "max_norm", "expected"),
    [(8.0, 1.0, [0.6, 0.8]), (8.0, 1e9, [6.0, 8.0]), (math.inf, 1.0, [6.0, math.inf])],
    ids=["scaled down", "not up", "not finite: changes no gradient"],
)
def test_gradients_are_clipped_by_the_norm_of_all(last, max_norm, expected):
    weights = [nn.Parameter(torch.ones(1)) for _ in range(2)]
    weights[0].grad, weights[1].grad = torch.tensor([6.0]), torch.tensor([last])
    assert clip_gradients(weights, max_norm) == math.hypot(6, last)
    assert [weight.grad.item() for weight in weights] == pytest.approx(expected)
