"""AdamW with states in FP8 and FP16: PyTorch's in float32, the range that scales give, shards,
checkpoints."""

import sys
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from extensions import fp8_lm
from extensions.fp8_lm.optimizer import STATES, AdamWFp8LM
from tests import processes

ADAMW_CONFIG = {"lr": 1e-2, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.01}
PAPER_DTYPES = dict(zip(STATES, (torch.float8_e4m3fn, torch.float16, torch.float16), strict=True))


def step_parameter(gradients: list[torch.Tensor], dtypes=PAPER_DTYPES) -> tuple[torch.Tensor, dict]:
    """Step a parameter by these gradients; returns it and its states."""
    weight = nn.Parameter(torch.linspace(-1, 1, gradients[0].numel()).bfloat16())
    adamw = AdamWFp8LM([weight], dtypes, **ADAMW_CONFIG)
    for gradient in gradients:
        weight.grad = gradient.clone()
        adamw.step()
    return weight.detach(), adamw.state[weight]


def make_trainer(optimizer: torch.optim.Optimizer) -> SimpleNamespace:
    return SimpleNamespace(optimizers=SimpleNamespace(optimizers=[optimizer]))


def draw_gradients(steps: int = 5, size: int = 1000) -> list[torch.Tensor]:
    return list(torch.randn(steps, size, generator=torch.Generator().manual_seed(0)).bfloat16())


def test_in_float32_it_is_pytorchs():
    weight, state = step_parameter(draw_gradients(), dict.fromkeys(STATES, torch.float32))
    reference = nn.Parameter(torch.linspace(-1, 1, 1000).bfloat16().float())
    adamw = torch.optim.AdamW([reference], foreach=False, **ADAMW_CONFIG)
    for gradient in draw_gradients():
        reference.grad = gradient.float()
        adamw.step()
    reference_state = adamw.state[reference]
    assert torch.equal(state["first_moment"], reference_state["exp_avg"])
    assert torch.equal(state["second_moment"], reference_state["exp_avg_sq"])
    assert torch.equal(state["master_weights"], reference)
    assert torch.equal(weight, reference.bfloat16())


def test_weights_beyond_their_range_become_its_end_and_are_counted():
    """A second moment that FP8 rounds to 0 takes the second weight hundreds away."""
    weight = nn.Parameter(torch.ones(2).bfloat16())
    adamw = AdamWFp8LM(
        [weight], PAPER_DTYPES | {"second_moment": torch.float8_e4m3fn}, **ADAMW_CONFIG
    )
    for gradient in [100.0, 1e-3], [0.0, 0.0]:
        weight.grad = torch.tensor(gradient).bfloat16()
        adamw.step()
    assert adamw.state[weight]["master_weights"].abs().max() == torch.finfo(torch.float16).max
    assert adamw.clamped == 1
    assert fp8_lm.notes(make_trainer(adamw))[0].startswith("1 value")
    assert not fp8_lm.notes(make_trainer(torch.optim.AdamW([weight])))


@pytest.mark.parametrize("exponent", [-40, 0, 20])
def test_states_fill_the_range_of_their_dtypes_whatever_the_gradients_size(exponent):
    weight, state = step_parameter([gradient * 2.0**exponent for gradient in draw_gradients()])
    for name, dtype in PAPER_DTYPES.items():
        scale = state[f"{name}_scale"]
        assert (state[name].dtype, scale.dtype) == (dtype, torch.float32)
        assert scale == 2 ** scale.log2().round()
        assert 0.1 < state[name].float().abs().max() / torch.finfo(dtype).max <= 1
    master = state["master_weights"].float() / state["master_weights_scale"]
    assert torch.equal(weight, master.bfloat16())


def test_a_sudden_gradient_overflows_nothing():
    small = torch.full((1000,), 1e-3).bfloat16()
    sudden = torch.full((1000,), 2.0**20).bfloat16()
    weight, state = step_parameter([small, sudden])
    for name, expected, rounding in (
        ("first_moment", 2**20 / 10, 2**-4),
        ("second_moment", 2**40 / 1000, 2**-11),
    ):
        value = state[name][7].float() / state[f"{name}_scale"]
        assert value == pytest.approx(expected, rel=rounding)
    assert weight.isfinite().all()


def test_shards_are_stepped_as_the_whole_tensor_is(tmp_path):
    processes.run([sys.executable, "-m", "extensions.fp8_lm.tests.fp8_adamw_ranks", tmp_path])
