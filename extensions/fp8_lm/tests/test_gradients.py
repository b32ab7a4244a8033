"""Gradients in FP8 blocks: what one rounding costs, what arrives, and why sums in FP8 are another
matter."""

import pytest
import torch
import torch.nn.functional as F

from extensions.fp8_lm.gradient_sums import compare_methods
from extensions.fp8_lm.gradients import count_bytes, decode, encode


def test_each_value_is_off_by_a_sixteenth_of_itself_or_little_of_its_blocks_largest():
    """The 256 normal values of each block share a magnitude between about 1e-25 and 1e25."""
    torch.manual_seed(0)
    size = 10 ** torch.empty(3, 4, 1).uniform_(-25, 25)
    rows = (torch.randn(3, 4, 256) * size).flatten(1)[:, :1000]
    encoded = encode(rows)
    assert (encoded.dtype, tuple(encoded.shape)) == (torch.uint8, (3, count_bytes(1000)))
    assert count_bytes(1000) == 4 * 260
    decoded = decode(encoded).unflatten(1, (4, 256))
    exact = F.pad(rows, (0, 24)).unflatten(1, (4, 256))
    half_step = exact.abs().amax(-1, keepdim=True) / 448 * 2**-10  # steps of 2^-9 next to 0
    assert ((decoded - exact).abs() <= 1.0001 * torch.maximum(exact.abs() / 16, half_step)).all()


@pytest.mark.parametrize("size", [0.0, 1e-39, 3e38])
def test_extreme_blocks(size):
    block = torch.full((1, 256), size)
    assert torch.allclose(decode(encode(block)), block, rtol=2**-4, atol=0)


def test_a_block_with_a_value_that_is_not_finite_is_seen_to():
    assert decode(encode(torch.tensor([[1.0, torch.inf]]))).isnan().all()


def test_a_sum_in_float32_needs_no_scaling_and_sums_in_fp8_lose_by_every_rank():
    """Gradients that agree in part, as those of ranks do."""
    torch.manual_seed(0)
    gradients = torch.randn(1 << 12) + torch.randn(32, 1 << 12)
    of_2_ranks = compare_methods([gradients], 2)
    of_32_ranks = compare_methods([gradients], 32)
    assert min(of_2_ranks["block"], of_32_ranks["block"], of_32_ranks["tensor"]) > 30
    by_rule = max(of_32_ranks[method] for method in ("post", "pre", "auto"))
    assert by_rule <= of_32_ranks["best"] < of_2_ranks["auto"] < 30
