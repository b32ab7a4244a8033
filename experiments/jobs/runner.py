"""Runs as processes: as many at once as there are GPUs, each on its own; the others wait for a free one."""

import math
import signal
import subprocess
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from experiments.jobs import placement
from experiments.jobs.exit_codes import BAD_INPUT, FAILED
from experiments.jobs.files import read_json, read_last_line
from experiments.jobs.progress import describe, progress_bar
from experiments.jobs.shares import Shares
from experiments.jobs.signals import COME_BACK, FOR_GOOD, Stop


@dataclass(frozen=True)
class Run:
    """One run of a study: `arguments` are those of experiments.run, without its --out."""

    title: str
    directory: Path
    arguments: list[str] = field(hash=False)


def run_all(runs: list[Run], console: Console, stop: Stop, shares: Shares | None = None) -> dict[Run, int]:
    """Exit codes of the runs that were started, negative for the number of a signal that killed one.

    What `stop` is asked for is passed on to those that run; they are waited for, and no other is started. `shares` of a
    time budget are kept to.
    """
    stop.deferred = True
    waiting, running, codes = list(runs), [], {}
    free = list(enumerate(placement.gpus()))
    told = False
    with progress_bar(console, console.is_terminal) as bar, ExitStack() as at_end:
        at_end.callback(_tell, running, signal.SIGTERM)  # whatever else ends this loop ends the runs too

        def starts_more() -> bool:
            return bool(waiting) and not stop.code and not (shares and shares.over)

        while running or starts_more():
            try:
                while free and starts_more():
                    until = shares.until(len(waiting) - 1) if shares else math.inf
                    _start(waiting.pop(0), until, free, running, codes, bar, console)
                time.sleep(0.2)
                if stop.code and not told:
                    told = True
                    _tell(running, signal.SIGUSR1 if stop.code == COME_BACK else signal.SIGTERM)
                for process in [process for process in running if process.ended()]:
                    running.remove(process)
                    free.append(process.gpu)
                    codes[process.run] = process.report()
                    if shares and process.told:
                        shares.ended(process.step, process.told)
                for process in running:
                    if shares and not process.told and shares.spent(process.until, process.step):
                        process.told = time.monotonic()
                        _tell([process], signal.SIGUSR1)
            except KeyboardInterrupt:  # Ctrl-C once more: they are not to wait for a step's end either
                _tell(running, signal.SIGINT)
    return codes


def _start(run: Run, until: float, free: list, running: list["_Process"], codes: dict, bar, console: Console) -> None:
    """Start `run` on the first free GPU, or note why it cannot be started: that stops no other."""
    try:
        running.append(_Process(run, until, *free[0], bar, console))
        del free[0]
    except OSError as error:  # a file where its directory should be, a full disk
        console.print(escape(f"{run.title}: failed: {error.filename}: {error.strerror}"), soft_wrap=True)
        codes[run] = BAD_INPUT


def _tell(running: list["_Process"], sent: signal.Signals) -> None:
    for process in running:
        process.child.send_signal(sent)


class _Process:
    """A run that was started, and its line on the screen; what it prints is in its log.txt."""

    def __init__(self, run: Run, until: float, place: int, gpu: str | None, bar, console: Console):
        self.run, self.gpu, self.bar, self.console = run, (place, gpu), bar, console
        self.until = until  # when its share of a budget is spent
        self.told = 0.0  # when it was told so
        self.step = 0  # the last one on record; 0 as long as it has made none of its own
        run.directory.mkdir(parents=True, exist_ok=True)
        self.log = run.directory / "log.txt"
        self.earlier = read_last_line(run.directory / "metrics.jsonl")
        with open(self.log, "a") as log:
            arguments = ["experiments.run", *run.arguments, "--out", str(run.directory)]
            self.child = placement.start(arguments, gpu, place, stdout=subprocess.DEVNULL, stderr=log)
        self.task = bar.add_task(run.title, total=None, window="starting")
        self._say("started" + (f" on GPU {gpu}" if gpu is not None else ""))

    def ended(self) -> bool:
        """Whether it has ended; moves its bar."""
        self._show()
        return self.child.poll() is not None

    def report(self) -> int:
        """Say how it ended, and return its exit code."""
        code, line = self.child.returncode, self._show()
        if code == BAD_INPUT:
            line = {}  # what is in the directory may be another run's
        if code < 0:
            status = f"killed by {signal.Signals(-code).name}"
        else:
            otherwise = "interrupted" if code in (COME_BACK, FOR_GOOD) else "failed"
            status = "failed" if code in (FAILED, BAD_INPUT) else self._manifest().get("status", otherwise)
        outcome = f"{status} at step {line['step']}, {describe(line)}" if line else status
        self.bar.update(self.task, window=outcome)
        self._say(outcome + (f": {self._last_words()}" if code else ""), always=code != 0)
        return code

    def _say(self, what: str, always: bool = False) -> None:
        """A line; in a terminal the bar says it, unless something is wrong."""
        if always or not self.console.is_terminal:
            self.console.print(escape(f"{datetime.now():%H:%M:%S} {self.run.title}: {what}"), soft_wrap=True)

    def _show(self) -> dict:
        """Move the bar to the run's last log line, and return that."""
        line = read_last_line(self.run.directory / "metrics.jsonl")
        if line:
            self.step = line["step"] if line != self.earlier else 0
            total = self._manifest().get("steps")
            self.bar.update(self.task, completed=line["step"], total=total, window=describe(line))
        return line

    def _manifest(self) -> dict:
        return read_json(self.run.directory / "manifest.json")

    def _last_words(self) -> str:
        try:
            lines = self.log.read_text(errors="replace").split("\n")
        except OSError as error:
            return f"{self.log}: {error.strerror}"
        return next((line for line in reversed(lines) if line.strip()), f"see {self.log}")
