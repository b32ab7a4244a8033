"""Run a study: several recipes and seeds, one process a run, as many at once as there are GPUs;
then the table.

    python -m experiments.study [NAME…] [--overlay O]… [--seeds 0,1,2] [--processes N] [--out DIR]
    [key.path=value …] python -m experiments.study DIR        goes on with an unfinished study,
    skipping what is complete

NAME is a file of recipes/studies/, or recipes to compare. With `--processes N` each run takes N
GPUs. A run that fails does not stop the others. Each run compiles anew, so that all warm-ups
compare. `--budget S` ends the study within S
seconds: all its runs stop at about the same step, and are compared over the steps that all of them
have made. A study with axes, a sweep, keeps its runs whole and begins no cell that would not end in
time; a cell that does not fit here stays in the table with its estimate (`--dry-run` lists all
cells, with `--gpu` for another machine's GPUs). Exit
codes: 1 if any failed, 2 for bad input, 75 if runs were stopped to be continued (SIGUSR1,
--budget), 130 after SIGTERM or Ctrl-C.
"""

import argparse
import json
import math
import os
import sys
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from shlex import quote

import yaml
from rich.console import Console
from rich.markup import escape

from analysis.report import print_report, write_page
from analysis.sweep import CELL
from experiments.config import recipes
from experiments.config.studies import AUTO, DEFAULT, PLAN, Cell, Study, balanced, load, read
from experiments.config.values import VALUES
from experiments.jobs import placement
from experiments.jobs.exit_codes import complain, leave
from experiments.jobs.files import lock, new_folder, out_directory, read_json, write_whole
from experiments.jobs.ranks import number, process_count
from experiments.jobs.runner import Run, run_all
from experiments.jobs.shares import BUDGET, CHECKPOINT_RATE, END_S, Shares
from experiments.jobs.signals import COME_BACK, FOR_GOOD, Stop, budget_seconds
from models.errors import InputError
from models.gpus import GPUS

PROGRAM = "python -m experiments.study"
TABLE_S = 10  # what the table and the page take at the end
NO_ARTIFACTS = (
    'compile.artifacts_dir=""'  # kernels kept by another run would make a warm-up shorter
)


def main(argv: list[str] | None = None) -> int:
    args = _parser().parse_intermixed_args(argv)
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 200)
    stop = Stop()
    stop.listen()
    try:
        if (started := number("WORLD_SIZE", 1)) > 1:
            raise InputError(
                f"WORLD_SIZE is {started}, as under torchrun: unset it, or start one study without torchrun"
            )
        study, out = _resolve(args)
        if args.gpu and not (args.dry_run and study.axes):
            raise InputError(
                "--gpu is for --dry-run of a sweep, which then says what fits: leave it out"
            )
        _prepare(study, console)
        _check_folder(study, out)
        if args.dry_run:
            return (
                _list_cells(study, args.gpu, console)
                if study.axes
                else _dry_run(study, out, console)
            )
        cells, records = _cells(study)
        if args.budget and cells and (shares := _shares(cells[0].study, args.budget)).over:
            least = math.ceil(TABLE_S + shares.end_s)
            raise InputError(
                f"--budget {args.budget:g} is too little: ending a run and the table alone take {least} s"
            )
        out = out if args.out or (out / PLAN).exists() else new_folder(out)
        console.print(escape(f"Into {out}"), soft_wrap=True)
        locked = lock(out, "study")
        write_whole(out / PLAN, yaml.safe_dump(study.model_dump(), sort_keys=False))
        for cell, record in records:
            (out / cell.name).mkdir(exist_ok=True)
            write_whole(
                out / cell.name / PLAN, yaml.safe_dump(cell.study.model_dump(), sort_keys=False)
            )
            write_whole(out / cell.name / CELL, json.dumps(record, indent=2) + "\n")
    except InputError as error:
        return complain(error)
    except OSError as error:
        return complain(f"{out}: {error.strerror}: make room, or choose another --out")
    except KeyboardInterrupt:
        return stop.code
    try:
        return _run(study, cells, out, args.budget, console, stop)
    finally:
        os.close(locked)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=PROGRAM, description="Run a study and compare.")
    parser.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help="a study, recipes, or an unfinished study's directory",
    )
    parser.add_argument(
        "--overlay", action="append", metavar="O", help="instead of the study's overlays"
    )
    parser.add_argument("--seeds", metavar="0,1,2", help="instead of the study's seeds")
    parser.add_argument(
        "--processes", type=process_count, metavar="N", help="of each run, instead of the study's"
    )
    parser.add_argument(
        "--out",
        type=out_directory,
        metavar="DIR",
        help="directory (default: a new one under runs/)",
    )
    parser.add_argument(
        "--budget",
        type=budget_seconds,
        metavar="S",
        help="end within S seconds, all runs after equally many steps",
    )
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="check recipes, data and paths, and say what would run",
    )
    parser.add_argument(
        "--gpu", choices=GPUS, metavar="GPU", help="with --dry-run of a sweep: whose memory it asks"
    )
    return parser


