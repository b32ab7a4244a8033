"""Where a step's time goes: the kernels of a profile, sorted into the parts of models/floors.py.

A kernel is known by its name and by the operators that launched it. On a CPU, where there are no kernels, an
operator's own time (without that of operators inside it) takes their place; compiled C++ kernels do several things at
once there, so that most of FP8's casts count as what they are fused with.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from torch.autograd import DeviceType

from models.floors import ATTENTION, CASTS, ELEMENTWISE, IDLE, LOSS, MATMUL_BF16, MATMUL_FP8, OPTIMIZER, PARTS

OTHER = "other"  # kernels that no rule knows
LOSS_REGION = "loss"  # the name of the profiler region around the loss function


@dataclass(frozen=True)
class Kernel:
    """One launch; `callers` are the operators around it, innermost first, a backward one's forward operators last."""

    name: str
    callers: tuple[str, ...]
    seconds: float  # without what ran at the same time and started before


# The first fits whose pattern is found in a kernel's name (\A) or in its callers (^), a line each, innermost first.
# Kernels of a CUDA graph have a name only; fused ones carry the names of their operators.
RULES = (
    # Optimizers announce themselves; the rest is the gradients' norm and clipping, and models/adamw_kernels.py.
    (OPTIMIZER, r"^Optimizer\.step#|^aten::(_foreach_|linalg_vector_norm)|multi_tensor_apply_kernel"
                r"|\A(sum_of_squares|adamw)$"),
    # A CPU does a scaled product by other operators inside. cuBLAS's names begin with an operand's type: q for e4m3,
    # and by a guess r for e5m2.
    (MATMUL_FP8, r"^aten::_scaled_mm|\A(triton_tem_.*scaled_mm|nvjet_(sm\d+_)?[qr]|.*(?i:gemm).*e4m3)"),
    # The model has no other batched products. What is fused around attention carries its name as well.
    (ATTENTION, r"^aten::(_?scaled_dot_product|bmm)|\A(?!.*_fused_).*(flash|fmha)"),
    # An mm has to be what launched it: there is one around FP8's casts, too.
    (MATMUL_BF16, r"\A(triton_tem_.*mm|nvjet_|.*(?i:gemm|gemv|splitk)|.*\n(aten::mm$|mkl(dnn)?::.*linear))"),
    (LOSS, rf"^{LOSS_REGION}$|log_softmax|nll_loss|SoftMax(For|Back)ward"),
    # One for each element cannot find a largest value, so if it clamps (to FP8's range) it is the second pass over
    # something, for its cast, whatever it computes again for that.
    (CASTS, r"\Atriton_poi_fused.*_clamp_"),
    # A norm, RoPE, a sum or SwiGLU, which would be there without FP8, and has taken in a largest value or a cast.
    (ELEMENTWISE, r"\A.*_fused.*_(add|silu|sum)_"),
    # Of the FP8 layers' autograd functions all but the products: a gradient added to another's is outside of them. Then
    # autocast's copies in bf16, and back.
    (CASTS, r"\A.*(_fused.*_(abs|to_copy)_|(?i:float8))|^(_Fp8Products|matmul_with_hp_or_float8_args|_ToFloat8)"
            r"|\A.*\naten::copy_\n(.+\n)*aten::linear$"),
    (ELEMENTWISE, r"^aten::|\A.*(_fused_|at::native)|\AMem(cpy|set)"),
)  # fmt: skip


def part_of(name: str, callers: Sequence[str]) -> str:
    """The part of the step that a kernel belongs to; `OTHER` if no rule knows it.

    Args:
        name: the kernel's, as the profiler gives it.
        callers: operators and regions that launched it, innermost first.
    """
    lines = "\n".join([name, *callers])
    return next((part for part, pattern in RULES if re.search(pattern, lines, re.MULTILINE)), OTHER)


def busy_seconds(kernels: Iterable[Kernel]) -> dict[str, float]:
    """Seconds by part; all of `PARTS`, and `OTHER` only if there is any."""
    seconds = dict.fromkeys(PARTS, 0.0)
    for kernel in kernels:
        part = part_of(kernel.name, kernel.callers)
        seconds[part] = seconds.get(part, 0.0) + kernel.seconds
    return seconds


