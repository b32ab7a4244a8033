"""Ask NVIDIA's driver: what nvidia-smi says of a GPU, and why torch cannot use one that is here."""

import math
import os
import re
import subprocess
from glob import glob

import torch

from models.errors import InputError

DEVICE_FILES = ("/dev/nvidia[0-9]*", "/proc/driver/nvidia/gpus/*")
"""What Linux has of each GPU, whether nvidia-smi works or not."""


def check_driver() -> None:
    """Raise `InputError` where there is a GPU that torch cannot use: a run would train on the CPU.

    An empty CUDA_VISIBLE_DEVICES asks for that.
    """
    if torch.cuda.is_available() or os.environ.get("CUDA_VISIBLE_DEVICES") == "":
        return
    found, why = _gpu_that_is_here(), _why_no_gpu()
    broken = torch.version.cuda is not None and not re.search("no NVIDIA|No CUDA GPUs", why)
    if not found and not broken:
        return
    raise InputError(
        f"{found or 'there is a GPU here'}, which torch {torch.__version__} cannot use ({why}): "
        f"{_mend(why)}; or set CUDA_VISIBLE_DEVICES= to train on the CPU"
    )


def _gpu_that_is_here() -> str | None:
    """Say what shows that there is a GPU; None if nothing does."""
    listed = nvidia_smi("name,driver_version")
    if listed:
        return f"nvidia-smi lists {listed[0]} (driver {listed[1]})"
    files = [file for pattern in DEVICE_FILES for file in glob(pattern)]
    return f"Linux has a GPU ({files[0]})" if files else None


def _why_no_gpu() -> str:
    """torch's own words."""
    if torch.version.cuda is None:
        return "it is built without CUDA"
    try:
        torch.cuda.init()
    except (RuntimeError, AssertionError) as error:
        return str(error).partition(". ")[0]
    return "it sees none"


def _mend(why: str) -> str:
    """Say what makes torch see a GPU that it cannot use, by torch's own words."""
    if torch.version.cuda is None:
        return "install requirements.txt without constraints-cpu.txt"
    old = re.search(r"found version (\d+)", why)
    if not old:
        return "see what nvidia-smi says; after an upgrade of the driver, reboot"
    cuda = int(old[1])
    if cuda < 12000:
        return "install a newer driver"
    # A build for CUDA 12 runs on every driver for CUDA 12; Blackwell's kernels came with 12.8.
    build = "cu128" if cuda >= 12080 else "cu126"
    return (
        f"install a newer driver than this one for CUDA {cuda // 1000}.{cuda % 1000 // 10}, or a "
        "torch that suits it: python -m pip install torch==2.11.0 --index-url "
        f"https://download.pytorch.org/whl/{build}"
    )


def nvidia_smi(query: str) -> list[str | None] | None:
    """Ask nvidia-smi for fields of the first visible GPU: None for a field that it does not know,
    None for all where it fails.

    nvidia-smi itself ignores CUDA_VISIBLE_DEVICES.
    """
    gpu = (os.environ.get("CUDA_VISIBLE_DEVICES") or "0").split(",")[0]
    command = ["nvidia-smi", f"--query-gpu={query}", f"--id={gpu}"]
    command.append("--format=csv,noheader,nounits")
    try:
        answer = subprocess.run(command, capture_output=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    fields = answer.stdout.decode(errors="replace").strip().split(", ")
    if len(fields) != query.count(",") + 1:
        return None
    return [None if field.startswith("[") else field for field in fields]  # [N/A], [Not Supported]


def number(field: str | None) -> float | None:
    """Read a field of nvidia-smi's as a number; None if it is none."""
    try:
        number = float(field or "nan")
    except ValueError:
        return None
    return number if math.isfinite(number) else None