def _resolve(args) -> tuple[Study, Path]:
    """The study as the command line wants it, and its directory."""
    overrides = [name for name in args.names if "=" in name and not (Path(name) / PLAN).exists()]
    names = [name for name in args.names if name not in overrides] or [DEFAULT]
    study, out = load(names), args.out
    if (Path(names[0]) / PLAN).exists():
        if args.overlay or args.seeds or args.processes or overrides or args.out:
            raise InputError(
                "an unfinished study goes on as it was started: leave the other arguments out"
            )
        return study, Path(names[0])
    study.overlays = args.overlay or study.overlays
    study.override(overrides, args.processes)
    if args.seeds is not None:
        seeds = [seed.strip() for seed in args.seeds.split(",")]
        if not all(seed.isdecimal() for seed in seeds):
            raise InputError(
                f"--seeds {args.seeds}: expected numbers of 0 and more, as in --seeds 0,1,2"
            )
        study.seeds = list(map(int, seeds))
    return study, out or Path("runs") / f"{names[0]}-{datetime.now():%Y%m%d-%H%M%S}"


def _plans(study: Study) -> list:
    """What each recipe asks for, checked."""
    from experiments.training.plan import plan

    return [
        plan(recipes.load(name, study.overlays, study.overrides), study.processes)
        for name in study.recipes
    ]


def _prepare(study: Study, console: Console) -> None:
    """Choose the scale, check every recipe, and prepare the data ahead, so that no run's time holds
    it."""
    if AUTO in study.overlays:
        from experiments.training import (
            scale,
        )  # torch: seconds, which a misspelt name need not wait for

        chosen, why = scale.choose_scale(study.processes)
        place = study.overlays.index(AUTO)
        study.overlays[place : place + 1] = chosen
        console.print(escape(f"Scale: {why}."), soft_wrap=True)
    if study.baseline not in study.recipes:
        raise InputError(
            f"the study's baseline {study.baseline} is not one of its recipes: {', '.join(study.recipes)}"
        )
    if problem := next(filter(None, map(VALUES["debug.seed"], study.seeds)), None):
        raise InputError(f"seeds: {problem}")
    from experiments.corpus.tokens import prepare
    from experiments.training.plan import check_data
    from models import device

    plans = [planned for cell in study.cells() for planned in _plans(cell.study)]
    os.environ.setdefault(device.MEASURED_PEAK, str(device.peak().bf16))
    files = [prepare(planned.config) for planned in plans[: len(study.recipes)]]  # in all cells
    data = [check_data(planned, files[i % len(files)]) for i, planned in enumerate(plans)]
    console.print(escape(f"Data: {data[0]}."), soft_wrap=True)


def _check_folder(study: Study, out: Path) -> None:
    """Raise `InputError` if `out` holds something else than this study, or could not be written."""
    if (out / PLAN).exists() and read(out / PLAN) != study:
        raise InputError(
            f"{out} holds another study: choose another --out, or go on with that one: {PROGRAM} {out}"
        )
    if (out / "manifest.json").exists():
        raise InputError(
            f"{out} holds a run, and a study needs a folder of its own: choose another --out"
        )
    existing = next(folder for folder in (out, *out.absolute().parents) if folder.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK):
        raise InputError(f"{out} cannot be written, because of {existing}: choose another --out")


def _cells(study: Study, gpu: str | None = None) -> tuple[list[Cell], list[tuple[Cell, dict]]]:
    """The cells that can run, in their order, and all of a sweep's with what is recorded of each.

    A cell that cannot run is no error. A study without axes whose runs cannot is one: raises
    `InputError`.
    """
    if not study.axes:
        placement.gpus_for(study.processes)
        return study.cells(), []
    from experiments.training.scale import fit

    can_run, records = [], []
    for cell in study.cells():
        found = fit(_plans(cell.study), gpu)
        records.append((cell, {"values": cell.values, **found._asdict()}))
        can_run += [] if found.obstacle else [cell]
    return balanced(can_run), records


def _left(budget: float) -> float:
    """Seconds that runs still have of `budget`, which counts from this process's start, less the
    table's time."""
    from models import device

    return budget - device.seconds_since_process_start() - TABLE_S


