"""The GPUs that runs may use, and the cores and memory near each of them."""

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


def gpus_for(processes: int) -> int:
    """Count the `gpus` that a run of some processes takes: one each; without GPUs the machine is
    one, for all.

    Raises `InputError` if there are not so many.
    """
    there = gpus()
    if there == [None]:
        return 1
    if processes > len(there):
        raise InputError(
            f"a run of {processes} processes needs {processes} GPUs, and {len(there)} are here: "
            "lower `processes`, or start it where there are as many"
        )
    return processes


def binding(gpu: str | None, place: int, sysfs: Path = Path("/sys")) -> list[str]:
    """Return the `numactl` command that keeps a process and its memory near a GPU.

    `place` is the GPU's among `gpus`: the memory node of this number, where the kernel names none.
    Empty where there is no choice.
    """
    if gpu is None or not shutil.which("numactl"):
        return []
    # A Grace Hopper lists each GPU's own memory as a node without cores: no place for a process
    lists = sysfs.glob("devices/system/node/node[0-9]*/cpulist")
    nodes = sorted(int(cores.parent.name[4:]) for cores in lists if cores.read_text().strip())
    if len(nodes) < 2:
        return []
    node = _nearest(gpu, sysfs)
    if node not in nodes:
        node = nodes[place % len(nodes)]
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
