"""One attempt at a run: its process group, its directory, its training, and how it ended."""

import logging
import sys
from collections.abc import Callable
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.markup import escape

from experiments.config import recipes
from experiments.jobs.exit_codes import BAD_INPUT, COMPLETED, DIVERGED, FAILED
from experiments.jobs.files import new_folder
from experiments.jobs.progress import describe, display
from experiments.jobs.ranks import set_rank_environment
from experiments.jobs.signals import Interrupted, Stop
from experiments.records.files import read_if_there, write
from experiments.records.run import PROOF, Proof
from models.errors import InputError

Summarize = Callable[
    [Path, dict], dict
]  # a run directory and its manifest -> the contents of summary.json


class End(NamedTuple):
    """Status and error sentence for the manifest, exit code, and whether all ranks end like
    this."""

    status: str
    error: str | None
    code: int
    together: bool = False


def run(recipe, out: Path | None, stop: Stop, summarize: Summarize) -> int:
    """Train a resolved recipe into `out` (None: a new directory under runs/); returns the exit
    code.

    `stop` is asked at each step boundary whether to end. Raises `InputError` for what can be known
    before training.
    """
    rank, world_size = set_rank_environment()
    from experiments.training.plan import check_here, open_data, plan
    from experiments.training.run_directory import RunDirectory, facts_of
    from experiments.training.timeline import TIMELINE

    planned = plan(recipe, world_size)
    facts = facts_of(planned) if rank == 0 else None
    TIMELINE.mark("import")
    check_here(planned, stop.budget_s)
    open_data(planned)  # before anything but prepared data is written
    TIMELINE.mark("data")
    if not out and world_size > 1:  # each would make its own
        raise InputError(
            "a run of several processes needs --out DIR, so that all of them write to the same place"
        )
    out = out or new_directory(recipe)
    directory = RunDirectory(out, recipes.to_yaml(recipe), facts) if facts else None
    recipe.config.job.dump_folder = str(out)
    try:
        with display(
            recipe.name, recipe.config.training.steps, out / "log.txt" if directory else None
        ) as move_bar:
            end = _train(recipe, directory, move_bar, stop)
    except OSError as error:  # log.txt cannot be opened
        end = End("failed", f"{error.filename}: {error.strerror}", FAILED)
    if directory:
        try:
            directory.finish(end.status, end.error, summarize)
        except OSError as error:  # a full disk: what was written before stays as it is
            sentence = (
                f"{out}: {error.strerror}: the end of the run ({end.status}) is not on record"
            )
            print(sentence, file=sys.stderr)
        line = f"{end.status}: {out}" + (f" ({end.error})" if end.error else "")
        Console(soft_wrap=True, highlight=False).print(escape(line))
    _leave(end)
    return end.code


def check(recipe, world_size: int, out: Path | None, stop: Stop) -> None:
    """Raise `InputError` for what would end the ranks of a run before they train, of which one
    alone would say why."""
    from experiments.training import run_directory
    from experiments.training.plan import check_here, open_data, plan

    planned = plan(recipe, world_size)
    check_here(planned, stop.budget_s)
    open_data(planned)
    if out:
        run_directory.check(out, recipes.to_yaml(recipe), world_size)


def new_directory(recipe) -> Path:
    """Where a run goes that was not told: a new folder under runs/, laid out as a study's."""
    study = new_folder(Path("runs") / f"{recipe.name}-{datetime.now():%Y%m%d-%H%M%S}")
    return study / recipe.name / f"seed{recipe.config.debug.seed}"


def _train(recipe, directory, move_bar, stop: Stop) -> End:
    """Train to the end, whatever it is, and put its reason into the log."""
    from experiments.training.metrics import Diverged
    from experiments.training.plan import slow_attention
    from experiments.training.trainer import Trainer

    trainer = None
    try:
        if slow := slow_attention(recipe.config):
            logging.getLogger().warning(slow)
        trainer = Trainer(recipe.config, stop)
        if directory:
            directory.manifest["data"] = trainer.data
            directory.write_json("manifest.json", directory.manifest)
            _record(trainer, directory, move_bar)
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
        if trainer:
            with _warning("could not close the run cleanly"):
                trainer.close()
    logging.getLogger().error(end.error)
    return end


def _record(trainer, directory, move_bar) -> None:
    """Have the trainer write its log lines, timing and proof into the directory as soon as each is
    there."""
    from experiments.training import compile_cache
    from experiments.training.metrics import JsonLines
    from experiments.training.trainer import TIMELINE

    lines, metrics, warm_up = None, trainer.metrics_processor, {}

    def on_resume(step: int) -> None:
        nonlocal lines
        directory.take_over(step)
        trainer.proof.take_over(read_if_there(directory.path / PROOF, Proof), step)
        lines = JsonLines(directory.path / "metrics.jsonl")

    def on_window(line: dict) -> None:
        lines.append(line)
        move_bar(window=describe(line))

    def on_step(step: int) -> None:
        move_bar(completed=step)
        if first := not warm_up:
            warm_up["warm_up_s"], warm_up["phases"] = sum(TIMELINE.phases.values()), TIMELINE.phases
            warm_up["compile_cache"] = compile_cache.state()
        if first or step in trainer.switches:
            directory.write_json("timing.json", warm_up | {"switches": trainer.switches})
        if step == trainer.proof.profiled_step:
            write(directory.path / PROOF, trainer.proof.record())

    metrics.on_resume, metrics.on_window, metrics.on_step = on_resume, on_window, on_step


def _leave(end: End) -> None:
    """Leave the process group, after the first rank's last record: a cluster may end all ranks when
    one exits."""
    from torch import distributed as dist

    if dist.is_initialized():
        with _warning("could not leave the process group cleanly"):
            if end.together:
                dist.barrier()
            dist.destroy_process_group()


@contextmanager
def _warning(sentence: str):
    """A failure within is only logged: it comes after the reason why the run ended."""
    try:
        yield
    except Exception:
        logging.getLogger().warning(sentence, exc_info=True)
