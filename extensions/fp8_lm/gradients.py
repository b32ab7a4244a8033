"""Gradients that FSDP2 sends in FP8 and adds up in float32: a reduce-scatter for `FSDPModule`.

Each rank cuts what it has for another rank into blocks of 256 values and sends each block in e4m3,
with the float32 step that takes e4m3's largest value, 448, to the block's largest magnitude. Values
and steps travel in one buffer of bytes, by one all-to-all: 260 bytes a block where float32 takes
1,024. The receiver multiplies and adds up in float32, so a gradient is rounded to FP8 once, however
many ranks there are, and no sum can leave FP8's range.

A sum in FP8, as in FP8-LM (arXiv 2310.18313), rounds again at every rank and has to be kept within
the range; `python -m extensions.fp8_lm.gradient_sums` compares both.
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.fsdp._fully_shard._fsdp_collectives import DefaultReduceScatter

BLOCK = 256  # gradients that share a scale
_E4M3 = torch.float8_e4m3fn
_LARGEST = torch.finfo(_E4M3).max


def send_in_fp8(model: nn.Module) -> None:
    """Have FSDP2 send the gradients of a sharded model in FP8."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_custom_reduce_scatter(Fp8ReduceScatter())


def bytes_sent(n: int) -> int:
    """Count the bytes in which a rank's share of n gradients is sent."""
    return -(-n // BLOCK) * (BLOCK + 4)


class Fp8ReduceScatter(DefaultReduceScatter):
    """For `FSDPModule.set_custom_reduce_scatter`, where FSDP2 is told to take sums. They are the
    same in every run, as they are added up in ranks' order.

    With hybrid sharding FSDP2 adds up the shards of the replicas afterwards, in float32.
    """

    def __call__(self, output_tensor, input_tensor, group, op, async_op=False) -> None:
        """Writes a rank's share of the sum, float32 (n), from each rank's gradients, float32 (ranks
        x n)."""
        sent = encode(input_tensor.view(group.size(), -1))
        received = torch.empty_like(sent)
        dist.all_to_all_single(received, sent, group=group)
        torch.sum(decode(received)[:, : output_tensor.numel()], 0, out=output_tensor)


def encode(rows: Tensor) -> Tensor:
    """uint8 (r, b * 260) for float32 (r, n), where b blocks hold n values: those of all blocks,
    then their steps.

    A block with a value that is not finite becomes nan, so that a run notices.
    """
    padding = -rows.shape[1] % BLOCK
    blocks = (F.pad(rows, (0, padding)) if padding else rows).unflatten(1, (-1, BLOCK))
    steps = torch.linalg.vector_norm(blocks, torch.inf, -1) / _LARGEST
    steps.clamp_(min=torch.finfo(torch.float32).tiny)  # a block of zeros must not divide by 0
    values = (blocks / steps.unsqueeze(-1)).to(_E4M3).flatten(1)
    return torch.cat([values.view(torch.uint8), steps.view(torch.uint8)], 1)


def decode(encoded: Tensor) -> Tensor:
    """float32 (r, b * 256) for what `encode` gave."""
    blocks = encoded.shape[1] // (BLOCK + 4)
    values, steps = encoded.split([blocks * BLOCK, blocks * 4], 1)
    blocks = values.view(_E4M3).float().unflatten(1, (-1, BLOCK))
    return (blocks * steps.contiguous().view(torch.float32).unsqueeze(-1)).flatten(1)
