"""Show how runs get on: live bars in a terminal, plain lines in a log file."""

import logging
import sys
import time
from contextlib import contextmanager
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from experiments.records.run import Window

LINE_EVERY_S = 10


def describe(window: Window) -> str:
    """Say a log window in a few words."""
    loss = "not finite" if window.loss is None else f"{window.loss:.3f}"
    return f"loss {loss}  {window.tokens_per_s:,.0f} tokens/s"


def seconds_left(window: Window, steps: int) -> float | None:
    """Return how long a run takes from a log window on; None while its steps are not steady: a
    first step compiles."""
    if window.step in window.not_steady:
        return None
    return (steps - window.step) * window.step_s[-1]


def with_time(words: str, seconds: float | None) -> str:
    """Add how long something still takes, where that is known."""
    return words if seconds is None else f"{words}  {timedelta(seconds=round(seconds))} left"


def progress_bars(console: Console, shown: bool) -> Progress:
    """Make the bars of a study's runs, or of one run; they do nothing unless `shown`."""
    texts = TextColumn("{task.description}"), TextColumn("{task.fields[window]}")
    columns = (texts[0], BarColumn(), MofNCompleteColumn(), texts[1])
    return Progress(*columns, console=console, disable=not shown)


class Line:
    """One run as its study shows it: a bar in a terminal, where a failure is printed too; elsewhere
    printed lines."""

    def __init__(self, bars: Progress, title: str, steps: int):
        self.bars, self.title, self.steps = bars, title, steps
        self._update = partial(bars.update, bars.add_task(title, total=steps, window="starting"))
        self._due = time.monotonic() + LINE_EVERY_S

    def show(self, window: Window, all_left: float | None) -> None:
        """Move the bar to the run's last log window; print how far the run is, now and then, with
        the seconds that are left for all runs."""
        own = with_time(describe(window), seconds_left(window, self.steps))
        self._update(completed=window.step, window=own)
        if time.monotonic() > self._due:
            self._due = time.monotonic() + LINE_EVERY_S
            far = f"step {window.step}/{self.steps}  {describe(window)}"
            self.say(far if all_left is None else with_time(f"{far}  all runs:", all_left))

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
    with progress_bars(console, live) as bars:
        screen = logging.StreamHandler(sys.stdout)  # which the bars have taken over
        if live:  # libraries' deprecations are for the log file
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
        yield partial(bars.update, bars.add_task(name, total=steps, window="starting"))
