"""Runs as processes: as many at once as there are GPUs; the others wait for free ones.

Each run compiles in empty cache folders of its own, which are removed after it: otherwise the first
run would pay for what later runs compile, and their warm-ups would not compare. The ranks of one
run share its folders, which PyTorch guards with locks.
"""

import math
import os
import signal
import tempfile
import time
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.markup import escape
from rich.progress import Progress

from experiments.jobs import placement
from experiments.jobs.exit_codes import BAD_INPUT, COMPLETED, DIVERGED
from experiments.jobs.placement import Ranks
from experiments.jobs.progress import describe, progress_bar
from experiments.jobs.shares import Shares
from experiments.jobs.signals import COME_BACK, FOR_GOOD, Stop
from experiments.records.files import last_window
from experiments.records.run import LOG

# Variables of cache folders, but for those that the user has set. This is looked at before torch is
# imported, which sets one by itself.
COMPILE_CACHES = {"TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"} - os.environ.keys()
COMMAND = "experiments.run"
ENDS = {
    COMPLETED: "completed",
    DIVERGED: "diverged",
    COME_BACK: "interrupted",
    FOR_GOOD: "interrupted",
}


class Run(NamedTuple):
    """A run to start: `arguments` are those of experiments.run, which each rank gets."""

    title: str
    directory: Path
    arguments: list[str]
    processes: int = 1
    steps: int | None = None
    compiles_anew: bool = True  # or with the kernels that earlier runs kept


def run_all(
    runs: list[Run], console: Console, stop: Stop, shares: Shares | None = None
) -> list[int]:
    """Start runs and wait for them; returns the exit codes of those that were started.

    A code is negative for the number of a signal that killed the run. A request to `stop` is passed
    on to the runs, and no other is started. With `shares` of a time budget, each run is asked to
    stop when its share is spent. Raises `InputError` for a run of more processes than GPUs.
    """
    for run in runs:
        placement.gpus_for(run.processes)
    stop.deferred = True
    with progress_bar(console, console.is_terminal) as bar:
        jobs = _Jobs(runs, console, bar, stop, shares or Shares(math.inf, 1))
        try:
            while jobs.running or jobs.starts_more():
                jobs.look()
        finally:  # whatever ends this loop ends the runs too
            jobs.send(signal.SIGTERM)
    return jobs.codes


class _Jobs:
    """The runs that wait, those that run, the free GPUs, and the exit codes of ended runs."""

    def __init__(self, runs: list[Run], console: Console, bar: Progress, stop: Stop, shares):
        self.waiting, self.running, self.codes = list(runs), [], []
        self.free = list(enumerate(placement.gpus()))
        self.console, self.bar, self.stop, self.shares = console, bar, stop, shares
        self._passed_on = False

    def starts_more(self) -> bool:
        return bool(self.waiting) and not self.stop.code and not self.shares.over

    def look(self) -> None:
        """Do what has become due: start runs, pass a request on, note the runs that have ended."""
        try:
            self.start_waiting()
            time.sleep(0.2)
            if self.stop.code and not self._passed_on:
                self._passed_on = True
                self.send(signal.SIGUSR1 if self.stop.code == COME_BACK else signal.SIGTERM)
            for process in list(self.running):
                self._look_at(process)
        except KeyboardInterrupt:  # a second Ctrl-C: the runs do not wait for a step's end either
            self.send(signal.SIGINT)

    def start_waiting(self) -> None:
        """Start runs while there are free GPUs."""
        while self.starts_more():
            count = placement.gpus_for(self.waiting[0].processes)
            if count > len(self.free):
                return
            run = self.waiting.pop(0)
            until = self.shares.until(len(self.waiting))
            try:
                process = _Process(run, self.free[:count], until, self.bar, self.console)
            except OSError as error:  # a full disk; the next run may find room
                failure = f"{run.title}: failed: {error.filename}: {error.strerror}"
                self.console.print(escape(failure), soft_wrap=True)
                self.codes.append(BAD_INPUT)
            else:
                self.running.append(process)
                del self.free[:count]

    def _look_at(self, process: "_Process") -> None:
        ended = process.ranks.poll() is not None  # first: no line is written after that
        process.show()
        if ended:
            self.running.remove(process)
            self.free = sorted(self.free + process.ranks.gpus)
            self.codes.append(process.report())
            if process.asked_at:
                self.shares.ended(process.step, process.asked_at)
        elif not process.asked_at and self.shares.spent(process.until, process.step):
            process.asked_at = time.monotonic()
            process.ranks.send_signal(signal.SIGUSR1)

    def send(self, request: signal.Signals) -> None:
        for process in self.running:
            process.ranks.send_signal(request)


class _Process:
    """A run that was started, and its line on the screen; what it prints is in its log.

    Attributes:
        until: when its share of a budget is spent.
        asked_at: when it was asked to stop for that; 0 until then.
        step: its last one on record; 0 as long as it has made none of its own.
    """

    def __init__(self, run: Run, gpus: list, until: float, bar: Progress, console: Console):
        self.run, self.until, self.bar, self.console = run, until, bar, console
        self.asked_at, self.step = 0.0, 0
        run.directory.mkdir(parents=True, exist_ok=True)
        self.window = self.earlier = last_window(run.directory)
        self.caches = tempfile.TemporaryDirectory(
            prefix="compile-cache-", ignore_cleanup_errors=True
        )
        folders = {}
        if run.compiles_anew:
            folders = {name: f"{self.caches.name}/{name}" for name in COMPILE_CACHES}
        arguments = [COMMAND, *run.arguments]
        self.ranks = Ranks(arguments, run.directory / LOG, gpus, run.processes, folders)
        self.task = bar.add_task(run.title, total=run.steps, window="starting")
        names = ", ".join(gpu for _, gpu in gpus if gpu)
        self._print(f"started on GPU {names}" if names else "started")

    def show(self) -> None:
        """Move the bar to the last log window."""
        self.window = last_window(self.run.directory)
        if self.window:
            self.step = self.window.step if self.window != self.earlier else 0
            words = describe(self.window)
            self.bar.update(self.task, completed=self.window.step, window=words)

    def report(self) -> int:
        """Print how the run ended, with its last log window; returns its exit code."""
        self.caches.cleanup()
        code = self.ranks.returncode
        outcome = ENDS.get(code, "failed")
        if code < 0:
            outcome = f"killed by {signal.Signals(-code).name}"
        if self.ranks.first:
            outcome = f"rank {self.ranks.first} {outcome}"
        if self.window and code != BAD_INPUT:  # then the directory may hold another run
            outcome += f" at step {self.window.step}, {describe(self.window)}"
        self.bar.update(self.task, window=outcome)
        if code:
            outcome += f": {self.ranks.last_words()}"
        self._print(outcome, always=code != 0)
        return code

    def _print(self, event: str, always: bool = False) -> None:
        """Print a line; in a terminal the bar shows the event instead, unless something is
        wrong."""
        if always or not self.console.is_terminal:
            line = f"{datetime.now():%H:%M:%S} {self.run.title}: {event}"
            self.console.print(escape(line), soft_wrap=True)
