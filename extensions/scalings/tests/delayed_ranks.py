"""Two ranks take the largest values of each other's steps; started by test_scalings.py.

    python -m extensions.scalings.tests.delayed_ranks FOLDER

Each rank exits with 0 if both have the largest of both ranks' values for the last step's. Ranks are
forks of one process, which imports torch once.
"""

import os
import sys

import torch
import torch.distributed as dist
from torch import nn

from extensions.scalings.layer import end_step
from extensions.scalings.tests.layers import converted

LAYERS = 5


def check(rank: int, folder: str) -> None:
    dist.init_process_group("gloo", f"file://{folder}/store", rank=rank, world_size=2)
    model = converted(nn.Sequential(*[nn.Linear(16, 16) for _ in range(LAYERS)]), "delayed")
    # [rank, layer, largest value of input, weight and gradient]
    seen = torch.rand(2, LAYERS, 3, generator=torch.Generator().manual_seed(0))
    for layer, largest in zip(model, seen[rank], strict=True):
        layer.largest_values[:, 0] = largest
    end_step(model)
    found = torch.stack([layer.largest_values[:, 1] for layer in model])
    assert torch.equal(found, seen.amax(0))


if __name__ == "__main__":
    other = os.fork()
    check(int(other == 0), sys.argv[1])
    if other:
        sys.exit(os.waitstatus_to_exitcode(os.waitpid(other, 0)[1]))
