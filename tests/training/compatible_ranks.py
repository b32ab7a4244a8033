"""Trains what a JSON file names, one run after the other, and prints the exit codes.

Ranks are forks of one process, and each makes all runs of as many processes: importing torch takes
longer than a run.
"""

import json
import os
import sys
from itertools import groupby
from pathlib import Path

from experiments.jobs.ranks import variables
from experiments.run import main
from experiments.training import attempt, trainer  # noqa: F401  # before the forks


def train(rank: int, runs: list[tuple[int, int, list[str]]]) -> None:
    for processes, port, arguments in runs:
        os.environ.update(variables(rank, processes, port))
        code = main(arguments)
        if rank == 0:
            print(f"exit code {code}: {arguments[arguments.index('--out') + 1]}", flush=True)


named = sorted(json.loads(Path(sys.argv[1]).read_text()), key=lambda run: run[0])
for processes, group in groupby(named, key=lambda run: run[0]):
    runs, children = [*group], []
    for rank in range(processes):
        if not (child := os.fork()):
            train(rank, runs)
            os._exit(0)
        children.append(child)
    for child in children:
        os.waitpid(child, 0)
