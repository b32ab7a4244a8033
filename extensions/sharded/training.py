"""A run of several processes: start them, or train as one of them and agree with the others."""

import os
from collections.abc import Iterator
from functools import cache
from itertools import islice
from pathlib import Path

import torch
import torch.distributed as dist
from rich.console import Console
from rich.markup import escape

from experiments.jobs.command import FAILED, Stop
from experiments.jobs.runner import Run, run_all
from experiments.training import attempt, checkpoint, run_directory
from experiments.training.plan import Plan, to_yaml
from extensions.sharded import ranks
from models.errors import InputError


def run(plan: Plan, findings: list, out: Path | None, stop: Stop) -> int:
    """Train as one of a run's processes, or start them all; returns the exit code.

    Rank 0 writes the run directory. Raises `InputError` as `attempt.run`.
    """
    count = plan.world_size
    if not ranks.is_rank(count):
        return _start_all(plan, out, stop)
    if count == 1:
        return attempt.run(plan, findings, out, stop)
    if not out:  # each would make its own
        raise InputError(
            "a run of several processes needs --out DIR, so that all of them write to the same "
            "place"
        )
    ctas = plan.config.comm.nccl_max_ctas
    if ctas:
        os.environ["NCCL_MAX_CTAS"] = str(ctas)  # read when a communicator is created
    directory = None
    if os.environ["RANK"] == "0":
        directory = run_directory.RunDirectory(out, plan)
    end = attempt.train(plan, findings, out, directory, stop)
    _leave(end)
    return end.code


def _start_all(plan: Plan, out: Path | None, stop: Stop) -> int:
    """Start the ranks of a run and wait for them; returns the exit code."""
    if out:
        run_directory.check(out, plan)
    out = out or attempt.new_directory(plan)
    started = Run(
        title=plan.recipe.name,
        directory=out,
        recipe=to_yaml(plan),
        steps=plan.config.training.steps,
        gpus=plan.world_size,
        start=ranks.start(plan.config),
        compiles_anew=False,
    )
    console = Console(highlight=False)
    [code] = run_all([started], console, stop)
    console.print(escape(f"Everything is in {out}"), soft_wrap=True)
    if code and stop.code:  # also of ranks that died of the request
        return stop.code
    return FAILED if code < 0 else code


def _leave(end: attempt.End) -> None:
    """Leave the process group, after the first rank's last record: a cluster may end all ranks when
    one exits."""
    if dist.is_initialized():
        with attempt.only_logged("could not leave the process group cleanly"):
            if end.together:
                dist.barrier()
            dist.destroy_process_group()


# ---- in a step ----


def own_rows(rows: Iterator[int]) -> Iterator[int]:
    """Give rank r of W every W-th row: the rows of a step depend on seed and data, not on W."""
    return islice(rows, dist.get_rank(), None, dist.get_world_size())


def combine(values: torch.Tensor, how: str = "sum") -> torch.Tensor:
    """Return the `sum` or the `max` over ranks; of numbers on the host without waiting for
    devices."""
    if dist.get_world_size() == 1:
        return values
    combined = values.clone()
    group = _hosts(dist.group.WORLD) if values.device.type == "cpu" else None
    dist.all_reduce(combined, dist.ReduceOp.MAX if how == "max" else dist.ReduceOp.SUM, group)
    return combined


@cache
def _hosts(world: dist.ProcessGroup) -> dist.ProcessGroup:
    """Make a group of all ranks of a world that sends between hosts."""
    return dist.new_group(backend="gloo")


# ---- checkpoints ----


class Checkpoints(checkpoint.Checkpoints):
    """Checkpoints of all ranks. The first one finds what to load, tells the others, and deletes."""

    def _newest_whole(self) -> int:
        newest = [None]
        if dist.get_rank() == 0:
            try:
                newest = [super()._newest_whole()]
            except InputError as refusal:
                newest = [refusal]
        dist.broadcast_object_list(newest)
        if isinstance(newest[0], InputError):
            raise newest[0]
        return newest[0]

    def _delete_unfinished(self) -> None:
        if dist.get_rank() == 0:
            super()._delete_unfinished()

    def _purge_stale_checkpoints(self) -> None:
        if dist.get_rank() == 0:
            super()._purge_stale_checkpoints()

    def _set_aside(self, path: Path, error: Exception) -> None:
        if dist.get_rank() == 0:
            super()._set_aside(path, error)
