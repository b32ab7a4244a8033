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
from extensions.sharded.checks import data_parallel_degrees
from extensions.sharded.collectives import all_reduce, check_profile
from extensions.sharded.fsdp import before_step, parallelize
from extensions.sharded.launcher import start

__all__ = [
    "all_reduce", "before_step", "check_profile",
    "data_parallel_degrees", "parallelize", "start",
]  # fmt: skip


@dataclass
class Section:
    """The section `sharded` of a recipe."""

    processes: Annotated[int, Field(ge=1, lt=10_000)] = 1
    """Processes of a run, one a GPU; without GPUs they share the cores."""
