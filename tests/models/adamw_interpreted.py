"""AdamW's kernels in Triton's interpreter, on CPU tensors.

test_fused_adamw.py runs this file with pytest in a process of its own, and as two ranks that shard
a model, because Triton has to find TRITON_INTERPRET=1 when it is imported.
"""

import copy
import os
import sys

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, distribute_tensor

from models.fused_adamw import CHUNK, NORM_TILE, STEP_TILE, FusedAdamW, gradient_norm
from models.optimizer import (
    OptimizersContainer,
)  # by way of models.device, which comes before torchtitan
from tests.models.interpreter import round_to_nearest
from tests.models.test_fused_adamw import SETTINGS, check_steps, parameters

round_to_nearest()
SHAPES = [(1,), (3, 5), (STEP_TILE - 1,), (NORM_TILE + 8,), (CHUNK + 1,), (2, CHUNK)]


@pytest.mark.parametrize("scale", [10.0, 1e-5], ids=["clipped", "not clipped"])
def test_a_step_is_adamws_in_float32_rounded_to_bf16(scale):
    check_steps(FusedAdamW(parameters(SHAPES), **SETTINGS), scale, torch.float32)


def test_addresses_of_any_kind_and_groups_with_settings_of_their_own():
    even, odd = parameters([(64, 3)])[0], nn.Parameter(parameters([(4000,)])[0].detach()[1:])
    groups = [
        {"params": [even], "lr": 1e-3},
        {"params": [odd], "weight_decay": 0.0, "betas": (0.0, 0.9)},
    ]
    assert odd.data_ptr() % 16
    check_steps(FusedAdamW(groups, **SETTINGS), 1.0, torch.float32)


def test_clipping_is_for_one_step_and_a_parameter_without_a_gradient_stays():
    p, without = parameters([(40,), (40,)])
    optimizer, before = FusedAdamW([p, without], **SETTINGS), without.detach().clone()
    for expected in (0.01, 1.0):
        p.grad = torch.ones_like(p)
        if expected < 1:
            optimizer.clip(gradient_norm([p.grad]), 0.01 * 40**0.5)
        optimizer.state.clear()
        optimizer.step()
        assert optimizer.state[p]["exp_avg"][0].item() == pytest.approx(0.1 * expected, rel=0.01)
    assert torch.equal(without, before) and without not in optimizer.state


def test_the_norm_is_in_float32_and_tells_what_is_not_finite():
    gradients = [torch.randn(shape).bfloat16() for shape in SHAPES]
    norm = gradient_norm(gradients)
    assert norm.dtype == torch.float32 and norm.ndim == 0
    assert norm.item() == pytest.approx(
        torch.cat([g.flatten() for g in gradients]).double().norm().item(), rel=1e-6
    )
    gradients[2][-1] = float("inf")
    assert not gradient_norm(gradients).isfinite()


@pytest.mark.parametrize(
    "wrong", [torch.ones(4), torch.ones(4, 4).bfloat16().t()], ids=["float32", "transposed"]
)
def test_what_the_kernels_cannot_read_is_refused(wrong):
    with pytest.raises(ValueError, match="contiguous bf16"):
        gradient_norm([wrong])


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
@pytest.mark.parametrize("how", ["fused", "foreach"])
def test_states_of_pytorchs_adamw_load_and_its_own_load_there(how):
    """In torchtitan's container, as checkpoints do it."""
    model = nn.Linear(30, 20).bfloat16()
    models = [copy.deepcopy(model) for _ in range(3)]
    first = OptimizersContainer(models[:1], torch.optim.AdamW, {how: True, **SETTINGS})
    second = OptimizersContainer(models[1:2], FusedAdamW, SETTINGS)
    third = OptimizersContainer(models[2:], torch.optim.AdamW, {how: True, **SETTINGS})
    models[0](torch.ones(2, 30).bfloat16()).sum().backward()
    first.step()
    for saved, loads in ((first, second), (second, third)):
        loads.load_state_dict(copy.deepcopy(saved.state_dict()))
        for state, expected in zip(
            *(c.optimizers[0].state.values() for c in (loads, saved)), strict=True
        ):
            assert state.keys() == expected.keys()
            assert all(torch.equal(state[key], expected[key]) for key in state)


def main() -> None:
    """Two steps of a sharded model and of a parameter that each rank has whole, beside the same in
    one process.

    The second rank is a fork of the first, which imports torch once.
    """
    rank = 1 if (child := os.fork()) == 0 else 0
    store = dist.FileStore(sys.argv[1], 2)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 301), nn.Linear(301, 7)).bfloat16()
    fully_shard(model, mesh=mesh)
    copied = nn.Parameter(distribute_tensor(torch.ones(33).bfloat16(), mesh, [Replicate()]))
    sharded = [*model.parameters(), copied]
    whole = [nn.Parameter(p.full_tensor().detach().clone()) for p in sharded]
    optimizers = [FusedAdamW(each, **SETTINGS) for each in (sharded, whole)]
    for _ in range(2):
        model(torch.randn(4, 6).bfloat16()).square().sum().backward()
        copied.grad = DTensor.from_local(torch.full((33,), 2.0).bfloat16(), mesh, [Replicate()])
        for p, w in zip(sharded, whole, strict=True):
            w.grad = p.grad.full_tensor().clone()
        norms = [gradient_norm([p.grad for p in each]) for each in (sharded, whole)]
        torch.testing.assert_close(*norms, rtol=1e-6, atol=0)
        for optimizer, norm in zip(optimizers, norms, strict=True):
            optimizer.clip(norm, 1.0)
            optimizer.step()
            optimizer.zero_grad()
    for p, w in zip(sharded, whole, strict=True):
        torch.testing.assert_close(p.full_tensor(), w, rtol=2**-7, atol=1e-6)
    dist.destroy_process_group()
    if child:
        assert os.waitpid(child, 0)[1] == 0
        print("equal on both ranks")


if __name__ == "__main__":
    main()
