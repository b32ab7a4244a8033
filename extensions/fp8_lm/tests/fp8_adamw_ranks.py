"""Two ranks step a sharded model, and each the same model whole; started by test_fp8_adamw.py.

    python -m extensions.fp8_lm.tests.fp8_adamw_ranks FOLDER

Each rank exits with 0 if parameters and states are the same bits, sharded and whole, after some
steps. Ranks are forks of one process, which imports torch once.
"""

import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from extensions.fp8_lm.optimizer import AdamWFp8LM
from extensions.fp8_lm.tests.test_fp8_adamw import KEYS, PAPER


def whole() -> nn.Module:
    """Sizes that two ranks do not divide, and one row, of which the second rank has nothing."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(33, 51), nn.Tanh(), nn.Linear(51, 1)).bfloat16()


def full(tensor: torch.Tensor) -> torch.Tensor:
    """In float32, since gloo sends no FP8."""
    values = tensor.detach().float()
    return values.full_tensor() if isinstance(values, DTensor) else values


def train(model: nn.Module) -> dict[str, torch.Tensor]:
    """The parameters and states after steps with gradients of any size, the same for each model."""
    optimizer = AdamWFp8LM(model.parameters(), PAPER, **KEYS)
    generator = torch.Generator().manual_seed(1)
    for _ in range(10):
        for p in model.parameters():
            noise = torch.randn(2, *p.shape, generator=generator)
            p.grad = (noise[0] * (4 * noise[1]).exp()).bfloat16()
            if isinstance(p, DTensor):
                p.grad = distribute_tensor(p.grad, p.device_mesh, p.placements)
        optimizer.step()
    kept = {}
    for name, p in model.named_parameters():
        kept[name] = full(p)
        for key, state in optimizer.state[p].items():
            kept[f"{name}.{key}"] = full(state)
    return kept


def main(folder: str, rank: int) -> bool:
    dist.init_process_group("gloo", init_method=f"file://{folder}/ranks", rank=rank, world_size=2)
    alone, sharded = train(whole()), train(fully_shard(whole()))
    dist.barrier()
    dist.destroy_process_group()
    return all(torch.equal(alone[name], sharded[name]) for name in alone)


if __name__ == "__main__":
    torch.set_num_threads(1)
    child = os.fork()
    same = main(sys.argv[1], rank=int(child == 0))
    if child:
        same &= os.waitpid(child, 0)[1] == 0
    os._exit(not same)
