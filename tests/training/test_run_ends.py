"""Runs that are stopped, killed or fail keep what they have and go on from it, equal bit for bit;
and one on a GPU."""

import json
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from experiments.jobs.signals import COME_BACK
from experiments.training.trainer import Trainer
from models import float8
from tests import processes
from tests.runs import TINY, lines_of, losses_of, manifest_of

BASELINE = ["baseline", "--overlay", "cpu"]
RUN = [sys.executable, "-m", "experiments.run", *BASELINE]
SHORT = ["training.seq_len=64", "training.local_batch_size=1", "metrics.log_freq=50"]
KEEP = ["checkpoint.enable=true", "checkpoint.interval=5", "checkpoint.keep_latest_k=2",
        "checkpoint.async_mode=async"]  # fmt: skip


@contextmanager
def training(out, *overrides: str) -> Iterator[subprocess.Popen]:
    """A run in the background, once it has written six lines of metrics."""
    with processes.started([*RUN, "--out", out, *overrides], stdout=subprocess.DEVNULL) as process:
        deadline = time.monotonic() + 120
        while len(lines_of(out)) < 6:
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.05)
        yield process


@pytest.mark.slow
def test_killed_run_keeps_its_lines_and_resumes_from_its_checkpoint(tmp_path, run_here):
    """Windows of 3 steps, checkpoints every 4: windows also end at checkpoints, so that each step
    is there once."""
    out, keys = (
        tmp_path / "run",
        ["training.steps=16", "checkpoint.enable=true", "checkpoint.interval=4"],
    )
    keys.append("metrics.log_freq=3")
    with training(out, *keys) as process:
        process.kill()
    before = lines_of(out)
    assert manifest_of(out)["status"] == "running"
    assert run_here(*BASELINE, "--out", out, *keys) == 0
    after = lines_of(out)
    assert [line["step"] for line in after] == [1, 3, 4, 6, 8, 9, 12, 15, 16]
    assert [len(line["losses"]) for line in after] == [1, 2, 1, 2, 2, 1, 3, 3, 1]
    assert [line["losses"] for line in after[: len(before)]] == [line["losses"] for line in before]
    manifest = manifest_of(out)
    assert (manifest["status"], manifest["attempt"]) == ("completed", 2)


@pytest.mark.slow
def test_interrupted_run_ends_at_a_step_with_a_checkpoint(tmp_path):
    """By Ctrl-C; tests/jobs/test_shares.py has SIGUSR1."""
    out = tmp_path / "run"
    with training(out, "checkpoint.enable=true", "training.steps=4000") as process:
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=120) == 130
    last, manifest = lines_of(out)[-1]["step"], manifest_of(out)
    assert manifest["status"] == "interrupted"
    assert manifest["error"] == f"stopped after step {last} by SIGINT, a checkpoint was saved"
    assert (out / f"checkpoint/step-{last}/.metadata").exists()
    assert sum(len(line["losses"]) for line in lines_of(out)) == last


