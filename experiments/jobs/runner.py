"""Start runs as processes, as many at once as there are GPUs, and watch them.

Each run of a study compiles in empty cache folders of its own, which are removed after it:
otherwise the first run would pay for what later runs compile, and their warm-ups would not compare.
"""

import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.markup import escape
from rich.progress import Progress

from experiments.jobs import process
from experiments.jobs.command import (
    BAD_INPUT,
    COME_BACK,
    COMPLETED,
    DIVERGED,
    FOR_GOOD,
    STARTER_PID,
    Stop,
)
from experiments.jobs.screen import describe, progress_bars
from experiments.records.files import last_window, write_whole
from experiments.records.run import LOG, RECIPE

# Variables of cache folders, but for those that the user has set. This is looked at before torch is
# imported, which sets one by itself.
COMPILE_CACHES = {"TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"} - os.environ.keys()
COMMAND = "experiments.run"
LINE_EVERY_S = 10
GRACE_S = 30  # from a second Ctrl-C to the killing of what is deaf to it
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
        bars.add_task("all runs", said="")
        jobs = [_Job(run, f"[{n}/{len(runs)}] {run.title}", bars) for n, run in enumerate(runs, 1)]
        try:
            _work(jobs, bars, stop)
        finally:  # whatever ends the work ends the runs too
            _send(jobs, signal.SIGTERM)
            stop.deferred = False
    return [job.code for job in jobs]


def _work(jobs: list["_Job"], bars: Progress, stop: Stop) -> None:
    """Start runs as GPUs become free, pass a request to stop on, and show how runs get on and
    end."""
    waiting, running, free = list(jobs), [], process.gpus()
    there, asked, kill_at = len(free), False, math.inf
    while running or (waiting and not stop.code):
        try:
            while waiting and not stop.code:
                count = min(waiting[0].run.gpus, there)  # without GPUs the machine is one, for all
                if count > len(free):
                    break
                job = waiting.pop(0)
                if job.start(free[:count]):
                    running.append(job)
                    free = free[count:]
            time.sleep(0.2)
            if stop.code and not asked:
                asked = True
                _send(running, signal.SIGUSR1 if stop.code == COME_BACK else signal.SIGTERM)
            if time.monotonic() > kill_at:
                _send(running, signal.SIGKILL)
            for job in list(running):
                if job.look():
                    running.remove(job)
                    free += job.gpus
            to_make = [job for job in jobs if not job.failed]
            steps = sum(job.run.steps for job in to_make)
            bars.update(bars.tasks[0].id, total=steps, completed=sum(job.step for job in to_make))
        except KeyboardInterrupt:  # a second Ctrl-C: runs do not wait for a step's end either
            kill_at = time.monotonic() + GRACE_S
            _send(running, signal.SIGINT)


def _send(jobs: list["_Job"], request: signal.Signals) -> None:
    for job in jobs:
        if job.process:
            job.process.send_signal(request)


class _Job:
    """A run, from its turn to its end. In a terminal it has a bar, and a line only if it fails;
    elsewhere lines say how it gets on."""

    def __init__(self, run: Run, title: str, bars: Progress):
        self.run, self.title, self.bars = run, title, bars
        self.code, self.failed = COME_BACK, False
        self.process: subprocess.Popen | None = None
        self.window = last_window(run.directory)  # the last one that was shown
        self.bar = bars.add_task(title, total=run.steps, completed=self.step, said="waiting")

    @property
    def step(self) -> int:
        return self.window.step if self.window else 0

    def start(self, gpus: list[str | None]) -> bool:
        """Start the run on some GPUs, near the cores and memory of one; False if the disk is full.

        stderr is added to the run's log; stdout, which repeats the log, is dropped.
        """
        self.gpus, folder = gpus, self.run.directory
        names = [gpu for gpu in gpus if gpu]
        variables = {STARTER_PID: str(os.getpid())}
        if names:
            variables["CUDA_VISIBLE_DEVICES"] = ",".join(names)
        near = process.binding(gpus[0]) if len(gpus) == 1 else []  # else each process binds itself
        try:
            folder.mkdir(parents=True, exist_ok=True)
            write_whole(folder / RECIPE, self.run.recipe)
            self.caches = tempfile.TemporaryDirectory(
                prefix="compile-cache-", ignore_cleanup_errors=True
            )
            variables |= {name: f"{self.caches.name}/{name}" for name in COMPILE_CACHES}
            with open(folder / LOG, "a", encoding="utf-8") as log:
                # A session of its own: this process passes a terminal's Ctrl-C on
                self.process = subprocess.Popen(
                    [*near, sys.executable, "-m", COMMAND, str(folder)],
                    env=os.environ | variables,
                    stdout=subprocess.DEVNULL,
                    stderr=log,
                    start_new_session=True,
                )
        except OSError as error:  # the next run may find room
            self._end(BAD_INPUT, f"failed: {error.filename}: {error.strerror}")
            return False
        self.line_at = time.monotonic() + LINE_EVERY_S
        self._say(f"started on GPU {', '.join(names)}" if names else "started")
        return True

    def look(self) -> bool:
        """Show how far the run is, and how it ended; True once it has."""
        code = self.process.poll()  # first: no line is written after that
        window = last_window(self.run.directory)
        if window and window != self.window:
            self.window = window
            self.bars.update(self.bar, completed=window.step, said=describe(window))
            if time.monotonic() > self.line_at:
                self.line_at = time.monotonic() + LINE_EVERY_S
                self._say(f"step {window.step}/{self.run.steps}  {describe(window)}{self._left()}")
        if code is None:
            return False
        self.caches.cleanup()
        outcome = ENDS.get(code, "failed")
        if code < 0:
            outcome = f"killed by {signal.Signals(-code).name}"
        if window and code != BAD_INPUT:  # then the directory may hold another run
            outcome += f" at step {window.step}"
        self._end(code, f"{outcome}: {self._last_words(code)}" if code else outcome)
        return True

    def _left(self) -> str:
        seconds = self.bars.tasks[0].time_remaining
        return f"  all runs: {timedelta(seconds=seconds)} left" if seconds else ""

    def _end(self, code: int, outcome: str) -> None:
        self.code, self.failed = code, code != COMPLETED
        self.bars.update(self.bar, said=outcome)
        self._say(outcome, always=self.failed)

    def _say(self, event: str, always: bool = False) -> None:
        """Print an event where there is no bar to show it, or `always`."""
        if always or not self.bars.console.is_terminal:
            line = f"{datetime.now():%H:%M:%S} {self.title}: {event}"
            self.bars.console.print(escape(line), soft_wrap=True)

    def _last_words(self, code: int) -> str:
        """Return the last line that the run wrote, or where to look."""
        log = self.run.directory / LOG
        with suppress(OSError):  # a full disk
            lines = log.read_text("utf-8", errors="replace").split("\n")
            written = [line for line in lines if line.strip()]
            if written and code != -signal.SIGKILL:  # which leaves no time for words
                return written[-1]
        return f"see {log}"
