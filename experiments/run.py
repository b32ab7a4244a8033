"""Run one recipe, in this process.

    python -m experiments.run NAME [--overlay O]… [--seed K] [--out DIR] [key.path=value …]
    python -m experiments.run DIR        resumes the run of this folder, by its recipe.yaml;
                                         training.steps=N makes an unfinished one longer

Started again on the same folder, an interrupted run resumes from its last checkpoint; without
checkpoints, as in base.yaml, it begins again.

Example: python -m experiments.run baseline_compiled --overlay cpu training.steps=200

Exit codes: 0 completed, 1 failed, 2 bad input, 3 diverged; 75 interrupted by SIGUSR1, to be
started again; 130 interrupted by SIGTERM or Ctrl-C.
"""

import argparse
import os
import sys
from pathlib import Path

from experiments.config import recipes
from experiments.jobs.command import (
    EXIT_COMPLETED,
    CommandLine,
    StopRequest,
    exit_with,
    require_single_process,
)
from experiments.jobs.progress import mark_progress
from experiments.records.files import refuse_folder_without
from experiments.records.run import RECIPE, check_layout

# OpenMP's threads spin so many turns before they sleep. With the 300,000 turns of libgomp they hold
# cores that other processes need (tools/benchmarks/busy_machine.py)
OPENMP_SPINS = 10_000


def main(argv: list[str] | None = None) -> int:
    arguments = sys.argv[1:] if argv is None else argv
    args = _make_command_line().parse_arguments(arguments)
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", str(OPENMP_SPINS))  # read while torch is imported
    # Runs share their compiled kernels, except in a study, which gives each run an empty folder
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(recipes.ROOT / ".cache/inductor"))
    stop = StopRequest()
    stop.listen()
    recipe, out = _resolve_recipe(args)
    start_processes = recipe.find_hook("start")
    if not start_processes:
        require_single_process()
    elif not args.dry_run:
        with mark_progress(out):
            exit_code = start_processes(recipe, arguments, out, stop)
        if exit_code is not None:
            return exit_code

    # torch: seconds, which a misspelt name need not wait for
    from experiments.training.machine import check_here
    from experiments.training.metrics import TIMELINE
    from experiments.training.plan import open_data, plan

    TIMELINE.mark("import")
    run_plan = plan(recipe)
    results = [("model", run_plan.description), *check_here(run_plan)]
    TIMELINE.mark("setup")
    opened_plan, data_description = open_data(run_plan)
    results.append(("data", data_description))
    TIMELINE.mark("data")
    if args.dry_run:
        for topic, sentence in results:
            print(f"{topic:<8} {sentence}")
        return EXIT_COMPLETED

    from experiments.training.attempt import make_attempt

    TIMELINE.mark("import")
    with mark_progress(out):
        return make_attempt(opened_plan, results, out, stop)


def _make_command_line() -> CommandLine:
    parser = CommandLine("experiments.run", __doc__)
    parser.add_recipe()
    parser.add_argument("--seed", metavar="K", help="seed of weights and data order")
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="run directory (default: a new one under runs/)"
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="check recipe, machine and data; train nothing"
    )
    return parser


def _resolve_recipe(args: argparse.Namespace) -> tuple[recipes.Recipe, Path | None]:
    """Resolve the named recipe, or the recipe of a run's folder; return it and the run's folder.

    None instead of a folder: the run gets a new one.
    """
    recipe_name = args.name
    out = args.out
    recipe_file = os.path.join(args.name, RECIPE)  # os.path takes names of any length
    is_run_folder = os.path.exists(recipe_file)
    if is_run_folder:
        recipe_name = recipe_file
        out = out or Path(args.name)
    if out:
        check_layout(out)
    if not is_run_folder and args.name not in recipes.yaml_files(recipes.RECIPES):
        refuse_folder_without(Path(args.name), "run", RECIPE)
    overrides = list(args.overrides)
    if args.seed:
        overrides.append(f"debug.seed={args.seed}")
    return recipes.load(recipe_name, args.overlay, overrides), out


if __name__ == "__main__":
    exit_with(main)
