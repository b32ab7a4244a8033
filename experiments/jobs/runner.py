"""Runs as processes, as many at once as there are GPUs; and the time budget that they share.

Each run compiles in empty cache folders of its own, which are removed after it: otherwise the first
run would pay for what later runs compile, and their warm-ups would not compare. The ranks of one
run share its folders, which PyTorch guards with locks.
"""

import logging
import math
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from itertools import chain
from pathlib import Path
from statistics import mean
from typing import NamedTuple

from rich.console import Console
from rich.logging import RichHandler
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)

from experiments.jobs import ranks
from experiments.jobs.command import BAD_INPUT, COME_BACK, COMPLETED, DIVERGED, FOR_GOOD, Stop
from experiments.jobs.ranks import Ranks
from experiments.records.files import RecordError, last_window, read_windows
from experiments.records.run import LOG, METRICS, Window
from models.errors import InputError

# Variables of cache folders, but for those that the user has set. This is looked at before torch is
# imported, which sets one by itself.
COMPILE_CACHES = {"TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"} - os.environ.keys()
COMMAND = "experiments.run"
LINE_EVERY_S = 10
ENDS = {
    COMPLETED: "completed",
    DIVERGED: "diverged",
    COME_BACK: "interrupted",
    FOR_GOOD: "interrupted",
}

# ---- the time budget of a study ----
#
# Each run gets the same share of the time that is left, its warm-up included. Once a run has ended,
# the later ones stop at as many steps, even before their share is spent, and the time that they do
# not use goes to the runs after them. The comparison is over the steps that all runs have made. A
# run whose warm-up takes much of its share lowers that number for all; how long a warm-up will take
# is not known beforehand.
#
# A sweep's cells run one after the other, and each is a comparison of its own. A cell begins if it
# would end in time should it take as long as the longest.

TABLE_S = 10  # what a study's table and page take at the end
END_S = 5  # from a run's last step to its end, without a checkpoint
CHECKPOINT_RATE = 1e9  # bytes/s, assumed until a run has written one
BUDGET = "STUDY_BUDGET_S"  # in the environment of a study's runs: their manifests say so


class Budget:
    """The time that is left for runs, and the fewest steps that one of this cell has made."""

    def __init__(self, seconds: float = math.inf, clock: Callable[[], float] = time.monotonic):
        """`seconds` are left for runs, table and page."""
        self.clock = clock
        self.end = clock() + seconds - TABLE_S
        self.longest_cell_s = 0.0
        self._begin(0)

    @property
    def is_limited(self) -> bool:
        return self.end < math.inf

    def _begin(self, checkpoint_bytes: float) -> None:
        self.end_s = END_S + checkpoint_bytes / CHECKPOINT_RATE  # from being asked to its end
        self.fewest = math.inf
        self._ends_s: list[float] = []

    def check(self, checkpoint_bytes: float) -> None:
        """Raise `InputError` if no run could make a step."""
        self._begin(checkpoint_bytes)
        if self.over:
            raise InputError(
                "--budget is too little: start-up, the end of a run and the table alone take "
                f"{TABLE_S + self.end_s:.0f} s and more"
            )

    @contextmanager
    def cell(self, checkpoint_bytes: float) -> Iterator[bool]:
        """Measure a cell of runs; yields whether it may begin."""
        self._begin(checkpoint_bytes)
        began = self.clock()
        yield self.end - began > self.longest_cell_s
        self.longest_cell_s = max(self.longest_cell_s, self.clock() - began)

    def until(self, waiting: int, places: int) -> float:
        """Return the time at which a run that starts now is to be asked to stop.

        `waiting` others come after it, and `places` of them run at once.
        """
        turns = math.ceil((waiting + 1) / places)
        now = self.clock()
        return now + (self.end - now) / turns - self.end_s

    @property
    def over(self) -> bool:
        """Whether a run that starts now would be asked to stop at once."""
        return self.clock() >= self.end - self.end_s

    def spent(self, until: float, step: int) -> bool:
        """Whether a run that is at `step` is to stop."""
        return self.clock() >= until or step >= self.fewest

    def ended(self, step: int, asked_at: float) -> None:
        """Note that a run that was asked to stop at time `asked_at` has ended after `step` steps,
        0 within its warm-up."""
        if step:
            self.fewest = min(self.fewest, step)
        self._ends_s.append(self.clock() - asked_at)
        self.end_s = max(self._ends_s)


