"""Run a study: several recipes and seeds, one process a run, as many at once as there are GPUs; then the table.

    python -m experiments.study [NAME…] [--overlay O]… [--seeds 0,1,2] [--out DIR] [key.path=value …]
    python -m experiments.study DIR        goes on with an unfinished study, skipping what is complete

NAME is a file of recipes/studies/, or recipes to compare. A run that fails does not stop the others. Each run compiles
anew, so that all warm-ups compare. `--budget S` ends the study within S seconds: all its runs stop at about the same
step, and are compared over the steps that all of them have made. Exit codes: 1 if any failed, 2 for bad input, 75 if
runs are to be gone on with (SIGUSR1, --budget), 130 after SIGTERM or Ctrl-C.
"""

import argparse
import math
import os
import sys
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from shlex import quote

import yaml
from rich.console import Console
from rich.markup import escape

from analysis.report import print_report, write_page
from experiments.config import recipes
from experiments.config.studies import AUTO, DEFAULT, PLAN, Study, load, read
from experiments.config.values import VALUES
from experiments.jobs import placement
from experiments.jobs.exit_codes import complain, leave
from experiments.jobs.files import lock, new_folder, out_directory, read_json, write_whole
from experiments.jobs.ranks import number
from experiments.jobs.runner import Run, run_all
from experiments.jobs.shares import BUDGET, CHECKPOINT_RATE, END_S, Shares
from experiments.jobs.signals import COME_BACK, FOR_GOOD, Stop, budget_seconds
from models.errors import InputError

PROGRAM = "python -m experiments.study"
TABLE_S = 10  # what the table and the page take at the end
NO_ARTIFACTS = 'compile.artifacts_dir=""'  # kernels kept by another run would make a warm-up shorter


def main(argv: list[str] | None = None) -> int:
    args = _parser().parse_intermixed_args(argv)
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 200)
    stop = Stop()
    stop.listen()
    try:
        study, out = _resolve(args)
        _prepare(study, console)
        _check_folder(study, out)
        if args.dry_run:
            return _dry_run(study, out, console)
        shares = _shares(study, args.budget) if args.budget else None
        out = out if args.out or (out / PLAN).exists() else new_folder(out)
        console.print(escape(f"Into {out}"), soft_wrap=True)
        locked = lock(out, "study")
        write_whole(out / PLAN, yaml.safe_dump(study.model_dump(), sort_keys=False))
    except InputError as error:
        return complain(error)
    except OSError as error:
        return complain(f"{out}: {error.strerror}: make room, or choose another --out")
    except KeyboardInterrupt:
        return stop.code
    try:
        return _run(study, out, shares, console, stop)
    finally:
        os.close(locked)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=PROGRAM, description="Run a study and compare.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="a study, recipes, or an unfinished study's directory")
    parser.add_argument("--overlay", action="append", metavar="O", help="instead of the study's overlays")
    parser.add_argument("--seeds", metavar="0,1,2", help="instead of the study's seeds")
    parser.add_argument("--out", type=out_directory, metavar="DIR", help="directory (default: a new one under runs/)")
    parser.add_argument(
        "--budget", type=budget_seconds, metavar="S", help="end within S seconds, all runs after equally many steps"
    )
    parser.add_argument("--dry-run", action="store_true", help="check recipes, data and paths, and say what would run")
    return parser


def _resolve(args) -> tuple[Study, Path]:
    """The study as the command line wants it, and its directory."""
    overrides = [name for name in args.names if "=" in name and not (Path(name) / PLAN).exists()]
    names = [name for name in args.names if name not in overrides] or [DEFAULT]
    study, out = load(names), args.out
    if (Path(names[0]) / PLAN).exists():
        if args.overlay or args.seeds or overrides or args.out:
            raise InputError("an unfinished study goes on as it was started: leave the other arguments out")
        return study, Path(names[0])
    study.overlays = args.overlay or study.overlays
    study.overrides += overrides
    if args.seeds is not None:
        seeds = [seed.strip() for seed in args.seeds.split(",")]
        if not all(seed.isdecimal() for seed in seeds):
            raise InputError(f"--seeds {args.seeds}: expected numbers of 0 and more, as in --seeds 0,1,2")
        study.seeds = list(map(int, seeds))
    return study, out or Path("runs") / f"{names[0]}-{datetime.now():%Y%m%d-%H%M%S}"


def _configs(study: Study) -> Iterator:
    return (recipes.load(name, study.overlays, study.overrides).config for name in study.recipes)


