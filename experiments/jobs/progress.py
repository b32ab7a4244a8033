"""How a run shows itself: a live bar in a terminal, plain lines in a log file."""

import logging
import sys
import time
from collections.abc import Callable
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from statistics import mean

from rich.console import Console
from rich.logging import RichHandler
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from experiments.records.files import RecordError, read_windows
from experiments.records.run import METRICS, Window

LINE_EVERY_S = 10
_PLAIN = logging.Formatter("%(asctime)s %(levelname)s %(message)s", "%Y-%m-%d %H:%M:%S")


class _LogFile(logging.FileHandler):
    """log.txt; on a full disk the run goes on without its lines."""

    def handleError(self, record) -> None: ...  # noqa: N802  # logging's name

    def close(self) -> None:
        with suppress(OSError):
            super().close()


def describe(window: Window, tokens_per_s: float | None = None) -> str:
    """Say a log window in a few words; with another rate than the window's if it is given."""
    loss = "not finite" if window.loss is None else f"{window.loss:.3f}"
    return f"loss {loss}  {tokens_per_s or window.tokens_per_s:,.0f} tokens/s"


def steady_rate(run: Path) -> float | None:
    """Return tokens/s of the mean steady step of a run, as the table has it; None without one."""
    windows, steady = [], []
    with suppress(RecordError):
        windows = read_windows(run / METRICS)
    for window in windows:
        for step, seconds in enumerate(window.step_s, window.step - len(window.step_s) + 1):
            if step not in window.not_steady:
                steady.append(seconds)
    if not steady:
        return None
    tokens_per_step = windows[-1].tokens_per_s * mean(windows[-1].step_s)
    return tokens_per_step / mean(steady)


class PlainLines:
    """A run's progress in plain lines, where there is no terminal to draw a bar in."""

    def __init__(self, steps: int | None, say: Callable[[str], None]):
        self.steps, self.say = steps, say
        self.next_at = time.monotonic() + LINE_EVERY_S
        self.said = 0  # the step of the last line

    def show(self, window: Window) -> None:
        """Say how far the run is, `LINE_EVERY_S` seconds after the last line at the earliest."""
        if time.monotonic() < self.next_at or window.step == self.said:
            return
        self.next_at, self.said = time.monotonic() + LINE_EVERY_S, window.step
        line = f"step {window.step}, {describe(window)}"
        if self.steps:
            left = timedelta(seconds=round((self.steps - window.step) * mean(window.step_s)))
            line = f"step {window.step} of {self.steps}, {describe(window)}, {left} left"
        self.say(line)


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
    root, console = logging.getLogger(), Console()
    before, level = root.handlers, root.level
    live = bool(log_file) and console.is_terminal
    if live:
        screen = RichHandler(logging.WARNING, console, show_path=False)
        screen.addFilter(
            lambda record: record.name != "py.warnings"
        )  # libraries' deprecations: log file only
    else:
        screen = logging.StreamHandler(sys.stdout)
        screen.setLevel(logging.INFO if log_file else logging.WARNING)
        screen.setFormatter(_PLAIN)
    handlers = [screen]
    if log_file:
        handlers.append(_LogFile(log_file, encoding="utf-8"))
        handlers[-1].setFormatter(_PLAIN)
    root.handlers = handlers
    root.setLevel(logging.INFO)  # not by assignment: loggers remember what is enabled
    logging.captureWarnings(True)
    try:
        with progress_bar(console, live) as bar:
            yield partial(bar.update, bar.add_task(name, total=steps, window="starting"))
    finally:
        logging.captureWarnings(False)
        root.handlers = before
        root.setLevel(level)
        for handler in handlers:
            handler.close()
