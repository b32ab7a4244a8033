"""Time steps on a CPU that is busy: `python -m experiments.benchmarks.busy_machine [SPINS]…`.

OpenMP's threads wait for one another by spinning: GOMP_SPINCOUNT says for how many turns before
they sleep. For each value this command starts a run of the small model, and reads its steps while
0, 1 and 3 other processes compute. Prints the median seconds of a step, and their ratio to those of
the first value (default: 300000, which is libgomp's own).
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from experiments.jobs.command import CommandLine, leave

RECIPES, BUSY = ("baseline_compiled", "rowwise_fp8_compiled"), (0, 1, 3)
SETTLE, STEPS = 2, 6  # log lines left out after each change, and timed after them


def main(argv: list[str] | None = None) -> int:
    parser = CommandLine("experiments.benchmarks.busy_machine", __doc__)
    values = ["300000", "0", "1000", "10000"]
    parser.add_argument("spins", nargs="*", metavar="SPINS", help="default: " + " ".join(values))
    spins = parser.parse_args(argv).spins or values
    print(f"recipe, SPINS: seconds a step beside {BUSY} busy processes (ratio)")
    for recipe in RECIPES:
        measured = {value: step_times(recipe, value) for value in spins}
        for value, times in measured.items():
            pairs = zip(times, measured[spins[0]], strict=True)
            cells = ", ".join(f"{own:.3f} ({own / first:.2f})" for own, first in pairs)
            print(f"{recipe}, {value}: {cells}", flush=True)
    return 0


def step_times(recipe: str, spins: str) -> list[float]:
    """Median seconds of a step of one run, beside each number of busy processes."""
    environment = os.environ | {"GOMP_SPINCOUNT": spins}
    with tempfile.TemporaryDirectory() as folder:
        run_module = [sys.executable, "-m", "experiments.run"]
        command = [*run_module, recipe, "--overlay", "cpu", "--out", folder]
        command += ["training.steps=100000", "metrics.enable_tensorboard=false"]
        run = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
        try:
            return [_median_step(Path(folder) / "metrics.jsonl", busy) for busy in BUSY]
        finally:
            run.terminate()
            run.wait()


def _median_step(lines: Path, busy: int) -> float:
    """Median seconds between log lines, one a step, beside some busy processes."""
    with _busy_processes(busy):
        for _ in range(SETTLE):
            _next_line(lines)
        times = [_next_line(lines) for _ in range(STEPS + 1)]
    return statistics.median(end - start for start, end in zip(times, times[1:], strict=False))


def _next_line(lines: Path) -> float:
    """Wait for a line to be added to a file; returns when."""
    count = _count(lines)
    while _count(lines) == count:
        time.sleep(0.005)
    return time.perf_counter()


def _count(lines: Path) -> int:
    return lines.read_bytes().count(b"\n") if lines.exists() else 0


@contextmanager
def _busy_processes(count: int) -> Iterator[None]:
    command = [sys.executable, "-c", "while True: pass"]
    processes = [subprocess.Popen(command) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


if __name__ == "__main__":
    leave(main)
