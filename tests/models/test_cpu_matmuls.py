"""Matmuls of CPUs for which oneDNN has no code, on any CPU: all of them compute the same."""

import pytest
import torch

from models import cpu_matmuls, device

pytestmark = pytest.mark.skipif(device.TYPE != "cpu", reason="a GPU has units for both")


def eager_and_out(replacement, name: str, *operands, **options) -> torch.Tensor:
    """The product in eager code, which equals that of the overload `out` of compiled code."""
    held = cpu_matmuls.replace_kernels(replacement, name)
    product = getattr(torch, name)(*operands, **options)
    written = getattr(torch, name)(*operands, **options, out=torch.empty_like(product))
    held._destroy()
    assert torch.equal(written, product)
    return product


@pytest.mark.parametrize("name", ["mm", "addmm", "bmm", "baddbmm"])
def test_bf16_adds_up_in_float32_and_rounds_once(name):
    shape = (3, 33, 33) if "b" in name else (33, 33)
    operands = torch.randn(3 if "add" in name else 2, *shape).bfloat16()
    product = eager_and_out(cpu_matmuls.multiply_in_float32, name, *operands)
    exact = getattr(torch, name)(*operands.double())
    assert product.dtype == torch.bfloat16
    torch.testing.assert_close(product, exact.bfloat16(), rtol=2**-7, atol=2**-10)


def test_fp8_off_onednn_is_exact(monkeypatch):
    switched, half = [], torch.tensor(0.5)
    monkeypatch.setattr(torch._C, "_set_mkldnn_enabled", switched.append)
    a = torch.randn(48, 32).to(torch.float8_e5m2)
    b = torch.randn(64, 32).to(torch.float8_e4m3fn).t()
    options = {"out_dtype": torch.float32}
    product = eager_and_out(
        cpu_matmuls.multiply_without_onednn, "_scaled_mm", a, b, half, half, **options
    )
    torch.testing.assert_close(product, a.float() @ b.float() / 4, rtol=1e-5, atol=1e-5)
    assert switched == [False, True] * 2
