"""`python -m experiments.run`, mostly without training: what it says, refuses and estimates."""

import os
import re
import shutil

import pytest
import torch
import torch.distributed as dist

from experiments.config import recipes
from experiments.run import SPINS, main
from experiments.study import main as study_main
from experiments.training import machine
from experiments.training.machine import check_here, choose_size
from experiments.training.plan import plan
from models import device
from models.errors import InputError
from tests.runs import SMALLEST, TINY, manifest_of


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


# ---- the machine ----


# Peak GiB of torch.cuda.max_memory_allocated in steps 2 to 4 of runs, torch 2.11 with CUDA 13, on a
# stand-in for a GPU, which allocates as one and computes nothing.
PEAKS = {
    "baseline": 71.65,
    "baseline_compiled": 64.18,
    "rowwise_fp8_compiled": 60.17,
    "tensorwise_fp8_compiled activation_checkpoint.mode=full": 60.17,
    "baseline_compiled training.global_batch_size=2": 79.18,
    "tensorwise_fp8_compiled training.global_batch_size=2": 73.68,
    "baseline model.flavor=llama3.2-1B training.local_batch_size=4": 53.11,
    "tensorwise_fp8_compiled model.flavor=llama3.2-1B training.local_batch_size=4": 27.46,
    # the two gradients of a tied embedding are added
    "baseline model.flavor=llama3.2-1B training.seq_len=1024": 10.25,
}


@pytest.mark.parametrize("run", PEAKS)
def test_the_estimate_of_memory_is_what_the_allocator_counts(run):
    recipe, *keys = run.split()
    planned = plan(recipes.load(recipe, [], keys))
    assert planned.memory_needed / 2**30 == pytest.approx(PEAKS[run], rel=0.02)


@pytest.mark.parametrize(("gib", "remark"), [(80, "about 71.5 GiB of 80"), (60, "not fit")])
def test_memory_is_compared_with_the_machines(gib, remark, monkeypatch):
    """Far less is an error, which is in tests/messages.txt."""
    monkeypatch.setattr(device, "TYPE", "cpu")
    monkeypatch.setattr(device, "memory_bytes", lambda: gib * 2**30)
    assert remark in dict(check_here(plan(recipes.load("baseline"))))["memory"]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('[ $2 = --id=GPU-1 ] && echo "580.65.06, [N/A], 700"', ["580.65.06", None, "700"]),
        ("echo Failed to initialize NVML; exit 18", [None] * 3),
    ],
)
def test_a_gpu_is_described_by_what_nvidia_smi_knows(line, said, program):
    program("nvidia-smi", line)
    assert machine.nvidia_smi("driver_version,clocks.max.sm,power.limit", "GPU-1") == said
    assert machine.number("Unknown Error") is None and machine.number("700.5") == 700.5


@pytest.mark.parametrize(("line", "file"), [("echo H100", "other"), ("exit 18", "nvidia0")])
def test_a_gpu_that_torch_cannot_use_is_not_passed_over(line, file, program, tmp_path, monkeypatch):
    program("nvidia-smi", line)
    (tmp_path / file).touch()
    monkeypatch.setattr(machine, "DEVICE_FILES", str(tmp_path / "nvidia[0-9]*"))
    monkeypatch.setattr(device, "TYPE", "cpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    with pytest.raises(InputError, match="driver.*CUDA_VISIBLE_DEVICES="):
        choose_size()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert choose_size()[0] == ["cpu"]


@pytest.mark.parametrize(
    ("compiler", "headers", "missing"),
    [("clang", "other.h", "python3-devel"), ("none", "Python.h", "gcc")],
)
def test_what_triton_compiles_with_is_asked_for(compiler, headers, missing, tmp_path, monkeypatch):
    (tmp_path / headers).touch()
    monkeypatch.setattr(device, "TYPE", "cuda")
    monkeypatch.setattr(shutil, "which", lambda name: name == compiler)
    monkeypatch.setattr(machine, "get_paths", lambda scheme: {"include": tmp_path})
    monkeypatch.delenv("CC", raising=False)
    with pytest.raises(InputError, match=missing):
        machine.check_units(plan(recipes.load("baseline_compiled")))


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
    monkeypatch.setattr(device, "NEWEST", (2, 10))
    keys = ["--overlay", "cpu", *TINY, SMALLEST, *corpus_keys]
    assert run_here("baseline", *keys, "--out", tmp_path / "run") == 0
    assert re.search(r"WARNING torch: .* newer than 2\.10", (tmp_path / "run/log.txt").read_text())
    study = ["baseline", *keys, "--out", tmp_path / "study", "--dry-run"]
    assert study_main([*map(str, study)]) == 0
    assert re.search(r"Warning: torch .* newer than 2\.10", capsys.readouterr().out)


# ---- what is compiled ----


def test_a_run_whose_loss_alone_is_compiled_is_no_compiled_run(tmp_path, run_here, corpus_keys):
    run, loss = tmp_path / "run", ["compile.components=[loss]", "compile.backend=aot_eager"]
    keys = ["--overlay", "cpu", *TINY, SMALLEST, *corpus_keys, *loss]
    assert run_here("baseline_compiled", *keys, "--out", run) == 0
    assert manifest_of(run)["compiled"] is False
    assert "except for a compiled loss" in (run / "log.txt").read_text()
