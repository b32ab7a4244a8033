"""bf16 matmuls on a CPU: by its own units, or in float32 where it has none."""

import pytest
import torch

from models import device


@pytest.mark.skipif(device.TYPE != "cpu", reason="a GPU has bf16 units")
@pytest.mark.parametrize("name", ["mm", "addmm", "bmm", "baddbmm"])
def test_bf16_matmuls_add_up_in_float32_and_round_once(name):
    random = torch.Generator().manual_seed(0)
    batch = (3,) if "b" in name else ()
    shapes = [(*batch, 17, 33), (*batch, 33, 9)]
    if "add" in name:
        shapes.insert(0, (*batch, 17, 9))
    operands = [torch.randn(shape, generator=random).bfloat16() for shape in shapes]
    matmul = getattr(torch, name)
    exact = matmul(*(operand.double() for operand in operands))
    product = matmul(*operands)
    torch.testing.assert_close(product, exact.bfloat16(), rtol=2**-7, atol=2**-10)
    written = matmul(*operands, out=torch.empty_like(product))
    assert product.dtype == torch.bfloat16 and torch.equal(written, product)
