"""Measure variants of recipes against one another on one GPU, in the time that there is.

    python -m experiments.bench [VARIANT…] [--steps N] [--budget SECONDS] [--overlay O]… [--out DIR] [key.path=value …]

VARIANT is a recipe, or a recipe with keys of its own: tensorwise_fp8_compiled+optimizer.implementation=foreach. Without
one: the recipes of the study four_way. A measurement is a process that trains N steps as experiments.run does, and
profiles two more. Each variant is measured once; then again, in the opposite order, as long as another round fits into
the budget, so that a clock that drifts slows all alike. What is measured is in DIR/bench.json at once, in the form that
`python -m models.floors NAME --gpu GPU --against DIR/bench.json` reads; beside it the kernels of each measurement.

Exit codes: 1 if a variant could not be measured, 2 for bad input, 75 and 130 when asked to stop, as experiments.run.
"""

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from experiments.config import recipes
from experiments.config.studies import DEFAULT, load
from experiments.jobs import placement
from experiments.jobs.exit_codes import complain, leave
from experiments.jobs.files import write_whole
from experiments.jobs.signals import Stop, budget_seconds
from experiments.profiling.table import print_tables, summarize
from experiments.profiling.worker import PROFILED_STEPS
from experiments.training.metrics import NOT_STEADY_STEPS
from experiments.training.scale import choose_scale
from models.errors import InputError

PROGRAM = "python -m experiments.bench"
GRACE = 10  # seconds in which a measurement that is asked to end may do so by itself


class Ended(Exception):
    """A measurement that the budget or the user ended; the message says which."""


class Failed(Exception):
    """A measurement that failed; the message is one sentence of why."""


@dataclass(frozen=True)
class Variant:
    """What is measured; `file` is the beginning of its files' names."""

    label: str
    recipe: recipes.Recipe
    file: str


def is_variant(word: str) -> bool:
    """Whether a word of the command line is a variant; if not, it is an override for all of them."""
    return "=" not in word or "+" in word.partition("=")[0]


def turns(variants: list[str], took: dict[str, float], left: Callable[[], float]) -> Iterator[tuple[int, str]]:
    """(round, variant): all of them once, then backwards, then forwards again, while a whole round fits.

    Args:
        variants: their labels.
        took: seconds of each variant's last measurement, kept by the caller; one that is not in it is left out.
        left: seconds that are left.
    """
    order, number = list(variants), 1
    while order:
        for variant in order:
            yield number, variant
        order = [variant for variant in reversed(order) if variant in took]
        number += 1
        if sum(took[variant] for variant in order) > left():
            return


class Bench:
    """The measurements of some variants, kept in `out`.

    Args:
        variants: by label; ratios are to the first.
        facts: what bench.json says of machine and command.
        out: directory to write into.
        left: seconds that are left.
        stop: what the user asks for.
    """

    def __init__(self, variants: dict[str, Variant], facts: dict, out: Path, left: Callable[[], float], stop: Stop):
        self.variants, self.facts, self.out, self.left, self.stop = variants, facts, out, left, stop
        self.rounds: dict[str, list[dict]] = {label: [] for label in variants}
        self.errors = {label: "its turn did not come" for label in variants}

    def run(self, console: Console) -> None:
        """Measure until the budget is spent or the user stops it."""
        took: dict[str, float] = {}
        for number, label in turns(list(self.variants), took, self.left):
            start = time.monotonic()
            try:
                record = self._measure(self.variants[label], number)
                took[label] = time.monotonic() - start
                self.rounds[label].append({"round": number, "wall_s": took[label]} | record)
                self.errors.pop(label, None)
                said = f"{record['tokens_per_s']:,.0f} tokens/s, {record['step_s'] * 1e3:,.1f} ms a step"
            except Failed as reason:
                took.pop(label, None)
                self.errors[label] = said = f"failed: {reason}"
            except Ended as reason:
                said = str(reason)
                if not self.rounds[label]:
                    self.errors[label] = said
            self._write()
            seconds = f"{time.monotonic() - start:.0f} s"
            console.print(escape(f"round {number}, {label}: {said} ({seconds})"), soft_wrap=True)
            if self.stop.code or self.left() < 0:
                return
        if took:
            console.print(f"Another round takes about {sum(took.values()):.0f} s, and {self.left():.0f} s are left.")

    def summary(self) -> dict:
        """The contents of bench.json."""
        return self.facts | {"variants": summarize(self.rounds, self.errors)}

    def _write(self) -> None:
        write_whole(self.out / "bench.json", json.dumps(self.summary(), indent=1) + "\n")

    def _measure(self, variant: Variant, number: int) -> dict:
        """One measurement in a process of its own, its kernels left in a file. Raises `Failed`, `Ended`."""
        stem = self.out / f"{variant.file}.round{number}"
        recipe, record, log = self.out / f"{variant.file}.yaml", Path(f"{stem}.json"), Path(f"{stem}.log")
        arguments = ["experiments.profiling.worker", str(recipe), str(record)]
        with open(log, "w") as output:
            child = placement.start(arguments, placement.gpus()[0], 0, stdout=output, stderr=output)
            try:
                while child.poll() is None and not self.stop.code and self.left() > 0:
                    time.sleep(0.1)
            finally:
                asked = child.poll() is None
                if asked:
                    _end(child)
        if asked or self.stop.code:
            raise Ended(f"ended by {self.stop.why}" if self.stop.code else "the budget was spent")
        if child.returncode:
            raise Failed(_last_words(log, child.returncode))
        log.unlink()
        return {key: value for key, value in json.loads(record.read_text()).items() if key != "kernels"}


