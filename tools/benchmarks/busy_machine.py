"""Time steps on a CPU that is busy:

    python -m tools.benchmarks.busy_machine

OpenMP's threads wait for one another by spinning: GOMP_SPINCOUNT says for how many turns before
they sleep. For each value this command trains the small model beside 0, 1 and 3 other processes
that compute, and prints the median seconds of a steady step.
"""

import os
import subprocess
import sys
import tempfile
from itertools import product
from pathlib import Path
from statistics import median

from experiments.records.run import METRICS, read_log

RECIPES = ("baseline_compiled", "rowwise_fp8_compiled")
SPINS = ("300000", "0", "1000", "10000")  # libgomp's own first
KEYS = ["--overlay", "cpu", "training.steps=20", "metrics.enable_tensorboard=false"]
BUSY = [sys.executable, "-c", "while True: pass"]


def time_step(recipe: str, spins: str) -> float:
    """Train a recipe in a process of its own; return the median seconds of its steady steps."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "experiments.run", recipe, *KEYS, "--out", folder]
        spinning = os.environ | {"GOMP_SPINCOUNT": spins}
        subprocess.run(command, env=spinning, stdout=subprocess.DEVNULL, check=True)
        intervals = read_log(Path(folder) / METRICS)
    return median(interval.step_s[0] for interval in intervals if not interval.not_steady)


if __name__ == "__main__":
    for recipe, spins, others in product(RECIPES, SPINS, (0, 1, 3)):
        processes = [subprocess.Popen(BUSY) for _ in range(others)]
        try:
            step_s = time_step(recipe, spins)
        finally:
            for process in processes:
                process.kill()
        print(f"{recipe}, {spins} spins, beside {others}: {step_s:.3f} s", flush=True)
