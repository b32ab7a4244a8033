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


def train(sharded: bool) -> list[torch.Tensor]:
    """Return the parameters and states of a model after steps with the same gradients of any size.

    Two ranks do not divide its sizes, and of its one row the second rank has nothing.
    """
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(33, 51), nn.Linear(51, 1)).bfloat16()
    if sharded:
        fully_shard(model)
    optimizer, parameters = AdamWFp8LM(model.parameters(), PAPER, **KEYS), [*model.parameters()]
    for _ in range(10):
        for p in parameters:
            p.grad = (torch.randn(p.shape) * (4 * torch.randn(p.shape)).exp()).bfloat16()
            if sharded:
                p.grad = distribute_tensor(p.grad, p.device_mesh, p.placements)
        optimizer.step()
    kept = parameters
    for p in parameters:
        kept = [*kept, *optimizer.state[p].values()]
    return [full(tensor.detach().float()) for tensor in kept]  # float32: gloo sends no FP8


def full(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


if __name__ == "__main__":
    torch.set_num_threads(1)
    child, here = os.fork(), f"file://{sys.argv[1]}/ranks"
    dist.init_process_group("gloo", init_method=here, rank=int(child == 0), world_size=2)
    same = all(map(torch.equal, train(sharded=False), train(sharded=True)))
    dist.barrier()
    dist.destroy_process_group()
    if child:
        same &= os.waitpid(child, 0)[1] == 0
    os._exit(not same)
