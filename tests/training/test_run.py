"""`python -m experiments.run`, mostly without training: what it says, refuses and estimates."""

import os
import re

import pytest
import torch
import torch.distributed as dist

from experiments.config import recipes
from experiments.jobs.durations import COMPILATION_HINT
from experiments.run import OPENMP_SPINS, main
from experiments.study import main as study_main
from models import device
from models.errors import InputError
from tests.runs import SMALLEST, TINY, record_of


def test_threads_share_the_cores_unless_the_user_chose(run_here, monkeypatch):
    """torch reads the variables while it is imported: a run sets them first."""
    for name in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY"):
        monkeypatch.delenv(name, raising=False)
    run_here("no_such_recipe")
    assert os.environ.pop("GOMP_SPINCOUNT") == str(OPENMP_SPINS)
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


# ---- torch's version ----


@pytest.mark.parametrize(
    "version", ["2.11.0a0+nv26.02", "2.13.0+cpu", "2.14.0a0+nv26.09", "2.15.1"]
)
def test_a_torch_that_was_tried_needs_no_word(version, monkeypatch):
    monkeypatch.setattr(torch, "__version__", version)
    device.check_torch()
    assert device.describe_untried_torch() is None


@pytest.mark.parametrize("version", ["2.10.0", "2.9.1+cu128", "1.13.0"])
def test_an_older_torch_is_refused(version, monkeypatch):
    monkeypatch.setattr(torch, "__version__", version)
    with pytest.raises(InputError, match=r"older than 2\.11"):
        device.check_torch()


def test_a_newer_torch_is_tried_with_a_warning(
    tmp_path, run_here, corpus_keys, capsys, monkeypatch
):
    monkeypatch.setattr(device, "NEWEST_TORCH", (2, 10))
    keys = ["--overlay", "cpu", *TINY, SMALLEST, *corpus_keys]
    assert run_here("baseline", *keys, "--out", tmp_path / "run") == 0
    assert re.search(r"WARNING torch: .* newer than 2\.10", (tmp_path / "run/log.txt").read_text())
    study = ["baseline", *keys, "--out", tmp_path / "study", "--dry-run"]
    assert study_main([*map(str, study)]) == 0
    assert re.search(r"Warning: torch .* newer than 2\.10", capsys.readouterr().out)


# ---- what is compiled ----


def test_the_log_says_what_the_run_does_and_no_more(tmp_path, run_here, corpus_keys):
    """One line that it compiles, no MFU that is unknown, no warning, no line without words."""
    keys = ["--overlay", "cpu", *TINY, SMALLEST, *corpus_keys, "compile.backend=aot_eager"]
    keys.append("lr_scheduler.warmup_steps=2")  # of 4 steps: more would be a warning
    assert run_here("tensorwise_fp8_compiled", *keys, "--out", tmp_path / "run") == 0
    log = (tmp_path / "run/log.txt").read_text()
    assert log.count(COMPILATION_HINT) == 1 and log.count("step: ") == 4
    assert "nan" not in log and "WARNING" not in log
    assert not re.search(r"(?m)^[\d-]+ [\d:]+ [A-Z]+ *$", log)


def test_a_run_whose_loss_alone_is_compiled_is_no_compiled_run(tmp_path, run_here, corpus_keys):
    run, loss = tmp_path / "run", ["compile.components=[loss]", "compile.backend=aot_eager"]
    keys = ["--overlay", "cpu", *TINY, SMALLEST, *corpus_keys, *loss]
    assert run_here("baseline_compiled", *keys, "--out", run) == 0
    assert record_of(run)["compiled"] is False
    assert "except for a compiled loss" in (run / "log.txt").read_text()
