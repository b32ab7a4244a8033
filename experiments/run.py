"""Run one recipe: `python -m experiments.run NAME [--overlay O]… [--seed K] [--out DIR]
[key.path=value …]`.

Exit codes: 0 completed, 1 failed, 2 bad input, 3 diverged; 75 interrupted by SIGUSR1 or its time
budget, to be started again; 130 interrupted by SIGTERM or Ctrl-C. Started again on the same
directory, an interrupted run resumes from its last checkpoint. `--processes N` trains on N GPUs of
this machine: the same command is started for each of them. Under torchrun or srun the command is
one rank of many too. Rank 0 writes the run directory. torchrun itself ends with 1, whatever its
ranks end with.
"""

import argparse
import os
import sys
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from experiments.config import recipes
from experiments.config.yaml_source import ROOT
from experiments.jobs import placement
from experiments.jobs.exit_codes import COMPLETED, FAILED, complain, leave
from experiments.jobs.rank_environment import process_count, set_rank_environment, variables
from experiments.jobs.runner import Run, run_all
from experiments.jobs.signals import Stop, budget_seconds
from models.errors import InputError


def main(argv: list[str] | None = None) -> int:
    words = sys.argv[1:] if argv is None else argv
    args = _parser().parse_intermixed_args(words)
    # Compiled kernels are kept from run to run; a study gives each of its runs an empty folder
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(ROOT / ".cache/inductor"))
    stop = Stop(args.budget)
    stop.listen()
    try:
        recipe = recipes.load(args.name, args.overlay, args.overrides, args.seed)
        starts_ranks = args.processes > 1 and _is_alone(args.processes)
        if starts_ranks:
            placement.gpus_for(args.processes)
            os.environ |= variables(0, args.processes)  # for the checks; each rank gets its own
        _, world_size = set_rank_environment()

        # torch: seconds, which a misspelt name need not wait for
        from experiments.training.plan import check_data, check_here, open_data, plan
        from experiments.training.timeline import TIMELINE

        planned = plan(recipe, world_size)
        findings = [("model", planned.describe()), *check_here(planned, args.budget)]
        TIMELINE.mark("import")
        token_file = open_data(planned)
        TIMELINE.mark("data")
        if args.dry_run:
            return _say([*findings, ("data", check_data(planned, token_file))], recipe)

        from experiments.training import attempt, run_directory

        if not starts_ranks:
            return attempt.run(planned, token_file, args.out, stop)
        if args.out:
            run_directory.check(args.out, planned)
        out = args.out or attempt.new_directory(planned)
        more = [] if args.out else ["--out", str(out)]
        steps = recipe.config.training.steps
        run = Run(recipe.name, out, [*words, *more], args.processes, steps, compiles_anew=False)
        return start_ranks(run, stop)
    except InputError as error:
        return complain(error)
    except KeyboardInterrupt:
        return stop.code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.run", description="Run one recipe."
    )
    name = "a recipe's name (`python -m experiments.recipe list`) or the path of a recipe.yaml"
    parser.add_argument("name", help=name)
    parser.add_argument(
        "overrides", nargs="*", metavar="key.path=value", help="e.g. training.steps=200"
    )
    parser.add_argument(
        "--overlay", action="append", default=[], metavar="O", help="where or how big, e.g. cpu"
    )
    parser.add_argument("--seed", type=int, help="seed of weights and data order")
    parser.add_argument(
        "--processes",
        type=process_count,
        default=1,
        metavar="N",
        help="GPUs to shard the model over (FSDP2)",
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="run directory (default: a new one under runs/)",
    )
    parser.add_argument(
        "--budget",
        type=budget_seconds,
        metavar="S",
        help="stop after S seconds, to be resumed later",
    )
    parser.add_argument("--dry-run", action="store_true", help="check everything short of training")
    return parser


def _is_alone(processes: int) -> bool:
    """True if nobody has started several ranks yet. Raises `InputError` if others than asked for
    have been."""
    _, started = set_rank_environment()
    if started not in (1, processes):
        raise InputError(
            f"--processes {processes}, but torchrun or srun has started {started}: "
            "leave --processes out"
        )
    return started == 1


def start_ranks(run: Run, stop: Stop) -> int:
    """Start the ranks of a run and wait for them; returns the exit code."""
    console = Console(highlight=False)
    codes = run_all([run], console, stop)
    console.print(escape(f"Everything is in {run.directory}"), soft_wrap=True)
    if not codes:
        return stop.code
    return FAILED if codes[0] < 0 else codes[0]


def _say(findings: list[tuple[str, str]], recipe: recipes.Recipe) -> int:
    """Print what was checked, and what would run."""
    console = Console(highlight=False, soft_wrap=True)
    for topic, finding in findings:
        console.print(f"[bold]{topic:<8}[/] {escape(finding)}")
    name = " + ".join([recipe.name, *recipe.overlays])
    seed = recipe.config.debug.seed
    console.print(f"[bold]ready[/]    {escape(name)}, seed {seed}, would run")
    return COMPLETED


if __name__ == "__main__":
    leave(main)
