"""Record where a run takes place: machines, GPUs, and variables that change code or speed.

Two runs on one GPU, or on one machine, share what that GPU or machine does to speed. The analysis
therefore needs to know them. A host name does not tell: a container may have one of its own.
"""

import os
import re
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from uuid import UUID

import torch
from torch import distributed as dist

from models import device

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")  # the same in all containers of a machine
# What variables begin with that change compiled code, kernels or communication.
VARIABLES = (
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
SECRET = re.compile("TOKEN|KEY|SECRET|PASS|CREDENTIAL")  # in a variable's name
UUID_BYTES = 16


def variables() -> dict[str, str]:
    """Choose the environment variables that can change code or speed; none that may be secret."""
    names = [name for name in sorted(os.environ) if name.startswith(VARIABLES)]
    return {name: os.environ[name] for name in names if not SECRET.search(name)}


def machine_id() -> UUID | None:
    """Read this machine's boot id; None where Linux does not show it."""
    with suppress(OSError, ValueError):
        return UUID(BOOT_ID.read_text().strip())
    return None


def gpu_id() -> UUID | None:
    """Return the UUID of this process's GPU; None on a CPU."""
    if device.TYPE == "cpu":
        return None
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    return UUID(str(properties.uuid))


def of_all_ranks(all_reduce: Callable[[torch.Tensor], torch.Tensor]) -> dict[str, list[str | None]]:
    """Collect the machine and the GPU of each rank; None is unknown.

    All ranks must call it, because each adds its row to a table of bytes.

    Args:
        all_reduce: adds up a tensor of all ranks.
    """
    table = torch.zeros(dist.get_world_size(), 2 * UUID_BYTES, dtype=torch.int64)
    identities = [machine_id() or UUID(int=0), gpu_id() or UUID(int=0)]
    content = b"".join(identity.bytes for identity in identities)
    table[dist.get_rank()] = torch.tensor([*content])
    machines: list[str | None] = []
    gpus: list[str | None] = []
    for row in all_reduce(table).tolist():
        machine, gpu = UUID(bytes=bytes(row[:UUID_BYTES])), UUID(bytes=bytes(row[UUID_BYTES:]))
        machines.append(str(machine) if machine.int else None)
        gpus.append(f"GPU-{gpu}" if gpu.int else None)
    return {"machines": machines, "gpus": gpus}


def vboost(uuid: str | None) -> int | None:
    """Ask nvidia-smi for a GPU's vboost, a trade of memory clock for core clock; None if unknown.

    Its list has a line a GPU: `|   0     vboost           4              1       |` is GPU, slider,
    highest value, present value.
    """
    if not uuid:
        return None
    command = ["nvidia-smi", "boost-slider", "--list", "-i", uuid]
    quiet = {"stderr": subprocess.DEVNULL, "text": True, "errors": "replace"}
    try:
        answer = subprocess.check_output(command, timeout=20, **quiet)
    except (OSError, subprocess.SubprocessError):
        return None
    line = re.search(r"\bvboost\b.*", answer)
    numbers = re.findall(r"\d+", line[0]) if line else []
    return int(numbers[-1]) if numbers else None
