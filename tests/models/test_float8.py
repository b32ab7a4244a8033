"""torchao's FP8 layer, emulated; how a CPU multiplies."""

import platform
from types import SimpleNamespace

import pytest
import torch

from models import cpu_matmuls, device, float8
from models.float8 import EMULATED, OPERATOR, WITHOUT_ONEDNN
from models.scaling import SCALINGS
from tests.models.layers import layer, results

# ---- the layer ----


@pytest.mark.parametrize("recipe", SCALINGS)
def test_emulation_rounds_alike(recipe):
    """The same FP8 operands, multiplied in float32: to bf16's rounding."""
    emulated = results(layer(recipe, emulate=True))
    for ours, real in zip(emulated, results(layer(recipe)), strict=True):
        assert (real.float() - ours.float()).norm() < 0.01 * real.float().norm()


# ---- how FP8 matrices are multiplied ----


@pytest.mark.parametrize(
    ("sets", "runs", "emulate", "how"),
    [
        (["amx_int8", "amx_fp16"], True, False, OPERATOR),
        (["amx_int8"], True, False, WITHOUT_ONEDNN),
        (["amx_int8"], False, False, EMULATED),
        (["amx_int8"], True, True, EMULATED),
    ],
)
def test_a_cpu_multiplies_by_a_rule(sets, runs, emulate, how, monkeypatch):
    monkeypatch.setattr(device, "TYPE", "cpu")
    monkeypatch.setattr(device, "instruction_sets", lambda: sets)
    monkeypatch.setattr(float8, "_cpu_takes_row_scales", lambda: runs)
    matmul = float8.choose_matmul(SCALINGS["rowwise"], emulate)
    assert matmul.how == how and matmul.why


@pytest.mark.skipif(device.TYPE != "cpu", reason="a GPU has no oneDNN")
def test_kept_off_onednn_the_matmul_is_exact():
    """Of eager and of compiled code, which calls the overload `out`; oneDNN is back after each."""
    before, enabled = torch._C._get_mkldnn_enabled(), []

    def call(kernel, *args, **options):
        def call_boxed(*args, **options):
            enabled.append(torch._C._get_mkldnn_enabled())
            return kernel.call_boxed(*args, **options)

        return cpu_matmuls.off_onednn(SimpleNamespace(call_boxed=call_boxed), *args, **options)

    held = cpu_matmuls.replace_kernels(call, "_scaled_mm")
    a = torch.randn(48, 32).to(torch.float8_e5m2)
    b = torch.randn(64, 32).to(torch.float8_e4m3fn).t()
    half, out = torch.tensor(0.5), torch.empty(48, 64)
    eager = torch._scaled_mm(a, b, half, half, out_dtype=torch.float32)
    torch._scaled_mm(a, b, half, half, out_dtype=torch.float32, out=out)
    held._destroy()
    torch.testing.assert_close(eager, a.float() @ b.float() / 4, rtol=1e-5, atol=1e-5)
    assert torch.equal(out, eager)
    assert enabled == [False, False] and torch._C._get_mkldnn_enabled() == before


@pytest.mark.parametrize(
    ("cpuinfo", "sets"),
    [
        ({"Features": "fp asimd evtstrm sve2 bf16"}, ["asimd", "sve2", "bf16"]),  # a Grace
        ({"flags": "fpu smep smx fma avx2"}, ["fma", "avx2"]),
    ],
)
def test_the_manifest_names_the_processor(cpuinfo, sets, monkeypatch):
    monkeypatch.setattr(device, "_cpuinfo", lambda: cpuinfo)
    facts = device.hardware()
    assert facts["cpu_instruction_sets"] == sets and facts["cpu"] == platform.machine()
