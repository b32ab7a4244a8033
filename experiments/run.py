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

from rich.console import Console
from rich.markup import escape

from experiments.config import recipes
from experiments.jobs import placement
from experiments.jobs.exit_codes import COMPLETED, FAILED, complain, leave
from experiments.jobs.files import out_directory
from experiments.jobs.ranks import process_count, set_rank_environment, variables
from experiments.jobs.runner import Run, run_all
from experiments.jobs.signals import Stop, budget_seconds
from models.errors import InputError


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.run", description="Run one recipe."
    )
    parser.add_argument(
        "name",
        help="a recipe's name (`python -m experiments.recipe list`) or the path of a recipe.yaml",
    )
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
        type=out_directory,
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
    args = parser.parse_intermixed_args(argv)
    stop = Stop(args.budget)
    stop.listen()
    try:
        recipe = recipes.load(args.name, args.overlay, args.overrides, args.seed)
        if starts_ranks := args.processes > 1 and _is_alone(args.processes):
            placement.gpus_for(args.processes)
            os.environ |= variables(0, args.processes)  # for the checks; each rank gets its own
        if args.dry_run:
            return dry_run(recipe, args.budget)
        from experiments.training import (
            attempt,
        )  # torch: seconds, which a misspelt name need not wait for

        if starts_ranks:
            attempt.check(recipe, args.processes, args.out, stop)
            out = args.out or attempt.new_directory(recipe)
            arguments = [*(argv or sys.argv[1:]), *([] if args.out else ["--out", str(out)])]
            return start_ranks(Run(recipe.name, out, arguments, args.processes), stop)
        return attempt.run(recipe, args.out, stop, None)
    except InputError as error:
        return complain(error)
    except KeyboardInterrupt:
        return stop.code


def _is_alone(processes: int) -> bool:
    """Whether nobody has started several ranks yet. Raises `InputError` if others than asked for
    have been."""
    _, started = set_rank_environment()
    if started not in (1, processes):
        raise InputError(
            f"--processes {processes}, but torchrun or srun has started {started}: leave --processes out"
        )
    return started == 1


def start_ranks(run: Run, stop: Stop) -> int:
    """Start the ranks of a run and wait for them; the exit code."""
    console = Console(highlight=False)
    codes = run_all([run], console, stop)
    console.print(escape(f"Everything is in {run.directory}"), soft_wrap=True)
    return next((FAILED if code < 0 else code for code in codes), stop.code)


def dry_run(recipe, budget_s: float | None) -> int:
    """Check configuration, device, data and memory, and say what would run. Raises what a run would
    raise."""
    from experiments.corpus.rows import describe
    from experiments.training.plan import check_here, open_data, plan

    _, world_size = set_rank_environment()
    console = Console(highlight=False, soft_wrap=True)
    planned = plan(recipe, world_size)
    findings = [("model", planned.describe()), *check_here(planned, budget_s)]
    findings.append(("data", describe(open_data(planned), recipe.config, world_size)))
    for topic, finding in findings:
        console.print(f"[bold]{topic:<8}[/] {escape(finding)}")
    overlays = "".join(f" + {name}" for name in recipe.overlays)
    console.print(
        f"[bold]ready[/]    {recipe.name}{overlays}, seed {recipe.config.debug.seed}, would run"
    )
    return COMPLETED


if __name__ == "__main__":
    leave(main)