# ---- the runs ----


class Run(NamedTuple):
    """A run to start: `arguments` are those of experiments.run, which each rank gets."""

    title: str
    directory: Path
    arguments: list[str]
    processes: int
    steps: int
    compiles_anew: bool = True  # or with the kernels that earlier runs kept


def run_all(
    runs: list[Run], console: Console, stop: Stop, budget: Budget | None = None
) -> list[int]:
    """Start runs and wait for them; returns an exit code each, COME_BACK if its turn did not come.

    A code is negative for the number of a signal that killed the run. A request to `stop` is passed
    on to the runs, and no other is started. Within a `budget` each run is asked to stop when its
    share is spent. Raises `InputError` for a run of more processes than GPUs.
    """
    stop.deferred = True
    with progress_bar(console, console.is_terminal) as bar:
        jobs = _Jobs(console, bar, stop, budget or Budget())
        try:
            jobs.work(list(runs))
        finally:  # whatever ends the work ends the runs too
            jobs.send(signal.SIGTERM)
            stop.deferred = False
    return jobs.codes + [COME_BACK] * (len(runs) - len(jobs.codes))


@dataclass
class _Started:
    """A run that was started; what it prints is in its log."""

    run: Run
    ranks: Ranks
    caches: tempfile.TemporaryDirectory
    until: float  # when its share of a budget is spent
    earlier: Window | None  # the last log window that was there before
    task: TaskID  # its line on the screen
    line_at: float  # when the next line in place of that is due, where there is no terminal
    asked_at: float | None = None  # when it was asked to stop because its share is spent


