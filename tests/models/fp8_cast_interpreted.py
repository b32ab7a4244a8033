"""The kernel of FP8's casts in Triton's interpreter, on CPU tensors, beside plain operators.

test_fp8_linear.py runs this file with pytest in a process of its own, because Triton has to find
TRITON_INTERPRET=1 when it is imported.
"""

import pytest
import torch

from models import fp8_linear, fp8_operands
from models.fp8_linear import Fp8Linear, Products
from models.fp8_operands import E4M3, E5M2, SCALINGS, TILE, cast, cast_both
from tests.models.interpreter import round_to_nearest
from tests.models.test_fp8_linear import linear, results, skip_unless_multiplied

round_to_nearest()
TENSORWISE = SCALINGS["tensorwise"]
plain = fp8_operands.in_one_pass


@pytest.fixture(autouse=True)
def as_on_a_gpu(monkeypatch):
    for module in (fp8_linear, fp8_operands):
        monkeypatch.setattr(module, "in_one_pass", lambda x, s, emulate: not s.rows and not emulate)


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Equal to the last bit, but for the sign of what is no number."""
    a, b = a.contiguous(), b.contiguous()
    if a.dtype.itemsize > 1:
        return torch.equal(a.nan_to_num(-1), b.nan_to_num(-1))
    nan = b.float().isnan()
    return torch.equal(a.float().isnan(), nan) and torch.equal(
        a.view(torch.uint8)[~nan], b.view(torch.uint8)[~nan]
    )


VALUES = {
    "normal": lambda x: x,
    "of all sizes": lambda x: x * torch.logspace(-30, 30, x.shape[1]),  # most become 0 or subnormal
    "zeros": lambda x: x * 0,
    "one that is not finite": lambda x: x.index_put(
        (torch.tensor(1), torch.tensor(2)), torch.tensor(float("nan"))
    ),
}


@pytest.mark.parametrize("values", VALUES)
@pytest.mark.parametrize(
    "shape", [(16, 16), (TILE, 2 * TILE), (TILE + 16, 48), (3, 2 * TILE + 5)], ids=str
)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("low", [E4M3, E5M2])
def test_both_are_what_plain_operators_cast(low, dtype, shape, values):
    torch.manual_seed(0)
    x = VALUES[values](torch.randn(shape)).to(dtype)
    by_rows, by_columns = cast_both(x, low, TENSORWISE, emulate=False)
    expected = cast(x, low, TENSORWISE, along=1)
    for made in (by_rows, by_columns):
        assert made.data.shape == x.shape
        assert same(made.data, expected.data) and same(made.scale, expected.scale)
    assert by_rows.data.is_contiguous() and by_columns.data.t().is_contiguous()


def test_values_beyond_the_largest_become_it():
    x = torch.tensor([[1.0, -2.0, 500.0, -1e30]]).repeat(16, 4)
    low, _ = torch.ops.fp8.cast_and_transpose(x, torch.tensor(1.0), E4M3)
    assert low[0, :4].float().tolist() == [1.0, -2.0, 448.0, -448.0]


def test_the_operator_is_one_that_compilers_can_trust():
    x, scale = torch.randn(32, 48).bfloat16(), torch.tensor(3.0)
    torch.library.opcheck(torch.ops.fp8.cast_and_transpose.default, (x, scale, E5M2))


@pytest.mark.parametrize("keep_weight", [True, False])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_layers_results_are_those_of_plain_operators(dtype, keep_weight, monkeypatch):
    skip_unless_multiplied("tensorwise")
    made = results(
        Fp8Linear.from_float(linear(dtype), Products("tensorwise", keep_weight=keep_weight)), dtype
    )
    for module in (fp8_linear, fp8_operands):
        monkeypatch.setattr(module, "in_one_pass", plain)
    expected = results(Fp8Linear.from_float(linear(dtype), Products("tensorwise")), dtype)
    assert all(map(torch.equal, made, expected))


@pytest.mark.parametrize("keep_weight", [True, False])
def test_what_is_kept_for_the_backward_pass_is_in_fp8_but_weights_of_shards(keep_weight):
    """A weight that FSDP2 gathered must not stay, so the backward pass takes it as the parameter
    that it was."""
    skip_unless_multiplied("tensorwise")
    layer, kept = (
        Fp8Linear.from_float(linear(), Products("tensorwise", keep_weight=keep_weight)),
        [],
    )
    with torch.autograd.graph.saved_tensors_hooks(lambda x: (kept.append(x), x)[1], lambda x: x):
        layer(torch.randn(16, layer.in_features).bfloat16().requires_grad_())
    wide = [x for x in kept if x.dim() and x.dtype.itemsize > 1]
    assert [x.data_ptr() for x in wide] == ([] if keep_weight else [layer.weight.data_ptr()])
