"""Run a study: several recipes and seeds, one process a run, as many at once as there are GPUs;
then the table.

    python -m experiments.study [NAME…] [--overlay O]… [--seeds 0,1,2] [--processes N] [--out DIR]
                                [key.path=value …]
    python -m experiments.study DIR    goes on with an unfinished study, skipping what is complete

NAME is a file of recipes/studies/, or recipes to compare. With `--processes N` each run takes N
GPUs. A run that fails does not stop the others. Each run compiles anew, so that all warm-ups
compare.

`--budget S` ends the study within S seconds: all its runs stop at about the same step, and are
compared over the steps that all of them have made. A study with axes, a sweep, keeps its runs whole
and begins no cell that would not end in time. A cell that does not fit here stays in the table with
its estimate (`--dry-run` lists all cells, with `--gpu` for another machine's GPUs).

Exit codes: 1 if any run failed, 2 for bad input, 75 if runs were stopped to be continued (SIGUSR1,
--budget), 130 after SIGTERM or Ctrl-C.
"""

import argparse
import math
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from shlex import quote
from typing import NamedTuple

import yaml
from rich.console import Console

from analysis.report import print_report, write_page
from experiments.config import recipes
from experiments.config.studies import AUTO, DEFAULT, Study, balanced, load, read
from experiments.jobs import placement
from experiments.jobs.exit_codes import COMPLETED, FAILED, complain, leave
from experiments.jobs.folders import check_folder, claim_folder, dated_folder, new_folder
from experiments.jobs.rank_environment import number, process_count
from experiments.jobs.runner import Run, run_all
from experiments.jobs.shares import BUDGET, CHECKPOINT_RATE, END_S, Shares
from experiments.jobs.signals import COME_BACK, FOR_GOOD, Stop, budget_seconds
from experiments.records import files
from experiments.records.run import MANIFEST, TENSORBOARD, Manifest
from experiments.records.study import CELL, STUDY_FILE
from experiments.records.study import Cell as CellRecord
from models.errors import InputError
from models.gpus import GPUS

PROGRAM = "python -m experiments.study"
TABLE_S = 10  # what the table and the page take at the end


class Part(NamedTuple):
    """A cell of a sweep, or a study as its only part, with what each recipe asks for."""

    name: str  # of its folder; empty for a whole study
    values: dict[str, str | int]  # on each axis
    study: Study
    plans: dict  # {recipe: Plan}
    record: CellRecord | None  # what a sweep keeps of the cell: its memory, and why it cannot run


def main(argv: list[str] | None = None) -> int:
    args = _parser().parse_intermixed_args(argv)
    stop = Stop()
    stop.listen()
    try:
        study, out = _resolve(args)
        parts = _check(study, args.gpu)
        _check_output(study, out)
        if args.dry_run:
            return _list_cells(study, parts, args.gpu) if study.axes else _list_runs(parts[0], out)
        chosen = _choose(study, parts, args.budget)
        if not args.out and not (out / STUDY_FILE).exists():
            out = new_folder(out)
        print(f"Into {out}")
        with claim_folder(out, "study", STUDY_FILE):
            _write_plans(study, parts, out)
            console = Console(highlight=False, width=None if sys.stdout.isatty() else 200)
            codes = _run(chosen, out, args.budget, console, stop)
            if not stop.code:
                _report(study, out, console)
            return _exit_code(codes, parts, out, stop)
    except InputError as error:
        return complain(error)
    except KeyboardInterrupt:
        return stop.code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=PROGRAM, description="Run a study and compare.")
    add = parser.add_argument
    add(
        "names", nargs="*", metavar="NAME", help="a study, recipes, or an unfinished study's folder"
    )
    add("--overlay", action="append", metavar="O", help="instead of the study's overlays")
    add("--seeds", metavar="0,1,2", help="instead of the study's seeds")
    add("--processes", type=process_count, metavar="N", help="of each run, for the study's number")
    add("--out", type=Path, metavar="DIR", help="directory (default: a new one under runs/)")
    add("--budget", type=budget_seconds, metavar="S", help="end within S seconds, at equal steps")
    add("--dry-run", action="store_true", help="check recipes, data and paths; list what would run")
    add("--gpu", choices=GPUS, metavar="GPU", help="with --dry-run of a sweep: whose memory counts")
    return parser


# ---- resolve ----


