"""Read the matmuls of a profiled step, and compare those in FP8 with those that its layers must
run.

A converted layer of `in` and `out` features multiplies, for each pass over `tokens`:

    output             (tokens, in) by (in, out)
    input's gradient   (tokens, out) by (out, in)
    weight's gradient  (out, tokens) by (tokens, in); in bf16 where the scaling says so

Recomputation repeats the output's matmul, except where compiled code or a policy sees no need: with
recomputation it counts once or twice. All else is exact.
"""

import math
import re
from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from torch import nn

from experiments.training.plan import Plan

_FP8_MATMUL = "aten::_scaled_mm"
# Attention is none of these: bmm, or a kernel of its own.
_MATMULS = {_FP8_MATMUL, "aten::mm", "aten::addmm", "aten::_grouped_mm"}
_ATTENTION = re.compile("aten::_scaled_dot_product_(?:attention_)?(cudnn|flash|efficient|math)")
_COMPILATIONS = {
    "_compile.compile_inner (dynamo_timed)",
    "backward._backward_impl (dynamo_timed)",
}


class Matmul(NamedTuple):
    """A matmul of a profiled step."""

    operator: str
    shape: tuple[int, int, int]  # M, K, N: (M, K) by (K, N)
    row_scaled: bool  # in FP8, with a column of scales (M, 1)

    @property
    def flops(self) -> int:
        return 2 * math.prod(self.shape)

    @property
    def in_fp8(self) -> bool:
        return self.operator == _FP8_MATMUL


# ---- what ran ----


def find_matmuls(events: Iterable) -> list[Matmul]:
    """List the matmuls of a profile with shapes; without attention's.

    What torch.compile calls while it compiles, to trace or to try kernels, is left out: a phase of
    one step is profiled in the step that compiles it.
    """
    return _find(event for event in events if event.cpu_parent is None)


def flops_by_operator(matmuls: Iterable[Matmul]) -> dict[str, int]:
    """Add up the FLOPs of matmuls."""
    flops = Counter()
    for matmul in matmuls:
        flops[matmul.operator] += matmul.flops
    return dict(flops)


def find_attention(events: Iterable) -> str | None:
    """Name whose kernels computed attention; None without any."""
    found = [_ATTENTION.match(event.name) for event in events]
    return ", ".join(sorted({match[1] for match in found if match})) or None


def _find(events: Iterable) -> list[Matmul]:
    """List the matmuls that operators are or call.

    Eager FP8 enters as aten::mm of a tensor subclass, which calls _scaled_mm: the latter counts.
    Any other matmul that calls matmuls counts itself.
    """
    found = []
    for event in events:
        if event.name in _COMPILATIONS:
            continue
        called = _find(event.cpu_children)
        if event.name in _MATMULS:
            called = [matmul for matmul in called if matmul.in_fp8] or [_matmul(event)]
        found += called
    return found


def _matmul(event) -> Matmul:
    shapes = event.input_shapes
    left, right = shapes[event.name == "aten::addmm" :][:2]  # without addmm's bias
    # A grouped matmul has the rows of all groups in its left operand.
    shape = math.prod(left[:-1]), left[-1], right[-1]
    column = any(len(shape) == 2 and shape[1] == 1 < shape[0] for shape in shapes)
    return Matmul(event.name, shape, row_scaled=column and event.name == _FP8_MATMUL)


# ---- what must run ----


def differences(plan: Plan, layers: Iterable[nn.Module], matmuls: Iterable[Matmul]) -> list[str]:
    """Name the shapes with too few or too many FP8 matmuls in a step of the converted layers."""
    tokens, passes = plan.tokens // plan.passes, plan.passes
    recomputes = plan.config.activation_checkpoint.mode != "none"
    least, most = Counter(), Counter()
    for layer in layers:
        n, k = layer.weight.shape
        count = plan.fp8.scaling.matmuls if layer.weight.requires_grad else 2
        shapes = [(tokens, k, n), (tokens, n, k), (n, tokens, k)][:count]
        least.update(shapes * passes)
        most.update((shapes + shapes[:1] * recomputes) * passes)  # the output's once more
    ran = Counter(matmul.shape for matmul in matmuls if matmul.in_fp8)
    found = []
    for shape in most.keys() | ran.keys():
        if not least[shape] <= ran[shape] <= most[shape]:
            sizes = " x ".join(map(str, shape))
            found.append(f"{ran[shape]} instead of {least[shape]} of {sizes}")
    return found
