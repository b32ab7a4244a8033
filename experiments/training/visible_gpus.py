"""Find the environment variable that hides all GPUs of this machine from torch."""

import logging
import os
import re
import sys
from collections.abc import Sequence
from functools import cache
from shlex import quote

import torch

CUDA_VARIABLE = "CUDA_VISIBLE_DEVICES"
CONTAINER_VARIABLE = "NVIDIA_VISIBLE_DEVICES"  # the GPUs that NVIDIA's container runtime lets in
ROCM_VARIABLES = ("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL")
UUID_PATTERN = re.compile(r"(?:MIG-)?(?:GPU-)?[0-9a-f-]+(?:/\d+/\d+)?", re.IGNORECASE)
INDEX_PATTERN = re.compile(r"\s*[+-]?\d+")


def asks_for_cpu() -> bool:
    """Tell if CUDA_VISIBLE_DEVICES is empty, or -1: then a run trains on the CPU."""
    return os.environ.get(CUDA_VARIABLE, "0").strip() in ("", "-1")


def explain_hidden_gpus(n_gpus: int, uuids: Sequence[str]) -> str | None:
    """Name the environment variable that surely hides all GPUs, and what to do; None without one.

    Args:
        n_gpus: the number of GPUs of this machine; 0 is unknown.
        uuids: of the GPUs and their parts; empty is unknown.
    """
    value = os.environ.get(CUDA_VARIABLE)
    if value is not None and names_no_gpu(value, n_gpus, uuids):
        numbers = f"numbers from 0 to {n_gpus - 1}" if n_gpus > 1 else "0"
        setting = format_setting(CUDA_VARIABLE)
        return f"{setting} names no GPU of this machine: leave it out, or take {numbers}"
    if value is not None and len(set(split_entries(value))) < len(split_entries(value)):
        setting = format_setting(CUDA_VARIABLE)
        return f"{setting} names a GPU twice, with which CUDA finds none: name each once"
    if os.environ.get(CONTAINER_VARIABLE) in ("void", "none"):
        setting = format_setting(CONTAINER_VARIABLE)
        return (
            f"{setting} keeps the GPUs out of this container: start the container with its GPUs "
            "(`docker run --gpus all`)"
        )
    return None


def suggest_variables() -> str:
    """Ask the user to look at the variables that may hide the GPUs; empty without one."""
    names = [name for name in (CUDA_VARIABLE, *ROCM_VARIABLES) if name in os.environ]
    if not names:
        return ""
    settings = " ".join(format_setting(name) for name in names)
    return f"; look whether {settings} names a GPU that `nvidia-smi --list-gpus` or `rocm-smi` has"


@cache
def warn_of_ignored_gpus() -> None:
    """Log a warning, once, if CUDA_VISIBLE_DEVICES names more GPUs than torch sees.

    CUDA ignores all entries after the first wrong one.
    """
    n_named = len(split_entries(os.environ.get(CUDA_VARIABLE, "0")))
    n_seen = torch.cuda.device_count()
    if n_named > n_seen:
        logging.getLogger().warning(
            f"{format_setting(CUDA_VARIABLE)} names {n_named} GPUs, and torch sees {n_seen}: CUDA "
            "ignores the first wrong entry and all after it"
        )


def split_entries(value: str) -> list[str]:
    """Split a value of CUDA_VISIBLE_DEVICES; a comma at its end names nothing."""
    return [entry.strip() for entry in value.strip().removesuffix(",").split(",")]


def format_setting(variable: str) -> str:
    """Write a variable as in a shell."""
    return f"{variable}={quote(os.environ[variable])}"


def names_no_gpu(value: str, n_gpus: int, uuids: Sequence[str]) -> bool:
    """Tell if a value of CUDA_VISIBLE_DEVICES surely names no GPU of this machine.

    CUDA reads it up to the first entry that is no GPU, so the first entry decides.
    """
    entry = split_entries(value)[0]
    number = INDEX_PATTERN.match(entry)
    if number:
        return not 0 <= int(number[0]) < (n_gpus or sys.maxsize)
    if not entry.startswith(("GPU-", "MIG-")) or not UUID_PATTERN.fullmatch(entry):
        return True
    # The first digits of a UUID are enough
    is_listed = any(uuid.lower().startswith(entry.lower()) for uuid in uuids)
    return bool(uuids) and not is_listed
