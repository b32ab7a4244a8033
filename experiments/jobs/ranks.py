"""Which of a job's processes this one is, as the environment variables of torchrun or srun say."""

import os
from argparse import ArgumentTypeError

from models.errors import InputError

_RANK_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK")


def number(name: str, default: int, least: int = 0) -> int:
    """An environment variable's number. Raises `InputError` naming the variable where it is
    none."""
    text = os.environ.get(name, str(default))
    if not text.isdecimal() or len(text) > 9 or int(text) < least:
        raise InputError(
            f"the environment variable {name} is {text!r}: set it to {least} or more, or unset it"
        )
    return int(text)


def process_count(text: str) -> int:
    """`--processes` on a command line. Raises ArgumentTypeError for what is no number from 1 to
    9,999."""
    if not text.isdecimal() or not 0 < int(text) < 10_000:
        raise ArgumentTypeError(f"expected a number from 1 to 9999, got {text}")
    return int(text)


def variables(rank: int, processes: int, port: int = 0) -> dict[str, str]:
    """torch.distributed's, for one of several processes on this machine; `port` is where rank 0
    listens.

    It does so itself, also where a torchrun around this process listens for its own.
    """
    numbers = {
        "RANK": rank,
        "WORLD_SIZE": processes,
        "LOCAL_RANK": rank,
        "LOCAL_WORLD_SIZE": processes,
    }
    meeting = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
        "TORCHELASTIC_USE_AGENT_STORE": False,
    }
    return {name: str(value) for name, value in (numbers | meeting).items()}


def set_rank_environment() -> tuple[int, int]:
    """(rank, world size), and torch.distributed's variables set: torchrun's, srun's, or those of
    one process.

    Raises `InputError` where variables are missing or no numbers.
    """
    env = os.environ
    if given := [name for name in _RANK_VARIABLES[:2] if name in env]:
        if missing := [name for name in _RANK_VARIABLES if name not in env]:
            raise InputError(
                f"the environment variable {given[0]} is set and {missing[0]} is not: unset it; torchrun, srun and "
                "--processes N set all that their processes need"
            )
    elif number("SLURM_STEP_NUM_TASKS", 1) > 1:
        _take_over_from_srun()
    else:
        env |= variables(0, 1)
    rank, world_size, _ = (
        number("RANK", 0),
        number("WORLD_SIZE", 1, least=1),
        number("LOCAL_RANK", 0),
    )
    if rank >= world_size:
        raise InputError(
            f"the environment variable RANK is {rank}, and WORLD_SIZE {world_size}: ranks begin at 0"
        )
    if "MASTER_ADDR" not in env or number("MASTER_PORT", 1 << 16) >= 1 << 16:
        raise InputError(
            f"rank {rank} must be told where to meet the others: start with torchrun or srun, or set MASTER_ADDR to "
            "the first rank's host and MASTER_PORT to a number below 65,536"
        )
    return rank, world_size


def _take_over_from_srun() -> None:
    env = os.environ
    for name in ("SLURM_PROCID", "SLURM_LOCALID"):
        if name not in env:
            raise InputError(
                f"SLURM_STEP_NUM_TASKS is set and {name} is not: unset it, or start with srun"
            )
    if "MASTER_ADDR" not in env or "MASTER_PORT" not in env:
        raise InputError(
            "several tasks of srun must be told where to meet: export MASTER_ADDR=$(hostname) and MASTER_PORT in "
            "the batch script, as launch/alps_multinode.sbatch does"
        )
    import torch

    devices = torch.cuda.device_count() or number("SLURM_STEP_NUM_TASKS", 1)
    env |= {
        "RANK": str(number("SLURM_PROCID", 0)),
        "WORLD_SIZE": env["SLURM_STEP_NUM_TASKS"],
        "LOCAL_RANK": str(
            number("SLURM_LOCALID", 0) % devices
        ),  # 0 where each task sees its GPU alone
    }
