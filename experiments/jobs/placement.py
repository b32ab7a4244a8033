"""The GPUs that a study may use, and processes that keep to one of them, its cores and its
memory."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from experiments.jobs.ranks import variables
from experiments.jobs.signals import STUDY_PID
from models.errors import InputError


def gpus() -> list[str | None]:
    """Indices or UUIDs as CUDA_VISIBLE_DEVICES has them (a cluster sets it), or all; [None] where
    there is none."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return [name.strip() for name in visible.split(",") if name.strip()] or [None]
    import torch

    return [str(index) for index in range(torch.cuda.device_count())] or [None]


def gpus_for(processes: int) -> int:
    """How many of `gpus` a run of some processes takes: one each; without GPUs the machine is one,
    for all.

    Raises `InputError` if there are not so many.
    """
    there = gpus()
    if there == [None]:
        return 1
    if processes > len(there):
        raise InputError(
            f"a run of {processes} processes needs {processes} GPUs, and {len(there)} are here: lower `processes`, or "
            "start it where there are as many"
        )
    return processes


def start(
    arguments: list[str], gpu: str | None, place: int, environment: dict | None = None, **streams
) -> subprocess.Popen:
    """Start `python -m` on a GPU, near its cores; the process ends with this one.

    It has a session of its own: the terminal's Ctrl-C reaches only this process, which passes it
    on. `gpu` and `place` are as for `binding`; `environment` is added to this process's, whose
    variables of ranks are not passed on.
    """
    own = (
        variables(0, 1)
        | {STUDY_PID: str(os.getpid())}
        | ({"CUDA_VISIBLE_DEVICES": gpu} if gpu else {})
    )
    command = [*binding(gpu, place), sys.executable, "-m", *arguments]
    return subprocess.Popen(
        command, env=os.environ | own | (environment or {}), start_new_session=True, **streams
    )


def binding(gpu: str | None, place: int, sysfs: Path = Path("/sys")) -> list[str]:
    """The `numactl` command that keeps a process and its memory near a GPU; empty where there is no
    choice.

    `place` is the GPU's among those of `gpus`: the memory node of this number, where the kernel
    names none.
    """
    # A Grace Hopper lists each GPU's own memory as a node without cores, which a host's memory must
    # stay out of
    folders = [
        p.parent
        for p in sysfs.glob("devices/system/node/node[0-9]*/cpulist")
        if p.read_text().strip()
    ]
    nodes = sorted(int(folder.name.removeprefix("node")) for folder in folders)
    if gpu is None or len(nodes) < 2 or not shutil.which("numactl"):
        return []
    node = _nearest(gpu, sysfs)
    if node not in nodes:
        node = nodes[place % len(nodes)]
    command = ["numactl", f"--cpunodebind={node}", f"--membind={node}"]
    # A container may own some of the nodes only, or forbid any choice of memory: then nothing
    # starts with it
    permitted = subprocess.run([*command, "true"], capture_output=True).returncode == 0
    return command if permitted else []


def _nearest(gpu: str, sysfs: Path) -> int | None:
    """The memory node that the kernel gives for a GPU's slot; None or -1 if it gives none."""
    query = ["nvidia-smi", f"--id={gpu}", "--query-gpu=pci.bus_id", "--format=csv,noheader"]
    try:
        slot = (
            subprocess.run(query, capture_output=True, text=True, check=True, timeout=20)
            .stdout.strip()
            .lower()
        )
        return int(
            (sysfs / "bus/pci/devices" / slot[-12:] / "numa_node").read_text()
        )  # domain of 4 digits, not 8
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