def _prepare(study: Study, console: Console) -> None:
    """Choose the scale, check every recipe, and prepare the data ahead, so that no run's time holds it."""
    if AUTO in study.overlays:
        from experiments.training import scale  # torch: seconds, which a misspelt name need not wait for

        chosen, why = scale.choose_scale()
        place = study.overlays.index(AUTO)
        study.overlays[place : place + 1] = chosen
        console.print(escape(f"Scale: {why}."), soft_wrap=True)
    if study.baseline not in study.recipes:
        raise InputError(f"the study's baseline {study.baseline} is not one of its recipes: {', '.join(study.recipes)}")
    if problem := next(filter(None, map(VALUES["debug.seed"], study.seeds)), None):
        raise InputError(f"seeds: {problem}")
    number("WORLD_SIZE", 1, least=1)  # the check of the data reads it
    configs = list(_configs(study))
    from experiments.training import preflight
    from models import device

    for config in configs:
        preflight.check_model(config)
        preflight.check_checkpoints(config)
    os.environ.setdefault(device.MEASURED_PEAK, str(device.peak().bf16))
    data = [preflight.check_data(config) for config in configs][0]
    console.print(escape(f"Data: {data}."), soft_wrap=True)


def _check_folder(study: Study, out: Path) -> None:
    """Raise `InputError` if `out` holds something else than this study, or could not be written."""
    if (out / PLAN).exists() and read(out / PLAN) != study:
        raise InputError(f"{out} holds another study: choose another --out, or go on with that one: {PROGRAM} {out}")
    if (out / "manifest.json").exists():
        raise InputError(f"{out} holds a run, and a study needs a folder of its own: choose another --out")
    existing = next(folder for folder in (out, *out.absolute().parents) if folder.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK):
        raise InputError(f"{out} cannot be written, because of {existing}: choose another --out")


def _shares(study: Study, budget: float) -> Shares:
    """Shares of what is left of `budget`, which counts from this process's start, less the table's time."""
    from experiments.training import preflight
    from models import device

    os.environ[BUDGET] = str(math.ceil(budget))
    checkpoint = max(map(preflight.checkpoint_bytes, _configs(study)))
    left = budget - device.seconds_since_process_start() - TABLE_S
    shares = Shares(left, len(placement.gpus()), END_S + checkpoint / CHECKPOINT_RATE)
    if shares.over:
        least = math.ceil(TABLE_S + shares.end_s)
        raise InputError(f"--budget {budget:g} is too little: ending a run and the table alone take {least} s")
    return shares


def _incomplete(study: Study, out: Path, console: Console) -> Iterator[Run]:
    """The runs that are still to be made; the others are named."""
    shared = [part for overlay in study.overlays for part in ("--overlay", overlay)] + [NO_ARTIFACTS, *study.overrides]
    for recipe, seed in study.runs():
        directory = out / recipe / f"seed{seed}"
        if read_json(directory / "manifest.json").get("status") == "completed":
            console.print(escape(f"complete already: {directory}"), soft_wrap=True)
        else:
            yield Run(f"{recipe} seed {seed}", directory, [recipe, "--seed", str(seed), *shared])


def _dry_run(study: Study, out: Path, console: Console) -> int:
    """Say what would run. The machine that trains may be another one, so device and memory are not checked."""
    from experiments.training import preflight

    for run in _incomplete(study, out, console):
        config = recipes.load(run.arguments[0], study.overlays, study.overrides).config
        work = f"{config.training.steps} steps, {preflight.check_model(config)}"
        console.print(escape(f"would run {run.title}: {work}, into {run.directory}"), soft_wrap=True)
    return 0


def _run(study: Study, out: Path, shares: Shares | None, console: Console, stop: Stop) -> int:
    """Run what is not complete below `out`, print the table, and say where everything is. Returns the exit code."""
    runs = list(_incomplete(study, out, console))
    codes = run_all(runs, console, stop, shares)
    if not stop.code:  # after a request to stop, the exit comes without the table
        _report(study, out, console)
    if len(codes) == len(runs) and not any(codes):
        return 0
    again = f"Not all runs completed; to go on with them: {PROGRAM} {quote(str(out))}"
    if shares and not any(out.glob("*/*/checkpoint")):
        again += " (from their first step: only with checkpoint.enable=true do runs keep what they have done)"
    console.print(escape(again), soft_wrap=True)
    return next((code for code in (FOR_GOOD, COME_BACK) if code in (stop.code, *codes)), 1)


def _report(study: Study, out: Path, console: Console) -> None:
    """Print the table, write the page, and say where everything is."""
    console.print()
    page = ""
    if comparison := print_report([out], study.baseline, console):
        try:
            write_page(comparison, out / "report.html")
            page = ", report.html among it"
        except OSError as error:
            page = f", but for report.html ({error.strerror})"
    curves = f"; TensorBoard: tensorboard --logdir {quote(str(out))}" if next(out.glob("*/*/tb"), None) else ""
    console.print(escape(f"\nEverything is in {out}{page}{curves}"), soft_wrap=True)


if __name__ == "__main__":
    leave(main)
