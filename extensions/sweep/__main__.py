"""Run a study in each cell of a sweep; then one table.

    python -m extensions.sweep NAME [--seeds 3] [--out DIR] [--dry-run] [key.path=value …]
    python -m extensions.sweep DIR [--seeds 5]     resumes a sweep and skips complete runs; with
                                                   more seeds, if they are named
    python -m extensions.sweep.report DIR          makes its table, figure and page again

NAME is a file of extensions/sweep/sweeps/. A cell is a study in a folder, as
`python -m experiments.study` runs it. A cell that fails has a word in the table, and the sweep
continues. `--dry-run` lists all cells and whether they fit, with `--gpu` on another machine's GPUs.

Exit codes: 0 completed, 1 if any run or the report failed, 2 for bad input, 75 if runs were stopped
to be continued (SIGUSR1), 130 after SIGTERM or Ctrl-C.
"""

from functools import partial
from pathlib import Path
from shlex import quote

from experiments import study as study_command  # before torch: it looks at the compile caches
from experiments.config import recipes
from experiments.jobs.command import (
    EXIT_COMPLETED,
    EXIT_RESUME,
    EXIT_STOPPED,
    CommandLine,
    StopRequest,
    exit_with,
    parse_gpu,
    parse_seeds,
    run_command,
)
from experiments.records.files import check_folder, make_dated_folder, write_whole
from experiments.records.run import STUDY_FILE
from experiments.study import StudyPlan
from extensions.sweep.cells import FILE, Sweep, load_sweep
from models.errors import PYTHON, InputError
from models.flops import format_memory_need
from models.gpus import GPUS


def main(argv: list[str] | None = None) -> int:
    args = _command_line().parse_arguments(argv)
    StopRequest().listen()
    sweep = _load_sweep(args)
    out = _find_folder(args, sweep)
    studies = sweep.studies()
    for name, study in studies.items():
        print(f"{name}: {_compare_memory(study, args.gpu)}")
    if args.dry_run:
        return EXIT_COMPLETED
    out = out or make_dated_folder(f"sweep_{args.name}")
    print(f"To resume, or to add seeds: {PYTHON} -m extensions.sweep {quote(str(out))}")
    out.mkdir(parents=True, exist_ok=True)
    write_whole(out / FILE, sweep.to_yaml())
    exit_codes = [EXIT_COMPLETED]
    for name, study in studies.items():
        folder = out / name
        folder.mkdir(exist_ok=True)
        write_whole(folder / STUDY_FILE, study.to_yaml())
        exit_code = run_command(partial(study_command.main, [str(folder)]))
        if exit_code in (EXIT_RESUME, EXIT_STOPPED):
            return exit_code
        exit_codes.append(exit_code)
    from extensions.sweep import report  # figures: a second

    report.main([str(out)])
    return max(exit_codes)


def _command_line() -> CommandLine:
    parser = CommandLine("extensions.sweep", __doc__, takes_keys=True)
    add = parser.add_argument
    add("name", metavar="NAME", help="a sweep, or a started sweep's folder")
    add("overrides", nargs="*", metavar="key.path=value", help="for every cell")
    add("--seeds", type=parse_seeds, metavar="N", help="how many, from 0; or a list, as 0,1,2")
    add("--out", type=Path, metavar="DIR", help="directory (default: a new one under runs/)")
    add("--dry-run", action="store_true", help="list the cells, and which of them fit")
    add("--gpu", type=parse_gpu, help="whose memory counts, instead of this machine's")
    return parser


def _load_sweep(args) -> Sweep:
    """Load the sweep that the command line asks for. Raises `InputError`."""
    sweep = load_sweep(args.name)
    sweep.override(args.overrides)
    sweep.seeds = args.seeds or sweep.seeds
    return sweep


def _find_folder(args, sweep: Sweep) -> Path | None:
    """Find the folder of a sweep, which may hold this sweep already, with other seeds.

    None: the sweep gets a new one. Raises `InputError` if it holds anything else.
    """
    if args.out:
        out = args.out
    elif (Path(args.name) / FILE).exists():
        out = Path(args.name)
    else:
        return None
    check_folder(out, "sweep", FILE)
    if (out / FILE).exists():
        started = load_sweep(str(out))
        started.seeds = sweep.seeds
        if started != sweep:
            raise InputError(f"{out} holds another sweep: choose another --out")
    return out


def _compare_memory(study: StudyPlan, gpu: str | None) -> str:
    """Compare the memory that a study's largest run needs with this machine's, or with a named
    GPU's."""
    from experiments.training.plan import plan  # torch: seconds, not for a wrong name
    from models import device

    loaded = recipes.load_recipes(study.recipes, study.overlays, study.overrides)
    needed_bytes = max(plan(recipe).memory_needed for recipe in loaded.values())
    available_bytes = GPUS[gpu].memory if gpu else device.memory_bytes()
    verdict = "fits" if needed_bytes <= available_bytes else "does not fit"
    return f"{verdict}: {format_memory_need(needed_bytes, available_bytes)}"


if __name__ == "__main__":
    exit_with(main)
