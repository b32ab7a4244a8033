"""Show how runs get on: live bars in a terminal, plain lines in a log file."""

import logging
import sys
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from experiments.records.run import Window

PACE_S = 3600  # the steps of so long tell how much time is left: what runs compile is a part of it


def describe(window: Window) -> str:
    """Say a log window in a few words."""
    loss = "not finite" if window.loss is None else f"{window.loss:.3f}"
    return f"loss {loss}  {window.tokens_per_s:,.0f} tokens/s"


def progress_bars(console: Console, shown: bool) -> Progress:
    """Make the bars of a study's runs, or of one run. Unless `shown` they only count."""
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[said]}", markup=False),
    )
    return Progress(*columns, console=console, speed_estimate_period=PACE_S, disable=not shown)


@contextmanager
def display(name: str, steps: int, log_file: Path | None):
    """Send the log to `log_file` (rank 0) and to the screen. Raises OSError for the file.

    Other ranks have no log file, and show warnings only. Yields a function that moves the bar of
    this name: `completed` is the step, `said` a few words about the last log window.
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
        yield partial(bars.update, bars.add_task(name, total=steps, said="starting"))
