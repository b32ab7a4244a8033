"""Matmuls of CPUs for which oneDNN has no code, on any CPU: all of them compute the same."""

from types import SimpleNamespace

import pytest
import torch

from models import cpu_matmuls, device

pytestmark = pytest.mark.skipif(device.TYPE != "cpu", reason="a GPU has units for both")


def eager_and_out(matmul, *operands, **options) -> torch.Tensor:
    """The product in eager code, which equals that of the overload `out` of compiled code."""
    product = matmul(*operands, **options)
    written = matmul(*operands, **options, out=torch.empty_like(product))
    assert torch.equal(written, product)
    return product


@pytest.mark.parametrize("name", ["mm", "addmm", "bmm", "baddbmm"])
def test_bf16_adds_up_in_float32_and_rounds_once(name):
    shape = (3, 33, 33) if "b" in name else (33, 33)
    operands = [torch.randn(shape).bfloat16() for _ in range(3 if "add" in name else 2)]
    held = cpu_matmuls.replace_kernels(cpu_matmuls.in_float32, name)
    product = eager_and_out(getattr(torch, name), *operands)
    held._destroy()
    exact = getattr(torch, name)(*(operand.double() for operand in operands))
    assert product.dtype == torch.bfloat16
    torch.testing.assert_close(product, exact.bfloat16(), rtol=2**-7, atol=2**-10)


def test_fp8_off_onednn_is_exact():
    enabled = []

    def call(kernel, keys, *operands, **options):
        def call_boxed(*arguments, **more):
            enabled.append(torch._C._get_mkldnn_enabled())
            return kernel.call_boxed(*arguments, **more)

        watched = SimpleNamespace(call_boxed=call_boxed)
        return cpu_matmuls.off_onednn(watched, keys, *operands, **options)

    held = cpu_matmuls.replace_kernels(call, "_scaled_mm")
    a = torch.randn(48, 32).to(torch.float8_e5m2)
    b = torch.randn(64, 32).to(torch.float8_e4m3fn).t()
    half = torch.tensor(0.5)
    product = eager_and_out(torch._scaled_mm, a, b, half, half, out_dtype=torch.float32)
    held._destroy()
    torch.testing.assert_close(product, a.float() @ b.float() / 4, rtol=1e-5, atol=1e-5)
    assert enabled == [False, False] and torch._C._get_mkldnn_enabled()
