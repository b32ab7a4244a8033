"""FP8 products on a CPU: the operator where it is right and fast, kept off oneDNN or emulated where
it is not."""

import json
import platform
import re
import sys

import pytest
import torch

from models import device, float8, fp8_product
from models.fp8_product import EMULATED, OPERATOR, WITHOUT_ONEDNN
from tests import processes
from tests.make_runs import write_run
from tests.runs import TINY, manifest_of

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU has FP8 units")
E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2


@pytest.fixture(autouse=True)
def chosen_anew():
    """What was chosen for this process is chosen again after a test."""
    float8.product.cache_clear()
    yield
    float8.product.cache_clear()
    fp8_product.choose(rowwise=False)


def times(monkeypatch, **seconds: float) -> None:
    """Have the probe measure these seconds for the operator, by who multiplies, and 1 for
    float32."""

    def measure(do, operands) -> float:
        if do is fp8_product._reference:
            return 1.0
        return seconds["kept_off"] if fp8_product._kept_off else seconds["onednn"]

    monkeypatch.setattr(fp8_product, "_seconds", measure)


@pytest.mark.parametrize(
    ("onednn", "kept_off", "factor", "how", "why"),
    [
        (2.0, 2.0, 1, OPERATOR, "is right and fast"),
        (
            400.0,
            2.0,
            1,
            WITHOUT_ONEDNN,
            "kept off oneDNN, with which it (takes over 30 times as long|refuses)",
        ),
        (
            400.0,
            400.0,
            1,
            EMULATED,
            "in float32, because torch._scaled_mm .*over 30 times as long as float32 for e4m3",
        ),
        (2.0, 2.0, 1.1, EMULATED, "gives a wrong e4m3 x e4m3 with one scale per tensor"),
    ],
)
def test_an_operator_is_used_where_it_is_right_and_fast(
    onednn, kept_off, factor, how, why, monkeypatch
):
    operator = torch._scaled_mm
    monkeypatch.setattr(torch, "_scaled_mm", lambda *a, **k: operator(*a, **k) * factor)
    times(monkeypatch, onednn=onednn, kept_off=kept_off)
    product = fp8_product.choose(rowwise=False)
    assert product.how == how and re.search(why, product.why)


@pytest.mark.parametrize("compiled", [False, True])
def test_kept_off_onednn_the_product_is_exact_and_bf16_is_not_touched(compiled, monkeypatch):
    """Computed in float32 from FP8 operands, as PyTorch's own code does; compiled graphs call
    another overload."""
    seen = []
    call = fp8_product._call
    monkeypatch.setattr(
        fp8_product, "_call", lambda *a, **k: (seen.append("called"), call(*a, **k))[1]
    )
    times(monkeypatch, onednn=400.0, kept_off=2.0)
    fp8_product._wrap_kernels.cache_clear()
    fp8_product.choose(rowwise=False)
    before, enabled = len(seen), torch._C._get_mkldnn_enabled()
    a, b = torch.randn(48, 32).to(E5M2), torch.randn(64, 32).to(E4M3).t()
    scale = torch.tensor(0.5)

    def product(a, b):
        return torch._scaled_mm(a, b, scale, scale, out_dtype=torch.float32)

    result = torch.compile(product)(a, b) if compiled else product(a, b)
    assert len(seen) > before and torch._C._get_mkldnn_enabled() == enabled
    torch.testing.assert_close(result, a.float() @ b.float() / 4, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    "environment", [{}, {"ATEN_CPU_CAPABILITY": "avx2"}, {"ATEN_CPU_CAPABILITY": "default"},
                    {"ONEDNN_MAX_CPU_ISA": "AVX2"}, {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE"},
                    {"ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2"}],
)  # fmt: skip
def test_with_fewer_instruction_sets_products_are_right(environment, monkeypatch):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    code = """
import json, torch
from models import fp8_product
product = fp8_product.choose(rowwise=False)
torch.ones(1024, 256, dtype=torch.bfloat16) @ torch.ones(256, 256, dtype=torch.bfloat16)  # as
training would a, b = torch.randn(64, 32).to(torch.float8_e4m3fn), torch.randn(48,
32).to(torch.float8_e4m3fn).t() one = torch.tensor(1.0) error = (torch._scaled_mm(a, b, one, one,
out_dtype=torch.float32) - a.float() @ b.float()).abs().max().item() print(json.dumps([product.how,
error]))
"""
    how, error = json.loads(processes.run([sys.executable, "-c", code]).stdout)
    assert how in (OPERATOR, WITHOUT_ONEDNN) and error < 1e-4


@pytest.mark.slow
def test_a_run_tells_how_its_products_were_computed(tmp_path, run_here, monkeypatch):
    times(monkeypatch, onednn=400.0, kept_off=400.0)
    out, eager = tmp_path / "run", ["--overlay", "cpu", "compile.enable=false", *TINY]
    assert run_here("tensorwise_fp8_compiled", *eager, "--out", out) == 0
    manifest, proof = manifest_of(out), json.loads((out / "proof.json").read_text())
    assert manifest["fp8_product"]["how"] == EMULATED and proof["emulated"]
    assert "over 30 times as long" in manifest["fp8_product"]["why"]


def test_the_report_says_how_products_were_computed(tmp_path):
    from analysis.comparison import compare
    from analysis.table import notes, rows_of

    write_run(tmp_path / "a", "baseline")
    why = "torch._scaled_mm is kept off oneDNN"
    for seed in (0, 1):
        path = tmp_path / f"b{seed}"
        write_run(
            path,
            "tensorwise_fp8_compiled",
            seed=seed,
            fp8_product={"how": WITHOUT_ONEDNN, "why": why},
        )
    lines = [
        line for line in notes(rows_of(compare([tmp_path]))) if line.startswith("FP8 products")
    ]
    assert lines == [f"FP8 products: {why} (tensorwise_fp8_compiled seeds 0, 1)."]


@pytest.mark.parametrize(
    ("cpuinfo", "sets"),
    [
        (
            {"Features": "fp asimd evtstrm sve2 bf16", "CPU part": "0xd4f"},
            ["asimd", "sve2", "bf16"],
        ),  # a Grace
        ({"flags": "fpu smep smx fma avx2"}, ["fma", "avx2"]),
    ],
)
def test_the_manifest_names_the_processor(cpuinfo, sets, monkeypatch):
    monkeypatch.setattr(device, "_cpuinfo", lambda: cpuinfo)
    facts = device.hardware()
    assert facts["cpu_instruction_sets"] == sets and facts["cpu"] == platform.machine()
