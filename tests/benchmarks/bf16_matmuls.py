"""Time bf16 matmuls of a CPU as PyTorch does them and in float32: `python -m
tests.benchmarks.bf16_matmuls`.

One process times PyTorch's matmuls first and then those in float32, at the shapes of the small
model (1024 tokens), and prints the ratios. They decide whether models/device.py widens bf16.

Exit codes: 0, or 2 where oneDNN multiplies bf16, which leaves nothing to compare.
"""

from timeit import repeat

import torch

from experiments.jobs.command import CommandLine, leave
from models.errors import InputError

SHAPES = ((256, 256), (256, 768), (768, 256), (256, 4096))  # (features in, out)


def main(argv: list[str] | None = None) -> int:
    CommandLine("tests.benchmarks.bf16_matmuls", __doc__).parse_args(argv)
    if torch.ops.mkldnn._is_mkldnn_bf16_supported():
        raise InputError("oneDNN multiplies bf16 on this CPU: compare on one without AVX-512")
    before = [times(*shape) for shape in SHAPES]

    from models import device  # its import replaces the kernels

    print(f"{device.cpu_name()}, torch {torch.__version__}, {torch.get_num_threads()} threads")
    print("times faster in float32: forward, gradient of the input, gradient of the weight")
    for shape, in_bf16 in zip(SHAPES, before, strict=True):
        pairs = zip(in_bf16, times(*shape), strict=True)
        print(shape, ", ".join(f"{bf16 / float32:.1f}" for bf16, float32 in pairs))
    return 0


def times(features: int, out: int, tokens: int = 1024) -> list[float]:
    """Time the three matmuls of a linear layer, the quickest of five calls each, in seconds."""
    x, weight = torch.randn(tokens, features).bfloat16(), torch.randn(out, features).bfloat16()
    gradient = torch.randn(tokens, out).bfloat16()
    matmuls = [lambda: x @ weight.t(), lambda: gradient @ weight, lambda: gradient.t() @ x]
    return [min(repeat(matmul, number=1, repeat=5)) for matmul in matmuls]


if __name__ == "__main__":
    leave(main)
