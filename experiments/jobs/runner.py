"""Start runs as processes, as many at once as there are GPUs, and watch them.

Each run of a study compiles in empty cache folders of its own, which are removed after it:
otherwise the first run would pay for what later runs compile, and their warm-ups would not compare.
"""

import os
import signal
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.progress import Progress

from experiments.jobs import process
from experiments.jobs.command import BAD_INPUT, COME_BACK, COMPLETED, DIVERGED, FOR_GOOD, Stop
from experiments.jobs.process import Place, Process
from experiments.jobs.screen import Line, progress_bars, seconds_left, with_time
from experiments.records.files import last_window, write_whole
from experiments.records.run import LOG, RECIPE

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


def run_all(runs: list[Run], console: Console, stop: Stop) -> list[int]:
    """Start runs and wait for them; returns an exit code each, COME_BACK if its turn did not come.

    A code is negative for the number of a signal that killed the run. A request to `stop` is passed
    on to the runs, and no other is started. No run takes more GPUs than there are.
    """
    stop.deferred = True
    with progress_bars(console, console.is_terminal) as bars:
        jobs = _Jobs(runs, bars, stop)
        try:
            jobs.work()
        finally:  # whatever ends the work ends the runs too
            jobs.send(signal.SIGTERM)
            stop.deferred = False
    return jobs.codes + [COME_BACK] * len(jobs.waiting)


class _Job:
    """A run that was started on some GPUs; what it prints is in its log."""

    def __init__(self, run: Run, line: Line, places: list[Place]):
        """Start the run. Raises OSError."""
        self.run, self.line, self.places = run, line, places
        run.directory.mkdir(parents=True, exist_ok=True)
        write_whole(run.directory / RECIPE, run.recipe)
        self.shown = last_window(run.directory)
        self.begin, self.seconds = time.monotonic(), None  # as far as foreseen: of the whole run
        self.caches = tempfile.TemporaryDirectory(
            prefix="compile-cache-", ignore_cleanup_errors=True
        )
        folders = {name: f"{self.caches.name}/{name}" for name in COMPILE_CACHES}
        command = [COMMAND, str(run.directory)]
        self.process = Process(command, run.directory / LOG, places, folders)
        names = ", ".join(gpu for _, gpu in places if gpu)
        line.say(f"started on GPU {names}" if names else "started")

    def look(self, all_left: float | None) -> int | None:
        """Show how far the run is, and how it ended; returns the exit code once it has."""
        code = self.process.poll()  # first: no line is written after that
        window = last_window(self.run.directory)
        if window and window != self.shown:
            self.shown = window
            left = seconds_left(window, self.run.steps)
            if left is not None:
                self.seconds = time.monotonic() - self.begin + left
            self.line.show(window, all_left)
        if code is None:
            return None
        self.caches.cleanup()
        outcome = ENDS.get(code, "failed")
        if code < 0:
            outcome = f"killed by {signal.Signals(-code).name}"
        if window and code != BAD_INPUT:  # then the directory may hold another run
            outcome += f" at step {window.step}"
        why = self.process.last_words() if code else ""
        self.line.end(outcome, why)
        return code


class _Jobs:
    """The runs that wait and those that run, the free GPUs, and the exit codes of the others."""

    def __init__(self, runs: list[Run], bars: Progress, stop: Stop):
        self.waiting, self.bars, self.stop = list(runs), bars, stop
        self.running: list[_Job] = []
        self.free = list(enumerate(process.gpus()))
        self.places = len(self.free)
        self.codes: list[int] = []
        self.seconds: list[float] = []  # that runs took
        self.bar = bars.add_task("all runs", total=len(runs), window="")

    def work(self) -> None:
        """Start runs as GPUs become free, pass a request to stop on, and note how runs end."""
        asked = False
        while self.running or (self.waiting and not self.stop.code):
            try:
                while self.waiting and not self.stop.code and self._start_next():
                    pass
                time.sleep(0.2)
                if self.stop.code and not asked:
                    asked = True
                    self.send(signal.SIGUSR1 if self.stop.code == COME_BACK else signal.SIGTERM)
                left = self._seconds_left()
                self.bars.update(self.bar, completed=len(self.codes), window=with_time("", left))
                for job in list(self.running):
                    code = job.look(left)
                    if code is not None:
                        self.running.remove(job)
                        self.free = sorted(self.free + job.places)
                        self.codes.append(code)
                        if code == COMPLETED:
                            self.seconds.append(time.monotonic() - job.begin)
            except KeyboardInterrupt:  # a second Ctrl-C: runs do not wait for a step's end either
                self.send(signal.SIGINT)

    def send(self, request: signal.Signals) -> None:
        for job in self.running:
            job.process.send_signal(request)

    def _seconds_left(self) -> float | None:
        """Foresee when all runs will have ended, by those that have and by the steady steps of the
        others; None before there are any."""
        known = self.seconds + [job.seconds for job in self.running if job.seconds]
        if not known:
            return None
        mean, now = sum(known) / len(known), time.monotonic()
        left = mean * len(self.waiting)
        for job in self.running:
            own = job.begin + (job.seconds or mean) - now
            if own < 0:  # it takes longer than the others
                return None
            left += own
        return left / max(1, len(self.running))

    def _start_next(self) -> bool:
        """Start the run whose turn it is; False if there are too few free GPUs."""
        run = self.waiting[0]
        count = min(run.gpus, self.places)  # without GPUs the machine is one, for all
        if count > len(self.free):
            return False
        self.waiting.pop(0)
        number = len(self.codes) + len(self.running) + 1
        line = Line(self.bars, f"[{number}/{self.bars.tasks[0].total}] {run.title}", run.steps)
        try:
            self.running.append(_Job(run, line, self.free[:count]))
            del self.free[:count]
        except OSError as error:  # a full disk; the next run may find room
            line.end("failed", f"{error.filename}: {error.strerror}")
            self.codes.append(BAD_INPUT)
        return True
