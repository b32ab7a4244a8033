"""The processes of one run on this machine: one a rank, each told of the others, and all ended when
one dies."""

import os
import signal
import socket
import subprocess
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path

from experiments.jobs import placement
from experiments.jobs.exit_codes import FAILED
from experiments.jobs.ranks import variables

GRACE_S = 30  # seconds from one rank's end to the killing of the others; rank 0 writes how the run ended in them


class Ranks:
    """A run's processes, as if they were one: `poll`, `send_signal` and `returncode` are as of
    `subprocess.Popen`.

    `returncode` is that of the first rank that did not end with 0, and `first` its number, but 0
    where all have agreed.
    """

    def __init__(
        self,
        arguments: list[str],
        gpus: list,
        processes: int,
        environment: dict[str, str],
        log: Path,
    ):
        """Start `python -m` with `arguments` once a rank. Raises OSError.

        `gpus` are (place, GPU) as for `placement.binding`, one a rank; (0, None) without GPUs. Rank
        0's stderr is added to the run's `log`. What another rank prints is kept, and shown if it
        fails first.
        """
        self.log, self.first, self.returncode = log, 0, None
        self.children: list[subprocess.Popen] = []
        self._outputs = []  # of each rank, rank 0's aside
        self._ended: list[int] = []  # ranks, in the order in which they ended
        self._kill_at: float | None = None
        self._meeting = reserved_port()
        if processes > 1:
            environment = environment | _shared(gpus, processes)
        try:
            for rank in range(processes):
                own = (
                    variables(rank, processes, self._meeting.getsockname()[1])
                    if processes > 1
                    else {}
                )
                self._start(rank, arguments, *gpus[rank % len(gpus)], environment | own)
        except OSError:
            self._kill()
            raise

    def _start(
        self, rank: int, arguments: list[str], place: int, gpu: str | None, environment: dict
    ) -> None:
        if rank:
            self._outputs.append(tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace"))
            streams = {"stdout": self._outputs[-1], "stderr": self._outputs[-1]}
            child = placement.start(arguments, gpu, place, environment, **streams)
        else:
            with open(self.log, "a") as log:  # it writes there itself what it prints on stdout
                child = placement.start(
                    arguments, gpu, place, environment, stdout=subprocess.DEVNULL, stderr=log
                )
        self.children.append(child)
        threading.Thread(target=self._await, args=[rank], daemon=True).start()

    def _await(self, rank: int) -> None:
        self.children[rank].wait()
        self._ended.append(rank)

    def poll(self) -> int | None:
        """The exit code once all ranks have ended; those that outlive one, or SIGINT, for `GRACE_S`
        are killed."""
        if self.returncode is None and len(self._ended) == len(self.children):
            first = next((rank for rank in self._ended if self.children[rank].returncode), 0)
            self.returncode = self.children[first].returncode
            agreed = self.returncode > FAILED and self.returncode == self.children[0].returncode
            self.first = 0 if agreed else first
            self._meeting.close()
        elif self._ended or self._kill_at:
            self._kill_at = self._kill_at or time.monotonic() + GRACE_S
            if time.monotonic() > self._kill_at:
                self._kill()
        return self.returncode

    def send_signal(self, number: signal.Signals) -> None:
        for child in self.children:
            child.send_signal(number)
        if (
            number == signal.SIGINT
        ):  # a second Ctrl-C, which a rank that waits for another one does not hear
            self._kill_at = self._kill_at or time.monotonic() + GRACE_S

    def _kill(self) -> None:
        for child in self.children:
            if child.poll() is None:
                with suppress(ProcessLookupError):
                    os.killpg(child.pid, signal.SIGKILL)  # its compile workers too

    def last_words(self) -> str:
        """The last line of the rank that failed first. If that is not rank 0, the log gets all that
        it printed."""
        try:
            if self.first:
                self._outputs[self.first - 1].seek(0)
                text = self._outputs[self.first - 1].read()
                with open(self.log, "a", encoding="utf-8") as log:
                    log.write(f"---- output of rank {self.first}, which failed first ----\n{text}")
            else:
                text = self.log.read_text(errors="replace", encoding="utf-8")
        except OSError as error:
            return f"{self.log}: {error.strerror}"
        unasked = (
            self.first and self.returncode == -signal.SIGKILL
        )  # what it said last has nothing to do with it
        said = [] if unasked else [line for line in text.split("\n") if line.strip()]
        return said[-1] if said else f"see {self.log}"


def reserved_port() -> socket.socket:
    """A socket with a port that rank 0 can listen on and that Linux gives to nobody else until it
    is closed."""
    reserved = socket.socket()
    reserved.setsockopt(
        socket.SOL_SOCKET, socket.SO_REUSEADDR, 1
    )  # as torch.distributed's store does
    reserved.bind(("", 0))
    return reserved


def _shared(gpus: list, processes: int) -> dict[str, str]:
    """Variables of all ranks: each sees all the run's GPUs, between which NCCL copies, and takes
    its share of cores."""
    names = [gpu for _, gpu in gpus if gpu]
    threads = len(os.sched_getaffinity(0)) // max(processes, len(placement.gpus())) or 1
    visible = {"CUDA_VISIBLE_DEVICES": ",".join(names)} if names else {}
    return visible | ({} if "OMP_NUM_THREADS" in os.environ else {"OMP_NUM_THREADS": str(threads)})
