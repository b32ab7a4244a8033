"""Which process of several this is: variables of torchrun and srun, also half set or nonsense."""

import os

import pytest

from experiments.jobs.ranks import set_rank_environment
from models.errors import InputError

SRUN = {"SLURM_STEP_NUM_TASKS": "8", "SLURM_PROCID": "5", "SLURM_LOCALID": "1"}
TORCHRUN = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1"}
MEETING = {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}


@pytest.fixture
def environment(monkeypatch):
    names = TORCHRUN | MEETING | SRUN
    variables = {name: value for name, value in os.environ.items() if name not in names}
    monkeypatch.setattr(os, "environ", variables)  # what is set ends with the test
    return variables


@pytest.mark.parametrize(
    ("variables", "ranks"), [({}, (0, 1)), (SRUN | MEETING, (5, 8)), (TORCHRUN | MEETING, (1, 2))]
)
def test_ranks(environment, variables, ranks):
    environment |= variables
    assert set_rank_environment() == ranks
    assert environment["LOCAL_RANK"] == ("0" if ranks == (0, 1) else "1")


@pytest.mark.parametrize(
    ("variables", "named"),
    [
        (SRUN, "MASTER_ADDR"),
        ({"SLURM_STEP_NUM_TASKS": "8"}, "SLURM_PROCID"),
        ({"SLURM_STEP_NUM_TASKS": "many"}, "'many'"),
        ({"WORLD_SIZE": "2"}, "RANK"),
        ({"RANK": "0"}, "WORLD_SIZE"),
        (TORCHRUN, "MASTER_ADDR"),
        (TORCHRUN | MEETING | {"RANK": "-1"}, "'-1'"),
        (TORCHRUN | MEETING | {"RANK": "2"}, "RANK is 2"),
        (TORCHRUN | MEETING | {"LOCAL_RANK": "first"}, "'first'"),
    ],
)
def test_variables_that_are_half_set_or_nonsense(environment, variables, named):
    environment |= variables
    with pytest.raises(InputError, match=named):
        set_rank_environment()
