"""Ask NVIDIA's driver: what nvidia-smi says of a GPU, and why torch cannot use one that is here."""

import os
import re
import subprocess
from glob import glob

import torch

from models.errors import InputError

DEVICE_FILES = "/dev/nvidia[0-9]*"
"""What Linux has of each GPU, whether nvidia-smi works or not."""


def check_driver() -> None:
    """Raise `InputError` where there is a GPU that torch cannot use: a run would train on the CPU.

    An empty CUDA_VISIBLE_DEVICES asks for that.
    """
    if torch.cuda.is_available() or os.environ.get("CUDA_VISIBLE_DEVICES") == "":
        return
    why, listed = "it sees none", nvidia_smi("name,driver_version")
    try:
        torch.cuda.init()
    except (RuntimeError, AssertionError) as error:
        why = str(error).partition(". ")[0]
    no_gpu = re.search("not compiled|no NVIDIA|No CUDA GPUs|in forked", why)
    if no_gpu and not listed and not glob(DEVICE_FILES):
        return
    found = " with driver ".join(listed or ["a GPU"])
    raise InputError(
        f"there is {found} here, which torch {torch.__version__} cannot use ({why}): install "
        "requirements.txt without constraints-cpu.txt, or a newer driver (docs/installing.md), and "
        "after an upgrade of the driver, reboot; or set CUDA_VISIBLE_DEVICES= to train on the CPU"
    )


def nvidia_smi(query: str) -> list[str] | None:
    """Ask nvidia-smi for fields of the first visible GPU; None where it fails.

    nvidia-smi itself ignores CUDA_VISIBLE_DEVICES.
    """
    gpu = (os.environ.get("CUDA_VISIBLE_DEVICES") or "0").split(",")[0]
    command = f"nvidia-smi --query-gpu={query} --id={gpu} --format=csv,noheader,nounits".split()
    quiet = {"stderr": subprocess.DEVNULL, "text": True, "errors": "replace"}
    try:
        fields = subprocess.check_output(command, timeout=20, **quiet).strip().split(", ")
    except (OSError, subprocess.SubprocessError):
        return None
    return fields if len(fields) == query.count(",") + 1 else None


def number(field: str | None) -> float | None:
    """Read a field of nvidia-smi's as a number; None if it is none, as `[N/A]`."""
    return float(field) if re.fullmatch(r"\d+([.]\d+)?", field or "") else None
