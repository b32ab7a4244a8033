"""The model: RoPE, sizes, FLOPs, and which of its layers FP8 converts."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from torchtitan.models.llama3.model.model import apply_rotary_emb, precompute_freqs_cis

from models import device, float8, flops, llama, qwen3
from models.architectures import ARCHITECTURES
from models.errors import InputError

FLAVORS = llama.FLAVORS | qwen3.FLAVORS


def meta_model(flavor: str) -> llama.Llama:
    with torch.device("meta"):
        return llama.Llama(llama.FLAVORS[flavor])


def test_rope_equals_torchtitans():
    freqs = precompute_freqs_cis(64, 16, 500000.0)
    q, k = torch.randn(2, 5, 4, 64), torch.randn(2, 5, 2, 64)
    rope = torch.view_as_real(freqs)[:5]
    expected = apply_rotary_emb(q, k, freqs)
    torch.testing.assert_close(
        (llama.apply_rope(q, rope), llama.apply_rope(k, rope)), expected, rtol=0, atol=1e-6
    )
    assert llama.apply_rope(q.bfloat16(), rope).dtype == torch.bfloat16


def test_rotations_stay_float32_in_a_model_of_bf16():
    """FSDP2 casts what is floating among a block's arguments, as `bfloat16()` casts buffers."""
    model = llama.Llama(llama.FLAVORS["cpu"])
    before = model.freqs_cis.view(torch.float32).clone()
    x = torch.randn(1, 8, 8, 32)
    whole, cut = (llama.apply_rope(x, table[:8]) for table in (before, before.bfloat16().float()))
    assert not torch.equal(whole, cut)
    assert torch.equal(
        llama.apply_rope(x, model.bfloat16().freqs_cis[:8].view(torch.float32)), whole
    )


# By hand: parameters, active ones without the input embedding, and attention's FLOPs per token and
# position, 12 layers heads head_dim. Published: 131072 * 4096 = 536,870,912 in the embedding and in
# the head; a layer has 4096 * (4096 + 1024 + 1024 + 4096) + 3 * 4096 * 14336 + 2 * 4096 =
# 218,112,000; 32 of them and a norm of 4096.
@pytest.mark.parametrize(
    ("flavor", "parameters", "without_embedding", "attention"),
    [
        ("8B-published", 8_053_329_920, 7_516_459_008, 1_572_864),
        ("llama3.1-8B", 8_030_261_248, 7_504_924_672, 1_572_864),
        ("llama3.2-1B", 1_235_814_400, 1_235_814_400, 393_216),
        ("llama3.2-3B", 3_212_749_824, 3_212_749_824, 1_032_192),
        ("qwen3-0.6B", 596_049_920, 596_049_920, 688_128),  # dim 1024; heads 16 x 128
        ("qwen3-4B", 4_022_468_096, 4_022_468_096, 1_769_472),
        ("qwen3-30B-A3B", 30_532_122_624, 3_041_867_776, 2_359_296),
        ("qwen3-14B", 14_768_307_200, 13_990_394_880, 2_457_600),
    ],
)
def test_parameters_and_flops(flavor, parameters, without_embedding, attention):
    args, linear = FLAVORS[flavor], 6 * without_embedding
    assert flops.parameters(args) == parameters
    assert flops.flops_per_token(args, 4096) == linear + 4096 * attention
    assert flops.flops_per_token(args, 4096, causal=True) == linear + 2048 * attention


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_formulas_describe_the_model_that_is_built(name, fused):
    if fused and name == "qwen3":
        return
    for flavor, args in ARCHITECTURES[name].flavors.items():
        args = replace(args, fused_projections=fused, n_layers=2)
        with torch.device("meta"):
            model = ARCHITECTURES[name].model(args)
        assert sum(p.numel() for p in model.parameters()) == flops.parameters(args), flavor
        linears = {n: m for n, m in model.named_modules() if isinstance(m, nn.Linear)}
        assert {n: tuple(m.weight.shape) for n, m in linears.items()} == flops.linear_shapes(args)


@pytest.mark.parametrize("backend", ["flash", "math", pytest.param("cudnn", marks=pytest.mark.gpu)])
def test_attention_backends_agree(backend):
    kind = {"device": device.TYPE, "dtype": torch.bfloat16, "requires_grad": True}
    q, k, v = (torch.randn(1, heads, 64, 64, **kind) for heads in (4, 2, 2))
    auto, chosen = (
        llama.InnerAttention(name)(q, k, v, enable_gqa=True) for name in ("auto", backend)
    )
    torch.testing.assert_close(chosen, auto, rtol=0.02, atol=0.02)  # bf16's rounding is 0.004
    chosen.sum().backward()
    assert k.grad.isfinite().all()


# ---- which layers FP8 converts ----

IN_A_BLOCK = ["attention.wq", "attention.wk", "attention.wv", "attention.wo",
              "feed_forward.w1", "feed_forward.w2", "feed_forward.w3"]  # fmt: skip


@pytest.mark.parametrize(
    ("patterns", "left_out"),
    [
        ([], set()),
        (["output"], {"output"}),
        (["output", "layers.*.attention.w[kv]"], {"output", "wk", "wv"}),
    ],
)
def test_filters_leave_out_exactly_what_they_name(patterns, left_out):
    every = {"output", *(f"layers.{i}.{name}" for i in range(4) for name in IN_A_BLOCK)}
    chosen = float8.choose_modules(meta_model("cpu"), "tensorwise", patterns)
    assert chosen == {name for name in every if name.rpartition(".")[2] not in left_out}


def test_auto_filter_drops_small_layers():
    chosen = float8.choose_modules(
        meta_model("8B-published"), "tensorwise", ["output", float8.AUTO_FILTER]
    )
    assert {name.split(".", 2)[2] for name in chosen} == set(IN_A_BLOCK) - {
        "attention.wk",
        "attention.wv",
    }


def test_gpu_without_fp8_names_the_recipe_to_use(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (8, 0))
    monkeypatch.setattr(device, "name", lambda: "NVIDIA A100")
    with pytest.raises(
        InputError, match=r"NVIDIA A100 \(compute capability 8.0\).*`baseline_compiled`"
    ):
        device.check_fp8_units()
