"""Time steps on a CPU that is busy:

    python -m tools.benchmarks.busy_machine

OpenMP's threads wait for one another by spinning: GOMP_SPINCOUNT says for how many turns before
they sleep. For each value this command trains the small model while 0, 1 and 3 other processes
compute, and prints the median seconds of a steady step.
"""

import os
import subprocess
import sys
import tempfile
from itertools import product
from pathlib import Path
from statistics import median

from experiments.jobs.command import EXIT_COMPLETED, CommandLine, exit_with
from experiments.records.run import METRICS, read_log

RECIPES = ("baseline_compiled", "rowwise_fp8_compiled")
SPIN_COUNTS = ("300000", "0", "1000", "10000")  # libgomp's default first
KEYS = ["--overlay", "cpu", "training.steps=20", "metrics.enable_tensorboard=false"]
BUSY_COMMAND = [sys.executable, "-c", "while True: pass"]


def time_step(recipe: str, spin_count: str) -> float:
    """Train a recipe in another process; return the median seconds of its steady steps."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "experiments.run", recipe, *KEYS, "--out", folder]
        environment = os.environ | {"GOMP_SPINCOUNT": spin_count}
        subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, check=True)
        intervals = read_log(Path(folder) / METRICS)
    return median(interval.step_s[0] for interval in intervals if not interval.not_steady)


def main(argv: list[str] | None = None) -> int:
    CommandLine("tools.benchmarks.busy_machine", __doc__).parse_arguments(argv)
    for recipe, spin_count, busy in product(RECIPES, SPIN_COUNTS, (0, 1, 3)):
        processes = [subprocess.Popen(BUSY_COMMAND) for _ in range(busy)]
        try:
            step_s = time_step(recipe, spin_count)
        finally:
            for process in processes:
                process.kill()
        print(f"{recipe}, {spin_count} spins, {busy} busy: {step_s:.3f} s", flush=True)
    return EXIT_COMPLETED


if __name__ == "__main__":
    exit_with(main)
