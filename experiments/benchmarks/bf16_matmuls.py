"""Time bf16 matmuls of a CPU as PyTorch does them and in float32: `python -m
experiments.benchmarks.bf16_matmuls`.

One process times PyTorch's matmuls first and then those in float32, at the shapes of the small
model (1024 tokens), and prints the ratios. They decide models/device.py's `widen_bf16_matmuls`.

Exit codes: 0, or 2 where oneDNN multiplies bf16, which leaves nothing to compare.
"""

import time
from collections.abc import Callable

import torch
from torch import Tensor

from experiments.jobs.command import CommandLine, leave
from models.errors import InputError

TOKENS, SHAPES = 1024, ((256, 256), (256, 768), (768, 256), (256, 4096))  # (features in, out)


def main(argv: list[str] | None = None) -> int:
    CommandLine("experiments.benchmarks.bf16_matmuls", __doc__).parse_args(argv)
    if torch.ops.mkldnn._is_mkldnn_bf16_supported():
        raise InputError("oneDNN multiplies bf16 on this CPU: compare on one without AVX-512")
    plain = {shape: matmuls(*shape) for shape in SHAPES}
    before = {shape: times_of(calls) for shape, calls in plain.items()}

    from models import device  # its import replaces the kernels

    print(f"{device.cpu_name()}, torch {torch.__version__}, {torch.get_num_threads()} threads")
    for shape, calls in plain.items():
        after = times_of(calls)
        ratios = [f"{name} {before[shape][name] / after[name]:.1f}" for name in calls]
        print(f"{shape}: times faster in float32: {', '.join(ratios)}")
    return 0


def matmuls(features: int, out: int) -> dict[str, Callable[[], Tensor]]:
    """The three matmuls of a linear layer, of random bf16 numbers."""
    x, weight = torch.randn(TOKENS, features).bfloat16(), torch.randn(out, features).bfloat16()
    gradient = torch.randn(TOKENS, out).bfloat16()
    return {
        "forward": lambda: x @ weight.t(),
        "grad_input": lambda: gradient @ weight,
        "grad_weight": lambda: gradient.t() @ x,
    }


def times_of(calls: dict[str, Callable[[], Tensor]]) -> dict[str, float]:
    """Wall seconds of each call by itself."""
    return {name: seconds(call) for name, call in calls.items()}


def seconds(call: Callable[[], Tensor], times: int = 5) -> float:
    """Wall seconds of the quickest of some calls."""
    taken = []
    for _ in range(times):
        start = time.perf_counter()
        call()
        taken.append(time.perf_counter() - start)
    return min(taken)


if __name__ == "__main__":
    leave(main)
