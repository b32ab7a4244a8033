"""The candidate's kernel in Triton's interpreter, on CPU tensors, against plain operators.

test_fast_layer.py runs this file with pytest in a process of its own, because Triton has to find
TRITON_INTERPRET=1 when it is imported. The interpreter cuts bf16 off and leaves FP8's small numbers
out; the fixture has it round to the nearest, as GPUs do.
"""

from unittest.mock import Mock

import pytest
import torch
from torchao.float8.float8_utils import amax_to_scale, to_fp8_saturated
from triton.runtime import interpreter

from extensions.fast_layer import layer as fast_layer
from extensions.fast_layer.layer import TILE, cast_matrix
from extensions.fast_layer.tests.test_fast_layer import candidate_layer
from models import device
from tests.models.layers import layer, operands, results

E4M3 = torch.float8_e4m3fn
E5M2 = torch.float8_e5m2
FORMATS = {
    "bf16": (torch.bfloat16, torch.int16),
    "fp8e4nv": (E4M3, torch.uint8),
    "fp8e5": (E5M2, torch.uint8),
}


@pytest.fixture(autouse=True)
def as_on_a_gpu(monkeypatch):
    convert_as_triton = interpreter._convert_float

    def convert_to_nearest(data, source, target, mode):
        if str(source) != "fp32" or str(target) not in FORMATS:
            return convert_as_triton(data, source, target, mode)
        dtype, bits_dtype = FORMATS[str(target)]
        return torch.from_numpy(data.copy()).to(dtype).view(bits_dtype).numpy()

    monkeypatch.setattr(interpreter, "_convert_float", convert_to_nearest)
    monkeypatch.setattr(device, "TYPE", "cuda")


VALUES = {
    "normal": lambda x: x,
    "of all sizes": lambda x: x * torch.logspace(-30, 30, x.shape[1]),  # most become 0 or subnormal
    "zeros": lambda x: x * 0,
    "with a NaN": lambda x: torch.where(x == x.max(), torch.nan, x),
}


@pytest.mark.parametrize("values", VALUES)
@pytest.mark.parametrize("shape", [(16, 16), (TILE + 16, 48), (3, 2 * TILE + 5)], ids=str)
@pytest.mark.parametrize(("fp8_dtype", "dtype"), [(E4M3, torch.bfloat16), (E5M2, torch.float32)])
def test_both_casts_are_what_plain_operators_cast(fp8_dtype, dtype, shape, values):
    torch.manual_seed(0)
    x = VALUES[values](torch.randn(shape)).to(dtype)
    scale = amax_to_scale(x.abs().amax(), fp8_dtype)
    expected_fp8 = to_fp8_saturated(x.float() * scale, fp8_dtype)
    x_fp8, x_fp8_t, inverse_scale = cast_matrix(x, fp8_dtype)
    for result, expected in (
        (x_fp8, expected_fp8),
        (x_fp8_t.t(), expected_fp8),
        (inverse_scale.squeeze(), 1 / scale),
    ):
        torch.testing.assert_close(result.float(), expected.float(), rtol=0, atol=0, equal_nan=True)
    assert x_fp8.is_contiguous() and x_fp8_t.is_contiguous()


def test_layers_that_read_the_same_input_share_its_cast(monkeypatch):
    casts = Mock(wraps=cast_matrix)
    monkeypatch.setattr(fast_layer, "cast_matrix", casts)
    x = operands()[0]
    for _ in range(2):
        candidate_layer("tensorwise")(x)
    assert casts.call_count == 3 and len(fast_layer._input_casts) == 1  # x once, and two weights
    del x
    casts.reset_mock()
    assert not fast_layer._input_casts


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_layers_results_are_torchaos(dtype):
    candidate_results = results(candidate_layer("tensorwise", dtype))
    torchao_results = results(layer("tensorwise", dtype))
    assert all(map(torch.equal, candidate_results, torchao_results))