class _Jobs:
    """The runs that run, the free GPUs, and the exit codes of the runs that have ended."""

    def __init__(self, console: Console, bar: Progress, stop: Stop, budget: Budget):
        self.console, self.bar, self.stop, self.budget = console, bar, stop, budget
        self.running: list[_Started] = []
        self.free = list(enumerate(ranks.gpus()))
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
            started.ranks.send_signal(request)

    def _starts_more(self, waiting: list[Run]) -> bool:
        return bool(waiting) and not self.stop.code and not self.budget.over

    def _start_waiting(self, waiting: list[Run]) -> None:
        while self._starts_more(waiting):
            count = ranks.gpus_for(waiting[0].processes)
            if count > len(self.free):
                return
            run = waiting.pop(0)
            until = self.budget.until(len(waiting), self.places // count)
            try:
                self._start(run, self.free[:count], until)
            except OSError as error:  # a full disk; the next run may find room
                self._say(run, f"failed: {error.filename}: {error.strerror}", always=True)
                self.codes.append(BAD_INPUT)

    def _start(self, run: Run, gpus: list, until: float) -> None:
        run.directory.mkdir(parents=True, exist_ok=True)
        earlier = last_window(run.directory)
        caches = tempfile.TemporaryDirectory(prefix="compile-cache-", ignore_cleanup_errors=True)
        folders = {}
        if run.compiles_anew:
            folders = {name: f"{caches.name}/{name}" for name in COMPILE_CACHES}
        arguments = [COMMAND, *run.arguments]
        started = Ranks(arguments, run.directory / LOG, gpus, run.processes, folders)
        del self.free[: len(gpus)]
        task = self.bar.add_task(run.title, total=run.steps, window="starting")
        line_at = time.monotonic() + LINE_EVERY_S
        self.running.append(_Started(run, started, caches, until, earlier, task, line_at))
        names = ", ".join(gpu for _, gpu in gpus if gpu)
        self._say(run, f"started on GPU {names}" if names else "started")

    def _look_at(self, started: _Started) -> None:
        """Show how far a run is; note that it has ended, or ask it to stop."""
        ended = started.ranks.poll() is not None  # first: no line is written after that
        window = last_window(started.run.directory)
        step = 0  # as long as it has made none of its own
        if window and window != started.earlier:
            self.bar.update(started.task, completed=window.step, window=describe(window))
            step = window.step
        if ended:
            self._note_end(started, window)
            if started.asked_at is not None:
                self.budget.ended(step, started.asked_at)
            return
        if step and time.monotonic() > started.line_at:
            started.line_at = time.monotonic() + LINE_EVERY_S
            line = f"step {window.step} of {started.run.steps}, {describe(window)}"
            self._say(started.run, line + time_left(window, started.run.steps))
        if started.asked_at is None and self.budget.spent(started.until, step):
            started.asked_at = self.budget.clock()
            started.ranks.send_signal(signal.SIGUSR1)

    def _note_end(self, started: _Started, window: Window | None) -> None:
        """Print how a run ended, with its steady rate, and free its GPUs."""
        started.caches.cleanup()
        self.running.remove(started)
        self.free = sorted(self.free + started.ranks.gpus)
        code = started.ranks.returncode
        self.codes.append(code)
        outcome = ENDS.get(code, "failed")
        if code < 0:
            outcome = f"killed by {signal.Signals(-code).name}"
        if started.ranks.first:
            outcome = f"rank {started.ranks.first} {outcome}"
        if window and code != BAD_INPUT:  # then the directory may hold another run
            rate = None
            with suppress(RecordError):
                rate = steady_rate(started.run.directory)
            outcome += f" at step {window.step}, {describe(window, rate)}"
        self.bar.update(started.task, window=outcome)
        if code:
            outcome += f": {started.ranks.last_words()}"
        self._say(started.run, outcome, always=code != 0)

    def _say(self, run: Run, event: str, always: bool = False) -> None:
        """Print a line; in a terminal the bar shows the event instead, unless it is a failure."""
        if always or not self.console.is_terminal:
            line = f"{datetime.now():%H:%M:%S} {run.title}: {event}"
            self.console.print(escape(line), soft_wrap=True)


# ---- how runs show themselves: a live bar in a terminal, plain lines in a log file ----


def describe(window: Window, tokens_per_s: float | None = None) -> str:
    """Say a log window in a few words; with another rate than the window's if it is given."""
    loss = "not finite" if window.loss is None else f"{window.loss:.3f}"
    return f"loss {loss}  {tokens_per_s or window.tokens_per_s:,.0f} tokens/s"


def time_left(window: Window, steps: int) -> str:
    """Say how long a run will take at the rate of the steady steps of its last log window, if there
    are any: a first step compiles."""
    step_s = steady_s([window])
    if not step_s:
        return ""
    return f", {timedelta(seconds=round((steps - window.step) * step_s))} left"


def steady_rate(run: Path) -> float | None:
    """Return tokens/s of the mean steady step of a run, as the table has it; None without one."""
    windows = read_windows(run / METRICS)
    step_s = steady_s(windows)
    return windows[-1].tokens_per_step / step_s if step_s else None


def steady_s(windows: Iterable[Window]) -> float | None:
    """Return the mean duration of the steady steps; None without one."""
    steps = chain.from_iterable(window.steps() for window in windows)
    steady = [step.seconds for step in steps if step.steady]
    return mean(steady) if steady else None


def progress_bar(console: Console, shown: bool) -> Progress:
    """The bar of a run and of a study's runs, which does nothing unless `shown`; tasks carry a
    `window` field."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[window]}"),
    )
    return Progress(*columns, TimeRemainingColumn(), console=console, disable=not shown)


@contextmanager
def display(name: str, steps: int, log_file: Path | None):
    """Send the log to `log_file` (rank 0) and to the screen. Raises OSError for the file.

    Other ranks have no log file, and show warnings only. Yields a function that moves the bar of
    this name: `completed` is the step, `window` a few words about the last log window.
    """
    console = Console()
    live = bool(log_file) and console.is_terminal
    screen = logging.StreamHandler(sys.stdout)
    if live:
        screen = RichHandler(console=console, show_path=False)
        screen.setFormatter(logging.Formatter())  # rich adds time and level
        # libraries' deprecations are for the log file
        screen.addFilter(lambda record: record.name != "py.warnings")
    if live or not log_file:
        screen.setLevel(logging.WARNING)
    handlers = [screen]
    if log_file:
        handlers.append(logging.FileHandler(log_file, encoding="utf-8"))
    line, date = "%(asctime)s %(levelname)s %(message)s", "%Y-%m-%d %H:%M:%S"
    logging.basicConfig(format=line, datefmt=date, level="INFO", handlers=handlers, force=True)
    logging.captureWarnings(True)
    logging.raiseExceptions = False  # on a full disk the run goes on without lines in its log
    with progress_bar(console, live) as bar:
        yield partial(bar.update, bar.add_task(name, total=steps, window="starting"))
