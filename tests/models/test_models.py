"""The model: sizes, FLOPs, and which of its layers FP8 converts."""

import fnmatch
from dataclasses import replace

import pytest
import torch
from torch import nn

from models import device, float8  # before torchtitan  # isort: skip
from torchtitan.models import attention

from models.architectures import InnerAttention, list_architectures

FLAVORS = {flavor: each for each in list_architectures() for flavor in each.flavors}


def on_meta(flavor: str, **sizes) -> nn.Module:
    model, flavors = FLAVORS[flavor]
    with torch.device("meta"):
        return model(replace(flavors[flavor], **sizes))


# By hand: parameters, those without the input embedding, and attention's FLOPs per token and
# position, 12 layers heads head_dim. Published: 131072 * 4096 = 536,870,912 in the embedding and in
# the head; a layer has 4096 * (4096 + 1024 + 1024 + 4096) + 3 * 4096 * 14336 + 2 * 4096 =
# 218,112,000; 32 of them and a norm of 4096.
@pytest.mark.parametrize(
    ("flavor", "parameters", "without_embedding", "attention"),
    [
        ("8B-published", 8_053_329_920, 7_516_459_008, 1_572_864),
        ("llama3.2-1B", 1_235_814_400, 1_235_814_400, 393_216),
    ],
)
def test_parameters_and_flops(flavor, parameters, without_embedding, attention):
    args, linear = FLAVORS[flavor].flavors[flavor], 6 * without_embedding
    assert args.parameters() == parameters
    assert args.flops_per_token(4096) == linear + 4096 * attention
    assert args.flops_per_token(4096, causal=True) == linear + 2048 * attention


@pytest.mark.parametrize("flavor", FLAVORS)
def test_formulas_describe_the_model_that_is_built(flavor):
    model = on_meta(flavor, n_layers=2)
    args = model.model_args
    assert sum(p.numel() for p in model.parameters()) == args.parameters()
    linears = {n: m for n, m in model.named_modules() if isinstance(m, nn.Linear)}
    assert {n: tuple(m.weight.shape) for n, m in linears.items()} == args.linear_shapes()


@pytest.mark.parametrize("backend", ["flash", "math", pytest.param("cudnn", marks=pytest.mark.gpu)])
def test_attention_backends_agree(backend):
    kind = {"device": device.TYPE, "dtype": torch.bfloat16, "requires_grad": True}
    q, k, v = (torch.randn(1, heads, 64, 64, **kind) for heads in (4, 2, 2))
    auto, chosen = (InnerAttention(name)(q, k, v, enable_gqa=True) for name in ("auto", backend))
    torch.testing.assert_close(chosen, auto, rtol=0.02, atol=0.02)  # bf16's rounding is 0.004
    chosen.sum().backward()
    assert k.grad.isfinite().all()


@pytest.mark.parametrize("flavor", FLAVORS)
def test_attention_is_torchtitans(flavor):
    """By default its list of kernels, in its order."""
    block = on_meta(flavor, n_layers=1).layers["0"]
    torchtitans = attention.ScaledDotProductAttentionWrapper()
    assert block.attention.inner_attention.sdpa_backends == torchtitans.sdpa_backends
    assert isinstance(block.attention.inner_attention, attention.ScaledDotProductAttentionWrapper)


def test_cudnns_attention_comes_later_where_pytorchs_variable_asks_for_it(monkeypatch):
    monkeypatch.setenv("TORCH_CUDNN_SDPA_DEPRIORITIZED", "1")
    names = [backend.name for backend in InnerAttention("auto").sdpa_backends]
    assert names == ["FLASH_ATTENTION", "CUDNN_ATTENTION", "MATH"]
    assert [each.name for each in InnerAttention("cudnn").sdpa_backends] == ["CUDNN_ATTENTION"]


# ---- which layers FP8 converts ----


@pytest.mark.parametrize(
    ("flavor", "patterns", "left_out"),
    [
        ("cpu", [], []),
        ("cpu", ["output", "layers.*.attention.w[kv]"], ["output", "*.wk", "*.wv"]),
        ("cpu", ["first_and_last_block"], ["layers.0.*", "layers.3.*"]),
        ("cpu", ["last_15_percent_of_blocks"], ["layers.3.*"]),
        ("8B-published", ["last_15_percent_of_blocks"], ["layers.2[789].*", "layers.3?.*"]),
        ("8B-published", ["output", float8.SMALL_LAYERS_FILTER], ["output", "*.wk", "*.wv"]),
    ],
)
def test_filters_leave_out_exactly_what_they_name(flavor, patterns, left_out):
    chosen = float8.choose_layers(on_meta(flavor), "tensorwise", patterns)
    expected = {*FLAVORS[flavor].flavors[flavor].linear_shapes()}
    for pattern in left_out:
        expected -= {*fnmatch.filter(expected, pattern)}
    assert chosen == expected
