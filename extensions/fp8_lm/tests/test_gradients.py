"""Gradients in FP8 blocks: what one rounding costs, what arrives, and why sums in FP8 are another
matter."""

import pytest
import torch

from extensions.fp8_lm.gradients import decode, encode
from extensions.fp8_lm.tests.gradient_sums import compare


def planted(*shape: int) -> torch.Tensor:
    """Normal values; the 256 of each block share a magnitude between about 1e-25 and 1e25."""
    torch.manual_seed(0)
    size = 10 ** torch.empty(*shape[:-1], -(-shape[-1] // 256)).uniform_(-25, 25)
    return torch.randn(shape) * size.repeat_interleave(256, -1)[..., : shape[-1]]


def test_each_value_is_off_by_a_sixteenth_of_itself_or_little_of_its_blocks_largest():
    rows = planted(3, 1000)
    encoded = encode(rows)
    assert (encoded.dtype, tuple(encoded.shape)) == (torch.uint8, (3, 4 * 260))
    error = (decode(encoded)[:, :1000] - rows).abs()
    for start in range(0, 1000, 256):  # e4m3 has steps of 2^-9 next to 0
        block = rows[:, start : start + 256].abs()
        least = block.amax(1, keepdim=True) / 448 * 2**-10
        assert (error[:, start : start + 256] <= 1.0001 * torch.maximum(block / 16, least)).all()


def test_extreme_blocks():
    rows = torch.zeros(1, 4 * 256)
    rows[0, 256], rows[0, 512:514], rows[0, 768] = 3e38, torch.tensor([1e-45, -1e-39]), torch.inf
    zeros, large, small, infinite = decode(encode(rows))[0].unflatten(0, (4, 256))
    assert not zeros.any() and large[0] == pytest.approx(3e38) and small.abs().max() <= 1.1e-39
    assert infinite.isnan().all()  # a diverging run is seen to


def test_a_sum_in_float32_needs_no_scaling_and_sums_in_fp8_lose_by_every_rank():
    """Gradients that agree in part, as those of ranks do."""
    torch.manual_seed(0)
    gradients = torch.randn(1 << 12) + torch.randn(32, 1 << 12)
    few, many = compare([gradients], 2), compare([gradients], 32)
    assert min(few["block"], many["block"], many["tensor"]) > 30
    assert max(many[how] for how in ("post", "pre", "auto", "best")) < few["auto"] < 30
    assert many["best"] >= max(many[how] for how in ("post", "pre", "auto"))
