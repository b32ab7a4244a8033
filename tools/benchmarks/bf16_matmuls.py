"""Time bf16 matmuls of a CPU as PyTorch does them and in float32:

    python -m tools.benchmarks.bf16_matmuls

Prints how many times faster float32 is at the shapes of the small model (1024 tokens): a row for
each layer, with the output, the gradient of the input and the gradient of the weight. The ratios
decide whether models/cpu_matmuls.py multiplies bf16 in float32. They are 1 where oneDNN multiplies
bf16, as with AVX-512.
"""

from functools import partial
from timeit import repeat

import torch

from experiments.jobs.command import EXIT_COMPLETED, CommandLine, exit_with

SHAPES = ((256, 256), (256, 768), (768, 256), (256, 4096))  # (features in, out)


def time_matmuls() -> torch.Tensor:
    """Time the matmuls of linear layers, the quickest of five calls each: (layers, 3), seconds."""
    seconds = []
    for in_features, out_features in SHAPES:
        x = torch.randn(1024, in_features).bfloat16()
        gradient = torch.randn(1024, out_features).bfloat16()
        weight = torch.randn(out_features, in_features).bfloat16()
        matmuls = [(x, weight.t()), (gradient, weight), (gradient.t(), x)]
        seconds.append([min(repeat(partial(torch.mm, *pair), number=1)) for pair in matmuls])
    return torch.tensor(seconds)


def main(argv: list[str] | None = None) -> int:
    CommandLine("tools.benchmarks.bf16_matmuls", __doc__).parse_arguments(argv)
    bf16_s = time_matmuls()
    import models.cpu_matmuls  # noqa: F401  # replaces the kernels

    print(f"torch {torch.__version__}, features in, out: {SHAPES}")
    print(bf16_s / time_matmuls())
    return EXIT_COMPLETED


if __name__ == "__main__":
    exit_with(main)
