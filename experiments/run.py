"""Run one recipe: `python -m experiments.run NAME [--overlay O]… [--seed K] [--out DIR] [key.path=value …]`.

Exit codes: 0 completed, 1 failed, 2 bad input, 3 diverged; 75 interrupted by SIGUSR1 or its time budget, to be started
again; 130 interrupted by SIGTERM or Ctrl-C. Started again on the same directory, an interrupted run resumes from its
last checkpoint. Under torchrun or srun the same command is one rank of many; rank 0 writes the run directory. torchrun
itself ends with 1, whatever its ranks end with.
"""

import argparse
import logging
import os
import sys
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.markup import escape

from experiments import recipe as recipes
from experiments.ends import BAD_INPUT, COMPLETED, DIVERGED, FAILED, complain, leave
from experiments.progress import display
from experiments.stop import Interrupted, Stop, budget_seconds
from models.errors import InputError


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m experiments.run", description="Run one recipe.")
    parser.add_argument("name", nargs="?", help="a recipe's name (see --list) or the path of a recipe.yaml")
    parser.add_argument("overrides", nargs="*", metavar="key.path=value", help="e.g. training.steps=200")
    parser.add_argument("--overlay", action="append", default=[], metavar="O", help="where or how big, e.g. cpu")
    parser.add_argument("--seed", type=int, help="seed of weights and data order")
    parser.add_argument("--out", type=Path, metavar="DIR", help="run directory (default: a new one under runs/)")
    parser.add_argument("--budget", type=budget_seconds, metavar="S", help="stop after S seconds, to be resumed later")
    parser.add_argument("--list", action="store_true", help="list recipes and overlays")
    parser.add_argument("--show", action="store_true", help="print the resolved recipe and what it changes")
    parser.add_argument("--dry-run", action="store_true", help="check everything short of training")
    args = parser.parse_intermixed_args(argv)
    console = Console(highlight=False, soft_wrap=True)
    if args.name is None and not args.list:
        parser.error("which recipe? --list shows them")
    stop = Stop(args.budget)
    stop.listen()
    try:
        if args.list:
            list_recipes(console)
            return COMPLETED
        recipe = recipes.load(args.name, args.overlay, args.overrides, args.seed)
        if args.show:
            show(recipe, console)
            return COMPLETED
        if args.dry_run:
            return dry_run(recipe, console)
        return run(recipe, args.out or default_directory(recipe), stop)
    except InputError as error:
        return complain(error)
    except KeyboardInterrupt:
        return stop.code


def default_directory(recipe) -> Path:
    """A new directory for a run that belongs to no study. Raises `InputError` with several ranks: each would differ."""
    if int(os.environ.get("WORLD_SIZE", os.environ.get("SLURM_STEP_NUM_TASKS", "1"))) > 1:
        raise InputError("a run of several processes needs --out DIR, so that all of them write to the same place")
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
    return Path("runs") / f"{recipe.name}-{stamp}" / recipe.name / f"seed{recipe.config.debug.seed}"


def list_recipes(console: Console) -> None:
    """Print recipes and overlays with a line each."""
    for title, lines in (("Recipes", recipes.descriptions()), ("Overlays", recipes.overlay_descriptions())):
        console.print(f"[bold]{title}[/]")
        for name, description in lines.items():
            console.print(f"  {name:<30} {escape(description)}")


def show(recipe, console: Console) -> None:
    """Print the resolved recipe, then its difference from its parent."""
    console.print(escape(recipes.to_yaml(recipe)))
    if recipe.base:
        console.print(f"[bold]Difference from {recipe.base}:[/]")
        for key, theirs, ours in recipes.difference(recipe):
            console.print(f"  {key}: {escape(repr(theirs))} -> {escape(repr(ours))}")


def dry_run(recipe, console: Console) -> int:
    """Check configuration, device, data and memory, and say what would run. Raises what a run would raise."""
    from experiments import checks

    for topic, finding in checks.all_checks(recipe.config):
        console.print(f"[bold]{topic:<8}[/] {escape(finding)}")
    overlays = "".join(f" + {name}" for name in recipe.overlays)
    console.print(f"[bold]ready[/]    {recipe.name}{overlays}, seed {recipe.config.debug.seed}, would run")
    return COMPLETED


def run(recipe, out: Path, stop: Stop) -> int:
    """Train `recipe` into `out`; returns the exit code. Raises `InputError` for what can be known before training."""
    rank, world_size = set_rank_environment()
    from experiments import checks

    checks.check_ranks(recipe.config, world_size)
    checks.check_budget(recipe.config, stop.budget_s)
    directory = None
    if rank == 0:
        from experiments.rundir import RunDirectory

        directory = RunDirectory(out, recipes.to_yaml(recipe), checks.facts(recipe, world_size))
    recipe.config.job.dump_folder = str(out)
    with display(recipe.name, recipe.config.training.steps, out / "log.txt" if directory else None) as screen:
        end = _train(recipe, directory, screen, stop)
    if directory:
        _finish(directory, end)
        Console(soft_wrap=True, highlight=False).print(
            escape(f"{end.status}: {directory.path}" + (f" ({end.error})" if end.error else ""))
        )
    _leave(end)
    return end.code


