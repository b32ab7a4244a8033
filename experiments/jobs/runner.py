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
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from rich.console import Console
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


@dataclass(eq=False)
class Run:
    """A run of a study, from its turn to its end.

    In a terminal it has a bar, and a line only if it fails; elsewhere lines say how it gets on.
    """

    title: str
    directory: Path
    recipe: str  # the text of its recipe.yaml
    steps: int
    world_size: int = 1
    code: int = COME_BACK  # how it ended: negative for a signal; COME_BACK if its turn did not come
    failed: bool = False
    process: subprocess.Popen | None = None

    def show(self, bars: Progress, number: str) -> None:
        """Give the run its bar."""
        self.bars, self.title = bars, f"[{number}] {self.title}"
        self.window = last_window(self.directory)  # the last one that was shown
        self.bar = bars.add_task(self.title, total=self.steps, completed=self.step, said="waiting")

    @property
    def step(self) -> int:
        return self.window.step if self.window else 0

    def start(self, gpus: list[str | None]) -> bool:
        """Start the run on some GPUs, near the cores and memory of one; False if the disk is full.

        stderr is added to the run's log; stdout, which repeats the log, is dropped.
        """
        self.gpus, names = gpus, ",".join(gpu for gpu in gpus if gpu)
        variables = {STARTER_PID: str(os.getpid())}
        if names:
            variables["CUDA_VISIBLE_DEVICES"] = names
        near = process.binding(gpus[0]) if len(gpus) == 1 else []  # else each process binds itself
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            write_whole(self.directory / RECIPE, self.recipe)
            self.caches = tempfile.TemporaryDirectory(
                prefix="compile-cache-", ignore_cleanup_errors=True
            )
            variables |= {name: f"{self.caches.name}/{name}" for name in COMPILE_CACHES}
            with open(self.directory / LOG, "a", encoding="utf-8") as log:
                # A session of its own: this process passes a terminal's Ctrl-C on
                self.process = subprocess.Popen(
                    [*near, sys.executable, "-m", COMMAND, str(self.directory)],
                    env=os.environ | variables,
                    stdout=subprocess.DEVNULL,
                    stderr=log,
                    start_new_session=True,
                )
        except OSError as error:  # the next run may find room
            self._end(BAD_INPUT, f"failed: {error.filename}: {error.strerror}")
            return False
        self.line_at = time.monotonic() + LINE_EVERY_S
        self._say(f"started on GPU {names}" if names else "started")
        return True

    def look(self) -> bool:
        """Show how far the run is, and how it ended; True once it has."""
        code = self.process.poll()  # first: no line is written after that
        window = last_window(self.directory)
        if window and window != self.window:
            self.window, said = window, describe(window)
            self.bars.update(self.bar, completed=window.step, said=said)
            if time.monotonic() > self.line_at:
                self.line_at = time.monotonic() + LINE_EVERY_S
                left = self.bars.tasks[0].time_remaining
                said += f"  all runs: {timedelta(seconds=left)} left" if left else ""
                self._say(f"step {window.step}/{self.steps}  {said}")
        if code is None:
            return False
        self.caches.cleanup()
        outcome = ENDS.get(code, "failed")
        if code < 0:
            outcome = f"killed by {signal.Signals(-code).name}"
        if window and code != BAD_INPUT:  # then the directory may hold another run
            outcome += f" at step {window.step}"
        self._end(code, f"{outcome}: {self._last_words()}" if code else outcome)
        return True

    def _last_words(self) -> str:
        """Return the last line that the run wrote, or where to look."""
        log = self.directory / LOG
        written = log.read_text("utf-8", errors="replace").strip()
        return written.rsplit("\n", 1)[-1] or f"see {log}"

    def _end(self, code: int, outcome: str) -> None:
        self.code, self.failed = code, code != COMPLETED
        self.bars.update(self.bar, said=outcome)
        self._say(outcome)

    def _say(self, event: str) -> None:
        """Print an event where there is no bar to show it, and a failure."""
        if self.failed or not self.bars.console.is_terminal:
            line = f"{datetime.now():%H:%M:%S} {self.title}: {event}"
            self.bars.console.print(line, markup=False, soft_wrap=True)


def run_all(runs: list[Run], console: Console, stop: Stop) -> None:
    """Start runs and wait for them, as many at once as there are GPUs.

    A request to `stop` is passed on to the runs, and no other is started. No run takes more GPUs
    than there are.
    """
    stop.deferred = True
    with progress_bars(console, console.is_terminal) as bars:
        bars.add_task("all runs", said="")
        for number, run in enumerate(runs, 1):
            run.show(bars, f"{number}/{len(runs)}")
        try:
            _work(runs, bars, stop)
        finally:  # whatever ends the work ends the runs too
            _send(runs, signal.SIGTERM)
            stop.deferred = False


def _work(runs: list[Run], bars: Progress, stop: Stop) -> None:
    """Start runs as GPUs become free, pass a request to stop on, and show how runs get on and
    end."""
    waiting, running, free = list(runs), [], process.gpus()
    there, asked, kill_at = len(free), False, math.inf
    while running or (waiting and not stop.code):
        try:
            while waiting and not stop.code:
                # without GPUs the machine is one, for all processes
                count = min(waiting[0].world_size, there)
                if count > len(free):
                    break
                run = waiting.pop(0)
                if run.start(free[:count]):
                    running.append(run)
                    free = free[count:]
            time.sleep(0.2)
            if stop.code and not asked:
                asked = True
                _send(running, signal.SIGUSR1 if stop.code == COME_BACK else signal.SIGTERM)
            if time.monotonic() > kill_at:
                _send(running, signal.SIGKILL)
            for run in list(running):
                if run.look():
                    running.remove(run)
                    free += run.gpus
            steps = {run: run.steps for run in runs if not run.failed}
            made = sum(run.step for run in steps)
            bars.update(bars.tasks[0].id, total=sum(steps.values()), completed=made)
        except KeyboardInterrupt:  # a second Ctrl-C: runs do not wait for a step's end either
            kill_at = time.monotonic() + GRACE_S
            _send(running, signal.SIGINT)


def _send(runs: list[Run], request: signal.Signals) -> None:
    for run in runs:
        if run.process:
            run.process.send_signal(request)
