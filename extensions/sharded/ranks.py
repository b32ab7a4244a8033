"""The ranks of a run: started together, told of one another, ended together."""

import math
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from experiments.jobs.command import EXIT_FAILED, EXIT_RESUME, STARTER_PID, StopRequest
from experiments.jobs.runner import find_numa_command, list_visible_gpus
from experiments.records.files import make_run_folder
from models.errors import InputError

GRACE_S = 20  # from one rank's end to the killing of others: rank 0 writes how the run ended


def start(recipe, arguments: list[str], out: Path | None, stop: StopRequest) -> int | None:
    """Start a run's processes with the arguments of this one, and wait for them.

    Returns the exit code, or None if this process is one of them, by the variables of torchrun.
    Raises `InputError`.
    """
    world_size, started = recipe.config.sharded.processes, os.environ.get("WORLD_SIZE", "1")
    if started not in ("1", str(world_size)):
        raise InputError(
            f"sharded.processes is {world_size}, and WORLD_SIZE={started} were started: say "
            f"sharded.processes={started}"
        )
    if started != str(world_size):
        there = list_visible_gpus()
        if there != [None] and world_size > len(there):
            raise InputError(
                f"a run takes {world_size} GPUs, and {len(there)} are here: have it take fewer, or "
                "start it where there are as many"
            )
        if not out:
            out = make_run_folder(recipe.name, recipe.config.debug.seed)
            arguments = [*arguments, "--out", str(out)]
        return run_ranks(["experiments.run", *arguments], world_size, stop)
    if world_size > 1 and not out:  # each would make its own
        raise InputError("a run of several processes needs --out DIR, one for all of them")
    return None


def run_ranks(arguments: Sequence[str], world_size: int, stop: StopRequest) -> int:
    """Run `python -m ARGUMENTS` once a rank; returns the exit code of the first that failed.

    Rank 0 prints here. What another rank has printed follows if it fails first.
    """
    stop.waits_for_step_end = True  # ranks end at a step boundary
    ranks: list[subprocess.Popen] = []
    with TemporaryDirectory(prefix="ranks-") as folder, reserved_port() as meeting:
        port = meeting.getsockname()[1]
        try:
            for rank in range(world_size):
                with open(f"{folder}/rank{rank}", "wb") as file:
                    environment = variables(rank, world_size, port)
                    ranks.append(_start_rank(arguments, environment, file if rank else None))
            first = _wait(ranks, stop)
        finally:  # also after a second Ctrl-C, which does not wait
            _kill(ranks)
        said = Path(folder, f"rank{first}").read_text("utf-8", errors="replace")
    code = ranks[first].returncode
    if first:
        print(f"---- output of rank {first}, which failed first ----\n{said}", file=sys.stderr)
    if code >= 0:
        return code
    print(f"rank {first} was killed by {signal.Signals(-code).name}", file=sys.stderr)
    return stop.exit_code or EXIT_FAILED


def _start_rank(arguments: Sequence[str], environment: dict[str, str], output) -> subprocess.Popen:
    """Start a rank near its GPU. All ranks see all GPUs of the run, between which NCCL copies;
    without GPUs they share the cores."""
    there, rank, world_size = (
        list_visible_gpus(),
        int(environment["RANK"]),
        int(environment["WORLD_SIZE"]),
    )
    threads = len(os.sched_getaffinity(0)) // world_size or 1
    shared = {"OMP_NUM_THREADS": str(threads)} if there == [None] else {}
    return subprocess.Popen(
        [*find_numa_command(there[rank % len(there)]), sys.executable, "-m", *arguments],
        env=shared | os.environ | environment | {STARTER_PID: str(os.getpid())},
        stdout=output,
        stderr=output,
        start_new_session=True,  # a terminal's Ctrl-C is passed on by this process
    )


def _wait(ranks: list[subprocess.Popen], stop: StopRequest) -> int:
    """Pass a request on until all ranks have ended; returns the first that failed, or 0 if all end
    alike."""
    ended, passed_on, kill_at = [], False, math.inf
    while len(ended) < len(ranks):
        time.sleep(0.02)
        if stop.exit_code and not passed_on:
            passed_on = True
            for rank in ranks:
                rank.send_signal(
                    signal.SIGUSR1 if stop.exit_code == EXIT_RESUME else signal.SIGTERM
                )
        ended += [n for n, rank in enumerate(ranks) if n not in ended and rank.poll() is not None]
        if ended:
            kill_at = min(kill_at, time.monotonic() + GRACE_S)
        if time.monotonic() > kill_at:
            _kill(ranks)
    first = next((rank for rank in ended if ranks[rank].returncode), 0)
    code = ranks[first].returncode
    agreed = code > EXIT_FAILED and code == ranks[0].returncode
    return 0 if agreed else first


def _kill(ranks: list[subprocess.Popen]) -> None:
    """Kill what still runs, with its compile workers."""
    for rank in ranks:
        if rank.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(rank.pid, signal.SIGKILL)
            rank.wait()


def reserved_port() -> socket.socket:
    """Bind a port that rank 0 can listen on and that Linux gives to nobody else until the socket is
    closed."""
    reserved = socket.socket()
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as torch's store does
    reserved.bind(("", 0))
    return reserved


def variables(rank: int, world_size: int, port: int) -> dict[str, str]:
    """Return the variables of one of several processes on this machine.

    Rank 0 listens at `port` itself, also where a torchrun around this process listens for its own.
    """
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(world_size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "False",
    }
