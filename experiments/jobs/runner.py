"""Runs as processes: as many at once as there are GPUs, each on its own or several; the others wait
for free ones.

Each run compiles with an empty cache folder of its own, which is removed after it: otherwise the
first run would pay for what later runs compile, and their warm-ups would not compare. The ranks of
one run share its folders, which PyTorch guards with locks. Folders that the user has set are left
as they are.
"""

import math
import signal
import tempfile
import time
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.markup import escape

from experiments.jobs import placement
from experiments.jobs.exit_codes import BAD_INPUT, FAILED
from experiments.jobs.files import read_json, read_last_line
from experiments.jobs.launcher import Ranks
from experiments.jobs.progress import describe, progress_bar
from experiments.jobs.shares import Shares
from experiments.jobs.signals import COME_BACK, FOR_GOOD, Stop

COMPILE_CACHES = {
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "TRITON_CACHE_DIR": "triton",
}  # variable: folder's name


class Run(NamedTuple):
    """One run of a study: `arguments` are those of experiments.run, which each of its `processes`
    gets as a rank."""

    title: str
    directory: Path
    arguments: list[str]
    processes: int = 1


def run_all(
    runs: list[Run], console: Console, stop: Stop, shares: Shares | None = None
) -> list[int]:
    """Exit codes of the runs that were started, negative for the number of a signal that killed
    one.

    A request to `stop` is passed on to the runs; they are waited for, and no other is started. With
    `shares` of a time budget, each run is asked to stop when its share is spent. Raises
    `InputError` for a run of more processes than there are GPUs.
    """
    for run in runs:
        placement.gpus_for(run.processes)
    stop.deferred = True
    with progress_bar(console, console.is_terminal) as bar, ExitStack() as at_end:
        jobs = _Jobs(runs, console, bar, stop, shares)
        at_end.callback(jobs.send, signal.SIGTERM)  # whatever else ends this loop ends the runs too
        while jobs.running or jobs.starts_more():
            try:
                jobs.start_waiting()
                time.sleep(0.2)
                jobs.pass_on_request()
                jobs.collect_ended()
                jobs.stop_whose_share_is_spent()
            except (
                KeyboardInterrupt
            ):  # a second Ctrl-C: the runs are not to wait for the end of a step either
                jobs.send(signal.SIGINT)
    return jobs.codes


class _Jobs:
    """The runs that wait, those that run, the free GPUs, and the exit codes of those that have
    ended."""

    def __init__(self, runs: list[Run], console: Console, bar, stop: Stop, shares: Shares | None):
        self.waiting, self.running, self.codes = list(runs), [], []
        self.free = list(enumerate(placement.gpus()))
        self.console, self.bar, self.stop, self.shares = console, bar, stop, shares
        self._passed_on = False

    def starts_more(self) -> bool:
        return bool(self.waiting) and not self.stop.code and not (self.shares and self.shares.over)

    def start_waiting(self) -> None:
        """Start runs while there are free GPUs. One that cannot be started is noted and stops no
        other."""
        while self.starts_more() and len(self.free) >= (
            count := placement.gpus_for(self.waiting[0].processes)
        ):
            run, gpus = self.waiting.pop(0), self.free[:count]
            until = self.shares.until(len(self.waiting)) if self.shares else math.inf
            try:
                self.running.append(_Process(run, until, gpus, self.bar, self.console))
                del self.free[:count]
            except OSError as error:  # a file where its directory should be, a full disk
                self.console.print(
                    escape(f"{run.title}: failed: {error.filename}: {error.strerror}"),
                    soft_wrap=True,
                )
                self.codes.append(BAD_INPUT)

    def pass_on_request(self) -> None:
        if self.stop.code and not self._passed_on:
            self._passed_on = True
            self.send(signal.SIGUSR1 if self.stop.code == COME_BACK else signal.SIGTERM)

    def collect_ended(self) -> None:
        """Note the runs that have ended, and move the bars of all."""
        for process in list(self.running):
            ended = process.ranks.poll() is not None  # first: no line is written after that
            line = process.show()
            if not ended:
                continue
            self.running.remove(process)
            self.free = sorted(self.free + process.gpus)
            self.codes.append(process.report(line))
            if self.shares and process.asked_at:
                self.shares.ended(process.step, process.asked_at)

    def stop_whose_share_is_spent(self) -> None:
        for process in self.running:
            if (
                self.shares
                and not process.asked_at
                and self.shares.spent(process.until, process.step)
            ):
                process.asked_at = time.monotonic()
                process.ranks.send_signal(signal.SIGUSR1)

    def send(self, request: signal.Signals) -> None:
        for process in self.running:
            process.ranks.send_signal(request)


