"""The FP8 layer: torchao's arithmetic bit for bit, scales of rows in every product, compiled graphs
that are cached."""

import copy

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters
from torch.utils.checkpoint import checkpoint

from models import float8, fp8_product
from models.fp8_linear import Fp8Linear, Products
from models.fp8_operands import SCALINGS

K, N, TOKENS = 64, 96, 48


@pytest.fixture(autouse=True)
def products_of_this_machine():
    for name in SCALINGS:
        float8.product("cuda" if torch.cuda.is_available() else "cpu", name, False)


def linear(dtype=torch.bfloat16) -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(K, N, bias=False).to(dtype)


def results(layer: nn.Module, dtype=torch.bfloat16) -> list[torch.Tensor]:
    """Output, input gradient and weight gradient of two rows of tokens, some of which are large."""
    x = torch.randn(2, TOKENS // 2, K, generator=torch.Generator().manual_seed(1)).to(dtype)
    x[0, :3] *= 100
    x.requires_grad_()
    out = layer(x)
    out.float().square().sum().backward()
    return [out.detach(), x.grad, layer.weight.grad]


def skip_unless_multiplied(name: str) -> None:
    if float8.product("cpu", name, False).how == float8.EMULATED:
        pytest.skip(f"torch {torch.__version__} has no {name} FP8 operator for the CPU")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("row_scales", [True, False])
@pytest.mark.parametrize("name", SCALINGS)
def test_the_arithmetic_is_torchaos(name, row_scales, dtype):
    """Powers of 2 in the product or after it are the same; only bf16's largest numbers could
    tell."""
    from torchao.float8 import Float8LinearConfig
    from torchao.float8.float8_linear import Float8Linear

    skip_unless_multiplied(name)
    torchaos = Float8Linear.from_float(
        linear(dtype), config=Float8LinearConfig.from_recipe_name(name)
    )
    own = Fp8Linear.from_float(linear(dtype), Products(name, row_scales=row_scales))
    for expected, result in zip(results(torchaos, dtype), results(own, dtype), strict=True):
        assert torch.equal(expected, result)


@pytest.mark.parametrize("name", SCALINGS)
def test_emulation_rounds_alike(name):
    """The same FP8 operands, multiplied in float32: to bf16's rounding."""
    skip_unless_multiplied(name)
    for real, emulated in zip(
        results(Fp8Linear.from_float(linear(), Products(name))),
        results(Fp8Linear.from_float(linear(), Products(name, emulate=True))),
        strict=True,
    ):
        assert (real.float() - emulated.float()).norm() < 0.01 * real.float().norm()


@pytest.mark.parametrize("compiled", [False, True])
def test_autocast_does_not_change_what_is_emulated(compiled):
    """As with float32 parameters on one device; the input comes in bf16, as the layer's hook casts
    it."""
    layer = Fp8Linear.from_float(linear(torch.float32), Products("tensorwise", emulate=True))
    apart = layer(torch.ones(16, K).sin().bfloat16())
    with torch.autocast("cpu", torch.bfloat16):
        within = (torch.compile(layer) if compiled else layer)(torch.ones(16, K).sin().bfloat16())
    assert torch.equal(apart, within)


@pytest.mark.parametrize(
    ("row_scales", "products"),
    [
        (True, [(TOKENS, True), (TOKENS, False), (N, False)]),
        (False, [(TOKENS, True), (1, False), (1, False)]),
    ],
)
def test_scales_of_rows_go_to_the_product_where_it_takes_them(row_scales, products, monkeypatch):
    """(numbers in the scale of the left operand, fast accumulation) of each; elsewhere the result
    is scaled."""
    skip_unless_multiplied("rowwise")
    calls, operator = [], torch._scaled_mm

    def called(a, b, scale_a, scale_b, **keys):
        calls.append((scale_a.numel(), keys.get("use_fast_accum", False)))
        return operator(a, b, scale_a, scale_b, **keys)

    monkeypatch.setattr(torch, "_scaled_mm", called)
    results(Fp8Linear.from_float(linear(), Products("rowwise", row_scales=row_scales)))
    assert calls == products


@pytest.mark.parametrize(
    ("capability", "cuda", "right", "given"),
    [((9, 0), "13.0", True, True), ((9, 0), "13.0", False, False), ((9, 0), "12.8", True, False),
     ((10, 0), "13.0", True, False)],
)  # fmt: skip
def test_hopper_is_given_scales_of_rows_if_it_multiplies_by_them(
    capability, cuda, right, given, monkeypatch
):
    monkeypatch.setattr(torch.version, "cuda", cuda)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    monkeypatch.setattr(fp8_product, "_kinds", lambda rowwise: [("rows", ())])
    monkeypatch.setattr(fp8_product, "_wrong", lambda *operands: None if right else "refuses")
    assert fp8_product.takes_row_scales() == given


@pytest.mark.parametrize("name", SCALINGS)
def test_compiled_activation_checkpointing_keeps_the_input_alone(name):
    torch.manual_seed(0)
    how = Products(name, emulate=True, keep_weight=False)
    layers = nn.Sequential(
        *(Fp8Linear.from_float(nn.Linear(K, K, bias=False), how) for _ in range(3))
    )
    plain, x = copy.deepcopy(layers), torch.randn(TOKENS, K, requires_grad=True)
    compiled = torch.compile(
        lambda x: checkpoint(layers, x, use_reentrant=False), backend="aot_eager_decomp_partition"
    )
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(
        lambda saved: (kept.append(saved), saved)[1], lambda saved: saved
    ):
        out = compiled(x)
    matrices = {
        saved.data_ptr() for saved in kept if saved.dim() == 2 and 1 not in saved.shape
    }  # not scales
    assert matrices <= {tensor.data_ptr() for tensor in (x, *layers.parameters())}
    for each in (out, plain(x)):
        each.square().sum().backward()
    for checkpointed, expected in zip(layers.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(checkpointed.grad, expected.grad)


@pytest.mark.slow
def test_a_compiled_graph_is_found_again():
    """PyTorch keeps what AOTAutograd made of a graph, unless something in it cannot be a key."""
    counts = []
    for _ in range(2):
        torch._dynamo.reset()
        counters.clear()
        layer = Fp8Linear.from_float(
            nn.Linear(32, 32, bias=False).bfloat16(), Products("rowwise", emulate=True)
        )
        torch.compile(layer)(
            torch.randn(16, 32, dtype=torch.bfloat16, requires_grad=True)
        ).sum().backward()
        counts.append(dict(counters["aot_autograd"]))
    assert not any("autograd_cache_bypass" in count for count in counts)
    assert counts[1]["autograd_cache_hit"] == 1
