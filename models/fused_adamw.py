"""AdamW for bf16 parameters on a GPU: the gradients' norm in one pass, clipping and step in
another.

16 bytes a parameter move between GPU and memory: 2 to read the gradient for the norm, then 8 to
read parameter, gradient and both moments, and 6 to write all but the gradient. Each pass is one
launch over all parameters. PyTorch's take 20 bytes, since clipping reads and writes the gradients
on its own, and hundreds of launches; its norm is in bf16.
"""

from collections.abc import Iterable
from functools import lru_cache, reduce
from math import inf, log

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

CHUNK = (
    1 << 16
)  # elements of a program of the kernels: several tiles, so that looking up its tensor costs little
# With these each thread has 4 loads of 16 bytes under way, and takes 79 and 58 registers on compute
# capability 9.0: 768 and 1024 threads on a multiprocessor, or 48 and 64 KiB under way, more than
# its share of the bandwidth times a microsecond of latency, some 36 KB.
NORM_TILE, STEP_TILE = 8192, 2048
WARPS = 8


class FusedAdamW(torch.optim.AdamW):
    """PyTorch's AdamW but for its step: same state, same checkpoints, same result to rounding.

    It computes in float32, as `AdamW(fused=True)` does, and rounds what it stores to bf16.

    Args:
        params: contiguous bf16 parameters on one GPU, or groups of them; of FSDP's, each process
        steps its shards.
        keys: `lr`, `betas`, `eps` and `weight_decay`, as PyTorch's.
    """

    def __init__(self, params: Iterable, **keys):
        super().__init__(
            params, fused=True, **keys
        )  # which decides where `step` is kept: on the GPU
        self._norm, self._max_norm = None, inf

    def clip(self, norm: torch.Tensor, max_norm: float) -> None:
        """Have the next step, and only that, scale the gradients down to `max_norm` as it reads
        them.

        `norm` is that of all gradients, a float32 scalar on their device. They become those of
        `torch.nn.utils.clip_grad_norm_`, without rounding.
        """
        self._norm, self._max_norm = norm, float(max_norm)

    def load_state_dict(self, state_dict: dict) -> None:
        """As PyTorch's, and a state that its other implementations saved comes to the GPU."""
        groups = [group | {"fused": True} for group in state_dict["param_groups"]]
        super().load_state_dict(state_dict | {"param_groups": groups})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        """Step the parameters that have a gradient. Raises `ValueError` for one that is not
        contiguous or not bf16.

        Checkpoints call it with a `closure` of None; there are no others here.
        """
        for group in self.param_groups:
            parameters, gradients, first, second, steps = lists = [], [], [], [], []
            self._init_group(group, parameters, gradients, first, second, [], steps)
            if parameters:
                torch._foreach_add_(steps, 1)
                self._update(group, *([local(tensor) for tensor in tensors] for tensors in lists))
        self._norm, self._max_norm = None, inf

    def _update(self, group: dict, parameters, gradients, first, second, steps) -> None:
        from models.adamw_kernels import adamw  # which imports Triton

        chunks, table, align = _tables(parameters, gradients, first, second, more=steps)
        norm = torch.zeros((), device=parameters[0].device) if self._norm is None else self._norm
        beta1, beta2 = group["betas"]
        log1, log2 = (log(beta) if beta else -inf for beta in group["betas"])
        lr = float(group["lr"])
        adamw[(len(chunks),)](
            chunks, table, norm, self._max_norm, lr, lr * group["weight_decay"], float(group["eps"]),
            BETA1=beta1, BETA2=beta2, LOG_BETA1=log1, LOG_BETA2=log2,
            ALIGN=align, CHUNK=CHUNK, TILE=STEP_TILE, num_warps=WARPS,
        )  # fmt: skip


@torch.no_grad()
def gradient_norm(gradients: list[torch.Tensor]) -> torch.Tensor:
    """The norm of bf16 gradients together, a float32 scalar on their GPU, the same in each call.

    Shards are added up over the processes that hold them, copies are not. Raises `ValueError` for a
    gradient that is not contiguous or not bf16.
    """
    by_sharding: dict[tuple, list[torch.Tensor]] = {}
    for gradient in gradients:
        sharding = (
            (gradient.device_mesh, gradient.placements)
            if isinstance(gradient, DTensor)
            else (None, ())
        )
        by_sharding.setdefault(sharding, []).append(local(gradient))
    squares = []
    for (mesh, placements), shards in by_sharding.items():
        squares.append(_sum_of_squares(shards))
        for dim, placement in enumerate(placements):
            if placement.is_shard():
                dist.all_reduce(squares[-1], group=mesh.get_group(dim))
    return reduce(torch.add, squares).sqrt()


def _sum_of_squares(tensors: list[torch.Tensor]) -> torch.Tensor:
    from models.adamw_kernels import sum_of_squares  # which imports Triton

    chunks, table, align = _tables(tensors)
    partial = torch.empty(len(chunks), dtype=torch.float32, device=chunks.device)
    sum_of_squares[(len(chunks),)](
        chunks, table, partial, ALIGN=align, CHUNK=CHUNK, TILE=NORM_TILE, num_warps=WARPS
    )
    return partial.sum()


def local(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's plain data of a parameter or gradient, out of FSDP's and torchao's wrappers."""
    if isinstance(tensor, DTensor):
        tensor = tensor.to_local()
    return getattr(tensor, "_tensor", tensor)


def _tables(*columns: list[torch.Tensor], more: list[torch.Tensor] | None = None) -> tuple:
    """What the kernels find their tensors by, see models/adamw_kernels.py.

    Args:
        columns: lists of bf16 tensors; those at the same place in each have the same number of
        elements.
        more: one more list of tensors, of any kind.

    Returns:
        The chunks (int32, n x 2), the table (int64, a row for each tensor), and what all bf16
        addresses are multiples of, in bytes. Gradients have new addresses in every step, and so the
        table is new in each call.
    """
    for tensor in (tensor for column in columns for tensor in column):
        if tensor.dtype != torch.bfloat16 or not tensor.is_contiguous():
            raise ValueError(
                f"expected contiguous bf16 tensors, got {tensor.dtype} with strides {tensor.stride()}"
            )
    sizes = tuple(tensor.numel() for tensor in columns[0])
    addresses = [
        [tensor.data_ptr() for tensor in column] for column in (*columns, *([more] if more else []))
    ]
    aligned = all(address % 16 == 0 for column in addresses[: len(columns)] for address in column)
    device = columns[0][0].device
    rows = list(zip(sizes, *addresses, strict=True))
    pinned = torch.tensor(rows, dtype=torch.int64, pin_memory=device.type == "cuda")
    return _chunks(sizes, device), pinned.to(device, non_blocking=True), 16 if aligned else 2


@lru_cache(maxsize=8)
def _chunks(sizes: tuple[int, ...], device: torch.device) -> torch.Tensor:
    """(tensor, chunk of that tensor) for each chunk of tensors with these numbers of elements."""
    counts = torch.tensor([-(-size // CHUNK) for size in sizes])
    tensor = torch.arange(len(sizes)).repeat_interleave(counts)
    before = (counts.cumsum(0) - counts)[tensor]
    return torch.stack([tensor, torch.arange(len(tensor)) - before], 1).to(torch.int32).to(device)
