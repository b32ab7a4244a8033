"""`torch._scaled_mm`: how a CPU is to multiply FP8 matrices, and whether a GPU takes scales of
rows.

PyTorch's own code for CPUs computes in float32. But where a CPU has `amx_int8`, PyTorch hands
products with one scale per tensor to oneDNN, and without `amx_fp16` oneDNN has only reference code
for e4m3 x e4m3: it does 0.05 GFLOP/s, seconds instead of milliseconds (seen with torch 2.11 and
2.13 on Intel Xeons).
"""

import threading
import timeit
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial

import torch

OPERATOR, WITHOUT_ONEDNN, EMULATED = "operator", "operator without oneDNN", "emulated"
_SIZE = 64  # rows and columns of the probe's matrices: 20 ms a product in oneDNN's reference code, else 0.1 ms
_SLOW = 30  # times as long as the same product in float32; reference code takes over 300 times, others 1 to 5


@dataclass(frozen=True)
class Product:
    """How FP8 matrices are multiplied: `how` is OPERATOR, WITHOUT_ONEDNN or EMULATED; `why` is a
    sentence."""

    how: str
    why: str


def choose(rowwise: bool) -> Product:
    """Measure, in a tenth of a second, how this CPU is to multiply FP8 matrices, and set this
    process to it.

    Args:
        rowwise: whether there are products with one scale per row; there always are some with one
        per tensor.
    """
    global _kept_off
    one = torch.ones(256, 256, dtype=torch.bfloat16)
    one @ one  # after its first bf16 product PyTorch may hand FP8 ones to oneDNN that it computed itself before
    _kept_off = False
    if (problem := _problem(rowwise)) is None:
        return Product(OPERATOR, "torch._scaled_mm is right and fast on this CPU")
    _kept_off = True
    _wrap_kernels()
    if (remaining := _problem(rowwise)) is None:
        return Product(
            WITHOUT_ONEDNN,
            f"torch._scaled_mm is kept off oneDNN, with which it {problem} on this CPU",
        )
    because = f"torch._scaled_mm of torch {torch.__version__} {remaining} on this CPU"
    return Product(
        EMULATED, f"operands are rounded to FP8 and multiplied in float32, because {because}"
    )


def takes_row_scales() -> bool:
    """Whether a GPU's product without fast accumulation is to be given scales of rows: where
    cuBLASLt takes them.

    cuBLASLt does on Hopper from CUDA 12.9 on (pytorch pull request 157905); elsewhere a slow kernel
    of CUTLASS would run. A small product must also come out right.
    """
    if torch.cuda.get_device_capability()[0] != 9 or tuple(
        map(int, torch.version.cuda.split("."))
    ) < (12, 9):
        return False
    *_, (_, with_rows) = _kinds(rowwise=True)
    return _wrong(*(tensor.to("cuda") for tensor in with_rows)) is None


def _problem(rowwise: bool) -> str | None:
    """What is wrong with one of the products that FP8 recipes use, None if all are right and
    fast."""
    threads = torch.get_num_threads()
    torch.set_num_threads(
        1
    )  # so that the ratio of times tells of the code, and not of the number of cores
    try:
        for kind, operands in _kinds(rowwise):
            if wrong := _wrong(*operands):
                return f"{wrong} {kind}"
            if _seconds(_product, operands) > _SLOW * _seconds(_reference, operands):
                return f"takes over {_SLOW} times as long as float32 for {kind}"
        return None
    finally:
        torch.set_num_threads(threads)


def _kinds(rowwise: bool) -> Iterator[tuple[str, tuple[torch.Tensor, ...]]]:
    """Each kind of product and its operands: a, b, scale of a, scale of b. Gradients are e5m2, or
    e4m3 as all else."""
    values = torch.linspace(-4, 4, _SIZE * _SIZE).view(_SIZE, _SIZE).sin()
    e4m3, scales = values.to(torch.float8_e4m3fn), torch.linspace(0.5, 2, _SIZE)
    by_tensor = torch.tensor(0.5), torch.tensor(2.0)
    yield "e4m3 x e4m3 with one scale per tensor", (e4m3, e4m3.t(), *by_tensor)
    yield (
        "e5m2 x e4m3 with one scale per tensor",
        (values.to(torch.float8_e5m2), e4m3.t(), *by_tensor),
    )
    if rowwise:
        yield (
            "e4m3 x e4m3 with one scale per row",
            (e4m3, e4m3.t(), scales.view(-1, 1), scales.view(1, -1)),
        )


def _product(
    a: torch.Tensor, b: torch.Tensor, scale_a: torch.Tensor, scale_b: torch.Tensor
) -> torch.Tensor:
    return torch._scaled_mm(a, b, scale_a, scale_b, out_dtype=torch.bfloat16)


def _reference(
    a: torch.Tensor, b: torch.Tensor, scale_a: torch.Tensor, scale_b: torch.Tensor
) -> torch.Tensor:
    return (a.float() @ b.float() * scale_a * scale_b).bfloat16()


def _wrong(*operands: torch.Tensor) -> str | None:
    """What the operator does with these operands, `refuses` or `gives a wrong`; None if its result
    is right."""
    try:
        result = _product(*operands)
    except RuntimeError:  # NotImplementedError is a RuntimeError too
        return "refuses"
    right = torch.allclose(
        result, _reference(*operands), rtol=0.02, atol=0.02
    )  # bf16's rounding is 0.004
    return None if right else "gives a wrong"


def _seconds(do: Callable, operands: tuple) -> float:
    """The shortest of three calls."""
    return min(timeit.repeat(lambda: do(*operands), repeat=3, number=1))


_kept_off = False  # whether the CPU's `torch._scaled_mm` runs PyTorch's own code; bf16 products are oneDNN's either way
_lock = threading.Lock()  # whether oneDNN is used is one setting for all threads


@cache
def _wrap_kernels() -> torch.library.Library:
    """Put kernels that switch oneDNN off before PyTorch's, which they call; compiled graphs call
    them too."""
    library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings(action="ignore"):  # that a kernel is replaced
        for name in ("_scaled_mm", "_scaled_mm.out"):
            kernel = torch.library.get_kernel(f"aten::{name}", "CPU")
            library.impl(name, partial(_call, kernel), "CPU", with_keyset=True)
    return library  # kept in the cache: the kernels would go with it


def _call(kernel, keys, *args, **kwargs):
    with _lock:
        before = (
            torch._C._get_mkldnn_enabled()
        )  # torch.backends.mkldnn.flags would set other flags as well
        torch._C._set_mkldnn_enabled(before and not _kept_off)
        try:
            return kernel.call_boxed(keys, *args, **kwargs)
        finally:
            torch._C._set_mkldnn_enabled(before)
