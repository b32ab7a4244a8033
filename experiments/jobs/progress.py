"""Tell the job file of a Slurm job whether the job got on: only then does it ask for another start.

The job file, launch/job.sh, runs outside the container and has no Python.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from experiments.jobs.command import STARTER_PID
from experiments.records.run import CHECKPOINT, RUN_RECORD, RecordError, RunRecord

PROGRESS_MARK = ".progress"
"""A file in the folder of the job's runs, which launch/job.sh removes before each start."""


def is_slurm_job() -> bool:
    """True in a job of Slurm. The node that submitted the job may lack the job's Python."""
    return "SLURM_JOB_ID" in os.environ


@contextmanager
def mark_progress(folder: Path | None) -> Iterator[None]:
    """Mark a folder if a run in it was completed meanwhile, or a checkpoint written.

    Only the process that the job file has started does so, and only with a folder.
    """
    if not folder or not is_slurm_job() or STARTER_PID in os.environ:
        yield
        return
    files_before = _list_results(folder)
    yield
    if _list_results(folder) - files_before:
        (folder / PROGRESS_MARK).touch()


def _list_results(folder: Path) -> set[Path]:
    """List the whole checkpoints in and below a folder, and the records of completed runs."""
    results = set(folder.rglob(f"{CHECKPOINT}/step-*/.metadata"))
    for file in folder.rglob(RUN_RECORD):
        with suppress(RecordError):  # the run itself reports its fault
            if RunRecord.read(file).status == "completed":
                results.add(file)
    return results
