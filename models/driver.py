"""Ask NVIDIA's driver: what nvidia-smi says of a GPU, and why torch cannot use one that is here."""

import math
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
    listed, (why, mend) = nvidia_smi("name,driver_version"), _why_no_gpu()
    none = torch.version.cuda is None or re.search("no NVIDIA|No CUDA GPUs|in forked", why)
    if none and not listed and not glob(DEVICE_FILES):
        return
    found = "there is a GPU here"
    if listed:
        found = f"nvidia-smi lists {listed[0]} (driver {listed[1]})"
    raise InputError(
        f"{found}, which torch {torch.__version__} cannot use ({why}): {mend}; or set "
        "CUDA_VISIBLE_DEVICES= to train on the CPU"
    )


def _why_no_gpu() -> tuple[str, str]:
    """Give torch's own words, and what makes torch see a GPU that it cannot use."""
    if torch.version.cuda is None:
        return "it is built without CUDA", "install requirements.txt without constraints-cpu.txt"
    why = "it sees none"
    try:
        torch.cuda.init()
    except (RuntimeError, AssertionError) as error:
        why = str(error).partition(". ")[0]
    if "too old" in why:
        return why, "install a newer driver, or a torch for its CUDA (docs/installing.md)"
    return why, "see what nvidia-smi says; after an upgrade of the driver, reboot"


def nvidia_smi(query: str) -> list[str] | None:
    """Ask nvidia-smi for fields of the first visible GPU; None where it fails.

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
    return fields if len(fields) == query.count(",") + 1 else None


def number(field: str | None) -> float | None:
    """Read a field of nvidia-smi's as a number; None if it is none, as `[N/A]`."""
    try:
        number = float(field or "nan")
    except ValueError:
        return None
    return number if math.isfinite(number) else None
