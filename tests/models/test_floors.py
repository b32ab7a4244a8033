"""The floors of a step: FLOPs against counted ones, bytes by hand; the names of GPUs."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from experiments.config import recipes
from models import floors, flops, gpus, llama
from models.architectures import build
from tests.costs import total, work

BLOCKS = (
    6 * 4096 * 32 * 4096 * (4096 + 1024 + 1024 + 4096 + 3 * 14336)
)  # FLOPs of all linear layers but the head


@pytest.mark.parametrize(
    ("name", "in_fp8"),
    [
        ("baseline", 0),
        ("tensorwise_fp8_compiled", BLOCKS),
        ("rowwise_gw_hp_fp8_compiled", BLOCKS * 2 / 3),
    ],
)
def test_flops_are_those_of_the_formula_in_every_recipe(name, in_fp8):
    args, step = llama.FLAVORS["8B-published"], work(name)
    causal = 6 * 32 * 4096 * 4096  # per token: the formula's attention, 12 layers dim seq, halved
    norms = (
        6 * (2 * 32 + 1) * 4096
    )  # per token: weights that the formula counts and that no matrix product has
    matmul = total(step, "flops", floors.MATMUL_FP8, floors.MATMUL_BF16)
    assert matmul == 4096 * (flops.flops_per_token(args, 4096, causal=True) - causal - norms)
    assert total(step, "flops", floors.MATMUL_FP8) == in_fp8
    # the formula counts 6 products of attention; flash attention computes the scores once more, 7
    assert total(step, "flops", floors.ATTENTION) == 4096 * causal * 7 / 6


@pytest.mark.parametrize(
    "keys",
    [
        [],
        ["activation_checkpoint.mode=full", "activation_checkpoint.early_stop=true"],
        ["model.name=qwen3", "model.flavor=qwen3-cpu"],
    ],
)
def test_flops_are_what_torch_counts(keys):
    from torchtitan.distributed.activation_checkpoint import apply_ac

    config = recipes.load("baseline", ["cpu"], keys).config
    step = work("baseline", *keys, overlays=("cpu",))
    model = build(config)
    if config.activation_checkpoint.mode == "full":
        apply_ac(model, config.activation_checkpoint, model_compile_enabled=False)
    with FlopCounterMode(display=False) as counter:
        model(torch.randint(4096, (4, 256))).sum().backward()
    counted = counter.get_flop_counts()["Global"]
    assert total(step, "flops", floors.MATMUL_BF16) == counted[torch.ops.aten.mm]


D, KV, F, LAYERS, TOKENS, VOCABULARY = 256, 128, 768, 4, 4 * 256, 4096  # of the overlay `cpu`
WEIGHTS = LAYERS * (2 * D * D + 2 * KV * D + 3 * F * D)  # of the blocks' linear layers
# Bytes for each of D, KV, F. Forward: sum and norm 4 + 4 twice, RoPE 4, SwiGLU 4 + 2. Backward:
# RoPE 4, five gradients behind norms 2 each, stream and its gradient 4 + 2 twice, SwiGLU 6 + 4.
IN_BLOCKS = (16 + 4) * D + 4 * KV + 6 * F + (4 + 10 + 12) * D + 4 * KV + 10 * F
OUTSIDE = 6 * D + 8 * D  # embedding and first norm; backward the last norm and the embedding
# FP8 as it is and transposed: input of wo, gradient of wv, gradients of wo and w2, and each weight.
LONE_CASTS = TOKENS * LAYERS * (4 * D + 4 * KV + 2 * 2 * D) + 4 * WEIGHTS


@pytest.mark.parametrize(("name", "casts"), [("baseline", 0), ("rowwise_fp8_compiled", LONE_CASTS)])
def test_bytes_of_a_small_model_by_hand(name, casts):
    step = work(name, overlays=("cpu",))
    elementwise = TOKENS * (LAYERS * IN_BLOCKS + OUTSIDE) + 2 * VOCABULARY * D
    assert total(step, "bytes", floors.CASTS) == casts
    assert total(step, "bytes", floors.ELEMENTWISE) == elementwise
    assert total(step, "bytes", floors.LOSS) == 6 * TOKENS * VOCABULARY


def test_float32_parameters_become_bf16_and_their_gradients_float32():
    step = work("baseline", "training.dtype=float32", overlays=("cpu",))
    assert total(step, "bytes", floors.CASTS) == (4 + 2 + 2 + 4) * (WEIGHTS + VOCABULARY * D)


def test_fused_projections_have_fewer_gradients_to_add_up():
    """One bf16 matrix behind each norm instead of three and two."""
    separate, fused = (
        total(work(name, overlays=("cpu",)), "bytes", floors.ELEMENTWISE)
        for name in ("tensorwise_fp8_compiled", "candidate_fused_projections")
    )
    assert separate - fused == LAYERS * TOKENS * 2 * 3 * D


def test_states_are_read_and_written():
    """Beside them the gradient is read twice; parameters are written, and read where they are
    stepped themselves."""
    count = flops.parameters(llama.FLAVORS["8B-published"])
    expected = {"baseline": 16, "float32_optimizer": 6 + 2 * 12, "fp8_optimizer": 6 + 2 * 5}
    for name, moved in expected.items():
        assert total(work(name), "bytes", floors.OPTIMIZER) == moved * count


def test_accumulation_repeats_all_but_the_optimizer():
    one, two = (work("baseline", f"training.global_batch_size={rows}") for rows in (1, 2))
    times = {floors.MATMUL_BF16: 2, floors.ATTENTION: 2, floors.LOSS: 2, floors.OPTIMIZER: 1}
    for part, count in times.items():
        assert total(two, "bytes", part) == count * total(one, "bytes", part)
    assert total(two, "bytes", floors.ELEMENTWISE) > 2 * total(one, "bytes", floors.ELEMENTWISE)


def test_drivers_names_find_their_gpu():
    names = {
        "NVIDIA GH200 120GB": "gh200",
        "NVIDIA GH200 144G HBM3e": "gh200-144gb",
        "NVIDIA H200": "h200",
        "NVIDIA H100 PCIe": "h100-pcie",
        "NVIDIA H100 NVL": "h100-nvl",
        "NVIDIA A100-SXM4-80GB": "a100",
        "GeForce 256": None,
        "NVIDIA GB200": "gb200",
        "nvidia b200": "b200",
        "h100-sxm": "h100",
    }
    assert {name: gpus.find(name) for name in names} == names


def test_peaks_are_dense_ones():
    """Of the tensor cores FP8 has twice the rate of bf16; a sparse figure would be twice that."""
    peaks = [gpu.datasheet for gpu in gpus.GPUS.values() if gpu.datasheet.fp8]
    assert [peak.fp8 / peak.bf16 for peak in peaks] == pytest.approx([2] * len(peaks), rel=0.02)
