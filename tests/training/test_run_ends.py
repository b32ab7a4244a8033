"""Runs that are stopped, killed or fail keep what they have and go on from it, equal bit for bit;
and one on a GPU."""

import errno
import io
import os
import re
import signal
import sys

import pytest
import torch

from experiments.jobs.command import EXIT_RESUME
from experiments.records.files import DISK_FULL_REASONS
from experiments.records.run import read_log
from experiments.run import main
from experiments.training import checkpoint
from experiments.training.trainer import Trainer
from tests import processes
from tests.runs import SMALLEST, TINY, attempt_of, kill, lines_of, losses_of, proof_of, room_for

OVERLAY = ["--overlay", "cpu", *TINY, SMALLEST]
# Run in a process of its own: a fork of one that has trained may not train with CUDA's torch
KILLED_IN_STEP_7 = """
import os, signal, sys
from experiments.run import main
from experiments.training.trainer import Trainer

train_step = Trainer.train_step

def step(trainer, batches):
    if trainer.step == 7:
        os.kill(os.getpid(), signal.SIGKILL)
    train_step(trainer, batches)

Trainer.train_step = step
main(sys.argv[1:])
"""


@pytest.fixture
def before_step(monkeypatch):
    """Have something happen to the runs of this process."""
    train_step = Trainer.train_step

    def set_act(number: int, act) -> None:
        def step(trainer: Trainer, batches) -> None:
            if trainer.step == number:
                act(trainer)
            train_step(trainer, batches)

        monkeypatch.setattr(Trainer, "train_step", step)

    return set_act


@pytest.fixture
def train(run_here, tmp_path):
    """Train a recipe to its exit code, in the test's `run` or another folder."""

    def call(*keys: str, recipe: str = "baseline", out: str = "run") -> int:
        return run_here(recipe, *OVERLAY, "--out", tmp_path / out, *keys)

    return call


@pytest.mark.slow
def test_a_run_that_is_stopped_in_every_way_is_one_that_is_not(
    tmp_path, train, run_here, fails, before_step
):
    """Log intervals of 3 steps, checkpoints every 4: an interval ends at a checkpoint too, and a
    resume loses no step. SIGUSR1 is in extensions/sharded/tests/test_ranks.py."""
    out = tmp_path / "run"
    keys = ["training.steps=12", "metrics.log_freq=3", "checkpoint.enable=true"]
    keys += ["checkpoint.interval=4", "checkpoint.keep_latest_k=2", "checkpoint.async_mode=async"]

    before_step(1, lambda trainer: setattr(trainer.stop, "exit_code", EXIT_RESUME))
    assert train(*keys) == EXIT_RESUME

    command = [sys.executable, "-c", KILLED_IN_STEP_7, "baseline", *OVERLAY, "--out", out, *keys]
    assert processes.run(command, check=False).returncode == -signal.SIGKILL
    assert attempt_of(out)["status"] == "running"
    assert [line["step"] for line in lines_of(out)] == [1, 3, 4, 6]

    before_step(10, lambda trainer: os.kill(os.getpid(), signal.SIGINT))
    assert train(*keys) == 130
    assert "after step 10 by SIGINT" in attempt_of(out)["error"], attempt_of(out)

    [newest] = (out / "checkpoint/step-10").glob("*.distcp")
    content = bytearray(newest.read_bytes())
    content[len(content) // 2] ^= 0xFF  # a byte of a weight
    newest.write_bytes(content)
    (out / "checkpoint/step-9999").mkdir()
    (out / "checkpoint/step-9999/__0_0.distcp").touch()
    before_step(0, None)
    fails(main, out, "optimizer.lr=1e-5")  # that would be another run
    assert run_here(out) == 0
    log = (out / "log.txt").read_text()
    assert "step-9999 was not written to its end: deleted" in log
    assert "Training starts at step 9\n" in log
    assert [*out.glob("damaged_checkpoints/step-10-*")]
    steps = {number: [] for number in range(1, 5)}
    for line in lines_of(out):
        steps[line["attempt"]].append(line["step"])
    assert (steps[1], steps[2], steps[4]) == ([1], [3, 4, 6], [9, 12])
    assert steps[3][-3:] == [8, 9, 10]  # after step 4, or 1 if its checkpoint was not written yet

    kill(out)  # nothing is left to train
    assert train(*keys) == 0 == train(*keys, "checkpoint.enable=false", out="whole")
    assert losses_of(out) == losses_of(tmp_path / "whole") and proof_of(out)


def damage_gradient(trainer: Trainer) -> None:
    weight = trainer.model_parts[0].layers["0"].feed_forward.w1.weight
    weight.register_hook(lambda gradient: gradient * float("nan"))


def fill_memory(trainer: Trainer) -> None:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")


@pytest.mark.parametrize(
    ("keys", "act", "code", "status", "error"),
    [
        ("optimizer.lr=1e30", None, 3, "diverged", "not finite"),
        # in the second step of a log interval of 50, with a loss that is finite
        ("metrics.log_freq=50", damage_gradient, 3, "diverged",
         "not finite in step 2, nor the gradients of 1 parameters: layers.0.feed_forward.w1"),
        ("", fill_memory, 1, "failed", "out of memory"),
    ],
)  # fmt: skip
def test_a_run_that_cannot_go_on_ends(
    tmp_path, train, before_step, monkeypatch, keys, act, code, status, error
):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (2**50, 2**50))
    if act:
        before_step(2, act)
    assert train(*keys.split()) == code
    attempt, last = attempt_of(tmp_path / "run"), lines_of(tmp_path / "run")[-1]
    assert attempt["status"] == status and error in attempt["error"]
    if code == 3:
        assert None in (last["loss"], last["grad_norm"])


