"""The candidate's kernel in Triton's interpreter, on CPU tensors, beside plain operators.

test_fast_layer.py runs this file with pytest in a process of its own, because Triton has to find
TRITON_INTERPRET=1 when it is imported. The interpreter cuts bf16 off and leaves FP8's small numbers
out; the fixture has it round to the nearest, as GPUs do.
"""

from unittest.mock import Mock

import pytest
import torch
from torchao.float8.float8_utils import amax_to_scale, to_fp8_saturated
from triton.runtime import interpreter

from extensions.fast_layer import layer as fast
from extensions.fast_layer.layer import TILE, cast_both
from extensions.fast_layer.tests.test_fast_layer import ours
from models import device
from tests.models.layers import layer, operands, results

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
FORMATS = {
    "bf16": (torch.bfloat16, torch.int16),
    "fp8e4nv": (E4M3, torch.uint8),
    "fp8e5": (E5M2, torch.uint8),
}


@pytest.fixture(autouse=True)
def as_on_a_gpu(monkeypatch):
    converts = interpreter._convert_float

    def convert(data, source, target, mode):
        if str(source) != "fp32" or str(target) not in FORMATS:
            return converts(data, source, target, mode)
        to, bits = FORMATS[str(target)]
        return torch.from_numpy(data.copy()).to(to).view(bits).numpy()

    monkeypatch.setattr(interpreter, "_convert_float", convert)
    monkeypatch.setattr(device, "TYPE", "cuda")


VALUES = {
    "normal": lambda x: x,
    "of all sizes": lambda x: x * torch.logspace(-30, 30, x.shape[1]),  # most become 0 or subnormal
    "zeros": lambda x: x * 0,
    "with a NaN": lambda x: torch.where(x == x.max(), torch.nan, x),
}


@pytest.mark.parametrize("values", VALUES)
@pytest.mark.parametrize("shape", [(16, 16), (TILE + 16, 48), (3, 2 * TILE + 5)], ids=str)
@pytest.mark.parametrize(("low", "dtype"), [(E4M3, torch.bfloat16), (E5M2, torch.float32)])
def test_both_are_what_plain_operators_cast(low, dtype, shape, values):
    torch.manual_seed(0)
    x = VALUES[values](torch.randn(shape)).to(dtype)
    scale = amax_to_scale(x.abs().amax(), low)
    expected = to_fp8_saturated(x.float() * scale, low)
    by_rows, by_columns, inverse = cast_both(x, low)
    for made, right in (
        (by_rows, expected),
        (by_columns.t(), expected),
        (inverse.squeeze(), 1 / scale),
    ):
        torch.testing.assert_close(made.float(), right.float(), rtol=0, atol=0, equal_nan=True)
    assert by_rows.is_contiguous() and by_columns.is_contiguous()


def test_layers_that_read_the_same_input_share_its_cast(monkeypatch):
    casts = Mock(wraps=cast_both)
    monkeypatch.setattr(fast, "cast_both", casts)
    x = operands()[0]
    for _ in range(2):
        ours("tensorwise")(x)
    assert casts.call_count == 3 and len(fast._casts) == 1  # of x once, of two weights
    del x
    casts.reset_mock()
    assert not fast._casts


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_layers_results_are_torchaos(dtype):
    made = results(ours("tensorwise", dtype))
    assert all(map(torch.equal, made, results(layer("tensorwise", dtype))))
