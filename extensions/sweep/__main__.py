"""Run a study in each cell of a sweep; then one table.

    python -m extensions.sweep NAME [--seeds 3] [--out DIR] [--dry-run] [key.path=value …]
    python -m extensions.sweep DIR [--seeds 5]     goes on with a sweep, skipping what is complete;
                                                   with more seeds, if they are named
    python -m extensions.sweep.report DIR          makes its table, figure and page again

NAME is a file of extensions/sweep/sweeps/. A cell is a study in a folder of its own, as
`python -m experiments.study` runs it. A cell that fails has a word in the table, and the sweep
continues. `--dry-run` lists all cells and whether they fit, with `--gpu` on another machine's GPUs.

Exit codes: 0 completed, 1 if any run or the report failed, 2 for bad input, 75 if runs were stopped
to be continued (SIGUSR1), 130 after SIGTERM or Ctrl-C.
"""

from functools import partial
from pathlib import Path

from experiments import study as command  # before torch: it looks at the compile caches
from experiments.config import recipes
from experiments.config.yaml_with_origins import dump
from experiments.jobs.command import (
    COME_BACK,
    COMPLETED,
    FOR_GOOD,
    CommandLine,
    Stop,
    code_of,
    gpu_key,
    leave,
    seeds,
)
from experiments.records.files import check_folder, dated_folder, write_whole
from experiments.records.run import STUDY_FILE
from experiments.study import Study
from extensions.sweep.cells import FILE, Sweep, load
from models.errors import PYTHON, InputError
from models.flops import format_memory_need
from models.gpus import GPUS


def main(argv: list[str] | None = None) -> int:
    args = _command_line().parse(argv)
    Stop().listen()
    sweep, out = _resolve(args)
    studies = sweep.studies()
    for name, study in studies.items():
        print(f"{name}: {_memory(study, args.gpu)}")
    if args.dry_run:
        return COMPLETED
    print(f"To go on, or to add seeds: {PYTHON} -m extensions.sweep {out}")
    out.mkdir(parents=True, exist_ok=True)
    write_whole(out / FILE, dump(sweep.model_dump()))
    codes = [COMPLETED]
    for name, study in studies.items():
        folder = out / name
        folder.mkdir(exist_ok=True)
        write_whole(folder / STUDY_FILE, dump(study.model_dump()))
        codes.append(code_of(partial(command.main, [str(folder)])))
        if codes[-1] in (COME_BACK, FOR_GOOD):
            return codes[-1]
    from extensions.sweep import report  # figures: a second

    report.main([str(out)])
    return max(codes)


def _command_line() -> CommandLine:
    parser = CommandLine("extensions.sweep", __doc__, takes_keys=True)
    add = parser.add_argument
    add("name", metavar="NAME", help="a sweep, or a started sweep's folder")
    add("overrides", nargs="*", metavar="key.path=value", help="for every cell")
    add("--seeds", type=seeds, metavar="N", help="how many, from 0; or a list, as 0,1,2")
    add("--out", type=Path, metavar="DIR", help="directory (default: a new one under runs/)")
    add("--dry-run", action="store_true", help="list the cells, and which of them fit")
    add("--gpu", type=gpu_key, help="whose memory counts, instead of this machine's")
    return parser


def _resolve(args) -> tuple[Sweep, Path]:
    """Make the sweep that the command line asks for, and name its folder, which may hold this sweep
    already, with other seeds."""
    sweep, out = load(args.name), args.out or Path(args.name)
    sweep.override(args.overrides)
    sweep.seeds = args.seeds or sweep.seeds
    if not (args.out or (out / FILE).exists()):
        out = dated_folder(f"sweep_{args.name}")
    check_folder(out, "sweep", FILE)
    if (out / FILE).exists():
        started = load(str(out))
        started.seeds = sweep.seeds
        if started != sweep:
            raise InputError(f"{out} holds another sweep: choose another --out")
    return sweep, out


def _memory(study: Study, gpu: str | None) -> str:
    """Compare the memory of a study's largest run with what is here, or on GPUs of a kind."""
    from experiments.training.plan import plan  # torch: seconds, not for a wrong name
    from models import device

    loaded = recipes.load_compared(study.recipes, study.overlays, study.overrides)
    needed = max(plan(recipe).memory_needed for recipe in loaded.values())
    available = GPUS[gpu].memory if gpu else device.usable_memory_bytes()
    fits = "fits" if needed <= available else "does not fit"
    return f"{fits}: {format_memory_need(needed, available)}"


if __name__ == "__main__":
    leave(main)
