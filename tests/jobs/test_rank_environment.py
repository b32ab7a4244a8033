"""Which process of several this is, by variables of torchrun and srun; tests/messages.txt has those
that are half set or nonsense."""

import pytest

from experiments.jobs.ranks import set_rank_environment

SRUN = {"SLURM_STEP_NUM_TASKS": "8", "SLURM_PROCID": "5", "SLURM_LOCALID": "1"}
TORCHRUN = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1"}
MEETING = {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}


@pytest.mark.parametrize(
    ("variables", "expected"),
    [({}, (1, "0")), (SRUN | MEETING, (8, "1")), (TORCHRUN | MEETING, (2, "1"))],
)
def test_ranks(variables, expected, monkeypatch):
    environment = dict(variables)
    monkeypatch.setattr("os.environ", environment)
    assert (set_rank_environment(), environment["LOCAL_RANK"]) == expected
