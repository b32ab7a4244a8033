"""A run of several processes, a GPU each: FSDP2 shards parameters, gradients and optimizer states.

    python -m extensions.sharded RECIPE --processes 2
    python -m experiments.run RECIPE sharded.processes=2     the same

The second command under torchrun is one rank of many. torchtitan's keys `parallelism` say how
the processes share the model.
"""

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

# The hooks. No module of this package has the name of one
from extensions.sharded.checks import processes, shards
from extensions.sharded.collectives import check_profile
from extensions.sharded.fsdp import before_step, parallelize
from extensions.sharded.ranks import start
from extensions.sharded.training import combine, own_rows, run

__all__ = [
    "before_step", "check_profile", "combine", "own_rows",
    "parallelize", "processes", "run", "shards", "start",
]  # fmt: skip


@dataclass
class Section:
    """The section `sharded` of a recipe."""

    processes: Annotated[int, Field(ge=1, lt=10_000)] = 1
    """Processes of a run, one a GPU; without GPUs they share the cores."""
