"""Show how runs get on: live bars in a terminal, plain lines in a log file."""

import logging
import sys
import time
from collections.abc import Iterable
from contextlib import contextmanager
from datetime import datetime, timedelta
from functools import partial
from itertools import chain
from pathlib import Path
from statistics import mean

from rich.console import Console
from rich.logging import RichHandler
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from experiments.records.files import read_windows
from experiments.records.run import METRICS, Window

LINE_EVERY_S = 10


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


def progress_bars(console: Console, shown: bool) -> Progress:
    """Make the bars of a study's runs, or of one run; they do nothing unless `shown`."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[window]}"),
    )
    return Progress(*columns, TimeRemainingColumn(), console=console, disable=not shown)


class Line:
    """One run as its study shows it: a bar in a terminal, where a failure is printed too; elsewhere
    printed lines."""

    def __init__(self, bars: Progress, title: str, steps: int):
        self.bars, self.title, self.steps = bars, title, steps
        self._update = partial(bars.update, bars.add_task(title, total=steps, window="starting"))
        self._due = time.monotonic() + LINE_EVERY_S

    def move(self, window: Window) -> None:
        """Move the bar to the run's last log window."""
        self._update(completed=window.step, window=describe(window))

    def mention(self, window: Window) -> None:
        """Print how far the run is, now and then."""
        if time.monotonic() > self._due:
            self._due = time.monotonic() + LINE_EVERY_S
            far = f"step {window.step} of {self.steps}, {describe(window)}"
            self.say(far + time_left(window, self.steps))

    def end(self, outcome: str, why: str = "") -> None:
        """Say how the run ended, and `why` it did not complete."""
        self._update(window=outcome)
        self.say(f"{outcome}: {why}" if why else outcome, always=bool(why))

    def say(self, event: str, always: bool = False) -> None:
        """Print an event where there is no bar to show it, or `always`."""
        if always or not self.bars.console.is_terminal:
            line = f"{datetime.now():%H:%M:%S} {self.title}: {event}"
            self.bars.console.print(escape(line), soft_wrap=True)


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
    with progress_bars(console, live) as bars:
        yield partial(bars.update, bars.add_task(name, total=steps, window="starting"))
