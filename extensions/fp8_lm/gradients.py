"""Gradients that FSDP2 sends in FP8 and adds up in float32: a reduce-scatter for `FSDPModule`.

Each rank cuts its gradients for another rank into blocks of 256 values. It sends each block in
e4m3, with a float32 scale by which the receiver multiplies: the block's largest magnitude over 448,
e4m3's largest value. Values and scales travel in one buffer of bytes, by one all-to-all: 260 bytes
a block where float32 takes 1,024. The receiver multiplies and adds up in float32, so a gradient is
rounded to FP8 once, however many ranks there are, and no sum can leave FP8's range.

A sum in FP8, as in FP8-LM (arXiv 2310.18313), rounds again at every rank and has to stay within the
range; `python -m extensions.fp8_lm.gradient_sums` compares both.
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.fsdp._fully_shard._fsdp_collectives import DefaultReduceScatter

BLOCK = 256  # gradients that share a scale
SCALE_BYTES = 4
E4M3 = torch.float8_e4m3fn
E4M3_MAX = torch.finfo(E4M3).max


def send_in_fp8(model: nn.Module) -> None:
    """Have FSDP2 send the gradients of a sharded model in FP8."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_custom_reduce_scatter(Fp8ReduceScatter())


def count_bytes(n: int) -> int:
    """Count the bytes in which a rank's share of n gradients is sent."""
    blocks = -(-n // BLOCK)
    return blocks * (BLOCK + SCALE_BYTES)


class Fp8ReduceScatter(DefaultReduceScatter):
    """For `FSDPModule.set_custom_reduce_scatter`, where FSDP2 takes sums. They are equal in every
    run, because they are added up in the order of ranks.

    With hybrid sharding FSDP2 adds up the shards of the replicas afterwards, in float32.
    """

    def __call__(self, output_tensor, input_tensor, group, op, async_op=False) -> None:
        """Write a rank's share of the sum, float32 (n), from each rank's gradients, float32 (ranks
        x n)."""
        send_buffer = encode(input_tensor.view(group.size(), -1))
        receive_buffer = torch.empty_like(send_buffer)
        dist.all_to_all_single(receive_buffer, send_buffer, group=group)
        gradients = decode(receive_buffer)[:, : output_tensor.numel()]
        torch.sum(gradients, 0, out=output_tensor)


def encode(rows: Tensor) -> Tensor:
    """Encode float32 (r, n) as uint8 (r, b * 260), where b blocks hold n values: the values of all
    blocks, then their scales.

    A block with a value that is not finite becomes nan, so that a run notices.
    """
    padding = -rows.shape[1] % BLOCK
    if padding:
        rows = F.pad(rows, (0, padding))
    blocks = rows.unflatten(1, (-1, BLOCK))
    scales = torch.linalg.vector_norm(blocks, torch.inf, -1) / E4M3_MAX
    scales.clamp_(min=torch.finfo(torch.float32).tiny)  # a block of zeros must not divide by 0
    values = (blocks / scales.unsqueeze(-1)).to(E4M3).flatten(1)
    return torch.cat([values.view(torch.uint8), scales.view(torch.uint8)], 1)


def decode(encoded: Tensor) -> Tensor:
    """Decode what `encode` returned: float32 (r, b * 256)."""
    n_blocks = encoded.shape[1] // (BLOCK + SCALE_BYTES)
    value_bytes, scale_bytes = encoded.split([n_blocks * BLOCK, n_blocks * SCALE_BYTES], 1)
    blocks = value_bytes.view(E4M3).float().unflatten(1, (-1, BLOCK))
    scales = scale_bytes.contiguous().view(torch.float32)
    return (blocks * scales.unsqueeze(-1)).flatten(1)
