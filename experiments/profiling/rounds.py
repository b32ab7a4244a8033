"""The measurements of experiments.bench: rounds over all variants, each measurement a process of
its own."""

import json
import re
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from experiments.jobs.command import Stop
from experiments.jobs.ranks import Ranks, gpus
from experiments.profiling.table import summarize
from experiments.records.files import write_whole

GRACE_S = 10  # in which a measurement that is asked to end may do so by itself


class NotMeasured(Exception):
    """A measurement that the budget or the user ended; the message says which."""


class Failed(NotMeasured):
    """A measurement that failed; the message says why."""


def file_names(labels: Iterable[str]) -> dict[str, str]:
    """Say how the names of each variant's files begin."""
    return {
        label: re.sub(r"[^\w.-]+", "_", f"{place}-{label}")[:80]
        for place, label in enumerate(labels, 1)
    }


def turns(
    variants: list[str], took: dict[str, float], left: Callable[[], float]
) -> Iterator[tuple[int, str]]:
    """Give (round, variant): all variants once, then backwards, then forwards again, while a whole
    round fits.

    The caller keeps in `took` the seconds of each variant's last measurement; a variant that is not
    in it is left out. `left` gives the seconds that are left.
    """
    order, number = list(variants), 1
    while order:
        for variant in order:
            yield number, variant
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
        self.files, self.facts, self.out = file_names(labels), facts, out
        self.left, self.stop = left, stop
        self.records: dict[str, list[dict]] = {label: [] for label in self.files}
        self.errors = dict.fromkeys(self.files, "its turn did not come")

    def run(self) -> None:
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
                rate, step_s = record["tokens_per_s"], record["step_s"]
                outcome = f"{rate:,.0f} tokens/s, {step_s * 1e3:,.1f} ms a step"
            except NotMeasured as reason:
                took.pop(label, None)
                outcome = str(reason)
                if isinstance(reason, Failed) or not self.records[label]:
                    self.errors[label] = outcome
            write_whole(self.out / "bench.json", json.dumps(self.summary(), indent=1) + "\n")
            seconds = time.monotonic() - start
            print(f"round {number}, {label}: {outcome} ({seconds:.0f} s)", flush=True)
            if self.stop.code or self.left() < 0:
                return
        if took:
            needed = sum(took.values())
            print(f"Another round takes about {needed:.0f} s, and {self.left():.0f} s are left.")

    def summary(self) -> dict:
        """Give the contents of bench.json."""
        return self.facts | {"variants": summarize(self.records, self.errors)}

    def _measure(self, label: str, number: int) -> dict:
        """Measure once. The kernels stay in the record's file. Raises `Failed`, `NotMeasured`."""
        name = self.files[label]
        recipe, record = self.out / f"{name}.yaml", self.out / f"{name}.round{number}.json"
        log = record.with_suffix(".log")
        arguments = ["experiments.profiling.worker", str(recipe), str(record)]
        worker = Ranks(arguments, log, [(0, gpus()[0])])
        try:
            while worker.poll() is None and not self.stop.code and self.left() > 0:
                time.sleep(0.1)
        finally:
            ended = worker.returncode is not None
            if not ended:
                worker.end(GRACE_S)
        if self.stop.code:
            raise NotMeasured(f"ended by {self.stop.why}")
        if not ended:
            raise NotMeasured("the budget was spent")
        if worker.returncode < 0:
            killer = signal.Signals(-worker.returncode).name
            raise Failed(f"failed: killed by {killer}, see {log}")
        if worker.returncode:
            raise Failed(f"failed: {worker.last_words().removeprefix('error: ')}")
        log.unlink()
        measured = json.loads(record.read_text())
        del measured["kernels"]
        return measured
