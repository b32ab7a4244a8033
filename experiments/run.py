"""Run one recipe, in this process or, with `--processes N`, in N of them, one a GPU.

    python -m experiments.run NAME [--overlay O]… [--seed K] [--out DIR] [key.path=value …]

Started again on the same directory, an interrupted run resumes from its last checkpoint. Under
torchrun or srun the command is one rank of many; torchrun itself ends with 1, whatever its ranks
end with. Rank 0 writes the run directory.

Example: python -m experiments.run baseline_compiled --overlay cpu training.steps=200

Exit codes: 0 completed, 1 failed, 2 bad input, 3 diverged; 75 interrupted by SIGUSR1, to be
started again; 130 interrupted by SIGTERM or Ctrl-C.
"""

import os
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from experiments.config import recipes
from experiments.jobs.command import (
    COMPLETED,
    FAILED,
    CommandLine,
    Stop,
    count,
    leave,
)
from experiments.jobs.ranks import check_gpus, set_rank_environment, variables
from experiments.jobs.runner import Run, run_all
from models.errors import InputError

# OpenMP's threads spin so many turns before they sleep. With libgomp's own 300,000 they keep cores
# that other processes need (experiments/benchmarks/busy_machine.py)
SPINS = 10_000


def main(argv: list[str] | None = None) -> int:
    args = _command_line().parse(argv)
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", str(SPINS))  # read while torch is imported
    # Compiled kernels are kept from run to run; a study gives each of its runs an empty folder
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(recipes.ROOT / ".cache/inductor"))
    stop = Stop()
    stop.listen()
    recipe = recipes.load(args.name, args.overlay, args.overrides, args.seed)
    ranks_here = set_rank_environment()
    if ranks_here > 1 and args.processes not in (1, ranks_here):
        raise InputError(
            f"--processes {args.processes}, but torchrun or srun has started {ranks_here}: "
            "leave --processes out"
        )
    starts_ranks = args.processes > ranks_here
    if starts_ranks:
        check_gpus(args.processes)
        os.environ |= variables(0, args.processes)  # for the checks; each rank gets its own

    # torch: seconds, which a misspelt name need not wait for
    from experiments.training.machine import check_here
    from experiments.training.metrics import TIMELINE
    from experiments.training.plan import open_data, plan

    TIMELINE.mark("import")
    planned = plan(recipe, max(ranks_here, args.processes))
    findings = [("model", planned.describe()), *check_here(planned)]
    TIMELINE.mark("setup")
    token_file, data = open_data(planned)
    findings.append(("data", data))
    TIMELINE.mark("data")
    if args.dry_run:
        return _say(findings, recipe)

    from experiments.training import attempt, run_directory

    TIMELINE.mark("import")
    if not starts_ranks:
        return attempt.run(planned, token_file, findings, args.out, stop)
    if args.out:
        run_directory.check(args.out, planned, token_file)
    out = args.out or attempt.new_directory(planned)
    arguments = [*args.given, "--out", str(out)]
    run = Run(recipe.name, out, arguments, args.processes, recipe.config.training.steps, False)
    return start_ranks(run, stop)


def _command_line() -> CommandLine:
    parser = CommandLine("experiments.run", __doc__)
    parser.add_recipe()
    add = parser.add_argument
    add("--seed", metavar="K", help="seed of weights and data order")
    gpus = "GPUs to shard the model over (FSDP2)"
    add("--processes", type=count, default=1, metavar="N", help=gpus)
    add("--out", type=Path, metavar="DIR", help="run directory (default: a new one under runs/)")
    add("--dry-run", action="store_true", help="check everything short of training")
    return parser


def start_ranks(run: Run, stop: Stop) -> int:
    """Start the ranks of a run and wait for them; returns the exit code."""
    console = Console(highlight=False)
    codes = run_all([run], console, stop)
    console.print(escape(f"Everything is in {run.directory}"), soft_wrap=True)
    if codes[0] and stop.code:  # also of ranks that died of the request
        return stop.code
    return FAILED if codes[0] < 0 else codes[0]


def _say(findings: list[tuple[str, str]], recipe: recipes.Recipe) -> int:
    """Print what was checked, and what would run."""
    name, seed = " + ".join([recipe.name, *recipe.overlays]), recipe.config.debug.seed
    console = Console(highlight=False, soft_wrap=True)
    for topic, finding in [*findings, ("ready", f"{name}, seed {seed}, would run")]:
        console.print(f"[bold]{topic:<8}[/] {escape(finding)}")
    return COMPLETED


if __name__ == "__main__":
    leave(main)