def _end(child: subprocess.Popen) -> None:
    """Ask a process to end; after a while end it and what it has started."""
    child.terminate()
    try:
        child.wait(GRACE)
    except subprocess.TimeoutExpired:
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()


def _last_words(log: Path, code: int) -> str:
    if code < 0:
        return f"killed by {signal.Signals(-code).name}, see {log}"
    lines = [line for line in log.read_text().splitlines() if line.startswith("error: ")]
    return lines[-1].removeprefix("error: ") if lines else f"see {log}"


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog=PROGRAM, description="Measure variants of recipes against one another.")
    parser.add_argument("words", nargs="*", metavar="VARIANT", help="NAME or NAME+key=value+key=value")
    parser.add_argument("--steps", type=int, default=40, metavar="N", help="of a measurement (default: %(default)s)")
    parser.add_argument(
        "--budget", type=budget_seconds, default=600, metavar="S", help="seconds in all (default: %(default)s)"
    )
    parser.add_argument("--overlay", action="append", metavar="O", help="where or how big (default: as a study)")
    parser.add_argument("--out", type=Path, metavar="DIR", help="directory (default: a new one under runs/)")
    args = parser.parse_intermixed_args(argv)
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 200)
    end = time.monotonic() + args.budget
    stop = Stop()
    stop.listen()
    try:
        bench = _prepare(args, lambda: end - time.monotonic(), stop, console)
    except InputError as error:
        return complain(error)
    except KeyboardInterrupt:
        return stop.code
    stop.deferred = True  # between two looks at the process that measures
    with suppress(KeyboardInterrupt):  # Ctrl-C once more
        bench.run(console)
    print_tables(bench.summary(), {label: variant.recipe for label, variant in bench.variants.items()}, console)
    console.print(escape(f"Everything is in {bench.out}"), soft_wrap=True)
    return stop.code or int(bool(bench.errors))


def _prepare(args, left: Callable[[], float], stop: Stop, console: Console) -> Bench:
    """Resolve and check everything ahead, data included. Raises `InputError`."""
    overlays = args.overlay
    if overlays is None:
        overlays, why = choose_scale()
        console.print(escape(f"Scale: {why}."), soft_wrap=True)
    labels = list(dict.fromkeys(word for word in args.words if is_variant(word))) or load([DEFAULT]).recipes
    shared = [word for word in args.words if not is_variant(word)]
    variants = {label: _variant(label, place, overlays, shared, args.steps) for place, label in enumerate(labels, 1)}

    from experiments.training import preflight
    from models import device

    if args.steps <= NOT_STEADY_STEPS:
        raise InputError(f"--steps {args.steps}: the first {NOT_STEADY_STEPS} steps are not steady, so give more")
    for variant in variants.values():
        preflight.check_model(variant.recipe.config)
        preflight.check_data(variant.recipe.config)
    out = args.out or Path("runs") / f"bench-{datetime.now():%Y%m%d-%H%M%S}"
    try:
        out.mkdir(parents=True, exist_ok=True)
        if any(out.iterdir()):
            raise InputError(f"{out} is not empty: choose another --out")
        for variant in variants.values():
            (out / f"{variant.file}.yaml").write_text(recipes.to_yaml(variant.recipe))
    except OSError as error:
        raise InputError(f"{out}: {error.strerror}: choose another --out") from None
    os.environ.setdefault(device.MEASURED_PEAK, str(device.peak().bf16))
    facts = _facts() | {"overlays": overlays, "overrides": shared, "steps": args.steps, "budget_s": args.budget}
    return Bench(variants, facts, out, left, stop)


def _variant(label: str, place: int, overlays: list[str], shared: list[str], steps: int) -> Variant:
    name, own = recipes.split_variant(label)
    measured = [
        f"training.steps={steps + PROFILED_STEPS}",
        "checkpoint.enable=false",
        "metrics.enable_tensorboard=false",
    ]
    recipe = recipes.load(name, overlays, [*shared, *own, *measured])
    return Variant(label, recipe, re.sub(r"[^\w.-]+", "_", f"{place}-{label}")[:80])


def _facts() -> dict:
    """What bench.json says of code, machine and command."""
    from importlib.metadata import version

    from experiments.training import run_directory
    from models import device

    git = run_directory.git_state()
    return {
        "command": run_directory.command(),
        "start": run_directory.now(),
        "git": {"commit": git["commit"], "changed": bool(git["diff"])},
        "machine": device.hardware()
        | {"packages": {name: version(name) for name in ("torch", "torchao", "torchtitan", "triton")}}
        | {"peak_flops": device.peak_record()},
    }


if __name__ == "__main__":
    leave(main)
