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
from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from torch import nn

from experiments.training.plan import Plan
from models.errors import by_pattern

_FP8_MATMUL = "aten::_scaled_mm"
# Attention is none of these: bmm, or a kernel of its own.
_MATMULS = {"aten::mm", "aten::addmm", "aten::_grouped_mm"}
_ATTENTION = {
    "aten::_scaled_dot_product_cudnn_attention": "cudnn",
    "aten::_scaled_dot_product_flash_attention": "flash",
    "aten::_scaled_dot_product_flash_attention_for_cpu": "flash",
    "aten::_scaled_dot_product_efficient_attention": "efficient",
    "aten::_scaled_dot_product_attention_math": "math",
}
# With max-autotune inductor may compile a matmul into a kernel of its own, as
# triton_tem_fused__scaled_mm_3.
_TEMPLATE = re.compile(r"triton_tem_.*?_(scaled_|add)?mm_")
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
        return "_scaled_mm" in self.operator


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
    names = {_ATTENTION[event.name] for event in events if event.name in _ATTENTION}
    return ", ".join(sorted(names)) or None


def _find(events: Iterable) -> list[Matmul]:
    """List the matmuls that operators are or call.

    Eager FP8 enters as aten::mm of a tensor subclass, which calls _scaled_mm: the latter counts.
    Any other matmul that calls matmuls counts itself.
    """
    found = []
    for event in events:
        if event.name in _COMPILATIONS:
            continue
        if event.name == _FP8_MATMUL or _TEMPLATE.match(event.name):
            found.append(_matmul(event))
            continue
        called = _find(event.cpu_children)
        if event.name in _MATMULS:
            called = [matmul for matmul in called if matmul.in_fp8] or [_matmul(event)]
        found += called
    return found


def _matmul(event) -> Matmul:
    name, shapes, template = event.name, event.input_shapes, _TEMPLATE.match(event.name)
    if template:  # two operands come first, each perhaps transposed, and the output last
        name = "triton _scaled_mm" if template[1] == "scaled_" else "triton mm"
        # Scales of rows have a dimension of 1 and are no matrices.
        matrices = [shape for shape in shapes if len(shape) == 2 and min(shape) > 1]
        m, n = matrices[-1]
        # (m k) (k n) is (m n) times k squared
        k = math.isqrt(math.prod(matrices[0]) * math.prod(matrices[1]) // (m * n))
    else:
        left, right = shapes[name == "aten::addmm" :][:2]  # without addmm's bias
        # A grouped matmul has the rows of all groups in its left operand.
        m, k, n = math.prod(left[:-1]), left[-1], right[-1]
    column = any(len(shape) == 2 and shape[1] == 1 < shape[0] for shape in shapes)
    return Matmul(name, (m, k, n), row_scaled=column and "_scaled_mm" in name)


# ---- what must run ----


def differences(plan: Plan, layers: dict[str, nn.Module], matmuls: Iterable[Matmul]) -> list[str]:
    """Name the shapes with too few or too many FP8 matmuls in a step, and the layers that have
    them; `layers` are those that were converted."""
    tokens = plan.tokens // plan.passes
    recomputes = plan.config.activation_checkpoint.mode != "none"
    expected, repeated = defaultdict(list), Counter()
    for name, layer in layers.items():
        n, k = layer.weight.shape
        shapes = [(tokens, k, n), (tokens, n, k)]
        if plan.fp8.scaling.matmuls == 3 and layer.weight.requires_grad:
            shapes.append((n, tokens, k))
        for shape in shapes:
            expected[shape].append(name)
        repeated[shapes[0]] += plan.passes * recomputes
    ran, found = Counter(matmul.shape for matmul in matmuls if matmul.in_fp8), []
    for shape in expected.keys() | ran.keys():
        least = plan.passes * len(expected[shape])
        if not least <= ran[shape] <= least + repeated[shape]:
            where = by_pattern(expected[shape]) or "no converted layer"
            sizes = " x ".join(map(str, shape))
            found.append(f"{ran[shape]} instead of {least} of {sizes} ({where})")
    return found
