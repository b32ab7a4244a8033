"""`python -m experiments.run` without training: what it says, refuses and estimates."""

import os
import re
import shutil

import pytest
import torch
import torch.distributed as dist

from experiments.config import recipes
from experiments.config.studies import DEFAULT, load
from experiments.jobs.command import code_of
from experiments.run import SPINS, main
from experiments.training import machine
from experiments.training.machine import check_here, choose_size, slow_attention
from experiments.training.plan import plan
from models import device
from models.errors import InputError
from tests.runs import TINY

FOUR = load([DEFAULT]).recipes
RECOMPUTE = "activation_checkpoint.mode=full"
SHORT = "model.flavor=llama3.2-1B training.seq_len=1024"
LLAMA_1B = "model.flavor=llama3.2-1B training.local_batch_size=4"


@pytest.mark.parametrize("name, value", [("GOMP_SPINCOUNT", "7"), ("OMP_WAIT_POLICY", "active")])
def test_threads_share_the_cores_unless_the_user_chose(name, value, monkeypatch):
    """torch reads the variables while it is imported: a run sets them first."""
    monkeypatch.delenv("GOMP_SPINCOUNT", raising=False)
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    code_of(lambda: main(["no_such_recipe"]))
    assert os.environ.pop("GOMP_SPINCOUNT") == str(SPINS)
    monkeypatch.setenv(name, value)
    code_of(lambda: main(["no_such_recipe"]))
    assert os.environ[name] == value
    assert os.environ.get("GOMP_SPINCOUNT", "7") == "7"


def test_dry_run_says_what_would_run(capsys):
    assert main(["rowwise_fp8_compiled", "--overlay", "cpu", "--seed", "3", "--dry-run"]) == 0
    printed = capsys.readouterr().out
    assert "28 linear layers in rowwise FP8" in printed and "python_stdlib: " in printed
    assert "ready    rowwise_fp8_compiled + cpu, seed 3" in printed


# ---- the machine ----


# Peak GiB of torch.cuda.max_memory_allocated in steps 2 to 4 of runs, torch 2.11 with CUDA 13, on a
# stand-in for a GPU, which allocates as one and computes nothing.
PEAKS = {
    ("baseline", ""): 71.65,
    ("baseline_compiled", ""): 64.18,
    ("tensorwise_fp8_compiled", ""): 60.17,
    ("rowwise_fp8_compiled", ""): 60.17,
    ("baseline_compiled", "training.global_batch_size=2"): 79.18,
    ("tensorwise_fp8_compiled", "training.global_batch_size=2"): 73.68,
    ("baseline", LLAMA_1B): 53.11,
    ("baseline_compiled", LLAMA_1B): 33.46,
    ("tensorwise_fp8_compiled", LLAMA_1B): 27.46,
    ("baseline", SHORT): 10.25,  # the two gradients of a tied embedding are added
    ("tensorwise_fp8_compiled", SHORT): 10.26,
}
PEAKS |= {(recipe, RECOMPUTE): 60.17 for recipe in FOUR}


@pytest.mark.parametrize(("recipe", "keys"), PEAKS)
def test_the_estimate_of_memory_is_what_the_allocator_counts(recipe, keys):
    planned = plan(recipes.load(recipe, [], keys.split()))
    assert planned.memory_needed / 2**30 == pytest.approx(PEAKS[recipe, keys], rel=0.02)


@pytest.mark.parametrize(
    ("memory", "finding"),
    [
        (80, "about 71.5 GiB of 80 GiB$"),
        (60, "of 60 GiB: this will probably not fit"),
        (24, "of 24 GiB here: .*--overlay cpu"),
    ],
)
def test_memory_is_compared_with_the_machines(memory, finding, monkeypatch):
    monkeypatch.setattr(device, "TYPE", "cpu")
    monkeypatch.setattr(device, "memory_bytes", lambda: memory * 2**30)
    try:
        planned = plan(recipes.load("baseline"))
        assert re.search(finding, dict(check_here(planned))["memory"])
    except InputError as error:
        assert re.search(finding, str(error))


@pytest.mark.parametrize(
    ("nvidia_smi", "files", "found"),
    [("echo H100", [], True), ("exit 18", ["nvidia0"], True), ("exit 127", [], False)],
)
def test_a_gpu_that_torch_cannot_use_is_not_passed_over(
    nvidia_smi, files, found, tmp_path, monkeypatch
):
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{nvidia_smi}\n")
    program.chmod(0o755)
    for file in files:
        (tmp_path / file).touch()
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(device, "DEVICE_FILES", str(tmp_path / "nvidia[0-9]*"))
    monkeypatch.setattr(device, "TYPE", "cpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    if not found:
        assert choose_size()[0] == ["cpu"]
        return
    with pytest.raises(InputError, match="driver.*CUDA_VISIBLE_DEVICES="):
        choose_size()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert choose_size()[0] == ["cpu"]


@pytest.mark.parametrize(
    ("compiler", "headers", "missing"),
    [("gcc", "Python.h", None), ("clang", "Python.h", None), ("gcc", "", "python3-devel"),
     ("", "Python.h", "gcc")],
)  # fmt: skip
def test_what_triton_compiles_with_is_there(compiler, headers, missing, tmp_path, monkeypatch):
    (tmp_path / headers).touch()
    monkeypatch.setattr(device, "TYPE", "cuda")
    monkeypatch.setattr(shutil, "which", lambda name: name == compiler)
    monkeypatch.setattr(machine, "get_paths", lambda scheme: {"include": tmp_path})
    monkeypatch.delenv("CC", raising=False)
    machine.check_units(plan(recipes.load("baseline")))
    compiled = plan(recipes.load("baseline_compiled"))
    if missing is None:
        machine.check_units(compiled)
        return
    with pytest.raises(InputError, match=missing):
        machine.check_units(compiled)


def test_one_rank_alone_starts_no_library_for_several(train, monkeypatch):
    """On a GPU it would start NCCL; here the map of backends says so of the CPU, where there is
    none."""
    monkeypatch.setitem(dist.Backend.default_device_backend_map, device.TYPE, "nccl")
    train(recipes.load("baseline", ["cpu"], TINY).config)
    assert dist.get_backend() == "gloo"


@pytest.mark.parametrize(
    ("version", "backend", "warned"),
    [
        ("9.10.2", "auto", True),
        ("9.10.2", "flash", False),
        ("9.15.1", "auto", False),
        (None, "auto", False),
    ],
)
def test_a_cudnn_that_is_too_old_is_named(version, backend, warned, monkeypatch):
    monkeypatch.setattr(device, "cudnn", lambda: version)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    config = recipes.load("baseline", ["h200"], [f"model.attention_backend={backend}"]).config
    assert bool(slow_attention(config)) == warned
