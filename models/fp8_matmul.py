"""How FP8 matrices are multiplied here: by `torch._scaled_mm`, or rounded to FP8 and in float32.

A GPU multiplies with its FP8 units. A matmul that the GPU refuses fails the run; it is not
emulated.

On a CPU PyTorch's own code for the operator computes in float32. But where a CPU has `amx_int8`,
PyTorch hands matmuls with one scale per tensor to oneDNN, and without `amx_fp16` oneDNN has only
reference code for e4m3 x e4m3: 0.05 GFLOP/s, seconds instead of milliseconds (seen with torch 2.11
and 2.13 on Intel Xeons). There the operator is kept off oneDNN. Other CPUs do not reach oneDNN, or
have its fast code.
"""

import warnings
from functools import cache, partial
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
    instructions = device.instruction_sets()
    if "amx_int8" in instructions and "amx_fp16" not in instructions:
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


@cache
def keep_off_onednn() -> torch.library.Library:
    """Have the CPU's `torch._scaled_mm` run PyTorch's own code, in eager and in compiled code.

    All other operators, such as bf16 matmuls, stay oneDNN's.
    """
    library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings(action="ignore"):  # that a kernel is replaced
        for name in ("_scaled_mm", "_scaled_mm.out"):
            kernel = torch.library.get_kernel(f"aten::{name}", "CPU")
            library.impl(name, partial(_call, kernel), "CPU", with_keyset=True)
    return library  # kept in the cache: the kernels would go with it


def _call(kernel, keys, *args, **kwargs):
    before = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)  # torch.backends.mkldnn.flags would set other flags as well
    try:
        return kernel.call_boxed(keys, *args, **kwargs)
    finally:
        torch._C._set_mkldnn_enabled(before)
