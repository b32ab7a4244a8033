"""AdamW with states in FP8 and FP16: PyTorch's in float32, the range that scales give, shards,
checkpoints."""

import sys

import pytest
import torch
from torch import nn

from extensions.fp8_lm.optimizer import STATES, AdamWFp8LM
from tests import processes

KEYS = {"lr": 1e-2, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.01}
PAPER = dict(zip(STATES, (torch.float8_e4m3fn, torch.float16, torch.float16), strict=True))


def stepped(gradients: list[torch.Tensor], dtypes=PAPER) -> tuple[torch.Tensor, dict]:
    """A parameter after these gradients, and its states."""
    weight = nn.Parameter(torch.linspace(-1, 1, gradients[0].numel()).bfloat16())
    adamw = AdamWFp8LM([weight], dtypes, **KEYS)
    for gradient in gradients:
        weight.grad = gradient.clone()
        adamw.step()
    return weight.detach(), adamw.state[weight]


def noise(steps: int = 5, size: int = 1000) -> list[torch.Tensor]:
    return list(torch.randn(steps, size, generator=torch.Generator().manual_seed(0)).bfloat16())


def test_in_float32_it_is_pytorchs():
    weight, state = stepped(noise(), dict.fromkeys(STATES, torch.float32))
    reference = nn.Parameter(torch.linspace(-1, 1, 1000).bfloat16().float())
    adamw = torch.optim.AdamW([reference], foreach=False, **KEYS)
    for gradient in noise():
        reference.grad = gradient.float()
        adamw.step()
    theirs = adamw.state[reference]
    expected = theirs["exp_avg"], theirs["exp_avg_sq"], reference
    assert all(torch.equal(state[n], tensor) for n, tensor in zip(STATES, expected, strict=True))
    assert torch.equal(weight, reference.bfloat16())


def test_weights_beyond_their_range_become_its_end():
    """A second moment that FP8 rounds to 0 takes the second weight hundreds away."""
    weight = nn.Parameter(torch.ones(2).bfloat16())
    adamw = AdamWFp8LM([weight], PAPER | {"second_moment": torch.float8_e4m3fn}, **KEYS)
    for gradient in [100.0, 1e-3], [0.0, 0.0]:
        weight.grad = torch.tensor(gradient).bfloat16()
        adamw.step()
    assert adamw.state[weight]["master_weights"].abs().max() == torch.finfo(torch.float16).max


def value(state: dict, name: str) -> torch.Tensor:
    return state[name].float() / state[f"{name}_scale"]


def test_states_have_their_dtypes_and_fill_their_range():
    weight, state = stepped(noise())
    for name, dtype in PAPER.items():
        scale = state[f"{name}_scale"]
        assert (state[name].dtype, scale.dtype) == (dtype, torch.float32)
        assert scale == 2 ** scale.log2().round()
        assert 0.1 < state[name].float().abs().max() / torch.finfo(dtype).max <= 1
    assert torch.equal(weight, value(state, "master_weights").bfloat16())


@pytest.mark.parametrize("exponent", [-40, 20])
def test_gradients_of_any_size_are_kept_as_well_as_others(exponent):
    """Scales take up a power of two, so the stored bits are the same; FP16 itself ends at 2^-24,
    before its square."""
    (_, plain), (_, scaled) = (stepped([g * 2.0**e for g in noise()]) for e in (0, exponent))
    for name, power in ("first_moment", exponent), ("second_moment", 2 * exponent):
        assert torch.equal(plain[name].float(), scaled[name].float())
        assert plain[f"{name}_scale"] / scaled[f"{name}_scale"] == 2.0**power


def test_a_sudden_gradient_overflows_nothing():
    sudden = torch.ones(1000).bfloat16()
    sudden[7] = 2.0**20
    weight, state = stepped([torch.full((1000,), 1e-3).bfloat16(), sudden])
    assert value(state, "first_moment")[7] == pytest.approx(2**20 / 10, rel=2**-4)
    assert value(state, "second_moment")[7] == pytest.approx(2**40 / 1000, rel=2**-11)
    assert weight.isfinite().all()


def test_shards_are_stepped_as_the_whole_tensor_is(tmp_path):
    processes.run([sys.executable, "-m", "extensions.fp8_lm.tests.fp8_adamw_ranks", tmp_path])
