"""The processes of a run: the GPUs that they get, how they are started and ended together, and how
each of them knows which one it is."""

import math
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path

from experiments.jobs.command import FAILED, STARTER_PID
from models.errors import InputError

GRACE_S = 30  # from one rank's end to the killing of the others: rank 0 writes how the run ended


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


def check_gpus(processes: int) -> None:
    """Check that each process of a run gets a GPU of its own, where there are GPUs. Raises
    `InputError`."""
    there = gpus()
    if there != [None] and processes > len(there):
        raise InputError(
            f"a run of {processes} processes needs {processes} GPUs, and {len(there)} are here: "
            "lower `processes`, or start it where there are as many"
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


# ---- ranks, as their starter sees them ----


class Ranks:
    """The processes of a run, one a rank: started together, told of one another, ended together.

    Attributes, once all have ended:
        returncode: of the first rank that failed; negative for a signal's number.
        first: the number of that rank, or 0 if all failed alike.
    """

    def __init__(
        self,
        arguments: list[str],
        log: Path,
        gpus: list[tuple[int, str | None]],
        processes: int = 1,
        environment: dict[str, str] | None = None,
    ):
        """Start `python -m ARGUMENTS` once a rank. Raises OSError.

        Rank 0's stderr is added to `log`; its stdout, which repeats the log, is dropped. What
        another rank prints is kept for `last_words`. `gpus` are (place, GPU) as for
        `binding`.
        """
        self.log = log
        self.first, self.returncode = 0, None
        self.children: list[subprocess.Popen] = []
        self._outputs = {0: open(log, "a", encoding="utf-8")}  # noqa: SIM115  # for as long as the processes
        self._ended: list[int] = []  # ranks, in the order of their ends
        self._kill_at = math.inf
        self._meeting = reserved_port()
        port = self._meeting.getsockname()[1]
        shared = os.environ | _shared(gpus, processes) | (environment or {})
        try:
            for rank in range(processes):
                command = [*binding(*gpus[rank % len(gpus)]), sys.executable, "-m", *arguments]
                self._start(rank, command, shared | variables(rank, processes, port))
        except OSError:
            self._kill()
            raise

    def _start(self, rank: int, command: list[str], environment: dict[str, str]) -> None:
        """Start a process in a session of its own: a terminal's Ctrl-C reaches only this process,
        which passes it on. It ends with this one."""
        stdout = subprocess.DEVNULL
        if rank:
            stdout = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115
            self._outputs[rank] = stdout
        child = subprocess.Popen(
            command,
            env=environment,
            stdout=stdout,
            stderr=self._outputs[rank],
            start_new_session=True,
        )
        self.children.append(child)
        threading.Thread(target=self._await, args=[rank], daemon=True).start()

    def _await(self, rank: int) -> None:
        self.children[rank].wait()
        self._ended.append(rank)

    def poll(self) -> int | None:
        """Return the exit code once all have ended. Kill those that outlive one, or a Ctrl-C, for
        `GRACE_S`."""
        if len(self._ended) == len(self.children):
            failed = [rank for rank in self._ended if self.children[rank].returncode]
            self.first = failed[0] if failed else 0
            self.returncode = self.children[self.first].returncode
            if self.returncode > FAILED and self.returncode == self.children[0].returncode:
                self.first = 0  # all have agreed
            self._meeting.close()
        elif self._ended:
            self.kill_after(GRACE_S)
        if time.monotonic() > self._kill_at:
            self._kill()
        return self.returncode

    def send_signal(self, number: signal.Signals) -> None:
        """Pass a request on to all ranks; one that was stopped (SIGSTOP) goes on, to obey it."""
        for child in self.children:
            child.send_signal(number)
            child.send_signal(signal.SIGCONT)
        if number == signal.SIGINT:  # a second Ctrl-C: a rank that waits for another is deaf to it
            self.kill_after(GRACE_S)

    def kill_after(self, seconds: float) -> None:
        """Have `poll` kill what still runs then, unless that was asked for already."""
        self._kill_at = min(self._kill_at, time.monotonic() + seconds)

    def end(self, grace_s: float) -> None:
        """Ask all to end, and wait for them; kill them after `grace_s` seconds."""
        self.send_signal(signal.SIGTERM)
        self.kill_after(grace_s)
        while self.poll() is None:
            time.sleep(0.1)

    def _kill(self) -> None:
        for child in self.children:
            if child.poll() is None:
                with suppress(ProcessLookupError):
                    os.killpg(child.pid, signal.SIGKILL)  # its compile workers too

    def last_words(self) -> str:
        """Return the last line of the rank that failed first; if that is not rank 0, add all that
        it printed to the log."""
        with suppress(OSError):  # a full disk
            text = self.log.read_text("utf-8", errors="replace")
            if self.first:
                self._outputs[self.first].seek(0)
                text = self._outputs[self.first].read()
                title = f"---- output of rank {self.first}, which failed first ----"
                self._outputs[0].write(f"{title}\n{text}")
                self._outputs[0].flush()
            lines = [line for line in text.splitlines() if line.strip()]
            if lines and self.returncode != -signal.SIGKILL:  # which leaves no time for words
                return lines[-1]
        return f"see {self.log}"


def _shared(places: list[tuple[int, str | None]], processes: int) -> dict[str, str]:
    """Return what all ranks of a run are told: they see all its GPUs, between which NCCL copies,
    and each takes its share of the cores."""
    told = {STARTER_PID: str(os.getpid())}
    names = [gpu for _, gpu in places if gpu]
    if names:
        told["CUDA_VISIBLE_DEVICES"] = ",".join(names)
    if processes > 1 and "OMP_NUM_THREADS" not in os.environ:
        sharing = max(processes, len(gpus()))
        told["OMP_NUM_THREADS"] = str(len(os.sched_getaffinity(0)) // sharing or 1)
    return told


def reserved_port() -> socket.socket:
    """Bind a port that rank 0 can listen on and that Linux gives to nobody else until the socket is
    closed."""
    reserved = socket.socket()
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as torch's store does
    reserved.bind(("", 0))
    return reserved


# ---- which of the ranks this process is: the variables of torchrun or srun ----


def variables(rank: int, processes: int, port: int = 0) -> dict[str, str]:
    """Return torch.distributed's variables for one of several processes on this machine.

    Rank 0 listens at `port` itself, also where a torchrun around this process listens for its own.
    """
    told = {
        "RANK": rank,
        "WORLD_SIZE": processes,
        "LOCAL_RANK": rank,
        "LOCAL_WORLD_SIZE": processes,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
        "TORCHELASTIC_USE_AGENT_STORE": False,
    }
    return {name: str(value) for name, value in told.items()}


def set_rank_environment() -> int:
    """Set torch.distributed's variables to torchrun's, srun's, or those of one process; returns
    the number of processes.

    Raises `InputError` where variables are missing or no numbers.
    """
    if "RANK" in os.environ or "WORLD_SIZE" in os.environ:
        _require("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
    elif from_environment("SLURM_STEP_NUM_TASKS", 1) > 1:
        _take_over_from_srun()
    else:
        os.environ |= variables(0, 1)
    rank, local_rank, world_size = map(from_environment, ("RANK", "LOCAL_RANK", "WORLD_SIZE"))
    if max(rank, local_rank) >= world_size:
        raise InputError(
            f"the environment variable RANK is {rank}, LOCAL_RANK {local_rank} and WORLD_SIZE "
            f"{world_size}: ranks begin at 0, and there is at least one"
        )
    return world_size


def _take_over_from_srun() -> None:
    _require("SLURM_PROCID", "SLURM_LOCALID", "MASTER_ADDR", "MASTER_PORT")
    import torch

    tasks = from_environment("SLURM_STEP_NUM_TASKS")
    local = from_environment("SLURM_LOCALID") % (
        torch.cuda.device_count() or tasks
    )  # a task may see one GPU
    os.environ["RANK"] = os.environ["SLURM_PROCID"]
    os.environ["WORLD_SIZE"] = str(tasks)
    os.environ["LOCAL_RANK"] = str(local)


def _require(*names: str) -> None:
    given = [name for name in names if name in os.environ] or ["SLURM_STEP_NUM_TASKS"]
    missing = [name for name in names if name not in os.environ]
    if missing:
        raise InputError(
            f"the environment variable {given[0]} is set and {missing[0]} is not: start several "
            "processes with --processes N, torchrun, or srun after `export MASTER_ADDR=$(hostname) "
            f"MASTER_PORT=…` as in launch/alps_multinode.sbatch; for one process unset {given[0]}"
        )


def from_environment(name: str, default: int = 0) -> int:
    """Read a number from an environment variable. Raises `InputError` where it is none."""
    text = os.environ.get(name, str(default))
    if not text.isdecimal():
        raise InputError(
            f"the environment variable {name} is {text!r}: set it to a whole number, or unset it"
        )
    return int(text)
