"""`python -m experiments.run` without training: what it says, refuses and estimates."""

import logging
import re
import sys

import pytest
import torch
import torch.distributed as dist

from experiments.config import recipes
from experiments.jobs.progress import display
from experiments.run import main
from experiments.training.plan import check_here, plan, slow_attention
from models import device
from models.errors import InputError
from tests import processes
from tests.runs import TINY

BASELINE = ["baseline", "--overlay", "cpu"]


def test_dry_run_says_what_would_run(capsys):
    assert main(["rowwise_fp8_compiled", "--overlay", "cpu", "--seed", "3", "--dry-run"]) == 0
    printed = capsys.readouterr().out
    assert "28 linear layers in rowwise FP8" in printed and "python_stdlib: " in printed
    assert "ready    rowwise_fp8_compiled + cpu, seed 3" in printed


# ---- bad input: its sentences are in tests/messages.txt ----


# ---- the machine ----


@pytest.mark.parametrize(
    ("keys", "world_size", "local", "memory", "finding"),
    [
        ("", 1, "1", 141, "about 87.0 GiB of 141 GiB$"),
        ("", 1, "1", 80, "of 80 GiB: this will probably not fit"),
        ("", 1, "1", 24, "needs .* here: choose a smaller model.flavor or the overlay `cpu`"),
        # activations and logits are not sharded: 176 and 40 GiB on each of 8 GPUs
        ("training.local_batch_size=8", 8, "1", 139, "needs about 224.3 GiB of 139 GiB"),
        (
            "training.local_batch_size=8 activation_checkpoint.mode=full",
            8,
            "1",
            139,
            "about 61.8 GiB of 139 GiB$",
        ),
        ("", 4, "4", 96, "of 24 GiB"),  # processes of one machine without a GPU share its memory
        ("", 4, "x", 96, "LOCAL_WORLD_SIZE is 'x'"),
    ],
)
def test_memory(keys, world_size, local, memory, finding, monkeypatch):
    monkeypatch.setattr(device, "TYPE", "cpu")
    monkeypatch.setattr(device, "memory_bytes", lambda: memory * 2**30)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", local)
    try:
        planned = plan(recipes.load("baseline", [], keys.split()), world_size)
        assert re.search(finding, dict(check_here(planned))["memory"])
    except InputError as error:
        assert re.search(finding, str(error))


@pytest.mark.slow
def test_peak_memory_is_the_process_own():
    """A study that has trained a tokenizer has a peak of its own, which its runs must not start
    from."""
    stats = "device._CpuDevice.memory_stats()['active_bytes.all.peak']"
    child = f"from models import device; print({stats})"
    parent = (
        f"import subprocess, sys; b'x' * 2**30; subprocess.run([sys.executable, '-c', {child!r}])"
    )
    assert 50 * 2**20 < int(processes.run([sys.executable, "-c", parent]).stdout) < 2**30


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


def test_what_was_not_logged_before_a_run_does_not_silence_its_log(tmp_path):
    """Loggers remember which levels are off."""
    logger = logging.getLogger()
    logger.setLevel(logging.WARNING)
    logger.info("off")
    with display("run", 1, tmp_path / "log.txt"):
        logger.info("on")
    assert "INFO on" in (tmp_path / "log.txt").read_text()