def test_full_disk_leaves_readable_metrics(tmp_path, train, monkeypatch):
    monkeypatch.setenv("GIT_DIR", "/nowhere")  # a long diff of this code would not fit
    with room_for(20_000):
        assert train("training.steps=120", "metrics.enable_tensorboard=false") == 1
    attempt = attempt_of(tmp_path / "run")
    assert attempt["status"] == "failed" and "metrics.jsonl needs" in attempt["error"]
    assert len(read_log(tmp_path / "run/metrics.jsonl")) > 10


@pytest.mark.parametrize("mode", ["disabled", "async"])
def test_a_checkpoint_that_cannot_be_written_ends_the_run(tmp_path, train, mode):
    keys = ["checkpoint.enable=true", "checkpoint.interval=2", f"checkpoint.async_mode={mode}"]
    with room_for(2**18):
        assert train(*keys, "training.steps=6") == 1
    attempt = attempt_of(tmp_path / "run")
    assert attempt["status"] == "failed"
    assert "a checkpoint could not be written" in attempt["error"]
    assert not list((tmp_path / "run/checkpoint").iterdir())


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_told_with_its_folder_and_sizes(tmp_path, train, monkeypatch, code):
    """torch.save would raise an error about positions in its place, or end the process."""

    class FullFile(io.FileIO):
        def write(self, content) -> int:
            raise OSError(code, os.strerror(code))

    monkeypatch.setattr(checkpoint.io, "FileIO", FullFile)
    assert train("checkpoint.enable=true", "checkpoint.interval=2") == 1
    error = attempt_of(tmp_path / "run")["error"]
    assert DISK_FULL_REASONS[code] in error and str(tmp_path / "run/checkpoint/step-2") in error
    assert re.search(r"needs [\d.]+ MB, and [\d.]+ .B are free", error)
    assert "Traceback" not in (tmp_path / "run/log.txt").read_text()


def test_a_run_whose_last_checkpoint_does_not_fit_is_completed(tmp_path, train):
    with room_for(2**18):
        assert train("checkpoint.enable=true") == 0
    attempt = attempt_of(tmp_path / "run")
    assert attempt["status"] == "completed"
    assert any("the last checkpoint was not written" in note for note in attempt["notes"])
    assert len(losses_of(tmp_path / "run")) == 4
    assert not list((tmp_path / "run/checkpoint").iterdir())


def test_a_resume_notes_steps_whose_records_are_lost(tmp_path, train):
    out, keys = tmp_path / "run", ["checkpoint.enable=true", "checkpoint.interval=2"]
    assert train(*keys) == 0
    kill(out)
    lines = (out / "metrics.jsonl").read_text().splitlines(keepends=True)
    (out / "metrics.jsonl").write_text(lines[0] + lines[3])
    assert train(*keys, "training.steps=5") == 0
    [note] = [note for note in attempt_of(out)["notes"] if "on record" in note]
    assert "steps 2 to 3 are not on record" in note and note in (out / "log.txt").read_text()


@pytest.mark.gpu
def test_the_published_model_on_a_gpu(tmp_path):
    out, keys = tmp_path / "run", ["training.steps=4", "metrics.log_freq=1"]
    command = [sys.executable, "-m", "experiments.run", "tensorwise_fp8_compiled", "--out", out]
    processes.run([*command, *keys], seconds=280)
    proof = proof_of(out)
    assert proof.fp8_share > 0.9 and not proof.emulated
