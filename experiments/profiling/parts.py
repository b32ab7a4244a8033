"""Where a step's time goes: the kernels of a profile, sorted into the parts of models/floors.py.

    read_kernels    what ran, and who launched it, from PyTorch's profiler
    part_of         the part that a kernel belongs to, by rules
    table           kernels with their parts, which `busy_seconds` and `top_kernels` add up

A kernel is recognised by its name and by the operators that launched it. On a CPU operators take
the place of kernels, each with its own time without that of operators inside it. Compiled kernels
do several things at once, and most of FP8's casts count as what they are fused with: compare casts
and element-wise work together with their rooflines.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import pandas as pd
from torch.autograd import DeviceType

from models.floors import (
    ATTENTION,
    CASTS,
    ELEMENTWISE,
    IDLE,
    LOSS,
    MATMUL_BF16,
    MATMUL_FP8,
    OPTIMIZER,
    PARTS,
)

OTHER = "other"  # kernels that no rule knows
LOSS_REGION = "loss"  # the name of the profiler region around the loss function


class Kernel(NamedTuple):
    """One launch of a kernel, with its name as the profiler gives it.

    `callers` are the operators and regions that launched it, innermost first; after a backward
    operator the forward ones that it belongs to. `seconds` leave out the time in which a kernel
    that started before it still ran.
    """

    name: str
    callers: tuple[str, ...]
    seconds: float


# The first rule that matches decides. It is matched against lines: the kernel's name (\A), then its
# callers, innermost first (^). Kernels of a CUDA graph have a name only; compiled ones are named
# after their operators.
RULES = (
    # Optimizers have a region of their own; then the gradients' norm and clipping.
    (
        OPTIMIZER,
        r"^Optimizer\.step#|^aten::(_foreach_|linalg_vector_norm)|multi_tensor_apply_kernel",
    ),
    # On a CPU a scaled matmul calls other operators. cuBLAS's names begin with an operand's type:
    # q for e4m3, and probably r for e5m2.
    (
        MATMUL_FP8,
        r"^aten::_scaled_mm|\A(triton_tem_.*scaled_mm|nvjet_(sm\d+_)?[qr]|.*(?i:gemm).*e4m3)",
    ),
    # The model's only batched matmuls are attention's. Element-wise kernels fused around it carry
    # its name as well.
    (ATTENTION, r"^aten::(_?scaled_dot_product|bmm)|\A(?!.*_fused_).*(flash|fmha)"),
    # An mm must have launched the kernel itself: an mm is around FP8's casts, too.
    (
        MATMUL_BF16,
        r"\A(triton_tem_.*mm|nvjet_|.*(?i:gemm|gemv|splitk)"
        r"|.*\n(aten::mm$|mkl(dnn)?::.*linear))",
    ),
    (LOSS, rf"^{LOSS_REGION}$|log_softmax|nll_loss|SoftMax(For|Back)ward"),
    # A pointwise kernel finds no largest value. If it clamps (to FP8's range), it is a second pass
    # for a cast alone.
    (CASTS, r"\Atriton_poi_fused.*_clamp_"),
    # Kernels with a norm, RoPE, sum or SwiGLU count as element-wise even if an amax or cast is
    # fused in.
    (ELEMENTWISE, r"\A.*_fused.*_(add|silu|sum)_"),
    # What the autograd functions of FP8 layers do besides matmuls (a sum of two layers' gradients
    # is outside of them): torchao's, and those of models/fast_float8.py with its kernel; and
    # autocast's copies to bf16 and back.
    (
        CASTS,
        r"\A(cast_and_transpose$|.*(_fused.*_(abs|to_copy)_|(?i:float8)))"
        r"|^(_Fp8Matmuls|matmul_with_hp_or_float8_args|_ToFloat8)"
        r"|\A.*\naten::copy_\n(.+\n)*aten::linear$",
    ),
    (ELEMENTWISE, r"^aten::|\A.*(_fused_|at::native)|\AMem(cpy|set)"),
)


def part_of(name: str, callers: Sequence[str]) -> str:
    """Find the part of the step that a kernel with this name and these callers (see `Kernel`)
    belongs to, or `OTHER`."""
    lines = "\n".join([name, *callers])
    return next((part for part, pattern in RULES if re.search(pattern, lines, re.MULTILINE)), OTHER)


def table(kernels: Iterable[Kernel], steps: int) -> pd.DataFrame:
    """Put the kernels of some steps into a table: name, launching operator, part, and calls and
    seconds per step."""
    made = pd.DataFrame(kernels, columns=Kernel._fields)
    parts = map(part_of, made["name"], made["callers"])
    return pd.DataFrame(
        {
            "name": made["name"].str[:200],  # some are pages long
            "op": made["callers"].str[:1].str.join(""),
            "part": list(parts),
            "calls": 1 / steps,
            "s": made["seconds"] / steps,
        }
    )


def busy_seconds(table: pd.DataFrame) -> dict[str, float]:
    """Add up seconds by part; all of `PARTS`, and `OTHER` only if there is any."""
    return dict.fromkeys(PARTS, 0.0) | table.groupby("part")["s"].sum().to_dict()


def step_parts(
    busy: dict[str, float], profiled_s: float, step_s: float, host_is_device: bool
) -> dict[str, float]:
    """Split a steady step of `step_s` into parts, as the profiled step of `profiled_s` is.

    Profiling slows the host and not a GPU's kernels: what they leave of a steady step is the time
    the GPU idles. Where the host itself computes, profiling slows everything alike.
    """
    total = sum(busy.values())
    whole = max(total, profiled_s if host_is_device else step_s)
    seconds = busy | {IDLE: whole - total}
    return {part: s * step_s / whole for part, s in seconds.items()}


def top_kernels(table: pd.DataFrame) -> list[dict]:
    """List the 60 kernels that take most time, with their columns."""
    sums = table.groupby(["name", "op", "part"], as_index=False).sum()
    return sums.nlargest(60, "s").to_dict("records")


# ---- reading a profile ----

_BACKWARD_NODE = 1  # RecordScope::BACKWARD_FUNCTION
_COMPUTES = re.compile(r"(aten|mkl|mkldnn|quantized|torchao)::|.*_fused_")


def read_kernels(profiler) -> list[Kernel]:
    """Read GPU kernels of a finished `torch.profiler.profile`; operators where there are none."""
    events = profiler.events()
    on_gpu = [e for e in events if e.device_type == DeviceType.CUDA and not e.is_user_annotation]
    operators = [e for e in events if e.device_type == DeviceType.CPU]
    # By its number and thread a backward operator finds its forward one; of several the last has
    # made it.
    forward = {
        (e.sequence_nr, e.thread): e
        for e in operators
        if e.scope != _BACKWARD_NODE
        and e.sequence_nr >= 0
        and not e.name.startswith("autograd::engine")
    }
    if on_gpu:
        return _of_gpu(on_gpu, operators, forward)
    return [  # operators and compiled kernels; other events are Python around them
        Kernel(e.name, _callers(e, forward), e.self_cpu_time_total / 1e6)
        for e in operators
        if _COMPUTES.match(e.name)
    ]


def _of_gpu(on_gpu: list, operators: list, forward: dict) -> list[Kernel]:
    # The profiler tells which operator launched a kernel by name and duration: those with both
    # equal can be exchanged.
    launched = defaultdict(list)
    for operator in operators:
        for kernel in operator.kernels:
            launched[kernel.name, kernel.duration].append(operator)
    kernels, covered = [], 0.0
    for event in sorted(on_gpu, key=lambda e: e.time_range.start):
        start, end = event.time_range.start, event.time_range.end
        launchers = launched[event.name, end - start]
        callers = _callers(launchers.pop(), forward) if launchers else ()
        kernels.append(Kernel(event.name, callers, max(0.0, end - max(start, covered)) / 1e6))
        covered = max(covered, end)
    return kernels


def _callers(event, forward: dict) -> tuple[str, ...]:
    """Name the callers from an operator outwards; after a backward node, those of the forward
    operator that made it."""
    names: list[str] = []
    while event is not None:
        names.append(event.name)
        parent = event.cpu_parent
        if event.scope == _BACKWARD_NODE:
            event = forward.get((event.sequence_nr, event.fwd_thread))
        elif event.sequence_nr >= 0 and parent is not None and parent.scope == _BACKWARD_NODE:
            break  # an operator with a gradient: full recomputation's forward pass ends here
        else:
            event = parent
    return tuple(names)
