"""`python -m experiments.run` without training: what it says, refuses and estimates."""

import os

import torch.distributed as dist

from experiments.config import recipes
from experiments.run import SPINS, main
from models import device
from tests.runs import TINY


def test_threads_share_the_cores_unless_the_user_chose(run_here, monkeypatch):
    """torch reads the variables while it is imported: a run sets them first."""
    for name in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY"):
        monkeypatch.delenv(name, raising=False)
    run_here("no_such_recipe")
    assert os.environ.pop("GOMP_SPINCOUNT") == str(SPINS)
    monkeypatch.setenv("OMP_WAIT_POLICY", "active")
    run_here("no_such_recipe")
    assert "GOMP_SPINCOUNT" not in os.environ


def test_dry_run_says_what_would_run(capsys):
    assert main(["rowwise_fp8_compiled", "--overlay", "cpu", "--seed", "3", "--dry-run"]) == 0
    printed = capsys.readouterr().out
    assert "28 linear layers in rowwise FP8" in printed and "python_stdlib: " in printed


def test_one_rank_alone_starts_no_library_for_several(train, monkeypatch):
    """On a GPU it would start NCCL; here the map of backends says so of the CPU, where there is
    none."""
    monkeypatch.setitem(dist.Backend.default_device_backend_map, device.TYPE, "nccl")
    train(recipes.load("baseline", ["cpu"], TINY).config)
    assert dist.get_backend() == "gloo"
