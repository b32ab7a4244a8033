"""Run a study in each cell of a sweep; then one table.

    python -m extensions.sweep NAME [--seeds 3] [--out DIR] [--dry-run] [key.path=value …]
    python -m extensions.sweep DIR      goes on with an unfinished sweep
    python -m extensions.sweep.report DIR      prints its table again

NAME is a file of extensions/sweep/sweeps/. A cell is a study in a folder of its own, started as
`python -m experiments.study`. A cell that does not fit here stays in the table with its estimate;
`--dry-run` lists all cells, with `--gpu` for another machine's GPUs.

Exit codes: 0 completed, 1 if any run failed, 2 for bad input, 75 if runs were stopped to be
continued (SIGUSR1), 130 after SIGTERM or Ctrl-C.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from shlex import quote

from rich.console import Console

from experiments.config import recipes
from experiments.config.yaml_with_origins import dump
from experiments.jobs import process
from experiments.jobs.command import (
    COME_BACK,
    COMPLETED,
    FAILED,
    FOR_GOOD,
    STARTER_PID,
    CommandLine,
    Stop,
    leave,
)
from experiments.jobs.command import seeds as read_seeds
from experiments.records import files
from experiments.records.run import STUDY_FILE
from extensions.sweep.cells import CELLS, FILE, Cell, Fit, Fits, Sweep, in_order, load
from models.errors import InputError
from models.flops import memory_finding
from models.gpus import GPUS

PROGRAM = "python -m extensions.sweep"


def main(argv: list[str] | None = None) -> int:
    args = _command_line().parse(argv)
    stop = Stop()
    stop.listen()
    sweep, out = _resolve(args)
    fits = {cell.name: (cell, fit(sweep, cell, args.gpu)) for cell in sweep.cells()}
    runnable = in_order([cell for cell, found in fits.values() if not found.obstacle])
    if args.dry_run:
        _list(fits, runnable)
        return COMPLETED
    _write(sweep, fits, out)
    print(f"{len(runnable)} of {len(fits)} cells fit. Into {out}")
    codes = []
    with files.lock_folder(out, "sweep"):
        for cell in runnable:
            codes.append(_run(_arguments(sweep, cell, out / cell.name), stop))
            if codes[-1] in (COME_BACK, FOR_GOOD):
                print(f"To go on with the sweep: {PROGRAM} {quote(str(out))}")
                return codes[-1]
    return max([*codes, _report(out)])


def _command_line() -> CommandLine:
    parser = CommandLine("extensions.sweep", __doc__)
    add = parser.add_argument
    add("names", nargs="+", metavar="NAME", help="a sweep, or an unfinished sweep's folder")
    add("--seeds", type=read_seeds, metavar="N", help="how many, from 0; or a list, as 0,1,2")
    add("--out", type=Path, metavar="DIR", help="directory (default: a new one under runs/)")
    add("--dry-run", action="store_true", help="list the cells, and which of them fit")
    add("--gpu", choices=GPUS, metavar="GPU", help="with --dry-run: whose memory counts")
    return parser


def _resolve(args) -> tuple[Sweep, Path]:
    """Make the sweep that the command line asks for, and name its folder."""
    overrides = [name for name in args.names if "=" in name]
    names = [name for name in args.names if "=" not in name]
    if len(names) != 1:
        raise InputError(f"name one sweep, not {len(names)}")
    sweep = load(names[0])
    if (Path(names[0]) / FILE).exists():
        if overrides or args.seeds or args.out:
            raise InputError(
                "an unfinished sweep goes on as it was started: leave the other arguments out"
            )
        return sweep, Path(names[0])
    sweep.override(overrides)
    sweep.seeds = args.seeds or sweep.seeds
    if args.gpu and not args.dry_run:
        raise InputError("--gpu is for --dry-run, which then says what fits: leave it out")
    return sweep, args.out or files.dated_folder(f"sweep_{names[0]}")


def fit(sweep: Sweep, cell: Cell, gpu: str | None = None) -> Fit:
    """Compare a cell's neediest run with this machine, or with GPUs of a kind."""
    from experiments.training.plan import plan  # torch: seconds, not for a wrong name
    from models import device

    overrides = [*sweep.overrides, *cell.overrides]
    plans = [plan(recipes.load(name, sweep.overlays, overrides)) for name in sweep.recipes]
    needed, count = max(planned.memory_needed for planned in plans), plans[0].world_size
    here, obstacle = process.gpus(), None
    available = GPUS[gpu].memory if gpu else device.memory_bytes()
    if device.TYPE == "cpu" and not gpu:
        available /= count
    if needed > available:
        obstacle = f"needs {memory_finding(needed, available)}"
    elif gpu and not GPUS[gpu].datasheet.fp8 and any(planned.fp8.layers for planned in plans):
        obstacle = f"{GPUS[gpu].driver_name} has no FP8 units"
    elif not gpu and here != [None] and count > len(here):
        obstacle = f"takes {count} GPUs, and {len(here)} are here"
    return Fit(needed=needed, available=available, obstacle=obstacle)


