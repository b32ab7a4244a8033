"""What a run's process is given: its GPUs, the cores and memory near them, variables."""

import os
import shutil
import subprocess
from pathlib import Path

from models.errors import InputError


def gpus() -> list[str | None]:
    """List the GPUs that a cluster gave (CUDA_VISIBLE_DEVICES: indices or UUIDs), or all of them.

    [None] where there is none.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return [name.strip() for name in visible.split(",") if name.strip()] or [None]
    import torch

    return [str(index) for index in range(torch.cuda.device_count())] or [None]


def check_gpus(needed: int) -> None:
    """Check that there are the GPUs that a run takes, where there are any. Raises `InputError`."""
    there = gpus()
    if there != [None] and needed > len(there):
        raise InputError(
            f"a run takes {needed} GPUs, and {len(there)} are here: have it take fewer, or start "
            "it where there are as many"
        )


def binding(gpu: str | None, sysfs: Path = Path("/sys")) -> list[str]:
    """Return the `numactl` command that keeps a process and its memory near a GPU.

    Where the kernel names no memory node, the first of `gpus` gets the first one, and so on. Empty
    where there is no choice.
    """
    if gpu is None or not shutil.which("numactl"):
        return []
    # A Grace Hopper lists each GPU's own memory as a node without cores: no place for a process
    lists = sysfs.glob("devices/system/node/node[0-9]*/cpulist")
    nodes = sorted(int(cores.parent.name[4:]) for cores in lists if cores.read_text().strip())
    if len(nodes) < 2:
        return []
    nearest = _nearest(gpu, sysfs)
    node = nearest if nearest in nodes else nodes[gpus().index(gpu) % len(nodes)]
    command = ["numactl", f"--cpunodebind={node}", f"--membind={node}"]
    # A container may own only some nodes, or forbid any choice: then nothing starts with numactl
    permitted = subprocess.run([*command, "true"], capture_output=True).returncode == 0
    return command if permitted else []


def _nearest(gpu: str, sysfs: Path) -> int | None:
    """Read the memory node of a GPU's slot; None or -1 if the kernel gives none."""
    query = ["nvidia-smi", f"--id={gpu}", "--query-gpu=pci.bus_id", "--format=csv,noheader"]
    try:
        slot = subprocess.check_output(query, text=True, timeout=20).strip().lower()
        # the kernel writes a domain of 4 digits, nvidia-smi one of 8
        return int((sysfs / "bus/pci/devices" / slot[-12:] / "numa_node").read_text())
    except (OSError, subprocess.SubprocessError, ValueError):
        return None


# ---- variables of whatever started this process ----


def check_environment() -> None:
    """Check that this process is the only one of its run or study. Raises `InputError`."""
    if from_environment("WORLD_SIZE", 1) > 1:
        raise InputError(
            "WORLD_SIZE is set, as under torchrun, and this takes one process: unset it, or start "
            "this without torchrun"
        )


def from_environment(name: str, default: int = 0) -> int:
    """Read a number from an environment variable. Raises `InputError` where it is none."""
    text = os.environ.get(name, str(default))
    if not text.isdecimal():
        raise InputError(
            f"the environment variable {name} is {text!r}: set it to a whole number, or unset it"
        )
    return int(text)
