"""Start runs as processes, as many at once as there are GPUs, and watch them.

Each run of a study compiles in empty cache folders of its own, which are removed after it:
otherwise the first run would pay for what later runs compile, and their warm-ups would not compare.
"""

import os
import signal
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.progress import Progress

from experiments.jobs import process
from experiments.jobs.command import BAD_INPUT, COME_BACK, COMPLETED, DIVERGED, FOR_GOOD, Stop
from experiments.jobs.process import Place, Process
from experiments.jobs.screen import Line, describe, progress_bars, steady_rate
from experiments.records.files import RecordError, last_window, write_whole
from experiments.records.run import LOG, RECIPE, Window

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
    """A run to start: `recipe` is the text of its recipe.yaml."""

    title: str
    directory: Path
    recipe: str
    steps: int
    gpus: int = 1
    start: Callable[..., Process] = Process
    compiles_anew: bool = True  # or with the kernels that earlier runs kept


def run_all(runs: list[Run], console: Console, stop: Stop) -> list[int]:
    """Start runs and wait for them; returns an exit code each, COME_BACK if its turn did not come.

    A code is negative for the number of a signal that killed the run. A request to `stop` is passed
    on to the runs, and no other is started. No run takes more GPUs than there are.
    """
    stop.deferred = True
    with progress_bars(console, console.is_terminal) as bars:
        jobs = _Jobs(bars, stop)
        try:
            jobs.work(list(runs))
        finally:  # whatever ends the work ends the runs too
            jobs.send(signal.SIGTERM)
            stop.deferred = False
    return jobs.codes + [COME_BACK] * (len(runs) - len(jobs.codes))


class _Started:
    """A run that was started on some GPUs; what it prints is in its log."""

    def __init__(self, run: Run, line: Line, places: list[Place]):
        """Start the run. Raises OSError."""
        self.run, self.line, self.places = run, line, places
        run.directory.mkdir(parents=True, exist_ok=True)
        write_whole(run.directory / RECIPE, run.recipe)
        self.earlier = last_window(run.directory)  # that was there before
        self.caches = tempfile.TemporaryDirectory(
            prefix="compile-cache-", ignore_cleanup_errors=True
        )
        folders = {}
        if run.compiles_anew:
            folders = {name: f"{self.caches.name}/{name}" for name in COMPILE_CACHES}
        arguments = [COMMAND, str(run.directory)]
        self.process = run.start(arguments, run.directory / LOG, places, folders)
        names = ", ".join(gpu for _, gpu in places if gpu)
        line.say(f"started on GPU {names}" if names else "started")


class _Jobs:
    """The runs that run, the free GPUs, and the exit codes of the runs that have ended."""

    def __init__(self, bars: Progress, stop: Stop):
        self.bars, self.stop = bars, stop
        self.running: list[_Started] = []
        self.free = list(enumerate(process.gpus()))
        self.places = len(self.free)
        self.codes: list[int] = []

    def work(self, waiting: list[Run]) -> None:
        """Start runs as GPUs become free, pass a request to stop on, and note how runs end."""
        passed_on = False
        while self.running or self._starts_more(waiting):
            try:
                self._start_waiting(waiting)
                time.sleep(0.2)
                if self.stop.code and not passed_on:
                    passed_on = True
                    self.send(signal.SIGUSR1 if self.stop.code == COME_BACK else signal.SIGTERM)
                for started in list(self.running):
                    self._look_at(started)
            except KeyboardInterrupt:  # a second Ctrl-C: runs do not wait for a step's end either
                self.send(signal.SIGINT)

    def send(self, request: signal.Signals) -> None:
        for started in self.running:
            started.process.send_signal(request)

    def _starts_more(self, waiting: list[Run]) -> bool:
        return bool(waiting) and not self.stop.code

    def _start_waiting(self, waiting: list[Run]) -> None:
        while self._starts_more(waiting):
            count = min(waiting[0].gpus, self.places)  # without GPUs the machine is one, for all
            if count > len(self.free):
                return
            run = waiting.pop(0)
            line = Line(self.bars, run.title, run.steps)
            try:
                self.running.append(_Started(run, line, self.free[:count]))
                del self.free[:count]
            except OSError as error:  # a full disk; the next run may find room
                line.end("failed", f"{error.filename}: {error.strerror}")
                self.codes.append(BAD_INPUT)

    def _look_at(self, started: _Started) -> None:
        """Show how far a run is, or note that it has ended."""
        ended = started.process.poll() is not None  # first: no line is written after that
        window = last_window(started.run.directory)
        moved = window and window != started.earlier
        if moved:
            started.line.move(window)
        if ended:
            self._note_end(started, window)
        elif moved:
            started.line.mention(window)

    def _note_end(self, started: _Started, window: Window | None) -> None:
        """Say how a run ended, with its steady rate, and free its GPUs."""
        started.caches.cleanup()
        self.running.remove(started)
        self.free = sorted(self.free + started.places)
        code = started.process.returncode
        self.codes.append(code)
        outcome = ENDS.get(code, "failed")
        if code < 0:
            outcome = f"killed by {signal.Signals(-code).name}"
        outcome = started.process.culprit + outcome
        if window and code != BAD_INPUT:  # then the directory may hold another run
            rate = None
            with suppress(RecordError):
                rate = steady_rate(started.run.directory)
            outcome += f" at step {window.step}, {describe(window, rate)}"
        started.line.end(outcome, started.process.last_words() if code else "")
