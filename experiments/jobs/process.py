"""Start the process of a run on its GPU, near that GPU's cores and memory; pass requests to the
process, and end it."""

import math
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from experiments.jobs.command import STARTER_PID
from models.errors import InputError

GRACE_S = 30  # from a second Ctrl-C to the killing of what is deaf to it
Place = tuple[int, str | None]
"""A GPU's number among `gpus`, and its name; (0, None) without GPUs."""


class Process:
    """The process of a run.

    `returncode` is None until it has ended, and negative for a signal's number.
    """

    def __init__(
        self,
        arguments: list[str],
        log: Path,
        places: list[Place],
        environment: dict[str, str] | None = None,
    ):
        """Start `python -m ARGUMENTS` at the first of some places. Raises OSError.

        stderr is added to `log`; stdout, which repeats the log, is dropped.
        """
        self.log, self.returncode = log, None
        self._kill_at = math.inf
        added = {STARTER_PID: str(os.getpid())}
        names = [gpu for _, gpu in places if gpu]
        if names:
            added["CUDA_VISIBLE_DEVICES"] = ",".join(names)
        near = binding(*places[0]) if len(places) == 1 else []  # else each process binds itself
        with open(log, "a", encoding="utf-8") as output:
            # A session of its own: this process passes a terminal's Ctrl-C on
            self.child = subprocess.Popen(
                [*near, sys.executable, "-m", *arguments],
                env=os.environ | added | (environment or {}),
                stdout=subprocess.DEVNULL,
                stderr=output,
                start_new_session=True,
            )

    def poll(self) -> int | None:
        """Return the exit code once it has ended. Kill it if it outlives a Ctrl-C too long."""
        if time.monotonic() > self._kill_at:
            self.kill()
        self.returncode = self.child.poll()
        return self.returncode

    def send_signal(self, number: signal.Signals) -> None:
        """Pass a request on; a process that was stopped (SIGSTOP) goes on, to obey it."""
        self.child.send_signal(number)
        self.child.send_signal(signal.SIGCONT)
        if number == signal.SIGINT:  # a second Ctrl-C
            self.kill_after(GRACE_S)

    def kill_after(self, seconds: float) -> None:
        """Have `poll` kill it then, unless that was asked for already."""
        self._kill_at = min(self._kill_at, time.monotonic() + seconds)

    def kill(self) -> None:
        """Kill it and its compile workers."""
        if self.child.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self.child.pid, signal.SIGKILL)

    def last_words(self) -> str:
        """Return the last line that it wrote, or where to look."""
        with suppress(OSError):  # a full disk
            lines = self.log.read_text("utf-8", errors="replace").split("\n")
            written = [line for line in lines if line.strip()]
            if written and self.returncode != -signal.SIGKILL:  # which leaves no time for words
                return written[-1]
        return f"see {self.log}"


# ---- the GPUs of runs, and the cores and memory near them ----


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


def binding(place: int, gpu: str | None, sysfs: Path = Path("/sys")) -> list[str]:
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
    nearest = _nearest(gpu, sysfs)
    node = nearest if nearest in nodes else nodes[place % len(nodes)]
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


def check_environment(*_) -> None:
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
