"""Read a profile: its matmuls, their FLOPs, and whose kernels computed attention."""

import math
import re
from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

_FP8_MATMULS = {"aten::_scaled_mm", "aten::_scaled_mm_v2"}
# Of linear layers and of experts, which a CPU multiplies one after the other. Attention is bmm or a
# kernel of its own.
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
    flops: int  # 2 M N K
    row_scaled: bool  # in FP8, with a column of scales, one for each row: (m, 1)


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
        if event.name in _FP8_MATMULS or _TEMPLATE.match(event.name):
            found.append(_matmul(event))
            continue
        called = _find(event.cpu_children)
        if event.name in _MATMULS:
            called = [matmul for matmul in called if matmul.operator in _FP8_MATMULS]
            called = called or [_matmul(event)]
        found += called
    return found


def _matmul(event) -> Matmul:
    name, shapes, template = event.name, event.input_shapes, _TEMPLATE.match(event.name)
    if template:  # two operands come first, each perhaps transposed, and the output last
        name = "triton _scaled_mm" if template[1] == "scaled_" else "triton mm"
        # Scales of rows have a dimension of 1 and are no matrices.
        matrices = [math.prod(shape) for shape in shapes if len(shape) == 2 and min(shape) > 1]
        # (m k) (k n) (m n) is (m n k) squared
        flops = 2 * math.isqrt(matrices[0] * matrices[1] * matrices[-1])
    else:
        left, right = shapes[name == "aten::addmm" :][:2]  # without addmm's bias
        # A grouped matmul has the rows of all experts in its left operand.
        flops = 2 * math.prod(left) * right[-1]
    column = any(len(shape) == 2 and shape[1] == 1 < shape[0] for shape in shapes)
    return Matmul(name, flops, column and "_scaled_mm" in name)
