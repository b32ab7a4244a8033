"""Trains what a JSON file lists as [processes, arguments]; fewer processes first.

Ranks are forks of one process, and each makes all runs of as many processes: importing torch takes
longer than a run.
"""

import json
import os
import sys
from functools import partial
from pathlib import Path

from experiments.jobs.command import code_of
from experiments.run import main
from extensions.sharded.ranks import reserved_port, variables


def fork(rank: int, processes: int, runs: list[tuple[int, list[str]]]) -> int:
    """Make the runs as one of their processes; returns its number."""
    child = os.fork()
    if child:
        return child
    for port, arguments in runs:
        os.environ.update(variables(rank, processes, port))
        code_of(partial(main, arguments))
    os._exit(0)


asked = json.loads(Path(sys.argv[1]).read_text())
for processes in sorted({processes for processes, _ in asked}):
    of_as_many = [arguments for count, arguments in asked if count == processes]
    sockets = [reserved_port() for _ in of_as_many]
    ports = [socket.getsockname()[1] for socket in sockets]
    runs = list(zip(ports, of_as_many, strict=True))
    for child in [fork(rank, processes, runs) for rank in range(processes)]:
        os.waitpid(child, 0)
