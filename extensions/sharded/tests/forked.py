"""Train runs of several processes: `train`, which has this file do it in a process of its own.

Ranks are forks of that process, and each makes all runs of as many processes: importing torch takes
longer than a run.
"""

import json
import os
import socket
import sys
from collections import defaultdict
from functools import partial
from pathlib import Path

from experiments.config import recipes
from experiments.jobs.command import run_command
from experiments.run import main
from experiments.training.plan import plan
from tests import processes


def train(folder: Path, runs: dict[str, tuple[str, list[str]]]) -> None:
    """Train recipes with keys on the CPU, each in a folder of its name; fewer processes first."""
    command = [sys.executable, "-m", "extensions.sharded.tests.forked", folder, json.dumps(runs)]
    processes.run(command, 290)


def fork(rank: int, count: int, runs: list[tuple[int, list[str]]]) -> int:
    """Make the runs as one of their processes; returns its number."""
    child = os.fork()
    if child:
        return child
    for port, arguments in runs:
        os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(count)}
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        run_command(partial(main, arguments))
    os._exit(0)


def reserve_port() -> socket.socket:
    """Bind a port that rank 0 can listen on and that Linux gives to nobody else until the socket is
    closed."""
    reserved = socket.socket()
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as torch's store does
    reserved.bind(("", 0))
    return reserved


if __name__ == "__main__":
    folder, asked = sys.argv[1:]
    of_as_many = defaultdict(list)
    for name, (recipe, keys) in json.loads(asked).items():
        count = plan(recipes.load(recipe, ["cpu"], keys)).world_size
        of_as_many[count].append([recipe, "--overlay", "cpu", "--out", f"{folder}/{name}", *keys])
    for count, runs in sorted(of_as_many.items()):
        sockets = [reserve_port() for _ in runs]
        ports = [socket.getsockname()[1] for socket in sockets]
        ported = list(zip(ports, runs, strict=True))
        for child in [fork(rank, count, ported) for rank in range(count)]:
            os.waitpid(child, 0)
