"""How FP8 matrices are multiplied here: by `torch._scaled_mm`, or rounded to FP8 and in float32.

A GPU multiplies with its FP8 units. A matmul that the GPU refuses fails the run; it is not
emulated.

On a CPU PyTorch's own code for the operator computes in float32. But where a CPU has `amx_int8`,
PyTorch hands matmuls with one scale per tensor to oneDNN, and without `amx_fp16` oneDNN has only
reference code for e4m3 x e4m3: 0.05 GFLOP/s, seconds instead of milliseconds (seen with torch 2.11
and 2.13 on Intel Xeons). There the operator is kept off oneDNN. Other CPUs do not reach oneDNN, or
have its fast code.
"""

from functools import cache
from typing import NamedTuple

import torch

from models import device
from models.scaling import Scaling

OPERATOR, WITHOUT_ONEDNN, EMULATED = "operator", "operator without oneDNN", "emulated"
_IN_FLOAT32 = "operands are rounded to FP8 and multiplied in float32"


class Matmul(NamedTuple):
    """How FP8 matrices are multiplied, OPERATOR, WITHOUT_ONEDNN or EMULATED, and a sentence why."""

    how: str
    why: str


@cache
def choose(scaling: Scaling, emulate: bool) -> Matmul:
    """Choose how this machine multiplies FP8 matrices; `emulate` is the recipe's key."""
    if emulate:
        return Matmul(EMULATED, f"{_IN_FLOAT32}, as the recipe asks")
    if device.TYPE == "cuda":
        return Matmul(OPERATOR, "torch._scaled_mm runs on the GPU's FP8 units")
    if not _runs_on_cpu(scaling.by_rows):
        refused = f"torch {torch.__version__} has no {scaling.name} torch._scaled_mm for CPUs"
        return Matmul(EMULATED, f"{_IN_FLOAT32}: {refused}")
    if _onednn_is_slow():
        slow = "oneDNN has only slow reference code for FP8 on a CPU with amx_int8 without amx_fp16"
        return Matmul(WITHOUT_ONEDNN, f"torch._scaled_mm is kept off oneDNN: {slow}")
    return Matmul(OPERATOR, "torch._scaled_mm runs on the CPU")


def _runs_on_cpu(by_rows: bool) -> bool:
    """Whether the operator takes such scales; torch 2.11's takes none of rows on a CPU."""
    matrix = torch.ones(16, 16).to(torch.float8_e4m3fn)
    scale = torch.ones(16, 1) if by_rows else torch.ones(())
    try:
        torch._scaled_mm(matrix, matrix.t(), scale, scale.t(), out_dtype=torch.bfloat16)
    except RuntimeError:  # NotImplementedError is one too
        return False
    return True


def _onednn_is_slow() -> bool:
    instructions = device.instruction_sets()
    return "amx_int8" in instructions and "amx_fp16" not in instructions


def off_onednn(kernel, keys, *args, **options) -> torch.Tensor:
    """Multiply by PyTorch's own code; other operators, such as bf16 matmuls, stay oneDNN's."""
    before = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)  # torch.backends.mkldnn.flags would set other flags as well
    try:
        return kernel.call_boxed(keys, *args, **options)
    finally:
        torch._C._set_mkldnn_enabled(before)


if device.TYPE == "cpu" and _onednn_is_slow():
    _FP8_MATMULS = device.replace_kernels(off_onednn, "_scaled_mm")
