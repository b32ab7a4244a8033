"""Which of a job's processes this one is, as the environment variables of torchrun or srun say."""

import os
from argparse import ArgumentTypeError

from models.errors import InputError


def number(name: str, default: int = 0, least: int = 0) -> int:
    """Read a number from an environment variable. Raises `InputError` where it is none."""
    text = os.environ.get(name, str(default))
    if not text.isdecimal() or int(text) < least:
        raise InputError(
            f"the environment variable {name} is {text!r}: set it to {least} or more, or unset it"
        )
    return int(text)


def process_count(text: str) -> int:
    """Read `--processes`. Raises ArgumentTypeError for what is no number from 1 to 9,999."""
    if not text.isdecimal() or not 0 < int(text) < 10_000:
        raise ArgumentTypeError(f"expected a number from 1 to 9999, got {text}")
    return int(text)


def variables(rank: int, processes: int, port: int = 0) -> dict[str, str]:
    """Return torch.distributed's variables for one of several processes on this machine.

    Rank 0 listens at `port` itself, also where a torchrun around this process listens for its own.
    """
    told = {
        "RANK": rank,
        "WORLD_SIZE": processes,
        "LOCAL_RANK": rank,
        "LOCAL_WORLD_SIZE": processes,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
        "TORCHELASTIC_USE_AGENT_STORE": False,
    }
    return {name: str(value) for name, value in told.items()}


def set_rank_environment() -> int:
    """Set torch.distributed's variables to torchrun's, srun's, or those of one process; returns
    the number of processes.

    Raises `InputError` where variables are missing or no numbers.
    """
    env = os.environ
    if "RANK" in env or "WORLD_SIZE" in env:
        _require("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
    elif number("SLURM_STEP_NUM_TASKS", 1) > 1:
        _take_over_from_srun()
    else:
        env |= variables(0, 1)
    rank, world_size = number("RANK"), number("WORLD_SIZE", least=1)
    if rank >= world_size or number("LOCAL_RANK") >= world_size:
        raise InputError(
            f"the environment variable RANK is {rank}, LOCAL_RANK {env['LOCAL_RANK']} and "
            f"WORLD_SIZE {world_size}: ranks begin at 0"
        )
    return world_size


def _take_over_from_srun() -> None:
    _require("SLURM_PROCID", "SLURM_LOCALID", "MASTER_ADDR", "MASTER_PORT")
    import torch

    tasks = number("SLURM_STEP_NUM_TASKS")
    local = number("SLURM_LOCALID") % (torch.cuda.device_count() or tasks)  # a task may see one GPU
    ours = {"RANK": number("SLURM_PROCID"), "WORLD_SIZE": tasks, "LOCAL_RANK": local}
    os.environ |= {name: str(value) for name, value in ours.items()}


def _require(*names: str) -> None:
    given = [name for name in names if name in os.environ] or ["SLURM_STEP_NUM_TASKS"]
    missing = [name for name in names if name not in os.environ]
    if missing:
        raise InputError(
            f"the environment variable {given[0]} is set and {missing[0]} is not: start several "
            "processes with --processes N, torchrun, or srun after `export MASTER_ADDR=$(hostname) "
            f"MASTER_PORT=…` as in launch/alps_multinode.sbatch; for one process unset {given[0]}"
        )
