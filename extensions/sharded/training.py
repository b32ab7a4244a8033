"""Train as one of a run's processes, and agree with the others."""

import os
from collections.abc import Iterator
from functools import cache
from itertools import islice
from pathlib import Path

import torch
import torch.distributed as dist

from experiments.jobs.command import StopRequest
from experiments.training import attempt
from experiments.training.plan import Plan


def run(plan: Plan, findings: list, out: Path, stop: StopRequest) -> int:
    """Train as one of a run's processes; returns the exit code. Rank 0 writes the run directory.

    Raises `InputError` as `attempt.run`.
    """
    if plan.world_size == 1:
        return attempt.run(plan, findings, out, stop)
    ctas = plan.config.comm.nccl_max_ctas
    if ctas:
        os.environ["NCCL_MAX_CTAS"] = str(ctas)  # read when a communicator is created
    directory = attempt.RunDirectory(out, plan) if os.environ["RANK"] == "0" else None
    end = attempt.train(plan, findings, out, directory, stop)
    _leave(end)
    return end.code


def _leave(end: attempt.End) -> None:
    """Leave the process group, after the first rank's last record: a cluster may end all ranks when
    one exits."""
    if dist.is_initialized():
        with attempt.only_logged("could not leave the process group cleanly"):
            if end.status != "failed":  # or the others may never come
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
