"""Compiled code computes the gradients that eager code does, of every parameter, on this
machine."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from experiments.config import recipes
from experiments.training.plan import Plan, plan
from models import float8
from models.architectures import build, parallelize
from tests.runs import ONE_DEVICE

pytestmark = pytest.mark.slow


def gradients(planned: Plan, compiled: bool) -> dict[str, torch.Tensor]:
    """Of the same weights, tokens and loss each time."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    config = planned.config
    config = replace(config, compile=replace(config.compile, enable=compiled))
    model = build(config)
    with torch.no_grad():
        model.init_weights()
    model = model.bfloat16()
    float8.convert(model, planned)
    model = parallelize(model, ONE_DEVICE, config)
    tokens = torch.randint(model.vocab_size, (1, 65))
    F.cross_entropy(model(tokens[:, :-1]).float().flatten(0, 1), tokens[0, 1:]).backward()
    return {name.replace("_orig_mod.", ""): p.grad.float() for name, p in model.named_parameters()}


@pytest.mark.parametrize("name", ["tensorwise_fp8_compiled", "rowwise_fp8_compiled"])
def test_compiled_gradients_are_eager_ones(name, flavors):
    """By the norm of each parameter's gradient, since kernels may add up in another order and FP8
    magnifies the difference."""
    planned = plan(recipes.load(name, ["cpu"], ["model.sizes.n_layers=1"]))
    compiled, eager = (gradients(planned, which) for which in (True, False))
    assert compiled.keys() == eager.keys()
    error = {key: ((compiled[key] - eager[key]).norm() / eager[key].norm()).item() for key in eager}
    assert not {key: value for key, value in error.items() if not value < 0.03}  # a NaN is not
