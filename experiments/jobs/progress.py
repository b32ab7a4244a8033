"""How a run shows itself: a live bar in a terminal, plain lines in a log file."""

import logging
import sys
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


def describe_progress(window: Window, steps: int | None) -> str:
    """Say how far a run is, and how long it will take at the rate of the steady steps of its last
    log window, if there are any: a first step compiles."""
    if steps is None:
        return f"step {window.step}, {describe(window)}"
    line = f"step {window.step} of {steps}, {describe(window)}"
    steady = _steady_seconds(window)
    if not steady:
        return line
    left = timedelta(seconds=round((steps - window.step) * mean(steady)))
    return f"{line}, {left} left"


def steady_rate(run: Path) -> float | None:
    """Return tokens/s of the mean steady step of a run, as the table has it; None without one."""
    steady, tokens_per_step = [], 0.0
    with suppress(RecordError):
        for window in read_windows(run / METRICS):
            tokens_per_step = window.tokens_per_s * mean(window.step_s)
            steady += _steady_seconds(window)
    return tokens_per_step / mean(steady) if steady else None


def _steady_seconds(window: Window) -> list[float]:
    steps = range(window.step - len(window.step_s) + 1, window.step + 1)
    seconds = zip(steps, window.step_s, strict=True)
    return [s for step, s in seconds if step not in window.not_steady]


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
    live = bool(log_file) and console.is_terminal
    if live:
        screen = RichHandler(logging.WARNING, console, show_path=False)
        # libraries' deprecations are for the log file
        screen.addFilter(lambda record: record.name != "py.warnings")
    else:
        screen = logging.StreamHandler(sys.stdout)
        screen.setLevel(logging.INFO if log_file else logging.WARNING)
        screen.setFormatter(_PLAIN)
    root.handlers = [screen]
    if log_file:
        root.addHandler(_LogFile(log_file, encoding="utf-8"))
        root.handlers[-1].setFormatter(_PLAIN)
    root.setLevel(logging.INFO)  # not by assignment: loggers remember what is enabled
    logging.captureWarnings(True)
    with progress_bar(console, live) as bar:
        yield partial(bar.update, bar.add_task(name, total=steps, window="starting"))
