"""Run a study: several recipes and seeds, one process a run, as many at once as there are GPUs;
then the answer.

    python -m experiments.study [NAME…] [--overlay O]… [--seeds 3] [--out DIR]
                                [key.path=value …]
    python -m experiments.study DIR [--seeds 5]    goes on with a study, skipping what is complete;
                                                   with more seeds, if they are named

NAME is a file of recipes/studies/, or recipes to compare: `python -m experiments.recipe list`.
`--seeds 3` is short for `--seeds 0,1,2`; seed 3 alone is `--seeds 3,`. A run that fails does not
stop the others. Each run compiles anew, so that all
first steps compare.

Example: python -m experiments.study four_way --seeds 3 training.steps=200

Exit codes: 0 completed, 1 if any run or the report failed, 2 for bad input, 75 if runs were stopped
to be continued (SIGUSR1), 130 after SIGTERM or Ctrl-C.
"""

import argparse
import os
import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

import yaml
from rich.console import Console

from experiments.config import recipes
from experiments.config.studies import AUTO, DEFAULT, Study, load, read
from experiments.jobs.command import (
    COME_BACK,
    COMPLETED,
    FAILED,
    FOR_GOOD,
    CommandLine,
    Stop,
    leave,
    seeds,
)
from experiments.jobs.process import Process, check_environment, check_gpus, gpus
from experiments.jobs.runner import Run, run_all
from experiments.records import files
from experiments.records.files import check_folder, dated_folder, lock_folder, new_folder
from experiments.records.run import MANIFEST, STUDY_FILE, TENSORBOARD, Manifest
from models.errors import InputError

if TYPE_CHECKING:
    from experiments.corpus.tokens import TokenFile
    from experiments.training.plan import Plan

PROGRAM = "python -m experiments.study"


def main(argv: list[str] | None = None) -> int:
    args = _command_line().parse(argv)
    stop = Stop()
    stop.listen()
    study, out, resumed = _resolve(args)
    print(f"Seeds: {', '.join(map(str, study.seeds))}.")
    _choose_size(study)
    plans = _plan(study)
    _check_folder(study, out, resumed)
    _check_machine(plans, args.dry_run)
    token_files = _prepare_data(plans)
    if args.dry_run:
        _list(_incomplete(study, plans, token_files, out), plans)
        return COMPLETED
    if not (args.out or resumed):
        out = new_folder(out)
    with lock_folder(out, "study"):
        _check_folder(study, out, resumed)  # again: another study may have been there meanwhile
        runs = [*_incomplete(study, plans, token_files, out)]
        _write(study, out)
        print(f"{_announce(runs)}, into {out}")
        console = Console(highlight=False, width=None if sys.stdout.isatty() else 200)
        codes = run_all(runs, console, stop)
        reported = COMPLETED
        if not stop.code:
            reported = _report(out, console, args.verbose)
        return _exit_code(codes, plans, out, stop) or reported


def _command_line() -> CommandLine:
    parser = CommandLine("experiments.study", __doc__)
    add = parser.add_argument
    add(
        "names", nargs="*", metavar="NAME", help="a study, recipes, or an unfinished study's folder"
    )
    parser.add_overlays()
    add("--seeds", type=seeds, metavar="N", help="how many, from 0; or a list of them, as 0,1,2")
    add("--out", type=Path, metavar="DIR", help="directory (default: a new one under runs/)")
    add("--dry-run", action="store_true", help="check recipes, data and paths; list what would run")
    add("--verbose", action="store_true", help="print what the answer rests on too")
    return parser


# ---- resolve ----


def _resolve(args: argparse.Namespace) -> tuple[Study, Path, bool]:
    """Make the study that the command line asks for, name its folder, and tell whether the study
    goes on with that folder."""
    check_environment()
    # os.path, which takes names of any length: an override may have more than 255 characters
    unfinished = [name for name in args.names if os.path.exists(os.path.join(name, STUDY_FILE))]
    if unfinished:
        if len(args.names) > 1 or args.overlay or args.out:
            raise InputError(
                "a study goes on as it was started, with --seeds more: leave other arguments out"
            )
        out = Path(unfinished[0])
        study = read(out / STUDY_FILE)
        study.seeds += [seed for seed in args.seeds or [] if seed not in study.seeds]
        return study, out, True
    overrides = [name for name in args.names if "=" in name]
    names = [name for name in args.names if "=" not in name] or [DEFAULT]
    study = load(names)
    study.overlays = args.overlay or study.overlays
    study.overrides += overrides
    study.seeds = args.seeds or study.seeds
    return study, args.out or dated_folder(names[0]), False


def _choose_size(study: Study) -> None:
    """Replace the overlay `auto` by those that suit this machine."""
    if AUTO in study.overlays:
        # torch: seconds, not for a wrong name
        from experiments.training.machine import choose_size

        chosen, why = choose_size(study.baseline, study.overrides)
        place = study.overlays.index(AUTO)
        study.overlays[place : place + 1] = chosen
        print(f"Size: {why}; --overlay chooses another.")


# ---- check ----


def _plan(study: Study) -> dict[str, "Plan"]:
    """Work out what the runs of each recipe ask for."""
    from experiments.training.plan import plan

    return {name: plan(recipes.load(name, study.overlays, study.overrides))
            for name in study.recipes}  # fmt: skip


