"""A mixture of experts: attention in FP8, experts and router in bf16, and what share of the FLOPs
that leaves."""

import math

import pytest
import torch
from torch.profiler import profile

from experiments.config import recipes
from experiments.training.proof import find_matmuls, sum_flops_by_operator
from extensions.qwen3.architecture import FLAVORS
from tests.runs import TINY

KEYS = ["model.flavor=qwen3-moe-cpu"]


def list_attention_layers(args) -> set[str]:
    return {name for name in args.linear_shapes() if ".attention." in name}


def attention_share(args) -> float:
    """Compute attention's share of a token's matmul FLOPs in linear layers."""
    shapes = args.linear_shapes()
    linears = sum(map(math.prod, shapes.values()))
    weights = linears + args.expert_parameters(args.moe_args.top_k)
    return sum(math.prod(shapes[name]) for name in list_attention_layers(args)) / weights


def test_attention_is_a_third_and_fp8_gains_little():
    """By hand: 48 (18,874,368 attention + 262,144 router + 37,748,736 in 8 experts), and
    311,164,928 in the head."""
    share = attention_share(FLAVORS["qwen3-30B-A3B"])
    assert share == 905_969_664 / 3_041_656_832
    assert 1.17 < 1 / (1 - share / 2) < 1.18  # times as fast, with these in half the time


def test_a_run_proves_the_share_that_sizes_predict(train):
    """Routers and experts stay in bf16."""
    keys = [*KEYS, *TINY, "model.sizes.n_layers=1", "compile.enable=false"]
    trainer, _ = train(recipes.load("tensorwise_fp8_compiled", ["cpu"], keys).config, count=3)
    proof = trainer.proof.record()
    args = trainer.model_args
    assert set(proof.converted_modules) == list_attention_layers(args)
    assert proof.fp8_share == pytest.approx(attention_share(args), rel=1e-12)
    assert proof.parameters.elements_in_optimizer == args.parameters()


def test_a_grouped_product_counts_each_row_once():
    """GPUs use one: here 48 rows among 4 experts of 16 x 32, forward, and two products
    backward."""
    x = torch.randn(48, 32, dtype=torch.bfloat16, requires_grad=True)
    weights = torch.randn(4, 16, 32, dtype=torch.bfloat16, requires_grad=True)
    offsets = torch.tensor([8, 8, 40, 48], dtype=torch.int32)
    with profile(record_shapes=True) as profiler:
        out = torch._grouped_mm(x, weights.transpose(-2, -1), offs=offsets)
        out.backward(torch.ones_like(out))
    flops = sum_flops_by_operator(find_matmuls(profiler.events()))
    assert flops == {"aten::_grouped_mm": 3 * 2 * 48 * 16 * 32}
