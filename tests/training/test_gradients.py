"""Compiled code computes the gradients that eager code does, of every parameter, on this
machine."""

import pytest
import torch
import torch.distributed as dist

from experiments.config import recipes
from tests.runs import TINY

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", ["tensorwise_fp8_compiled", "rowwise_fp8_compiled"])
def test_compiled_gradients_are_eager_ones(name, train):
    compare_gradients(train, name)


def compare_gradients(train, name: str, *keys: str) -> None:
    """By the norm of each parameter's gradient, since kernels may add up in another order and FP8
    magnifies the difference."""

    def gradients(compiled: bool) -> dict[str, torch.Tensor]:
        torch._dynamo.reset()
        all_keys = [*TINY, "model.sizes.n_layers=1", f"compile.enable={compiled}", *keys]
        trainer, _ = train(recipes.load(name, ["cpu"], all_keys).config)
        dist.destroy_process_group()
        return {name: p.grad.float() for name, p in trainer.proof.trainable.items()}

    compiled, eager = gradients(True), gradients(False)
    assert compiled.keys() == eager.keys()
    error = {key: ((compiled[key] - eager[key]).norm() / eager[key].norm()).item() for key in eager}
    assert not {key: value for key, value in error.items() if not value < 0.03}  # a NaN is not
