"""How a run shows itself: a live bar in a terminal, plain lines in a log file."""

import logging
import sys
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.logging import RichHandler
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from experiments.records.run import Window

_PLAIN = logging.Formatter("%(asctime)s %(levelname)s %(message)s", "%Y-%m-%d %H:%M:%S")


class _LogFile(logging.FileHandler):
    """log.txt; on a full disk the run goes on without its lines."""

    def handleError(self, record) -> None: ...  # noqa: N802  # logging's name

    def close(self) -> None:
        with suppress(OSError):
            super().close()


def describe(window: Window) -> str:
    """Say a log window in a few words."""
    loss = "not finite" if window.loss is None else f"{window.loss:.3f}"
    return f"loss {loss}  {window.tokens_per_s:,.0f} tokens/s"


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
