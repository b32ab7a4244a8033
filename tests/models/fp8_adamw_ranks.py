"""Two ranks step a sharded model, and each the same model whole; started by test_fp8_adamw.py.

    python -m tests.models.fp8_adamw_ranks FOLDER

The first rank writes result.json: whether parameters and states are the same bits, sharded and
whole, after some steps, and after as many more from a checkpoint in FOLDER. Ranks are forks of one
process, which imports torch once.
"""

import json
import os
import sys
from pathlib import Path

from models.optimizer import AdamWFp8LM
from tests.models.test_fp8_adamw import KEYS, PAPER

from experiments.training import checkpoint  # isort: skip
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torchtitan.components.optimizer import OptimizersContainer


def whole() -> nn.Module:
    """Sizes that two ranks do not divide, and one row, of which the second rank has nothing."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(33, 51), nn.Tanh(), nn.Linear(51, 1)).bfloat16()


def full(tensor: torch.Tensor) -> torch.Tensor:
    """In float32, since gloo sends no FP8."""
    values = tensor.detach().float()
    return values.full_tensor() if isinstance(values, DTensor) else values


def train(model: nn.Module, optimizer, generator: torch.Generator, steps: int) -> None:
    """With gradients of any size, the same for each model."""
    for _ in range(steps):
        for p in model.parameters():
            noise = torch.randn(2, *p.shape, generator=generator)
            gradient = (noise[0] * (4 * noise[1]).exp()).bfloat16()
            sharded = isinstance(p, DTensor)
            p.grad = (
                distribute_tensor(gradient, p.device_mesh, p.placements) if sharded else gradient
            )
        optimizer.step()


def same(model: nn.Module, optimizer, other: nn.Module, other_optimizer) -> bool:
    """Whether all parameters and states are."""
    for p, q in zip(model.parameters(), other.parameters(), strict=True):
        states = optimizer.state[p], other_optimizer.state[q]
        pairs = [(p, q), *((states[0][name], states[1][name]) for name in states[0])]
        for a, b in pairs:
            if a.dtype != b.dtype or not torch.equal(full(a), full(b)):
                return False
    return True


def main(folder: Path, rank: int) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/ranks", rank=rank, world_size=2)
    alone, sharded, resumed = whole(), fully_shard(whole()), fully_shard(whole())
    optimizer = AdamWFp8LM(alone.parameters(), PAPER, **KEYS)
    first, second = (
        OptimizersContainer([model], AdamWFp8LM, KEYS | {"dtypes": PAPER})
        for model in (sharded, resumed)
    )
    for model, each in ((alone, optimizer), (sharded, first)):
        train(model, each, torch.Generator().manual_seed(1), 10)
    result = {"sharded": same(sharded, first.optimizers[0], alone, optimizer)}
    dcp.save(
        {"model": get_model_state_dict(sharded), "optimizer": first},
        checkpoint_id=folder / "checkpoint",
    )
    weights = get_model_state_dict(resumed)
    checkpoint.load({"model": weights, "optimizer": second}, folder / "checkpoint")
    set_model_state_dict(resumed, weights)
    for model, each in ((sharded, first), (resumed, second)):
        train(model, each, torch.Generator().manual_seed(2), 5)
    result["resumed"] = same(resumed, second.optimizers[0], sharded, first.optimizers[0])
    if rank == 0:
        (folder / "result.json").write_text(json.dumps(result))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    child = os.fork()
    main(Path(sys.argv[1]), rank=int(child == 0))
    if child:
        os.waitpid(child, 0)
