"""torchao's FP8 layer, emulated; how a machine multiplies."""

import platform
from pathlib import Path

import pytest

from models import device, float8
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
    monkeypatch.setattr(device, "INSTRUCTION_SETS", sets)
    monkeypatch.setattr(float8, "_cpu_takes_row_scales", lambda: runs)
    matmul = float8.choose_matmul(SCALINGS["rowwise"], emulate)
    assert matmul.how == how and matmul.why


def test_a_grace_has_a_name(monkeypatch):
    core = "processor\t: 0\nFeatures\t: fp asimd evtstrm sve2 bf16\n\n"
    monkeypatch.setattr(Path, "read_text", lambda path: core)
    assert device.instruction_sets() == ["asimd", "sve2", "bf16"]
    assert device.cpu_name() == platform.machine()