def step_parts(busy: dict[str, float], profiled_s: float, step_s: float, host_is_device: bool) -> dict[str, float]:
    """Parts of a steady step that add up to it, from those of a profiled one.

    A profile slows the host and not the kernels, so a GPU idles for what a steady step leaves beside them. Where the
    host computes, the profile slows everything alike.

    Args:
        busy: seconds by part of a profiled step.
        profiled_s: duration of that step.
        step_s: duration of a steady one, not profiled.
        host_is_device: there is no GPU.
    """
    total = sum(busy.values())
    whole = max(profiled_s, total) if host_is_device else max(step_s, total)
    return {part: seconds * step_s / whole for part, seconds in (busy | {IDLE: whole - total}).items()}


def top_kernels(kernels: Iterable[Kernel], steps: int, count: int = 60) -> list[dict]:
    """The kernels that take most, as evidence: name, launching operator, part, calls and seconds per step."""
    rows: dict[tuple, dict] = {}
    for kernel in kernels:
        op = kernel.callers[0] if kernel.callers else None
        part = part_of(kernel.name, kernel.callers)
        row = {"name": kernel.name[:200], "op": op, "part": part, "calls": 0, "s": 0}  # some names are pages
        row = rows.setdefault((kernel.name, op, part), row)
        row["calls"] += 1 / steps
        row["s"] += kernel.seconds / steps
    return sorted(rows.values(), key=lambda row: -row["s"])[:count]


# ---- from a profile ----


def read_kernels(profiler) -> list[Kernel]:
    """GPU kernels of a finished `torch.profiler.profile`; operators where there are none."""
    events = profiler.events()
    on_gpu = [e for e in events if e.device_type == DeviceType.CUDA and not e.is_user_annotation]
    operators = [e for e in events if e.device_type == DeviceType.CPU]
    forward = {(e.sequence_nr, e.thread): e for e in operators if _may_be_forward(e)}  # the last one made the node
    if not on_gpu:
        return [Kernel(e.name, _callers(e, forward), e.self_cpu_time_total / 1e6) for e in operators if _computes(e)]
    launched: dict[tuple, list] = {}  # by name and duration: launches that have both in common are interchangeable
    for operator in operators:
        for kernel in operator.kernels:
            launched.setdefault((kernel.name, kernel.duration), []).append(operator)
    kernels, covered = [], 0.0
    for event in sorted(on_gpu, key=lambda e: e.time_range.start):
        start, end = event.time_range.start, event.time_range.end
        operators = launched.get((event.name, end - start))
        callers = _callers(operators.pop(), forward) if operators else ()
        kernels.append(Kernel(event.name, callers, max(0.0, end - max(start, covered)) / 1e6))
        covered = max(covered, end)
    return kernels


_BACKWARD_NODE = 1  # RecordScope::BACKWARD_FUNCTION


def _may_be_forward(event) -> bool:
    return event.scope != _BACKWARD_NODE and event.sequence_nr >= 0 and not event.name.startswith("autograd::engine")


def _computes(event) -> bool:
    """Whether it is an operator or a compiled kernel; everything else is Python around them."""
    return re.match(r"(aten|mkl|mkldnn|quantized|torchao)::", event.name) is not None or "_fused_" in event.name


def _callers(event, forward: dict) -> tuple[str, ...]:
    """Names from an operator outwards; from a backward node it goes on with the forward operator that made it."""
    names: list[str] = []
    while event is not None:
        names.append(event.name)
        if event.scope == _BACKWARD_NODE:
            event = forward.get((event.sequence_nr, event.fwd_thread))
        elif event.sequence_nr >= 0 and event.cpu_parent is not None and event.cpu_parent.scope == _BACKWARD_NODE:
            event = None  # it can be differentiated: a forward pass again, of activation checkpointing
        else:
            event = event.cpu_parent
    return tuple(names)