def _list(fits: dict[str, tuple[Cell, Fit]], runnable: list[Cell]) -> None:
    """Print which cells would run, in their order, and which not, by their memory."""
    for cell in runnable:
        found = fits[cell.name][1]
        memory = memory_finding(found.needed, found.available)
        print(f"{cell.name}: would run: {memory}")
    for name, (_, found) in fits.items():
        if found.obstacle:
            print(f"{name}: cannot run: {found.obstacle}")


def _write(sweep: Sweep, fits: dict[str, tuple[Cell, Fit]], out: Path) -> None:
    """Write what the sweep was started with, and which cells fit."""
    files.check_folder(out, "sweep", FILE)
    if (out / FILE).exists() and load(str(out)) != sweep:
        raise InputError(
            f"{out} holds another sweep: choose another --out, or go on with that one: "
            f"{PROGRAM} {quote(str(out))}"
        )
    try:
        out.mkdir(parents=True, exist_ok=True)
        files.write(out / CELLS, Fits(cells={name: found for name, (_, found) in fits.items()}))
        files.write_whole(out / FILE, dump(sweep.model_dump()))
    except OSError as error:
        raise InputError(f"{out}: {error.strerror}: make room, or choose another --out") from None


def _arguments(sweep: Sweep, cell: Cell, folder: Path) -> list[str]:
    """Write the command line of a cell's study, which may have been started before."""
    if (folder / STUDY_FILE).exists():
        return [str(folder)]
    words = [*sweep.recipes, "--seeds", f"{','.join(map(str, sweep.seeds))},"]
    for overlay in sweep.overlays:
        words += ["--overlay", overlay]
    return [*words, "--out", str(folder), *sweep.overrides, *cell.overrides]


def _run(arguments: list[str], stop: Stop) -> int:
    """Run a study, and pass a request to stop on to it; returns its exit code."""
    stop.deferred = True
    environment = os.environ | {STARTER_PID: str(os.getpid())}
    command = [sys.executable, "-m", "experiments.study", *arguments]
    study, asked = subprocess.Popen(command, env=environment), False
    while study.poll() is None:
        if stop.code and not asked:
            study.send_signal(signal.SIGUSR1 if stop.code == COME_BACK else signal.SIGTERM)
            asked = True
        time.sleep(0.1)
    return stop.code or study.returncode


def _report(out: Path) -> int:
    """Print the table and write the page. A report that fails costs no run.

    Returns the exit code.
    """
    folder, page = quote(str(out)), out / "report.html"
    try:
        from extensions.sweep import report  # pandas: a second

        found, width = report.read(out), None if sys.stdout.isatty() else 200
        report.print_report(found, Console(highlight=False, width=width))
        report.write_page(found, page)
    except Exception as error:
        print(
            f"All runs are kept, but their report failed ({type(error).__name__}: {error}): once "
            f"that is mended, python -m extensions.sweep.report {folder} --html {page}"
        )
        return FAILED
    print(f"\nPage: {page}")
    return COMPLETED


if __name__ == "__main__":
    leave(main)