def _resolve(args: argparse.Namespace) -> tuple[Study, Path]:
    """Make the study that the command line asks for, and name its folder."""
    if number("WORLD_SIZE", 1) > 1:
        raise InputError(
            "WORLD_SIZE is set, as under torchrun: unset it, or start one study without torchrun"
        )
    overrides = [
        name for name in args.names if "=" in name and not (Path(name) / STUDY_FILE).exists()
    ]
    names = [name for name in args.names if name not in overrides] or [DEFAULT]
    study = load(names)
    if (Path(names[0]) / STUDY_FILE).exists():
        if args.overlay or args.seeds or args.processes or overrides or args.out:
            raise InputError(
                "an unfinished study goes on as it was started: leave the other arguments out"
            )
        return study, Path(names[0])
    study.overlays = args.overlay or study.overlays
    study.override(overrides, args.processes)
    if args.seeds is not None:
        study.seeds = _seeds(args.seeds)
    if args.gpu and not (args.dry_run and study.axes):
        raise InputError(
            "--gpu is for --dry-run of a sweep, which then says what fits: leave it out"
        )
    if AUTO in study.overlays:
        from experiments.training import scale  # torch: seconds, which a wrong name need not wait

        chosen, why = scale.choose_scale(study.processes)
        place = study.overlays.index(AUTO)
        study.overlays[place : place + 1] = chosen
        print(f"Scale: {why}.")
    return study, args.out or dated_folder(names[0])


def _seeds(text: str) -> list[int]:
    seeds = [seed.strip() for seed in text.split(",")]
    if not all(seed.isdecimal() for seed in seeds):
        raise InputError(f"--seeds {text}: expected numbers of 0 and more, as in --seeds 0,1,2")
    return [int(seed) for seed in seeds]


# ---- check ----


def _check(study: Study, gpu: str | None) -> list[Part]:
    """Work out what all runs ask for, and prepare the data, so that no run's time holds it."""
    if study.baseline not in study.recipes:
        raise InputError(
            f"the study's baseline {study.baseline} is not one of its recipes: "
            f"{', '.join(study.recipes)}"
        )
    for seed in study.seeds:
        recipes.load(study.baseline, study.overlays, study.overrides, seed)
    from experiments.corpus.tokens import prepare
    from experiments.training.plan import check_data, plan
    from experiments.training.scale import fit

    parts, data, findings = [], {}, []
    for name, values, part in study.cells():
        plans, record = {}, None
        for recipe in part.recipes:
            plans[recipe] = plan(
                recipes.load(recipe, part.overlays, part.overrides), part.processes
            )
        if study.axes:
            record = fit(values, list(plans.values()), gpu)
        parts.append(Part(name, values, part, plans, record))
    for part in parts:
        for recipe, planned in part.plans.items():
            if recipe not in data:  # the same in all cells
                data[recipe] = prepare(planned.config)
            findings.append(check_data(planned, data[recipe]))
    print(f"Data: {findings[0]}.")
    return parts


def _check_output(study: Study, out: Path) -> None:
    check_folder(out, "study", STUDY_FILE)
    if (out / STUDY_FILE).exists() and read(out / STUDY_FILE) != study:
        raise InputError(
            f"{out} holds another study: choose another --out, or go on with that one: "
            f"{PROGRAM} {out}"
        )


def _can_run(parts: list[Part]) -> list[Part]:
    """Order the cells that can run so that any beginning covers the axes evenly."""
    return balanced(part for part in parts if not (part.record and part.record.obstacle))


def _choose(study: Study, parts: list[Part], budget: float | None) -> list[Part]:
    """Choose what to run, in its order. A cell that cannot run is no error, a whole study is."""
    if not study.axes:
        placement.gpus_for(study.processes)
    chosen = _can_run(parts)
    if budget and chosen:
        shares = _shares(chosen[0], budget)
        if shares.over:
            raise InputError(
                f"--budget {budget:g} is too little: ending a run and the table alone take "
                f"{TABLE_S + shares.end_s:.0f} s"
            )
    return chosen


def _list_runs(part: Part, out: Path) -> int:
    """Say what would run. Device and memory are not checked: another machine may train."""
    for run in _incomplete(part, out):
        work = f"{run.steps} steps, {part.plans[run.arguments[0]].describe()}"
        if run.processes > 1:
            work += f", {run.processes} processes"
        print(f"would run {run.title}: {work}, into {run.directory}")
    return 0


def _list_cells(study: Study, parts: list[Part], gpu: str | None) -> int:
    """Say which cells of a sweep would run, in their order, and which not, by their memory."""
    from experiments.training.plan import memory_finding

    can_run = _can_run(parts)
    where = GPUS[gpu].driver_name if gpu else "this machine"
    names, seeds = ", ".join(study.recipes), ", ".join(map(str, study.seeds))
    print(f"{len(parts)} cells, {len(can_run)} of which {where} can run: {names}; seeds {seeds}")
    for part in can_run:
        finding = memory_finding(part.record.needed, part.record.available)
        print(f"{part.name}: would run: {finding}")
    for part in parts:
        if part.record.obstacle:
            print(f"{part.name}: cannot run: {part.record.obstacle}")
    return 0