def _check_folder(study: Study, out: Path, resumed: bool) -> None:
    check_folder(out, "study", STUDY_FILE)
    if not resumed and (out / STUDY_FILE).exists() and read(out / STUDY_FILE) != study:
        raise InputError(
            f"{out} holds another study: choose another --out, or go on with that one: "
            f"{PROGRAM} {quote(str(out))}"
        )


def _prepare_data(plans: dict[str, "Plan"]) -> dict[str, "TokenFile"]:
    """Open each recipe's token file, written first if it is not there, so that no run's time holds
    that; check that it suits the model."""
    from experiments.training.plan import open_data

    opened = {name: open_data(planned) for name, planned in plans.items()}
    _, finding = opened[next(iter(plans))]
    print(f"Data: {finding}.")
    return {name: token_file for name, (token_file, _) in opened.items()}


def _check_machine(plans: dict[str, "Plan"], dry_run: bool) -> None:
    """Check what this machine must have, before the first run is trained for nothing.

    A dry run on a machine without a GPU checks nothing: another machine may train.
    """
    from experiments.training.machine import check_units
    from models import device
    from models.driver import check_driver

    if dry_run and device.TYPE == "cpu":
        return
    check_driver()
    for planned in plans.values():
        check_units(planned)
        if not dry_run:
            check_gpus(planned.world_size)


def _list(runs: Iterable[Run], plans: dict[str, "Plan"]) -> None:
    """Print what would run."""
    for run in runs:
        work = f"{run.steps} steps, {plans[run.directory.parent.name].describe()}"
        if run.gpus > 1:
            work += f", {run.gpus} processes"
        print(f"would run {run.title}: {work}, into {run.directory}")


# ---- run ----


def _write(study: Study, out: Path) -> None:
    """Write what the study was started with."""
    text = yaml.safe_dump(study.model_dump(), sort_keys=False)
    try:
        files.write_whole(out / STUDY_FILE, text)
    except OSError as error:
        raise InputError(f"{out}: {error.strerror}: make room, or choose another --out") from None


def _incomplete(
    study: Study, plans: dict[str, "Plan"], token_files: dict[str, "TokenFile"], out: Path
) -> Iterator[Run]:
    """Yield the runs that are not complete; print the folders of the others.

    Raises `InputError` for a folder with an unfinished run of another recipe.
    """
    from experiments.training.plan import to_yaml
    from experiments.training.run_directory import check_recipe

    for name, seed in study.runs():
        folder = out / name / f"seed{seed}"
        if _is_complete(folder):
            print(f"complete already: {folder}")
            continue
        recipe = recipes.with_seed(plans[name].recipe, seed)
        planned = replace(plans[name], recipe=recipe)
        check_recipe(folder, planned)
        yield Run(
            title=f"{name} seed {seed}",
            directory=folder,
            recipe=to_yaml(planned, token_files[name]),
            steps=recipe.config.training.steps,
            gpus=planned.world_size,
            start=recipe.hook("start", lambda config: Process)(recipe.config),
        )


def _announce(runs: list[Run]) -> str:
    """Say how many runs are to come, and where they run."""
    from models import device

    if not runs:
        return "0 runs"
    steps, places = runs[0].steps, gpus()
    where = f"one after the other on this machine ({device.name()})"
    at_once = min(len(runs), len(places) // runs[0].gpus)
    if at_once > 1:
        where = f"{at_once} at a time on {len(places)} GPUs ({device.name()})"
    return f"{len(runs)} runs of {steps} steps, {where}"


def _is_complete(folder: Path) -> bool:
    try:
        manifest = files.read_if_there(folder / MANIFEST, Manifest)
    except files.RecordError:  # the run itself says what is wrong with its folder
        return False
    return manifest is not None and manifest.status == "completed"


# ---- report ----


def _report(out: Path, console: Console, verbose: bool) -> int:
    """Print the answer, write the page, and say where page, notebooks and curves are.

    A report that fails costs no run. Returns the exit code.
    """
    folder, page = quote(str(out)), out / "report.html"
    try:
        from analysis import report  # pandas: a second
        from analysis.comparison import compare
        from analysis.study import read_study

        found = compare(read_study(out))
        report.print_report(found, console, verbose)
        report.write_page(found, page)
        print(f"\nPage: {page}")
    except Exception as error:
        print(
            f"All runs are kept, but their report failed ({type(error).__name__}: {error}): once "
            f"that is mended, python -m analysis.report {folder} --html {folder}/report.html"
        )
        return FAILED
    print("Notebooks: make lab")
    if any(out.glob(f"*/*/{TENSORBOARD}")):
        print(f"Curves: tensorboard --logdir {folder}")
    return COMPLETED


def _exit_code(codes: list[int], plans: dict[str, "Plan"], out: Path, stop: Stop) -> int:
    """Say how to go on with runs that are not complete; returns the study's exit code."""
    if not any(codes):
        return COMPLETED
    again = f"Not all runs completed; to go on with them: {PROGRAM} {quote(str(out))}"
    if not any(planned.config.checkpoint.enable for planned in plans.values()):
        again += (
            " (from their first step: only with checkpoint.enable=true do runs keep their work)"
        )
    print(again)
    for code in (FOR_GOOD, COME_BACK):
        if code in (stop.code, *codes):
            return code
    return FAILED


if __name__ == "__main__":
    leave(main)
