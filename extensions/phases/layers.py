"""FP8 layers with a switch: they multiply in FP8, or as `nn.Linear`, on the parameter of both.

The switch is an attribute, because torch.compile compiles again where one has changed. torch 2.11
would reuse its graph where only the class of a layer has changed.
"""

from collections.abc import Iterable
from functools import cache

from torch import Tensor, nn


class SwitchedLinear:
    """What the class of an FP8 layer inherits first."""

    in_fp8: bool

    def forward(self, x: Tensor) -> Tensor:
        if self.in_fp8:
            return super().forward(x)
        return nn.Linear.forward(self, x)


@cache
def make_switched(fp8_class: type) -> type:
    """Make one class of all layers of a class: blocks then share a graph."""
    return type(fp8_class.__name__, (SwitchedLinear, fp8_class), {})


def switch_precision(layers: Iterable[nn.Module], in_fp8: bool) -> None:
    """Have FP8 layers multiply in FP8, or in bf16.

    The first switch of a compiled layer compiles a second graph; the way back uses the first one.
    """
    for layer in layers:
        if not isinstance(layer, SwitchedLinear):
            layer.__class__ = make_switched(type(layer))
        layer.in_fp8 = in_fp8
