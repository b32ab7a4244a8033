"""Record where a run takes place: machines, GPUs, and variables that change code or speed.

Two runs on one GPU, or on one machine, share what that GPU or machine does to speed. The analysis
therefore needs to know them. A host name does not tell: a container may have one of its own.
"""

import os
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from uuid import UUID

import torch
from torch import distributed as dist

from models import device

BOOT_ID_FILE = Path("/proc/sys/kernel/random/boot_id")  # the same in all containers of a machine
# Beginnings of the names of variables that change compiled code, kernels or communication
VARIABLE_PREFIXES = (
    "CUBLAS",
    "CUDA_",
    "CUDNN_",
    "KMP_",
    "MKL_",
    "NCCL_",
    "NVIDIA_TF32",
    "OMP_",
    "PYTORCH_",
    "TORCHAO_",
    "TORCHDYNAMO_",
    "TORCHINDUCTOR_",
    "TORCH_",
    "TRITON_",
)
SECRET_PATTERN = re.compile("TOKEN|KEY|SECRET|PASS|CREDENTIAL")  # in the name of a variable
UUID_BYTES = 16
UNKNOWN_UUID = UUID(int=0)


def read_variables() -> dict[str, str]:
    """Read the environment variables that can change code or speed; none that may be secret."""
    return {
        name: value
        for name, value in sorted(os.environ.items())
        if name.startswith(VARIABLE_PREFIXES) and not SECRET_PATTERN.search(name)
    }


def read_machine_id() -> UUID:
    """Read this machine's boot id; `UNKNOWN_UUID` where Linux does not show it."""
    with suppress(OSError, ValueError):
        return UUID(BOOT_ID_FILE.read_text().strip())
    return UNKNOWN_UUID


def read_gpu_id() -> UUID:
    """Read the UUID of this process's GPU; `UNKNOWN_UUID` on a CPU."""
    if device.TYPE == "cpu":
        return UNKNOWN_UUID
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    return UUID(str(properties.uuid))


def gather_places(
    all_reduce: Callable[[torch.Tensor], torch.Tensor],
) -> tuple[list[str | None], list[str | None]]:
    """Gather the machine and the GPU of each rank; None is unknown.

    All ranks must call it, because each rank adds its row to a table of bytes.

    Args:
        all_reduce: adds up a tensor of all ranks.

    Returns:
        Boot ids of machines, and UUIDs of GPUs, in the order of the ranks.
    """
    row = torch.tensor([*read_machine_id().bytes, *read_gpu_id().bytes])
    table = torch.zeros(dist.get_world_size(), 2 * UUID_BYTES, dtype=torch.int64)
    table[dist.get_rank()] = row
    machines: list[str | None] = []
    gpus: list[str | None] = []
    for values in all_reduce(table).tolist():
        machine = UUID(bytes=bytes(values[:UUID_BYTES]))
        gpu = UUID(bytes=bytes(values[UUID_BYTES:]))
        machines.append(None if machine == UNKNOWN_UUID else str(machine))
        gpus.append(None if gpu == UNKNOWN_UUID else f"GPU-{gpu}")
    return machines, gpus