# ---- run ----


def _write_plans(study: Study, parts: list[Part], out: Path) -> None:
    """Write what the study was started with, and a sweep's cells."""
    plans = {out: study} | {out / part.name: part.study for part in parts if part.record}
    try:
        for folder, plan in plans.items():
            folder.mkdir(exist_ok=True)
            files.write_whole(
                folder / STUDY_FILE, yaml.safe_dump(plan.model_dump(), sort_keys=False)
            )
        for part in parts:
            if part.record:
                files.write(out / part.name / CELL, part.record)
    except OSError as error:
        raise InputError(f"{out}: {error.strerror}: make room, or choose another --out") from None


def _run(
    parts: list[Part], out: Path, budget: float | None, console: Console, stop: Stop
) -> list[int]:
    """Run what is not complete; returns exit codes, COME_BACK for runs whose turn did not come.

    Within a budget cells run one after the other, each if it would end in time should it take as
    long as the longest.
    """
    if not budget:
        runs = []
        for part in parts:
            runs += _incomplete(part, out)
        return _padded(run_all(runs, console, stop), runs)
    codes, longest = [], 0.0
    os.environ[BUDGET] = str(math.ceil(budget))
    for part in parts:
        runs, done, began = list(_incomplete(part, out)), [], time.monotonic()
        if runs and not stop.code and _left(budget) > longest:
            done = run_all(runs, console, stop, _shares(part, budget))
            longest = max(longest, time.monotonic() - began)
        codes += _padded(done, runs)
    return codes


def _padded(codes: list[int], runs: list[Run]) -> list[int]:
    return codes + [COME_BACK] * (len(runs) - len(codes))


def _left(budget: float) -> float:
    """Seconds that runs still have of a budget, which counts from this process's start."""
    from models import device

    return budget - device.seconds_since_process_start() - TABLE_S


def _shares(part: Part, budget: float) -> Shares:
    """Share out what is left of a budget among the runs of a cell."""
    checkpoint = max(planned.checkpoint_bytes for planned in part.plans.values())
    places = len(placement.gpus()) // placement.gpus_for(part.study.processes)
    return Shares(_left(budget), places, END_S + checkpoint / CHECKPOINT_RATE)


def _incomplete(part: Part, out: Path) -> Iterator[Run]:
    """Yield the runs that are not complete; print the folders of the others."""
    study = part.study
    shared = list(study.overrides)
    for overlay in study.overlays:
        shared += ["--overlay", overlay]
    if study.processes > 1:
        shared += ["--processes", str(study.processes)]
    for recipe, seed in study.runs():
        folder = out / part.name / recipe / f"seed{seed}"
        if _is_complete(folder):
            print(f"complete already: {folder}")
            continue
        title = f"{part.name} {recipe} seed {seed}".lstrip()
        arguments = [recipe, "--seed", str(seed), *shared, "--out", str(folder)]
        steps = part.plans[recipe].config.training.steps
        yield Run(title, folder, arguments, study.processes, steps)


def _is_complete(folder: Path) -> bool:
    try:
        manifest = files.read_if_there(folder / MANIFEST, Manifest)
    except files.RecordError:  # the run itself says what is wrong with its folder
        return False
    return manifest is not None and manifest.status == "completed"


# ---- table ----


def _report(study: Study, out: Path, console: Console) -> None:
    """Print the table, write the page, and say where everything is."""
    print()
    page = curves = ""
    comparison = print_report([out], study.baseline, console)
    if comparison:
        try:
            write_page(comparison, out / "report.html")
            page = ", report.html among it"
        except OSError as error:
            page = f", but for report.html ({error.strerror})"
    if any(out.glob(f"*/*/{TENSORBOARD}")):
        curves = f"; TensorBoard: tensorboard --logdir {quote(str(out))}"
    print(f"\nEverything is in {out}{page}{curves}")
    example = "python -m experiments.decide llama3.1-8B --gpu h100 --gpus 8 --steps 100000"
    print(f"To estimate another model, GPU or number of steps: {example}")


def _exit_code(codes: list[int], parts: list[Part], out: Path, stop: Stop) -> int:
    """Say how to go on with runs that are not complete; returns the study's exit code."""
    if not any(codes):
        return COMPLETED
    again = f"Not all runs completed; to go on with them: {PROGRAM} {quote(str(out))}"
    if not any(planned.config.checkpoint.enable for planned in parts[0].plans.values()):
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
