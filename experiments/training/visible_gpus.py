"""Find out whether an environment variable hides all GPUs of this machine from torch."""

import logging
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from shlex import quote

import torch

CUDA = "CUDA_VISIBLE_DEVICES"
CONTAINER = "NVIDIA_VISIBLE_DEVICES"  # which GPUs NVIDIA's container runtime puts in
ROCM = ("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL")
UUID = re.compile(r"(?:MIG-)?(?:GPU-)?[0-9a-f-]+(?:/\d+/\d+)?", re.IGNORECASE)
NUMBER = re.compile(r"\s*[+-]?\d+")


def asks_for_cpu() -> bool:
    """Tell if CUDA_VISIBLE_DEVICES is empty, or -1: then a run trains on the CPU."""
    return os.environ.get(CUDA, "0").strip() in ("", "-1")


def explain_hidden_gpus(count: int, uuids: Sequence[str]) -> str | None:
    """Say if torch sees no GPU because of an environment variable, and what to do.

    Args:
        count: how many GPUs the machine has; 0 is unknown.
        uuids: of the GPUs and their parts; none is unknown.
    """
    numbers = f"numbers from 0 to {count - 1}" if count > 1 else "0"
    fault = f"names no GPU of this machine: leave it out, or take {numbers}"
    value = os.environ.get(CUDA)
    if value is not None and names_no_gpu(value, count, uuids):
        return f"{setting(CUDA)} {fault}"
    if value is not None and len({*entries(value)}) < len(entries(value)):
        return f"{setting(CUDA)} names a GPU twice, with which CUDA finds none: name each once"
    runtime = os.environ.get(CONTAINER)
    if runtime in ("void", "none"):
        return (
            f"{CONTAINER}={runtime} keeps the GPUs out of this container: start the container with "
            "its GPUs (`docker run --gpus all`)"
        )
    names = [name for name in (CUDA, *ROCM) if name in os.environ]
    if names and _count_without(names):
        return f"{' '.join(map(setting, names))} {fault}"
    return None


@cache
def warn_of_ignored_gpus() -> None:
    """Log a warning if CUDA_VISIBLE_DEVICES names more GPUs than torch sees: CUDA ignores all after
    the first wrong entry."""
    named, seen = len(entries(os.environ.get(CUDA, "0"))), torch.cuda.device_count()
    if named > seen:
        logging.getLogger().warning(
            f"{setting(CUDA)} names {named} GPUs, and torch sees {seen}: CUDA ignores the first "
            "wrong entry and all after it"
        )


def entries(value: str) -> list[str]:
    """Split a value of CUDA_VISIBLE_DEVICES; a comma at its end names nothing."""
    return [entry.strip() for entry in value.strip().removesuffix(",").split(",")]


def setting(variable: str) -> str:
    """Write a variable as in a shell."""
    return f"{variable}={quote(os.environ[variable])}"


def doubt() -> str:
    """Ask the user to look up the UUID in CUDA_VISIBLE_DEVICES; empty without one.

    Where nvidia-smi lists no GPU, it is not certain whether the UUID is one's.
    """
    if "-" not in os.environ.get(CUDA, ""):
        return ""
    return f"; look whether `nvidia-smi --list-gpus` has {setting(CUDA)}"


def names_no_gpu(value: str, count: int, uuids: Sequence[str]) -> bool:
    """Tell if a value of CUDA_VISIBLE_DEVICES surely names no GPU of this machine.

    CUDA reads it up to the first entry that is no GPU, so the first entry decides.
    """
    entry = entries(value)[0]
    number = NUMBER.match(entry)
    if number:
        return not 0 <= int(number[0]) < (count or sys.maxsize)
    if not entry.startswith(("GPU-", "MIG-")) or not UUID.fullmatch(entry):
        return True
    # The first digits of a UUID are enough
    is_known = any(uuid.lower().startswith(entry.lower()) for uuid in uuids)
    return bool(uuids) and not is_known


def _count_without(names: Sequence[str]) -> int:
    """Count the GPUs seen by a process without some variables."""
    if not (torch.version.cuda or torch.version.hip):
        return 0
    command = [sys.executable, "-c", "import torch; print(torch.cuda.device_count())"]
    rest = {name: value for name, value in os.environ.items() if name not in names}
    answer = subprocess.run(command, env=rest, capture_output=True, text=True)
    last = answer.stdout.split()[-1:]
    return int(last[0]) if last and last[0].isdecimal() else 0
