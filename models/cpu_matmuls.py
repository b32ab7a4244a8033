"""Speed up matmuls on CPUs without fast code in oneDNN, PyTorch's library for them.

Importing this module replaces kernels of such a CPU:

* bf16 without AVX-512: oneDNN has no code for it, and PyTorch's own loop is 10 times and more
  slower than a float32 matmul with its casts (tools/benchmarks/bf16_matmuls.py).
* FP8 with one scale per tensor where there is `amx_int8` without `amx_fp16`: oneDNN has only
  reference code for e4m3 x e4m3, 0.05 GFLOP/s, seconds instead of milliseconds (seen with torch
  2.11 and 2.13 on Intel Xeons). PyTorch's own code computes in float32. Other CPUs do not reach
  oneDNN, or have its fast code.
"""

import warnings
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from models import device


def replace_kernels(compute: Callable, *operators: str) -> torch.library.Library:
    """Have `call(kernel, keys, *operands, **options)` compute operators of aten on the CPU.

    `kernel.call_boxed(keys, ...)` does what torch did. Eager code calls an operator, and compiled
    code its overload `out`. Returns what holds the new kernels: they go with it.
    """
    library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings(action="ignore"):  # that a kernel is replaced
        for name in [*operators, *(f"{name}.out" for name in operators)]:
            kernel = torch.library.get_kernel(f"aten::{name}", "CPU")
            # A test replaces a kernel again; torch 2.11 allows that only if it is asked to
            options = {"with_keyset": True, "allow_override": True}
            library.impl(name, partial(compute, kernel), "CPU", **options)
    return library


def multiply_in_float32(kernel, keys, *operands, **options) -> Tensor:
    """Multiply bf16 operands in float32. Like a bf16 matmul, it rounds once, at the end."""
    if operands[-1].dtype is not torch.bfloat16:
        return kernel.call_boxed(keys, *operands, **options)
    out = options.get("out")
    if out is not None:
        options["out"] = out.float()
    product = kernel.call_boxed(keys, *(operand.float() for operand in operands), **options)
    return product.bfloat16() if out is None else out.copy_(product)


def multiply_without_onednn(kernel, keys, *operands, **options) -> Tensor:
    """Multiply by PyTorch's own code; other operators, such as bf16 matmuls, stay oneDNN's."""
    was_enabled = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)  # torch.backends.mkldnn.flags sets TF32 too, which warns
    try:
        return kernel.call_boxed(keys, *operands, **options)
    finally:
        torch._C._set_mkldnn_enabled(was_enabled)


def is_onednn_slow_in_fp8() -> bool:
    """Tell if FP8 matmuls are kept off oneDNN."""
    instruction_sets = device.INSTRUCTION_SETS
    return "amx_int8" in instruction_sets and "amx_fp16" not in instruction_sets


if device.TYPE == "cpu":
    if torch.backends.mkldnn.is_available() and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        _BF16 = replace_kernels(multiply_in_float32, "mm", "addmm", "bmm", "baddbmm")
    if is_onednn_slow_in_fp8():
        _FP8 = replace_kernels(multiply_without_onednn, "_scaled_mm")
