"""The roofline: FLOPs against counted ones, bytes of what is set, floors against published steps."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from experiments import recipe as recipes
from models import flops, gpus, llama, roofline
from tests.costs import total, work

RECIPES = ["baseline", "baseline_compiled", "rowwise_fp8_compiled", "tensorwise_fp8_compiled",
           "rowwise_gw_hp_fp8_compiled"]  # fmt: skip
PUBLISHED = {"baseline": 8_151, "baseline_compiled": 8_800, "rowwise_fp8_compiled": 9_315,
             "tensorwise_fp8_compiled": 10_945}  # tokens/s on a GH200: README, "What differs"  # fmt: skip


def tokens_per_s(name: str, rates: gpus.Rates, *overrides: str) -> float:
    return 4096 / sum(roofline.floors(work(name, *overrides), rates).values())


# ---- FLOPs ----


@pytest.mark.parametrize("name", RECIPES)
def test_flops_are_those_of_the_formula_in_every_recipe(name):
    args, step = llama.FLAVORS["8B-published"], work(name)
    causal = 6 * 32 * 4096 * 4096  # per token: the formula's attention, 12 layers dim seq, halved
    norms = 6 * (2 * 32 + 1) * 4096  # per token: weights that the formula counts and that no matrix product has
    matmul = total(step, "flops", roofline.MATMUL_FP8, roofline.MATMUL_BF16)
    assert matmul == 4096 * (flops.flops_per_token(args, 4096, causal=True) - causal - norms)
    # the formula counts 6 products of attention; flash attention computes the scores once more, 7
    assert total(step, "flops", roofline.ATTENTION) == 4096 * causal * 7 / 6


def test_fp8_takes_all_but_the_head_and_with_gw_hp_two_thirds_of_that():
    blocks = 2 * 3 * 4096 * 32 * 4096 * (4096 + 1024 + 1024 + 4096 + 3 * 14336)
    assert total(work("tensorwise_fp8_compiled"), "flops", roofline.MATMUL_FP8) == blocks
    assert total(work("rowwise_gw_hp_fp8_compiled"), "flops", roofline.MATMUL_FP8) == blocks * 2 / 3


@pytest.mark.parametrize("checkpointing", [["mode=none"], ["mode=full"], ["mode=full", "early_stop=true"]])
def test_matmul_flops_are_what_torch_counts(checkpointing):
    from torchtitan.distributed.activation_checkpoint import apply_ac

    overrides = [f"activation_checkpoint.{key}" for key in checkpointing]
    config = recipes.load("baseline", ["cpu"], overrides).config
    model = llama.Llama(llama.FLAVORS["cpu"])
    if "mode=full" in checkpointing:
        apply_ac(model, config.activation_checkpoint, model_compile_enabled=False)
    with FlopCounterMode(display=False) as counter:
        model(torch.randint(4096, (4, 256))).sum().backward()
    counted = counter.get_flop_counts()["Global"][torch.ops.aten.mm]
    assert total(work("baseline", *overrides, overlays=("cpu",)), "flops", roofline.MATMUL_BF16) == counted


# ---- bytes: those of blocks are in test_blocks.py ----


@pytest.mark.parametrize("overrides", [[], ["training.dtype=float32"], ["activation_checkpoint.mode=full"]])
@pytest.mark.parametrize("name", ["baseline", "tensorwise_fp8_compiled", "rowwise_gw_hp_fp8_compiled"])
def test_compilation_only_saves(name, overrides):
    rates = gpus.GPUS["h200"].datasheet
    eager = roofline.floors(work(name, "compile.enable=false", *overrides), rates)
    compiled = roofline.floors(work(name, "compile.enable=true", *overrides), rates)
    assert all(compiled[part] <= eager[part] for part in roofline.PARTS)
    assert compiled[roofline.ELEMENTWISE] < 0.6 * eager[roofline.ELEMENTWISE]


def test_head_in_fp8_is_cast_eagerly_unless_the_whole_model_is_compiled():
    casts = {
        scope: total(work("tensorwise_fp8_compiled", f"compile.scope={scope}", *more), "bytes", roofline.CASTS)
        for scope in ("block", "model")
        for more in [["quantize.linear.float8.filter_fqns=[]"]]
    }
    assert casts["block"] - casts["model"] > 4 * 131072 * 4096  # the weight alone: 10 bytes an element instead of 6


def test_accumulation_repeats_all_but_the_optimizer():
    one, two = work("baseline"), work("baseline", "training.global_batch_size=2")
    for part in (roofline.MATMUL_BF16, roofline.ATTENTION, roofline.LOSS):
        assert total(two, "bytes", part) == 2 * total(one, "bytes", part)
    assert total(two, "bytes", roofline.OPTIMIZER) == total(one, "bytes", roofline.OPTIMIZER)
    assert total(two, "bytes", roofline.ELEMENTWISE) > 2 * total(one, "bytes", roofline.ELEMENTWISE)


# ---- floors ----


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_steps_are_slower_than_their_floor(name):
    assert PUBLISHED[name] < tokens_per_s(name, gpus.GPUS["gh200"].datasheet) < 2.4 * PUBLISHED[name]


@pytest.mark.parametrize(
    ("device_name", "gpu", "bf16", "fp8"),
    [("NVIDIA GH200 120GB", "gh200", 989, 1979), ("NVIDIA GH200 144G HBM3e", "gh200-144gb", 989, 1979),
     ("NVIDIA GH200 480GB", "gh200", 989, 1979), ("NVIDIA H200 NVL", "h200-nvl", 835, 1671),
     ("NVIDIA H200", "h200", 989, 1979), ("NVIDIA H100 80GB HBM3", "h100", 989, 1979),
     ("NVIDIA H100 PCIe", "h100-pcie", 756, 1513), ("NVIDIA H100 NVL", "h100-nvl", 835, 1671),
     ("NVIDIA B200", "b200", 2250, 4500), ("NVIDIA A100-SXM4-80GB", "a100", 312, None),
     ("NVIDIA A100 80GB PCIe", "a100", 312, None)],
)  # fmt: skip
def test_drivers_names_find_their_gpu_and_its_dense_peaks(device_name, gpu, bf16, fp8):
    assert gpus.find(device_name) == gpu
    peak = gpus.GPUS[gpu].datasheet
    assert (peak.bf16, peak.fp8) == (pytest.approx(bf16 * 1e12, rel=1e-3), fp8 and pytest.approx(fp8 * 1e12, rel=1e-3))


@pytest.mark.parametrize("device_name", ["GeForce 256", "NVIDIA GB200", "NVIDIA GH100"])
def test_other_devices_are_not_in_the_table(device_name):
    assert gpus.find(device_name) is None
