"""Measure variants of recipes against one another on one GPU, within a time budget.

    python -m experiments.bench [VARIANT…] [--steps N] [--budget SECONDS] [--overlay O]… [--out DIR]
    [key.path=value …]

VARIANT is a recipe, or a recipe with keys of its own:
tensorwise_fp8_compiled+optimizer.implementation=foreach. The default is the recipes of the study
four_way, and what rounding to bf16 where eager does costs compiled bf16.

A measurement is a process that trains N steps as experiments.run does, and profiles two more. Each
variant is measured once; then again, in the opposite order, as long as another round fits into the
budget: a clock that drifts slows all variants alike. DIR/bench.json has the results after each
measurement, in the form that `python -m experiments.roofline VARIANT --gpu GPU --against
DIR/bench.json` reads; beside it are the kernels of each.

Example: python -m experiments.bench baseline_compiled tensorwise_fp8_compiled --budget 300

Exit codes: 0 measured, 1 if a variant could not be measured, 2 for bad input, 75 and 130 when asked
to stop, as experiments.run.
"""

import json
import re
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from experiments.config import recipes
from experiments.config.studies import DEFAULT, load
from experiments.jobs.command import CommandLine, Stop, count, leave, seconds
from experiments.jobs.ranks import Ranks, gpus
from experiments.profiling.measured import Bench, Machine, Round, Variant, tables
from experiments.records.files import check_folder, dated_folder, lock_folder, new_folder, write
from experiments.records.run import NOT_STEADY_STEPS
from models.errors import InputError

if TYPE_CHECKING:
    from experiments.training.plan import Plan

# All compiled recipes round to bf16 where eager does, although only rowwise needs it: see
# recipes/base.yaml.
NATIVE_ROUNDING = "baseline_compiled+compile.emulate_precision_casts=false"
GRACE_S = 10  # in which a measurement that is asked to end may do so by itself


def main(argv: list[str] | None = None) -> int:
    parser = CommandLine("experiments.bench", __doc__)
    add = parser.add_argument
    add("words", nargs="*", metavar="VARIANT", help="NAME or NAME+key=value+key=value")
    add("--steps", type=count, default=40, metavar="N", help="of a measurement (default: 40)")
    add("--budget", type=seconds, default=600, metavar="S", help="seconds in all (default: 600)")
    parser.add_overlays(default=None, more="; default: as a study")
    add("--out", type=Path, metavar="DIR", help="directory (default: a new one under runs/)")
    args = parser.parse(argv)
    end = time.monotonic() + args.budget
    stop = Stop()
    stop.listen()
    plans, bench = _prepare(args)
    out = args.out or new_folder(dated_folder("bench"))
    check_folder(out, "bench")
    lock = lock_folder(out, "bench")
    files = {}
    for place, (label, planned) in enumerate(plans.items(), 1):
        name = re.sub(r"[^\w.-]+", "_", f"{place}-{label}")[:80]
        files[label] = out / f"{name}.yaml"
        files[label].write_text(recipes.to_yaml(planned.recipe))
    stop.deferred = True  # between two looks at the process that measures
    with lock, suppress(KeyboardInterrupt):  # Ctrl-C once more
        measure_in_rounds(bench, files, lambda: end - time.monotonic(), stop)
    print(f"\n{tables(bench, plans)}\nEverything is in {out}")
    return stop.code or int(any(variant.error for variant in bench.variants.values()))


# ---- what is measured ----


def is_variant(word: str) -> bool:
    """Tell a variant from an override for all variants."""
    return "=" not in word or "+" in word.partition("=")[0]


