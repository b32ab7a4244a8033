"""NVFP4: rounding against plain arithmetic and torchao's cast, and the three matmuls of a layer."""

import math

import pytest
import torch
from torchao.prototype.mx_formats.kernels import (
    f4_unpacked_to_f32,
    f32_to_f4_unpacked,
    unpack_uint4,
)
from torchao.prototype.mx_formats.nvfp4_tensor import nvfp4_quantize, per_tensor_amax_to_scale

from extensions.scalings import nvfp4
from extensions.scalings.nvfp4 import hadamard_matrix, rotate, round_e2m1, round_nvfp4
from extensions.scalings.tests.test_scalings import layer
from tests.models.layers import operands, results

F32 = torch.float32
E2M1 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
# All positive values of e4m3, by its definition: 4 bits of exponent with a bias of 7, 3 of mantissa
E4M3 = [mantissa / 8 * 2.0**-6 for mantissa in range(8)]
E4M3 += [(1 + mantissa / 8) * 2.0 ** (e - 7) for e in range(1, 16) for mantissa in range(8)][:-1]


def round_to_nearest(value: float, values: list[float]) -> float:
    """Round to one of ascending values; of two as near, to the one of even index, whose code is
    even."""
    nearest = min(abs(value - other) for other in values)
    indices = [i for i, other in enumerate(values) if abs(value - other) == nearest]
    return values[min(indices, key=lambda i: i % 2)]


def round_at_random(value: float, values: list[float], random: float) -> float:
    """Round up if a number is below the distance to the value below, in steps."""
    below = max(other for other in values if other <= value)
    if below == values[-1]:
        return below
    above = values[values.index(below) + 1]
    return above if random < (value - below) / (above - below) else below


def round_plainly(x: torch.Tensor, rows: int, random: torch.Tensor | None = None) -> torch.Tensor:
    """Round to NVFP4 in loops over numbers of 64 bits, block by block."""
    x = x.double()
    tensor_scale = 448 * 6 / x.abs().max().item()
    result = torch.zeros_like(x)
    for top in range(0, x.shape[0], rows):
        for left in range(0, x.shape[1], 16):
            block = x[top : top + rows, left : left + 16]
            scale = round_to_nearest(
                max(block.abs().max().item() / 6 * tensor_scale, 2.0**-6), E4M3
            )
            for i in range(top, min(top + rows, x.shape[0])):
                for j in range(left, min(left + 16, x.shape[1])):
                    size = min(abs(x[i, j].item()) * tensor_scale / scale, 6.0)
                    if random is None:
                        rounded = round_to_nearest(size, E2M1)
                    else:
                        rounded = round_at_random(size, E2M1, random[i, j].item())
                    result[i, j] = math.copysign(rounded * scale / tensor_scale, x[i, j].item())
    return result


def test_e2m1_is_torchaos():
    """All ties are among the values."""
    x = torch.linspace(-6, 6, 4801)
    assert torch.equal(round_e2m1(x), f4_unpacked_to_f32(f32_to_f4_unpacked(x)))


@pytest.mark.parametrize("rows", [1, 16])
def test_rounding_is_plain_arithmetic(rows):
    """40 and 72 are no multiples of 16: the last blocks are smaller."""
    x = operands(F32)[0][:40, :72]
    x[0, 0] = 0
    assert torch.allclose(
        round_nvfp4(x, rows, False, False).double(), round_plainly(x, rows), rtol=1e-6, atol=0
    )


def test_stochastic_rounding_is_plain_arithmetic():
    x = operands(F32)[0][:32, :64]
    torch.manual_seed(7)
    rounded = round_nvfp4(x, 1, False, True)
    torch.manual_seed(7)
    random = torch.rand(32, 1, 4, 16).flatten(1)  # a number a value, in the order of the blocks
    assert torch.allclose(rounded.double(), round_plainly(x, 1, random), rtol=1e-6, atol=0)


def test_blocks_of_rows_are_torchaos_cast():
    x = operands(F32)[0]
    tensor_scale = per_tensor_amax_to_scale(x.abs().max())
    scales, codes = nvfp4_quantize(x, 16, tensor_scale)
    values = f4_unpacked_to_f32(unpack_uint4(codes)).unflatten(1, (-1, 16))
    reference = (values * scales.float().unsqueeze(-1) * tensor_scale).flatten(1)
    assert torch.allclose(round_nvfp4(x, 1, False, False), reference, rtol=1e-6, atol=0)


def test_stochastic_rounding_has_the_values_as_its_mean():
    x = torch.linspace(-6, 6, 481)
    random = torch.rand(4000, 481, generator=torch.Generator().manual_seed(0))
    mean = round_e2m1(x.expand(4000, -1), random).mean(0)
    assert (mean - x).abs().max() < 0.1  # five times the deviation of a mean of steps of 2
    assert (round_e2m1(x) - x).abs().max() == 1


def test_a_weight_and_its_transpose_are_rounded_to_the_same_values():
    weight = operands(F32)[1]
    rounded = round_nvfp4(weight, 16, False, False)
    assert torch.equal(round_nvfp4(weight.t(), 16, False, False).t(), rounded)


def test_the_hadamard_matrix_changes_no_exact_result():
    """... and spreads an outlier. 40 is no multiple of 16."""
    matrix = hadamard_matrix()
    assert torch.equal(matrix @ matrix.t(), torch.eye(16))
    assert 4 <= sum(sign < 0 for sign in nvfp4.SIGNS) <= 12
    x, _, y = (matrix[:, :40].round().clamp(-64, 64) for matrix in operands(F32))
    assert torch.equal(rotate(x) @ rotate(y).t(), x @ y.t())  # sums of quarters of integers
    outlier = torch.zeros(1, 16)
    outlier[0, 3] = 64
    assert rotate(outlier).abs().eq(16).all()


def test_values_that_are_not_finite_are_seen():
    for value in math.nan, math.inf:
        x = torch.ones(16, 16)
        x[3, 5] = value
        assert not round_nvfp4(x, 1, False, False).isfinite().all()
    assert torch.equal(round_nvfp4(torch.zeros(16, 16), 1, False, False), torch.zeros(16, 16))


def test_the_three_matmuls_of_a_layer():
    """Weights have blocks of 16 x 16, gradients are rounded at random, and both operands of the
    weight's gradient are rotated along the tokens."""
    x, weight, gradient = operands(F32)
    model = layer("nvfp4", F32)
    torch.manual_seed(0)
    products = results(model)
    torch.manual_seed(0)
    matmuls = [
        (round_nvfp4(x, 1, False, False), round_nvfp4(weight, 16, False, False)),
        (round_nvfp4(gradient, 1, False, True), round_nvfp4(weight.t(), 16, False, False)),
        (round_nvfp4(gradient.t(), 1, True, True), round_nvfp4(x.t(), 1, True, False)),
    ]
    for (lhs, rhs), result in zip(matmuls, products, strict=True):
        assert torch.allclose(lhs @ rhs.t(), result, rtol=1e-4, atol=1e-5 * result.abs().max())


def test_compiled_is_eager():
    eager_model, model = layer("nvfp4"), layer("nvfp4")
    model.compile(fullgraph=True, backend="aot_eager")
    torch.manual_seed(0)
    eager = results(eager_model)
    torch.manual_seed(0)
    assert all(map(torch.equal, eager, results(model)))
