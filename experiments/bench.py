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

import time
from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from experiments.config import recipes
from experiments.config.rules import check_one_precision
from experiments.config.studies import DEFAULT, load
from experiments.jobs.command import CommandLine, Stop, leave, seconds, whole
from experiments.profiling.rounds import Rounds, file_names
from experiments.profiling.table import tables
from experiments.records.files import claim_folder, dated_folder, new_folder
from models.errors import InputError

if TYPE_CHECKING:
    from experiments.training.plan import Plan

# All compiled recipes round to bf16 where eager does, although only rowwise needs it: see
# recipes/base.yaml.
NATIVE_ROUNDING = "baseline_compiled+compile.emulate_precision_casts=false"


def main(argv: list[str] | None = None) -> int:
    parser = CommandLine("experiments.bench", __doc__)
    add = parser.add_argument
    add("words", nargs="*", metavar="VARIANT", help="NAME or NAME+key=value+key=value")
    add("--steps", type=whole, default=40, metavar="N", help="of a measurement (default: 40)")
    add("--budget", type=seconds, default=600, metavar="S", help="seconds in all (default: 600)")
    parser.add_overlays(default=None, more="; default: as a study")
    add("--out", type=Path, metavar="DIR", help="directory (default: a new one under runs/)")
    args = parser.parse(argv)
    end = time.monotonic() + args.budget
    stop = Stop()
    stop.listen()
    variants, facts = _prepare(args)
    out = args.out or new_folder(dated_folder("bench"))
    lock = claim_folder(out, "bench")
    for label, file in file_names(variants).items():
        (out / f"{file}.yaml").write_text(recipes.to_yaml(variants[label].recipe))
    rounds = Rounds(variants, facts, out, lambda: end - time.monotonic(), stop)
    stop.deferred = True  # between two looks at the process that measures
    with lock, suppress(KeyboardInterrupt):  # Ctrl-C once more
        rounds.run()
    print(f"\n{tables(rounds.summary(), variants)}\nEverything is in {out}")
    return stop.code or int(bool(rounds.errors))


def is_variant(word: str) -> bool:
    """Tell a variant from an override for all variants."""
    return "=" not in word or "+" in word.partition("=")[0]


def _prepare(args) -> tuple[dict[str, "Plan"], dict]:
    """Plan and check all variants, prepare their data, and gather what bench.json says of code,
    machine and command. Raises `InputError`."""
    labels = list(dict.fromkeys(word for word in args.words if is_variant(word)))
    labels = labels or [*load([DEFAULT]).recipes, NATIVE_ROUNDING]
    overrides = [word for word in args.words if not is_variant(word)]
    for label in labels:
        recipes.load(recipes.split_variant(label)[0])

    # torch: seconds, which a misspelt name need not wait for
    from experiments.profiling.worker import PROFILED_STEPS
    from experiments.records.run import NOT_STEADY_STEPS
    from experiments.training.plan import choose_scale, open_data, plan
    from experiments.training.run_directory import VERSIONS, command, git_state
    from models import device

    if args.steps <= NOT_STEADY_STEPS:
        raise InputError(
            f"--steps {args.steps}: the first {NOT_STEADY_STEPS} steps are not steady, so give more"
        )
    overlays = args.overlay
    if overlays is None:
        overlays, why = choose_scale()
        print(f"Scale: {why}.")
    measured = [
        f"training.steps={args.steps + PROFILED_STEPS}",
        "checkpoint.enable=false",
        "metrics.enable_tensorboard=false",
    ]
    variants = {}
    for label in labels:
        name, own = recipes.split_variant(label)
        recipe = recipes.load(name, overlays, [*overrides, *own, *measured])
        check_one_precision(recipe.config)
        variants[label] = plan(recipe, world_size=1)
        open_data(variants[label])
    commit, diff = git_state()
    return variants, {
        "command": command(),
        "start": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "git": {"commit": commit, "changed": bool(diff)},
        "machine": device.hardware() | {"packages": {name: version(name) for name in VERSIONS}},
        "overlays": overlays,
        "overrides": overrides,
        "steps": args.steps,
        "budget_s": args.budget,
    }


if __name__ == "__main__":
    leave(main)
