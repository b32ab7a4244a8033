"""A mixture of experts: attention in FP8, experts and router in bf16, and what share of the FLOPs
that leaves."""

from dataclasses import replace

import pytest
import torch
from torch.profiler import profile

from experiments.config import recipes
from experiments.training.matmuls import find_matmuls, flops_by_operator

from models import device  # noqa: F401  # before torchtitan  # isort: skip
from torchtitan.models.utils import get_moe_model_nparams_and_flops

from models import flops, qwen3
from tests.runs import TINY

KEYS = ["model.name=qwen3", "model.flavor=qwen3-moe-cpu"]


def attention_layers(args) -> set[str]:
    return {name for name in flops.linear_shapes(args) if ".attention." in name}


@pytest.mark.parametrize("flavor", ["qwen3-moe-cpu", "qwen3-30B-A3B"])
def test_parameters_and_flops_are_torchtitans(flavor):
    args = replace(qwen3.FLAVORS[flavor], n_layers=3)
    with torch.device("meta"):
        model = qwen3.Qwen3(args)
    theirs = get_moe_model_nparams_and_flops(args, model, 2 * args.head_dim, 4096)
    assert (flops.parameters(args), flops.flops_per_token(args, 4096)) == theirs
    assert flops.parameters(args, active=True) < flops.parameters(args)


def test_attention_is_a_third_and_fp8_gains_little():
    """By hand: 48 (18,874,368 attention + 262,144 router + 37,748,736 in 8 experts), and
    311,164,928 in the head."""
    args = qwen3.FLAVORS["qwen3-30B-A3B"]
    share = flops.share_of_matmuls(args, attention_layers(args))
    assert share == 905_969_664 / 3_041_656_832
    assert 1.17 < flops.most_speed_up(share) < 1.18
    assert flops.most_speed_up(1) == 2


def test_a_run_proves_the_share_that_sizes_predict(train):
    keys = [*KEYS, *TINY, "model.sizes.n_layers=1", "compile.enable=false"]
    trainer, _ = train(recipes.load("tensorwise_fp8_compiled", ["cpu"], keys).config, count=3)
    proof, args = trainer.proof.record(), trainer.model_args
    in_fp8 = attention_layers(args)
    assert set(proof.converted_modules) == in_fp8
    assert proof.fp8_share_of_matmul_flops == pytest.approx(
        flops.share_of_matmuls(args, in_fp8), rel=1e-12
    )
    assert proof.parameters.elements_in_optimizer == flops.parameters(args)


def test_a_grouped_product_counts_each_row_once():
    """That of GPUs: 48 rows shared among 4 experts of 16 x 32, forward, and its two products
    backward."""
    x = torch.randn(48, 32, dtype=torch.bfloat16, requires_grad=True)
    w = torch.randn(4, 16, 32, dtype=torch.bfloat16, requires_grad=True)
    ends = torch.tensor([8, 8, 40, 48], dtype=torch.int32)
    with profile(record_shapes=True) as profiler:
        out = torch._grouped_mm(x, w.transpose(-2, -1), offs=ends)
        out.backward(torch.ones_like(out))
    flops = flops_by_operator(find_matmuls(profiler.events()))
    assert flops == {"aten::_grouped_mm": 3 * 2 * 48 * 16 * 32}