def _prepare(args) -> tuple[dict[str, "Plan"], Bench]:
    """Plan and check all variants, prepare their data, and say in bench.json's form what is
    measured where. Raises `InputError`."""
    labels = list(dict.fromkeys(word for word in args.words if is_variant(word)))
    labels = labels or [*load([DEFAULT]).recipes, NATIVE_ROUNDING]
    overrides = [word for word in args.words if not is_variant(word)]
    for label in labels:
        recipes.load(recipes.split_variant(label)[0])

    # torch: seconds, which a misspelt name need not wait for
    from experiments.profiling.worker import PROFILED_STEPS
    from experiments.training.machine import choose_size
    from experiments.training.plan import open_data, plan
    from experiments.training.run_directory import VERSIONS, command, git_state
    from models import device

    if args.steps <= NOT_STEADY_STEPS:
        raise InputError(
            f"--steps {args.steps}: the first {NOT_STEADY_STEPS} steps are not steady, so give more"
        )
    overlays = args.overlay
    if overlays is None:
        overlays, why = choose_size()
        print(f"Size: {why}.")
    measured = [
        f"training.steps={args.steps + PROFILED_STEPS}",
        "checkpoint.enable=false",
        "metrics.enable_tensorboard=false",
    ]
    plans = {}
    for label in labels:
        name, own = recipes.split_variant(label)
        recipe = recipes.load(name, overlays, [*overrides, *own, *measured])
        recipe.check_one_pace()
        plans[label] = plan(recipe, world_size=1)
        open_data(plans[label])
    commit, diff = git_state()
    return plans, Bench(
        command=command(),
        start=datetime.now(UTC).isoformat(timespec="milliseconds"),
        git={"commit": commit, "changed": bool(diff)},
        machine=Machine(**device.hardware(), packages={name: version(name) for name in VERSIONS}),
        overlays=overlays,
        overrides=overrides,
        steps=args.steps,
        budget_s=args.budget,
        variants={label: Variant(error="its turn did not come", rounds=[]) for label in labels},
    )


# ---- rounds ----


class NotMeasured(Exception):
    """A measurement that failed; the message says why."""


class Ended(NotMeasured):
    """A measurement that the budget or the user ended; the message says which."""


def measure_in_rounds(
    bench: Bench, files: dict[str, Path], left: Callable[[], float], stop: Stop
) -> None:
    """Measure all variants once, then backwards, then forwards again, while a whole round fits, but
    those that failed. bench.json is up to date after each measurement.

    `files` are the variants' recipes, `left` gives the seconds that are left.
    """
    order, number = list(files), 1
    while order:
        for label in order:
            start = time.monotonic()
            outcome = add_round(bench.variants[label], files[label], number, left, stop)
            bench.work_out()
            write(files[label].with_name("bench.json"), bench)
            seconds = time.monotonic() - start
            print(f"round {number}, {label}: {outcome} ({seconds:.0f} s)", flush=True)
            if stop.code or left() < 0:
                return
        order = [label for label in reversed(order) if not bench.variants[label].error]
        number += 1
        needed = sum(bench.variants[label].rounds[-1].wall_s for label in order)
        if needed > left():
            print(f"Another round takes about {needed:.0f} s, and {left():.0f} s are left.")
            return


def add_round(
    variant: Variant, file: Path, number: int, left: Callable[[], float], stop: Stop
) -> str:
    """Measure a variant and note its round, or why there is none; returns either in words."""
    start = time.monotonic()
    try:
        measured = measure(file, number, left, stop)
    except NotMeasured as reason:
        if not (variant.rounds and isinstance(reason, Ended)):
            variant.error = str(reason)
        return str(reason)
    made = Round(round=number, wall_s=time.monotonic() - start, **measured)
    variant.rounds.append(made)
    variant.error = None
    return f"{made.tokens_per_s:,.0f} tokens/s, {made.step_s * 1e3:,.1f} ms a step"


def measure(recipe: Path, number: int, left: Callable[[], float], stop: Stop) -> dict:
    """Measure once. The kernels stay in the record's file. Raises `NotMeasured`."""
    record = recipe.with_suffix(f".round{number}.json")
    log = record.with_suffix(".log")
    arguments = ["experiments.profiling.worker", str(recipe), str(record)]
    worker = Ranks(arguments, log, [(0, gpus()[0])])
    try:
        while worker.poll() is None and not stop.code and left() > 0:
            time.sleep(0.1)
    finally:
        ended = worker.returncode is not None
        if not ended:
            worker.end(GRACE_S)
    if stop.code:
        raise Ended(f"ended by {stop.why}")
    if not ended:
        raise Ended("the budget was spent")
    if worker.returncode < 0:
        killer = signal.Signals(-worker.returncode).name
        raise NotMeasured(f"failed: killed by {killer}, see {log}")
    if worker.returncode:
        raise NotMeasured(f"failed: {worker.last_words().removeprefix('error: ')}")
    log.unlink()
    measured = json.loads(record.read_text())
    del measured["kernels"]
    return measured


if __name__ == "__main__":
    leave(main)
