"""The measurements of experiments.bench: rounds over all variants, each measurement a process of
its own."""

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from experiments.jobs import placement
from experiments.jobs.files import write_whole
from experiments.jobs.signals import Stop
from experiments.profiling.table import summarize

GRACE = 10  # seconds in which a measurement that is asked to end may do so by itself


class NotMeasured(Exception):
    """A measurement that the budget or the user ended; the message says which."""


class Failed(NotMeasured):
    """A measurement that failed; the message says why."""


def file_names(labels: Iterable[str]) -> dict[str, str]:
    """How the names of each variant's files begin."""
    return {
        label: re.sub(r"[^\w.-]+", "_", f"{place}-{label}")[:80]
        for place, label in enumerate(labels, 1)
    }


def turns(
    variants: list[str], took: dict[str, float], left: Callable[[], float]
) -> Iterator[tuple[int, str]]:
    """(round, variant): all variants once, then backwards, then forwards again, while a whole round
    fits.

    The caller keeps in `took` the seconds of each variant's last measurement; a variant that is not
    in it is left out. `left` gives the seconds that are left.
    """
    order, number = list(variants), 1
    while order:
        yield from ((number, variant) for variant in order)
        order = [variant for variant in reversed(order) if variant in took]
        number += 1
        if sum(took[variant] for variant in order) > left():
            return


class Rounds:
    """The measurements of some variants, and the directory in which they are kept.

    Args:
        labels: of the variants, whose resolved recipes are in the directory; ratios are to the
        first.
        facts: what bench.json says of machine and command.
        out: the directory.
        left: seconds that are left of the budget.
        stop: what the user asks for.
    """

    def __init__(
        self, labels: Iterable[str], facts: dict, out: Path, left: Callable[[], float], stop: Stop
    ):
        self.files, self.facts, self.out, self.left, self.stop = (
            file_names(labels),
            facts,
            out,
            left,
            stop,
        )
        self.records: dict[str, list[dict]] = {label: [] for label in self.files}
        self.errors = {label: "its turn did not come" for label in self.files}

    def run(self, console: Console) -> None:
        """Measure until the budget is spent or the user stops it; bench.json is up to date after
        each measurement."""
        took: dict[str, float] = {}
        for number, label in turns(list(self.files), took, self.left):
            start = time.monotonic()
            try:
                record = self._measure(label, number)
                took[label] = time.monotonic() - start
                self.records[label].append({"round": number, "wall_s": took[label]} | record)
                self.errors.pop(label, None)
                outcome = f"{record['tokens_per_s']:,.0f} tokens/s, {record['step_s'] * 1e3:,.1f} ms a step"
            except NotMeasured as reason:
                took.pop(label, None)
                outcome = str(reason)
                if isinstance(reason, Failed) or not self.records[label]:
                    self.errors[label] = outcome
            write_whole(self.out / "bench.json", json.dumps(self.summary(), indent=1) + "\n")
            seconds = f"{time.monotonic() - start:.0f} s"
            console.print(escape(f"round {number}, {label}: {outcome} ({seconds})"), soft_wrap=True)
            if self.stop.code or self.left() < 0:
                return
        if took:
            console.print(
                f"Another round takes about {sum(took.values()):.0f} s, and {self.left():.0f} s are left."
            )

    def summary(self) -> dict:
        """The contents of bench.json."""
        return self.facts | {"variants": summarize(self.records, self.errors)}

    def _measure(self, label: str, number: int) -> dict:
        """One measurement. Its kernels stay in the record's file. Raises `Failed`,
        `NotMeasured`."""
        stem = self.out / f"{self.files[label]}.round{number}"
        recipe, record, log = (
            self.out / f"{self.files[label]}.yaml",
            Path(f"{stem}.json"),
            Path(f"{stem}.log"),
        )
        arguments = ["experiments.profiling.worker", str(recipe), str(record)]
        with open(log, "w") as output:
            child = placement.start(arguments, placement.gpus()[0], 0, stdout=output, stderr=output)
            try:
                while child.poll() is None and not self.stop.code and self.left() > 0:
                    time.sleep(0.1)
            finally:
                still_running = child.poll() is None
                if still_running:
                    _end(child)
        if self.stop.code:
            raise NotMeasured(f"ended by {self.stop.why}")
        if still_running:
            raise NotMeasured("the budget was spent")
        if child.returncode:
            raise Failed(f"failed: {_reason(log, child.returncode)}")
        log.unlink()
        return {
            key: value for key, value in json.loads(record.read_text()).items() if key != "kernels"
        }


def _end(child: subprocess.Popen) -> None:
    """Ask a process to end; after `GRACE` seconds kill it and what it has started."""
    child.terminate()
    try:
        child.wait(GRACE)
    except subprocess.TimeoutExpired:
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()


def _reason(log: Path, code: int) -> str:
    """Why a measurement failed: the signal that killed it, or the last line of its log that begins
    with `error: `."""
    if code < 0:
        return f"killed by {signal.Signals(-code).name}, see {log}"
    lines = [line for line in log.read_text().splitlines() if line.startswith("error: ")]
    return lines[-1].removeprefix("error: ") if lines else f"see {log}"
