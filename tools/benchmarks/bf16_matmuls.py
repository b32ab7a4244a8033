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

SHAPES = ((256, 256), (256, 768), (768, 256), (256, 4096))  # (features in, out)


def times() -> torch.Tensor:
    """Time the matmuls of linear layers, the quickest of five calls each: (layers, 3), seconds."""
    found = []
    for features, out in SHAPES:
        x, gradient = (torch.randn(1024, width).bfloat16() for width in (features, out))
        weight = torch.randn(out, features).bfloat16()
        matmuls = [(x, weight.t()), (gradient, weight), (gradient.t(), x)]
        found.append([min(repeat(partial(torch.mm, *pair), number=1)) for pair in matmuls])
    return torch.tensor(found)


if __name__ == "__main__":
    in_bf16 = times()
    import models.cpu_matmuls  # noqa: F401  # replaces the kernels

    print(f"torch {torch.__version__}, features in, out: {SHAPES}")
    print(in_bf16 / times())