@pytest.mark.slow
def test_budget_and_damaged_checkpoints(tmp_path, run_here):
    """Stopped by its budget, its newest checkpoint damaged and one half written, a run goes on from
    the one before."""
    out, whole = tmp_path / "run", tmp_path / "whole"
    budget = [*KEEP, "--out", out, "training.steps=4000", "--budget", "9"]
    assert processes.run([*RUN, *SHORT, *budget], check=False).returncode == COME_BACK
    assert "by the time budget of 9 s" in manifest_of(out)["error"]
    stopped = lines_of(out)[-1]["step"]
    before = (stopped - 1) // 5 * 5
    newest = next((out / f"checkpoint/step-{stopped}").glob("*.distcp"))
    content = bytearray(newest.read_bytes())
    content[len(content) // 2] ^= 0xFF  # one bit of one weight
    newest.write_bytes(content)
    (out / "checkpoint/step-9999").mkdir()
    (out / "checkpoint/step-9999/__0_0.distcp").touch()
    steps = f"training.steps={stopped + 6}"
    assert run_here(*BASELINE, *SHORT, "--out", out, *KEEP, steps) == 0
    log = (out / "log.txt").read_text()
    assert "step-9999 was not written to its end: deleted" in log
    assert f"step-{stopped} is damaged (__0_0.distcp: wrong checksum)" in log
    assert f"Training starts at step {before + 1}\n" in log
    assert (out / f"damaged_checkpoints/step-{stopped}-0").is_dir()
    assert run_here(*BASELINE, *SHORT, "--out", whole, steps) == 0
    assert losses_of(out) == losses_of(whole)
    # As if killed between its last step and its end: nothing is left to train, and everything is
    # there
    (out / "manifest.json").write_text(
        json.dumps(manifest_of(out) | {"status": "running", "end": None})
    )
    assert run_here(*BASELINE, *SHORT, "--out", out, *KEEP, steps) == 0
    assert losses_of(out) == losses_of(whole) and (out / "proof.json").exists()


@pytest.mark.slow
def test_diverged_run_keeps_everything_up_to_then(tmp_path, run_here):
    out = tmp_path / "run"
    assert run_here(*BASELINE, "--out", out, "optimizer.lr=1e30", *TINY) == 3
    lines, manifest = lines_of(out), manifest_of(out)
    assert manifest["status"] == "diverged" and "not finite" in manifest["error"]
    assert (
        lines[0]["loss"] > 0
        and len(lines) < 4
        and None in (lines[-1]["loss"], lines[-1]["grad_norm"])
    )


@pytest.mark.slow
def test_a_gradient_that_is_not_finite_ends_the_run_in_its_step(tmp_path, run_here, monkeypatch):
    """In the second step of a log window of 50, with a loss that is finite."""
    out, whole_step = tmp_path / "run", Trainer.forward_backward_step

    def damaged(self, **keys):
        loss = whole_step(self, **keys)
        if self.step == 2:
            for layer in "1", "3":
                self.model_parts[0].layers[layer].feed_forward.w1.weight.grad[0, 0] = float("nan")
        return loss

    monkeypatch.setattr(Trainer, "forward_backward_step", damaged)
    assert run_here(*BASELINE, "--out", out, *TINY, "training.steps=60", "metrics.log_freq=50") == 3
    manifest, last = manifest_of(out), lines_of(out)[-1]
    assert manifest["status"] == "diverged"
    assert manifest["error"] == (
        "the gradient norm was not finite in step 2: the gradient of "
        "layers.1.feed_forward.w1.weight, layers.3.feed_forward.w1.weight"
    )
    assert last["step"] == 2 and last["grad_norm"] is None and last["loss"] > 0


@pytest.mark.slow
def test_full_disk_leaves_readable_metrics(tmp_path, run_here, monkeypatch):
    """A limit on file sizes stands in for a disk that fills up while the run writes."""
    monkeypatch.setenv("GIT_DIR", "/nowhere")  # a long diff of this code would not fit the manifest
    out, limits = tmp_path / "run", resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))
    try:
        assert run_here(*BASELINE, "--out", out, *TINY, "training.steps=120") == 1
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    manifest = manifest_of(out)
    assert manifest["status"] == "failed" and "File too large" in manifest["error"]
    steps = [line["step"] for line in lines_of(out)]
    assert steps == list(range(1, len(steps) + 1)) and len(steps) > 10


@pytest.mark.slow
def test_run_that_skipped_the_conversion_fails(tmp_path, run_here, monkeypatch):
    monkeypatch.setattr(float8.Float8Converter, "convert", lambda self, model: None)
    out = tmp_path / "run"
    recipe = ["tensorwise_fp8_compiled", "--overlay", "cpu", "compile.enable=false"]
    assert run_here(*recipe, "--out", out, *TINY) == 1
    assert "no layer was converted" in manifest_of(out)["error"]


@pytest.mark.gpu
def test_one_step_of_the_published_model_on_a_gpu(tmp_path):
    out = tmp_path / "run"
    keys = ["training.steps=4", "metrics.log_freq=1"]
    command = [
        sys.executable,
        "-m",
        "experiments.run",
        "tensorwise_fp8_compiled",
        "--out",
        out,
        *keys,
    ]
    processes.run(command, seconds=280)
    proof = json.loads((out / "proof.json").read_text())
    assert proof["fp8_share_of_matmul_flops"] > 0.9 and not proof["emulated"]