def _shares(study: Study, budget: float) -> Shares:
    """Shares of what is left of `budget`."""
    os.environ[BUDGET] = str(math.ceil(budget))
    checkpoint = max(planned.checkpoint_bytes for planned in _plans(study))
    places = len(placement.gpus()) // placement.gpus_for(study.processes)
    return Shares(_left(budget), places, END_S + checkpoint / CHECKPOINT_RATE)


def _incomplete(cells: list[Cell], out: Path, console: Console) -> Iterator[Run]:
    """The runs that are not complete; the directories of the others are printed."""
    for name, _, study in cells:
        shared = [part for overlay in study.overlays for part in ("--overlay", overlay)]
        shared += [NO_ARTIFACTS, *study.overrides]
        shared += ["--processes", str(study.processes)] if study.processes > 1 else []
        for recipe, seed in study.runs():
            directory = out / name / recipe / f"seed{seed}"
            if read_json(directory / "manifest.json").get("status") == "completed":
                console.print(escape(f"complete already: {directory}"), soft_wrap=True)
            else:
                arguments = [recipe, "--seed", str(seed), *shared, "--out", str(directory)]
                yield Run(
                    f"{name} {recipe} seed {seed}".lstrip(), directory, arguments, study.processes
                )


def _dry_run(study: Study, out: Path, console: Console) -> int:
    """Say what would run. The machine that trains may be another one, so device and memory are not
    checked."""
    from experiments.training.plan import plan

    for run in _incomplete(study.cells(), out, console):
        recipe = recipes.load(run.arguments[0], study.overlays, study.overrides)
        planned = plan(recipe, run.processes)
        work = f"{recipe.config.training.steps} steps, {planned.describe()}"
        work += f", {run.processes} processes" if run.processes > 1 else ""
        console.print(
            escape(f"would run {run.title}: {work}, into {run.directory}"), soft_wrap=True
        )
    return 0


def _list_cells(study: Study, gpu: str | None, console: Console) -> int:
    """Say which cells of a sweep would run, in their order, and which not, with the estimates of
    their memory."""
    from experiments.training.plan import memory_finding

    cells, records = _cells(study, gpu)
    where = GPUS[gpu].driver_name if gpu else "this machine"
    runs = f"{', '.join(study.recipes)}; {len(study.seeds)} seed{'s' * (len(study.seeds) > 1)} each"
    console.print(
        escape(f"{len(records)} cells, {len(cells)} of which {where} can run: {runs}"),
        soft_wrap=True,
    )
    found = {cell.name: record for cell, record in records}
    order = [cell.name for cell in cells]
    for name in order + [name for name in found if name not in order]:
        record = found[name]
        memory = memory_finding(record["needed"], record["available"])
        text = f"cannot run: {record['obstacle']}" if record["obstacle"] else f"would run: {memory}"
        console.print(escape(f"{name}: {text}"), soft_wrap=True)
    return 0


def _run(
    study: Study, cells: list[Cell], out: Path, budget: float | None, console: Console, stop: Stop
) -> int:
    """Run what is not complete below `out`, print the table, and say where everything is. Returns
    the exit code.

    Within a budget cells run one after the other, each if it would end in time should it take as
    long as the longest.
    """
    codes, asked, longest = [], 0, 0.0
    for group in [[cell] for cell in cells] if budget else [cells]:
        runs, began = list(_incomplete(group, out, console)), time.monotonic()
        asked += len(runs)
        if runs and not stop.code and not (budget and _left(budget) <= longest):
            codes += run_all(
                runs, console, stop, _shares(group[0].study, budget) if budget else None
            )
            longest = max(longest, time.monotonic() - began)
    if not stop.code:  # after a request to stop, the exit comes without the table
        _report(study, out, console)
    if len(codes) == asked and not any(codes):
        return 0
    again = f"Not all runs completed; to go on with them: {PROGRAM} {quote(str(out))}"
    if budget and not any(
        planned.config.checkpoint.enable for cell in cells for planned in _plans(cell.study)
    ):
        again += " (from their first step: only with checkpoint.enable=true do runs keep what they have done)"
    console.print(escape(again), soft_wrap=True)
    late = COME_BACK if budget and len(codes) < asked else 0
    return next((code for code in (FOR_GOOD, COME_BACK) if code in (stop.code, late, *codes)), 1)


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
    curves = (
        f"; TensorBoard: tensorboard --logdir {quote(str(out))}"
        if next(out.glob("*/*/tb"), None)
        else ""
    )
    console.print(escape(f"\nEverything is in {out}{page}{curves}"), soft_wrap=True)
    example = "python -m experiments.decide llama3.1-8B --gpu h100 --gpus 8 --steps 100000"
    console.print(f"To estimate another model, GPU or number of steps: {example}", soft_wrap=True)


if __name__ == "__main__":
    leave(main)
