"""One attempt at a run: its directory, its training, how it ended."""

import logging
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import torch
from torch import distributed as dist
from torch.distributed.checkpoint.api import CheckpointException

from experiments.jobs.command import COMPLETED, DIVERGED, FAILED, Interrupted, Stop
from experiments.jobs.screen import describe, display
from experiments.records import files
from experiments.records.files import run_folder
from experiments.records.run import LOG, METRICS, PROOF, TIMING, Window
from experiments.training.machine import LESS_MEMORY, Finding
from experiments.training.metrics import TIMELINE
from experiments.training.plan import Plan
from experiments.training.proof import ProofError
from experiments.training.run_directory import RunDirectory
from experiments.training.trainer import Diverged, Trainer, be_alone


class End(NamedTuple):
    """Status for the manifest, exit code, error sentence."""

    status: str
    code: int
    error: str | None = None


def run(plan: Plan, findings: list[Finding], out: Path | None, stop: Stop) -> int:
    """Train into `out` (None: a new folder under runs/); returns the exit code.

    Raises `InputError` for a folder that cannot be used.
    """
    be_alone()
    out = out or run_folder(plan.recipe.name, plan.config.debug.seed)
    end = train(plan, findings, out, RunDirectory(out, plan), stop)
    if dist.is_initialized():
        dist.destroy_process_group()
    return end.code


def train(
    plan: Plan,
    findings: list[Finding],
    out: Path,
    directory: RunDirectory | None,
    stop: Stop,
) -> End:
    """Train in this process to the end, whatever it is, and write the records, if there is a
    directory for them; what was found before (`findings`) goes into the log."""
    plan.config.job.dump_folder = str(out)  # where torchtitan writes
    log, after = (out / LOG, directory.step) if directory else (None, 0)
    trainer, end = None, End("completed", COMPLETED)
    with display(plan.recipe.name, plan.config.training.steps, log) as move_bar:
        for topic, finding in findings:
            logging.info(f"{topic}: {finding}")
        for sentence in directory.said if directory else ():
            logging.warning(sentence)
        try:
            trainer = Trainer(plan, stop)
            if directory:
                _listen(trainer, out, move_bar)
            trainer.train(after)
        except (Exception, CheckpointException, KeyboardInterrupt) as error:
            end = _end(error, stop)
        if trainer:
            with only_logged("could not close the run cleanly"):
                if directory:
                    directory.manifest.notes = trainer.notes()
                trainer.close()
        if end.error:  # last, so that a study shows it
            logging.error(end.error)
    if directory:
        _finish(directory, end)
    return end


def _end(error: BaseException, stop: Stop) -> End:
    """Say how a run ends that an exception ended."""
    match error:
        case Interrupted():
            return End("interrupted", error.code, str(error))
        case KeyboardInterrupt():
            return End("interrupted", stop.code, f"stopped by {stop.why} before the end of a step")
        case Diverged():
            return End("diverged", DIVERGED, str(error))
        case ProofError():
            return End("failed", FAILED, str(error))
    logging.error("the run failed", exc_info=error)
    if isinstance(error, torch.OutOfMemoryError):
        return End("failed", FAILED, f"the GPU is out of memory: {LESS_MEMORY}")
    task = ""
    if isinstance(error, CheckpointException):
        task = "a checkpoint could not be written or read: "
        error, _ = next(iter(error.failures.values()))  # of the first rank, with its traceback
    return End("failed", FAILED, f"{task}{type(error).__name__}: {error}".splitlines()[0])


def _listen(trainer: Trainer, path: Path, move_bar) -> None:
    """Write windows, timing and proof as soon as the trainer has them."""
    evidence = trainer.plan.recipe.hook("evidence", lambda trainer: trainer.proof.record())

    def on_step(step: int) -> None:
        move_bar(completed=step)
        if step == trainer.first_step:
            files.write(path / TIMING, TIMELINE.end_first_step())
        if step == trainer.profiled_step:
            files.write(path / PROOF, evidence(trainer))

    def on_window(window: Window) -> None:
        files.append(path / METRICS, window)
        move_bar(said=describe(window))

    trainer.on_step, trainer.on_window = on_step, on_window


def _finish(directory: RunDirectory, end: End) -> None:
    """Put the end on record and on the screen."""
    line = f"{end.status}: {directory.path}"
    if end.error:
        line += f" ({end.error})"
    try:
        directory.finish(end.status, end.error)
    except OSError as error:  # a full disk: what was written before stays as it is
        line += f": not on record: {error.strerror}"
    print(line)


@contextmanager
def only_logged(sentence: str):
    """Only log a failure within: it comes after the reason why the run ended."""
    try:
        yield
    except (Exception, CheckpointException):
        logging.warning(sentence, exc_info=True)
