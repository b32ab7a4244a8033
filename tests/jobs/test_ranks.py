"""Which process of several this is: variables of torchrun and srun, also half set or nonsense."""

import os
import sys

import pytest

from experiments.jobs.ranks import set_rank_environment
from models.errors import InputError
from tests import processes

NAMES = (
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "MASTER_ADDR",
    "MASTER_PORT",
    "SLURM_STEP_NUM_TASKS",
    "SLURM_PROCID",
)
SRUN = {"SLURM_STEP_NUM_TASKS": "8", "SLURM_PROCID": "5", "SLURM_LOCALID": "1"}
TORCHRUN = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1"}
MEETING = {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}


@pytest.fixture
def environment(monkeypatch):
    variables = {name: value for name, value in os.environ.items() if name not in NAMES}
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
    ("variables", "sentence"),
    [
        (SRUN, "export MASTER_ADDR"),
        ({"SLURM_STEP_NUM_TASKS": "8"}, "SLURM_PROCID is not: unset it, or start with srun"),
        (
            {"SLURM_STEP_NUM_TASKS": "many"},
            "SLURM_STEP_NUM_TASKS is 'many': set it to 0 or more, or unset it",
        ),
        ({"WORLD_SIZE": "2"}, "WORLD_SIZE is set and RANK is not"),
        ({"RANK": "0"}, "RANK is set and WORLD_SIZE is not"),
        (TORCHRUN | {"RANK": "-1"}, "RANK is '-1'"),
        (TORCHRUN | {"RANK": "2"}, "RANK is 2, and WORLD_SIZE 2"),
        (TORCHRUN | {"WORLD_SIZE": ""}, "WORLD_SIZE is ''"),
        (TORCHRUN | {"LOCAL_RANK": "first"}, "LOCAL_RANK is 'first'"),
        (TORCHRUN, "must be told where to meet the others"),
        (TORCHRUN | MEETING | {"MASTER_PORT": "99999"}, "MASTER_PORT to a number below 65,536"),
        (TORCHRUN | MEETING | {"MASTER_PORT": "x"}, "MASTER_PORT is 'x'"),
        ({"SLURM_STEP_NUM_TASKS": "9" * 5000}, "SLURM_STEP_NUM_TASKS is '999"),
    ],
)
def test_variables_that_are_half_set_or_nonsense(environment, variables, sentence):
    environment |= variables
    with pytest.raises(InputError, match=sentence):
        set_rank_environment()


def test_files_are_utf8_whatever_the_locale(tmp_path):
    """With a locale that has no `é`; the log's line is written as a run's would be."""
    line = (
        "import sys, logging; from pathlib import Path; from experiments.jobs import progress, files\n"
        "from experiments.jobs.exit_codes import leave\n"
        "def command():\n"
        "    with progress.display('x', 1, Path(sys.argv[1], 'log.txt')):\n"
        "        logging.getLogger().info('caf\\u00e9')\n"
        "    files.write_whole(Path(sys.argv[1], 'recipe.yaml'), 'caf\\u00e9')\n"
        "    return 0\n"
        "leave(command)"
    )
    variables = {name: value for name, value in os.environ.items() if not name.startswith("LC_")}
    variables |= {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = processes.run([sys.executable, "-c", line, tmp_path], env=variables)
    assert "caf\\xe9" in done.stdout and not done.stderr
    for name in "log.txt", "recipe.yaml":
        assert "café" in (tmp_path / name).read_text(encoding="utf-8")
