"""Run one recipe, in this process.

    python -m experiments.run NAME [--overlay O]… [--seed K] [--out DIR] [key.path=value …]
    python -m experiments.run DIR        goes on with the run of this folder, by its recipe.yaml;
                                         training.steps=N makes an unfinished one longer

Started again on the same folder, an interrupted run goes on from its last checkpoint; without
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
from experiments.jobs.command import COMPLETED, CommandLine, Stop, leave, require_single_process
from experiments.records.files import check_mark
from experiments.records.run import RECIPE, check_layout

# OpenMP's threads spin so many turns before they sleep. With libgomp's own 300,000 they keep cores
# that other processes need (tools/benchmarks/busy_machine.py)
SPINS = 10_000


def main(argv: list[str] | None = None) -> int:
    arguments = sys.argv[1:] if argv is None else argv
    args = _command_line().parse(arguments)
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", str(SPINS))  # read while torch is imported
    # Compiled kernels are kept from run to run; a study gives each of its runs an empty folder
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(recipes.ROOT / ".cache/inductor"))
    stop = Stop()
    stop.listen()
    recipe, out = _resolve(args)
    start = recipe.hook("start")  # of a run of several processes
    if not start:
        require_single_process()
    elif not args.dry_run:
        code = start(recipe, arguments, out, stop)
        if code is not None:
            return code

    # torch: seconds, which a misspelt name need not wait for
    from experiments.corpus.rows import open_data
    from experiments.training.machine import check_here
    from experiments.training.metrics import TIMELINE
    from experiments.training.plan import plan

    TIMELINE.mark("import")
    planned = plan(recipe)
    findings = [("model", planned.description), *check_here(planned)]
    TIMELINE.mark("setup")
    planned, data = open_data(planned)
    findings.append(("data", data))
    TIMELINE.mark("data")
    if args.dry_run:
        for topic, finding in findings:
            print(f"{topic:<8} {finding}")
        return COMPLETED

    from experiments.training import attempt

    TIMELINE.mark("import")
    return attempt.run(planned, findings, out, stop)


def _command_line() -> CommandLine:
    parser = CommandLine("experiments.run", __doc__)
    parser.add_recipe()
    add = parser.add_argument
    add("--seed", metavar="K", help="seed of weights and data order")
    add("--out", type=Path, metavar="DIR", help="run directory (default: a new one under runs/)")
    add("--dry-run", action="store_true", help="check recipe, machine and data; train nothing")
    return parser


def _resolve(args: argparse.Namespace) -> tuple[recipes.Recipe, Path | None]:
    """Resolve the named recipe, or the one of a run's folder; return it and the run's folder.

    None: the run gets a new folder.
    """
    file = os.path.join(args.name, RECIPE)  # os.path takes names of any length
    there = os.path.exists(file)
    out = args.out or (Path(args.name) if there else None)
    if out:
        check_layout(out)
    if not there and args.name not in recipes.yaml_files(recipes.RECIPES):
        check_mark(Path(args.name), "run", RECIPE)
    overrides = args.overrides + ([f"debug.seed={args.seed}"] if args.seed else [])
    return recipes.load(file if there else args.name, args.overlay, overrides), out


if __name__ == "__main__":
    leave(main)
