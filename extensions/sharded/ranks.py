"""The ranks of a run: started together, told of one another, ended together; and how each of them
knows which one it is."""

import os
import signal
import socket
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

from experiments.jobs import process
from experiments.jobs.command import FAILED
from experiments.jobs.process import Place, Process, from_environment
from models.errors import InputError

GRACE_S = 30  # from one rank's end to the killing of the others: rank 0 writes how the run ended


def check_environment(config) -> None:
    """Check the variables of a rank, or that there are GPUs for all. Raises `InputError`."""
    count = config.sharded.processes
    if not is_rank(count):
        process.check_gpus(count)


def start(config) -> Callable[..., Process]:
    """Return what starts a run's processes, as `Process` does one."""
    return partial(Ranks, processes=config.sharded.processes)


# ---- as their starter sees them ----


class Ranks(Process):
    """The processes of a run, one a rank. They are the `Process` of the run, whose return code is
    that of the first rank that failed."""

    def __init__(
        self,
        arguments: list[str],
        log: Path,
        places: list[Place],
        environment: dict[str, str] | None = None,
        processes: int = 1,
    ):
        """Start `python -m ARGUMENTS` once a rank. Raises OSError.

        Rank 0 writes to `log`. What other ranks print is kept for `last_words`.
        """
        self.returncode, self._first = None, 0
        self.ranks: list[Process] = []
        self._ended: list[int] = []  # ranks, in the order of their ends
        self._folder = tempfile.TemporaryDirectory(prefix="ranks-", ignore_cleanup_errors=True)
        self._meeting = reserved_port()
        port, shared = self._meeting.getsockname()[1], _shared(places, processes)
        try:
            for rank in range(processes):
                own = shared | (environment or {}) | variables(rank, processes, port)
                place, file = places[rank % len(places)], Path(self._folder.name, f"rank{rank}")
                self.ranks.append(Process(arguments, file if rank else log, [place], own))
                threading.Thread(target=self._await, args=[rank], daemon=True).start()
        except OSError:
            self.kill()
            raise

    def _await(self, rank: int) -> None:
        self.ranks[rank].child.wait()
        self._ended.append(rank)

    def poll(self) -> int | None:
        """Return the exit code once all have ended. Kill those that outlive one, or a Ctrl-C, for
        `GRACE_S`."""
        codes = [rank.poll() for rank in self.ranks]
        if len(self._ended) < len(codes):
            if self._ended:
                self.kill_after(GRACE_S)
            return None
        failed = [rank for rank in self._ended if codes[rank]] or [0]
        self._first, self.returncode = failed[0], codes[failed[0]]
        if self.returncode > FAILED and self.returncode == codes[0]:
            self._first = 0  # all have agreed
        self._meeting.close()
        return self.returncode

    def send_signal(self, number: signal.Signals) -> None:
        for rank in self.ranks:
            rank.send_signal(number)

    def kill_after(self, seconds: float) -> None:
        for rank in self.ranks:
            rank.kill_after(seconds)

    def kill(self) -> None:
        for rank in self.ranks:
            rank.kill()

    @property
    def culprit(self) -> str:
        return f"rank {self._first} " if self._first else ""

    def last_words(self) -> str:
        """Return the last line of the rank that failed first; if that is not rank 0, add all that
        it printed to the log."""
        first, log = self.ranks[self._first], self.ranks[0].log
        words = first.last_words()
        if self._first:
            title = f"---- output of rank {self._first}, which failed first ----"
            with suppress(OSError), open(log, "a", encoding="utf-8") as output:  # a full disk
                output.write(f"{title}\n{first.log.read_text('utf-8', errors='replace')}")
        return words.replace(str(first.log), str(log))


def _shared(places: list[Place], processes: int) -> dict[str, str]:
    """Return what all ranks of a run are told: they see all its GPUs, between which NCCL copies,
    and each takes its share of the cores."""
    told = {}
    names = [gpu for _, gpu in places if gpu]
    if names:
        told["CUDA_VISIBLE_DEVICES"] = ",".join(names)
    if processes > 1 and "OMP_NUM_THREADS" not in os.environ:
        sharing = max(processes, len(process.gpus()))
        told["OMP_NUM_THREADS"] = str(len(os.sched_getaffinity(0)) // sharing or 1)
    return told


def reserved_port() -> socket.socket:
    """Bind a port that rank 0 can listen on and that Linux gives to nobody else until the socket is
    closed."""
    reserved = socket.socket()
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as torch's store does
    reserved.bind(("", 0))
    return reserved


# ---- as each of them sees itself: by the variables of torchrun or srun ----


def variables(rank: int, processes: int, port: int) -> dict[str, str]:
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


def is_rank(processes: int) -> bool:
    """Return whether this process is one of so many; srun's variables become torch.distributed's.

    Raises `InputError` where variables are missing, no numbers, or of another number of processes.
    """
    started = 1
    if "RANK" in os.environ or "WORLD_SIZE" in os.environ:
        _require("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
        started = from_environment("WORLD_SIZE")
    elif from_environment("SLURM_STEP_NUM_TASKS", 1) > 1:
        started = _take_over_from_srun()
    rank, local_rank = from_environment("RANK"), from_environment("LOCAL_RANK")
    if max(rank, local_rank) >= started:
        raise InputError(
            f"the environment variable RANK is {rank}, LOCAL_RANK {local_rank} and WORLD_SIZE "
            f"{started}: ranks begin at 0, and there is at least one"
        )
    if started not in (1, processes):
        raise InputError(
            f"sharded.processes is {processes}, and torchrun or srun has started {started}: "
            f"say sharded.processes={started}"
        )
    return started == processes


def _take_over_from_srun() -> int:
    """Set torch.distributed's variables; returns the number of tasks."""
    _require("SLURM_PROCID", "SLURM_LOCALID", "MASTER_ADDR", "MASTER_PORT")
    import torch

    tasks = from_environment("SLURM_STEP_NUM_TASKS")
    gpus = torch.cuda.device_count() or tasks  # a task may see one GPU
    os.environ["RANK"] = os.environ["SLURM_PROCID"]
    os.environ["WORLD_SIZE"] = str(tasks)
    os.environ["LOCAL_RANK"] = str(from_environment("SLURM_LOCALID") % gpus)
    return tasks


def _require(*names: str) -> None:
    given = [name for name in names if name in os.environ] or ["SLURM_STEP_NUM_TASKS"]
    missing = [name for name in names if name not in os.environ]
    if missing:
        raise InputError(
            f"the environment variable {given[0]} is set and {missing[0]} is not: start several "
            "processes with sharded.processes=N, torchrun, or extensions/sharded/alps_multinode."
            f"sbatch; for one process unset {given[0]}"
        )