def set_rank_environment() -> tuple[int, int]:
    """(rank, world size), and torch.distributed's variables set: torchrun's, srun's, or those of one process."""
    env = os.environ
    if "RANK" in env:
        pass
    elif int(env.get("SLURM_STEP_NUM_TASKS", "1")) > 1:
        env |= {
            "RANK": env["SLURM_PROCID"],
            "WORLD_SIZE": env["SLURM_STEP_NUM_TASKS"],
            "LOCAL_RANK": str(int(env["SLURM_LOCALID"]) % _visible_devices()),  # 0 where each task sees its GPU alone
        }
        if "MASTER_ADDR" not in env or "MASTER_PORT" not in env:
            raise InputError(
                "several tasks of srun must be told where to meet: export MASTER_ADDR=$(hostname) and MASTER_PORT in "
                "the batch script, as launch/alps_multinode.sbatch does"
            )
    else:
        env |= {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    return int(env["RANK"]), int(env["WORLD_SIZE"])


def _visible_devices() -> int:
    import torch

    return torch.cuda.device_count() or int(os.environ["SLURM_STEP_NUM_TASKS"])


class End(NamedTuple):
    """How a training ended: status and error sentence for the manifest, exit code, whether all ranks end like this."""

    status: str
    error: str | None
    code: int
    together: bool = False


def _train(recipe, directory, screen, stop: Stop) -> End:
    from experiments import checks
    from experiments.metrics import Diverged
    from experiments.trainer import Trainer

    trainer = None
    try:
        checks.check_device(recipe.config)
        if slow := checks.slow_attention(recipe.config):
            logging.getLogger().warning(slow)
        checks.check_memory(recipe.config, int(os.environ["WORLD_SIZE"]))
        trainer = Trainer(recipe.config, stop)
        if directory:
            _record(trainer, directory, screen)
        trainer.train()
        return End("completed", None, COMPLETED, together=True)
    except Interrupted as stopped:
        end = End("interrupted", str(stopped), stopped.code, together=True)
    except KeyboardInterrupt:
        end = End("interrupted", f"stopped by {stop.why} before the end of a step", stop.code)
    except Diverged as error:
        end = End("diverged", str(error), DIVERGED, together=True)
    except InputError as error:
        end = End("failed", str(error), BAD_INPUT)
    except Exception as error:
        logging.getLogger().exception("the run failed")
        end = End("failed", f"{type(error).__name__}: {error}".splitlines()[0], FAILED)
    finally:
        _close(trainer)
    logging.getLogger().error(end.error)
    return end


def _record(trainer, directory, screen) -> None:
    """Have the trainer's records written as they come into being."""
    from experiments import compile_cache
    from experiments.metrics import JsonLines
    from experiments.trainer import TIMELINE

    lines, metrics, timed = None, trainer.metrics_processor, False

    def on_resume(step: int) -> None:
        nonlocal lines
        directory.take_over(step)
        lines = JsonLines(directory.path / "metrics.jsonl")

    def on_window(line: dict) -> None:
        lines.append(line)
        screen.window(line)

    def on_step(step: int) -> None:
        nonlocal timed
        screen.step(step)
        if not timed:
            timed = True
            warm_up = {"warm_up_s": sum(TIMELINE.phases.values()), "phases": TIMELINE.phases}
            directory.write_json("timing.json", warm_up | {"compile_cache": compile_cache.state()})
        if step == trainer.proof.profiled_step:
            directory.write_json("proof.json", trainer.proof.record())

    metrics.on_resume, metrics.on_window, metrics.on_step = on_resume, on_window, on_step


def _close(trainer) -> None:
    """Let go of what the trainer holds; after a failure this may fail as well, and then says so in the log only."""
    try:
        if trainer:
            trainer.close()
    except Exception:
        logging.getLogger().warning("could not close the run cleanly", exc_info=True)


def _leave(end: End) -> None:
    """Leave the process group, after the first rank's last record: a cluster may end all ranks when one exits."""
    from torch import distributed as dist

    try:
        if dist.is_initialized():
            if end.together:
                dist.barrier()
            dist.destroy_process_group()
    except Exception:
        logging.getLogger().warning("could not leave the process group cleanly", exc_info=True)


def _finish(directory, end: End) -> None:
    """Write summary and manifest; on a full disk, what was written before stays as it is."""
    from analysis.summary import summarize

    try:
        directory.finish(end.status, end.error)
        directory.write_json("summary.json", summarize(directory.path))
    except OSError as problem:
        print(
            f"{directory.path}: {problem.strerror}: the end of the run ({end.status}) is not on record", file=sys.stderr
        )


if __name__ == "__main__":
    leave(main)
