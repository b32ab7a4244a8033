"""The processes of a run: started together, told of one another, ended together."""

import math
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path

from experiments.jobs import placement
from experiments.jobs.exit_codes import FAILED
from experiments.jobs.rank_environment import variables
from experiments.jobs.signals import STARTER_PID

GRACE_S = 30  # from one rank's end to the killing of the others: rank 0 writes how the run ended


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
        `placement.binding`.
        """
        self.log, self.gpus, self.processes = log, gpus, processes
        self.first, self.returncode = 0, None
        self.children: list[subprocess.Popen] = []
        self._outputs = {0: open(log, "a", encoding="utf-8")}  # noqa: SIM115  # for as long as the processes
        self._ended: list[int] = []  # ranks, in the order of their ends
        self._kill_at = math.inf
        self._meeting = reserved_port()
        try:
            for rank in range(processes):
                self._start(rank, arguments, environment or {})
        except OSError:
            self._kill()
            raise

    def _start(self, rank: int, arguments: list[str], environment: dict[str, str]) -> None:
        """Start a process in a session of its own: a terminal's Ctrl-C reaches only this process,
        which passes it on. It ends with this one."""
        place, gpu = self.gpus[rank % len(self.gpus)]
        environment = os.environ | self._shared() | environment
        environment |= variables(rank, self.processes, self._meeting.getsockname()[1])
        stdout = subprocess.DEVNULL
        if rank:
            stdout = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115
            self._outputs[rank] = stdout
        child = subprocess.Popen(
            [*placement.binding(gpu, place), sys.executable, "-m", *arguments],
            env=environment,
            stdout=stdout,
            stderr=self._outputs[rank],
            start_new_session=True,
        )
        self.children.append(child)
        threading.Thread(target=self._await, args=[rank], daemon=True).start()

    def _shared(self) -> dict[str, str]:
        """Return what all ranks are told: they see all GPUs of the run, between which NCCL copies,
        and each takes its share of the cores."""
        shared = {STARTER_PID: str(os.getpid())}
        names = [gpu for _, gpu in self.gpus if gpu]
        if names:
            shared["CUDA_VISIBLE_DEVICES"] = ",".join(names)
        if self.processes > 1 and "OMP_NUM_THREADS" not in os.environ:
            sharing = max(self.processes, len(placement.gpus()))
            shared["OMP_NUM_THREADS"] = str(len(os.sched_getaffinity(0)) // sharing or 1)
        return shared

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


def reserved_port() -> socket.socket:
    """Bind a port that rank 0 can listen on and that Linux gives to nobody else until the socket is
    closed."""
    reserved = socket.socket()
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as torch's store does
    reserved.bind(("", 0))
    return reserved