class _Process:
    """A run that was started, and its line on the screen; what it prints is in its log.txt."""

    def __init__(self, run: Run, until: float, gpus: list, bar, console: Console):
        self.run, self.gpus, self.bar, self.console = run, gpus, bar, console
        self.until = until  # when its share of a budget is spent
        self.asked_at = 0.0  # when it was asked to stop for that
        self.step = 0  # the last one on record; 0 as long as it has made none of its own
        run.directory.mkdir(parents=True, exist_ok=True)
        self.earlier = read_last_line(run.directory / "metrics.jsonl")
        self.compile_cache = tempfile.TemporaryDirectory(
            prefix="compile-cache-", ignore_cleanup_errors=True
        )
        caches = {
            x: f"{self.compile_cache.name}/{name}"
            for x, name in COMPILE_CACHES.items()
            if not set_by_user(x)
        }
        self.ranks = Ranks(
            ["experiments.run", *run.arguments],
            gpus,
            run.processes,
            caches,
            run.directory / "log.txt",
        )
        self.task = bar.add_task(run.title, total=None, window="starting")
        names = ", ".join(gpu for _, gpu in gpus if gpu is not None)
        self._print("started" + (f" on GPU {names}" if names else ""))

    def show(self) -> dict:
        """Move the bar to the run's last log line, and return that."""
        line = read_last_line(self.run.directory / "metrics.jsonl")
        if line:
            self.step = line["step"] if line != self.earlier else 0
            total = self._manifest().get("steps")
            self.bar.update(self.task, completed=line["step"], total=total, window=describe(line))
        return line

    def report(self, line: dict) -> int:
        """Print how it ended, with its last log line, and return its exit code."""
        self.compile_cache.cleanup()
        code = self.ranks.returncode
        if code < 0:
            outcome = f"killed by {signal.Signals(-code).name}"
        elif code in (FAILED, BAD_INPUT):
            outcome = "failed"
        else:
            outcome = self._manifest().get(
                "status", "interrupted" if code in (COME_BACK, FOR_GOOD) else "failed"
            )
        if self.ranks.first:
            outcome = f"rank {self.ranks.first} {outcome}"
        if line and code != BAD_INPUT:  # what is in the directory may be another run's
            outcome += f" at step {line['step']}, {describe(line)}"
        self.bar.update(self.task, window=outcome)
        self._print(outcome + (f": {self.ranks.last_words()}" if code else ""), always=code != 0)
        return code

    def _print(self, event: str, always: bool = False) -> None:
        """Print a line; in a terminal the bar shows the event instead, unless something is
        wrong."""
        if always or not self.console.is_terminal:
            self.console.print(
                escape(f"{datetime.now():%H:%M:%S} {self.run.title}: {event}"), soft_wrap=True
            )

    def _manifest(self) -> dict:
        return read_json(self.run.directory / "manifest.json")


def set_by_user(variable: str) -> bool:
    """Whether this process was started with the environment variable; torch sets
    TORCHINDUCTOR_CACHE_DIR by itself."""
    return any(
        x.startswith(f"{variable}=".encode())
        for x in Path("/proc/self/environ").read_bytes().split(b"\0")
    )
