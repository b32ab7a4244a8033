"""Two ranks step a sharded model, and each the same model whole; started by test_fp8_adamw.py.

    python -m extensions.fp8_lm.tests.fp8_adamw_ranks FOLDER

Each rank exits with 0 if parameters and states have the same bits, sharded and whole, after some
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
from extensions.fp8_lm.tests.test_fp8_adamw import ADAMW_CONFIG, PAPER_DTYPES


def train(sharded: bool) -> list[torch.Tensor]:
    """Return the parameters and states of a model after steps with gradients of any size, equal at
    each call.

    The sizes are not multiples of two ranks, and the second rank has nothing of the one row.
    """
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(33, 51), nn.Linear(51, 1)).bfloat16()
    if sharded:
        fully_shard(model)
    parameters = [*model.parameters()]
    optimizer = AdamWFp8LM(parameters, PAPER_DTYPES, **ADAMW_CONFIG)
    for _ in range(10):
        for p in parameters:
            p.grad = (torch.randn(p.shape) * (4 * torch.randn(p.shape)).exp()).bfloat16()
            if sharded:
                p.grad = distribute_tensor(p.grad, p.device_mesh, p.placements)
        optimizer.step()
    tensors = [*parameters]
    for p in parameters:
        tensors += optimizer.state[p].values()
    return [gather(tensor.detach().float()) for tensor in tensors]  # float32: gloo sends no FP8


def gather(tensor: torch.Tensor) -> torch.Tensor:
    if isinstance(tensor, DTensor):
        return tensor.full_tensor()
    return tensor


if __name__ == "__main__":
    torch.set_num_threads(1)
    child = os.fork()
    meeting_file = f"file://{sys.argv[1]}/ranks"
    dist.init_process_group("gloo", init_method=meeting_file, rank=int(child == 0), world_size=2)
    is_equal = all(map(torch.equal, train(sharded=False), train(sharded=True)))
    dist.barrier()
    dist.destroy_process_group()
    if child:
        is_equal &= os.waitpid(child, 0)[1] == 0
    os._exit(not is_equal)
