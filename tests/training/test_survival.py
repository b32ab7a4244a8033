"""What keeps a run alive through what clusters do: signals, budgets, damaged checkpoints and caches, bindings."""

import json
import os
import signal
import subprocess
import sys
import time
import zipfile

import pytest
import torch

from experiments.config import recipes
from experiments.jobs import placement
from experiments.jobs.signals import COME_BACK, FOR_GOOD, STUDY_PID, Stop
from experiments.run import main
from experiments.training import compile_cache, run_directory
from experiments.training.run_directory import RunDirectory
from models.errors import InputError
from tests import processes
from tests.runs import lines_of, manifest_of

RUN = ["baseline", "--overlay", "cpu", "training.seq_len=64", "training.local_batch_size=1", "metrics.log_freq=50"]
KEEP = ["checkpoint.enable=true", "checkpoint.interval=5", "checkpoint.keep_latest_k=2",
        "checkpoint.async_mode=async"]  # fmt: skip


def losses(out) -> list[float]:
    return [loss for line in lines_of(out) for loss in line["losses"]]


# ---- stopping ----


@pytest.mark.slow
def test_budget_and_damaged_checkpoints(tmp_path, run_here):
    """Stopped by its budget, its newest checkpoint damaged and one half written, a run goes on from the one before."""
    out, whole = tmp_path / "run", tmp_path / "whole"
    budget = [*KEEP, "--out", str(out), "training.steps=4000", "--budget", "9"]
    stopped = processes.run([sys.executable, "-m", "experiments.run", *RUN, *budget], check=False)
    assert stopped.returncode == COME_BACK
    assert "by the time budget of 9 s" in manifest_of(out)["error"]
    stopped = lines_of(out)[-1]["step"]
    before = (stopped - 1) // 5 * 5
    newest = next((out / f"checkpoint/step-{stopped}").glob("*.distcp"))
    content = bytearray(newest.read_bytes())
    content[len(content) // 2] ^= 0xFF  # one bit of one weight
    newest.write_bytes(content)
    (out / "checkpoint/step-9999").mkdir()
    steps = f"training.steps={stopped + 6}"
    assert run_here(*RUN, "--out", out, *KEEP, steps) == 0
    log = (out / "log.txt").read_text()
    assert "step-9999 was not written to its end: deleted" in log
    assert f"step-{stopped} is damaged (__0_0.distcp: wrong checksum)" in log
    assert f"Training starts at step {before + 1}\n" in log
    assert (out / f"damaged_checkpoints/step-{stopped}-0").is_dir()
    assert run_here(*RUN, "--out", whole, steps) == 0
    assert losses(out) == losses(whole)
    # As if killed between its last step and its end: nothing is left to train, and everything is there
    (out / "manifest.json").write_text(json.dumps(manifest_of(out) | {"status": "running", "end": None}))
    wall = json.loads((out / "summary.json").read_text())["wall_s"]
    both = [lines_of(out / "attempt1")[-1], lines_of(out)[-1]]
    assert wall == pytest.approx(sum(line["elapsed_s"] for line in both))
    assert run_here(*RUN, "--out", out, *KEEP, steps) == 0
    assert losses(out) == losses(whole) and (out / "proof.json").exists()
    assert json.loads((out / "summary.json").read_text())["wall_s"] > wall


def test_a_request_before_the_first_step_ends_at_once():
    stop = Stop()
    stop.listen()
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(1)
    assert (stop.code, stop.why) == (FOR_GOOD, "SIGTERM")


def test_a_second_ctrl_c_does_not_wait_for_the_boundary():
    stop = Stop()
    stop.listen()
    stop.deferred = True
    os.kill(os.getpid(), signal.SIGINT)
    assert stop.code == FOR_GOOD
    os.kill(os.getpid(), signal.SIGINT)  # within a second: the same one, by another way
    time.sleep(1.1)
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(1)


def test_one_ctrl_c_after_a_request_leaves_the_end_alone():
    stop = Stop()
    stop.listen()
    stop.deferred = True
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(1.1)
    os.kill(os.getpid(), signal.SIGINT)  # raises nothing
    assert stop.code == FOR_GOOD and stop.why == "SIGTERM"


def test_a_run_does_not_outlive_its_study(tmp_path):
    """The study is killed with -9; what it started gets SIGTERM."""
    child = (
        "import time; from experiments.jobs.signals import Stop; "
        "s = Stop(); s.listen(); print(flush=True); time.sleep(60)"
    )
    parent = (
        "import os, subprocess, sys\n"
        f"os.environ[{STUDY_PID!r}] = str(os.getpid())\n"
        f"child = subprocess.Popen([sys.executable, '-c', {child!r}], stdout=subprocess.PIPE)\n"
        "child.stdout.readline(); print(child.pid, flush=True); child.wait()"
    )
    with processes.started([sys.executable, "-c", parent], stdout=subprocess.PIPE, text=True) as process:
        child_pid = int(process.stdout.readline())
        process.kill()
        process.wait()
        deadline = time.monotonic() + 20
        while os.path.exists(f"/proc/{child_pid}") and open(f"/proc/{child_pid}/stat").read().split()[2] != "Z":
            assert time.monotonic() < deadline
            time.sleep(0.05)


def test_budget_without_checkpoints(capsys, tmp_path):
    assert main(["baseline", "--overlay", "cpu", "--budget", "60", "--out", str(tmp_path / "run")]) == 2
    assert "--budget needs checkpoints" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_start_that_is_killed_loses_no_attempt(tmp_path):
    RunDirectory(tmp_path, "a: 1", {}).finish("interrupted")
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n')
    child = os.fork()
    if not child:
        run_directory.git_state = lambda: os._exit(7)
        RunDirectory(tmp_path, "a: 1", {})
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    third = RunDirectory(tmp_path, "a: 1", {})
    assert third.manifest["attempt"] == 2
    assert (tmp_path / "attempt1" / "metrics.jsonl").read_text() == '{"step": 1}\n'
    third.take_over(1)
    assert (tmp_path / "metrics.jsonl").read_text() == '{"step": 1}\n'


def test_records_of_a_damaged_manifest_are_set_aside(tmp_path):
    RunDirectory(tmp_path, "a: 1", {}).finish("completed")
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n')
    (tmp_path / "manifest.json").write_text('{"layout_version": 1, "sta')
    assert RunDirectory(tmp_path, "a: 1", {}).manifest["attempt"] == 2
    assert not (tmp_path / "metrics.jsonl").exists()
    assert (tmp_path / "attempt1" / "metrics.jsonl").read_text() == '{"step": 1}\n'


def test_unfinished_run_of_other_ranks(tmp_path):
    RunDirectory(tmp_path, "a: 1", {"world_size": 4}).finish("interrupted")
    with pytest.raises(InputError, match="an unfinished run of 4 processes, and this one has 2: start as many"):
        RunDirectory(tmp_path, "a: 1", {"world_size": 2})
    assert RunDirectory(tmp_path, "a: 1", {"world_size": 4}).manifest["attempt"] == 2


# ---- kept kernels; that a second run starts warm is in test_study ----


def test_damaged_cache_costs_a_warning(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    config = recipes.load("baseline_compiled", ["cpu"], [f"compile.artifacts_dir={tmp_path}"]).config
    with zipfile.ZipFile(compile_cache.path(config), "w") as archive:
        archive.writestr("artifacts", b"kernels of another format")
    for _ in ("what PyTorch cannot read", "what is no archive"):
        compile_cache.restore(config)
        assert "cannot be used" in caplog.text and "compiling anew" in caplog.text
        caplog.clear()
        compile_cache.path(config).write_bytes(b"PK\3\4 cut off")


def test_kernels_that_inductor_had_are_kept_once(tmp_path, monkeypatch):
    """Inductor's own cache stays on its machine: with nothing kept yet, a run that found all in it keeps it too."""
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    monkeypatch.setitem(compile_cache.counters["inductor"], "fxgraph_cache_hit", 3)
    monkeypatch.setitem(compile_cache.counters["inductor"], "fxgraph_cache_miss", 0)
    config = recipes.load("baseline_compiled", ["cpu"], [f"compile.artifacts_dir={tmp_path}"]).config
    monkeypatch.setattr(torch.compiler, "save_cache_artifacts", lambda: (b"kernels", None))
    compile_cache.save(config)
    kept = compile_cache.path(config)
    with zipfile.ZipFile(kept) as archive:
        assert archive.read("artifacts") == b"kernels"
    kept.write_bytes(b"as it was")
    compile_cache.save(config)
    assert kept.read_bytes() == b"as it was"


def test_kept_kernels_are_told_apart(monkeypatch):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")

    def file(name: str, *keys: str):
        return compile_cache.path(recipes.load(name, ["cpu"], keys).config)

    one = file("tensorwise_fp8_compiled")
    assert file("tensorwise_fp8_compiled", "training.steps=7", "optimizer.lr=1e-4", "debug.seed=3") == one
    others = [file("rowwise_fp8_compiled"), file("tensorwise_fp8_compiled", "training.seq_len=128")]
    others += map(file, ("baseline_compiled", "candidate_adamw_stochastic_rounding"))
    with monkeypatch.context() as changed:
        changed.setattr(compile_cache, "version", lambda name: "99")
        others.append(file("tensorwise_fp8_compiled"))
    with monkeypatch.context() as changed:
        changed.setattr(compile_cache.device, "name", lambda: "another")
        others.append(file("tensorwise_fp8_compiled"))
    monkeypatch.setenv("WORLD_SIZE", "2")
    others.append(file("tensorwise_fp8_compiled"))
    monkeypatch.setenv("RANK", "1")
    others.append(file("tensorwise_fp8_compiled"))
    assert len({one, *others}) == 1 + len(others)


# ---- one GPU each ----


@pytest.fixture
def sysfs(tmp_path):
    """A Grace Hopper node: four memory nodes with cores, and the memory of four GPUs as nodes without."""
    for node in range(8):
        folder = tmp_path / f"devices/system/node/node{node}"
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(f"{72 * node}-{72 * node + 71}\n" if node < 4 else "\n")
    return tmp_path


def test_gpus_are_those_that_the_cluster_gave(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3")
    assert placement.gpus() == ["2", "3"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert placement.gpus() == [None]


@pytest.fixture
def numactl(tmp_path, monkeypatch):
    """One that starts processes or, made to, refuses; to be called with its exit code."""
    tool = tmp_path / "numactl"
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)

    def exits(code: int) -> None:
        tool.write_text(f"#!/bin/sh\nexit {code}\n")
        tool.chmod(0o755)

    exits(0)
    return exits


def test_a_run_is_bound_to_the_cores_and_memory_of_its_gpu(sysfs, numactl, monkeypatch):
    monkeypatch.setattr(placement, "_nearest", lambda gpu, root: -1)  # the kernel does not say
    assert placement.binding("2", 2, sysfs) == ["numactl", "--cpunodebind=2", "--membind=2"]
    monkeypatch.setattr(placement, "_nearest", lambda gpu, root: 1)
    assert placement.binding("2", 2, sysfs) == ["numactl", "--cpunodebind=1", "--membind=1"]
    monkeypatch.setattr(placement, "_nearest", lambda gpu, root: 5)  # a GPU's own memory
    assert placement.binding("2", 2, sysfs) == ["numactl", "--cpunodebind=2", "--membind=2"]
    assert placement.binding(None, 0, sysfs) == []
    numactl(1)  # as in a container whose memory may not be chosen
    assert placement.binding("2", 2, sysfs) == []


def test_the_kernels_memory_node_of_a_gpu(sysfs, tmp_path, monkeypatch):
    slot = sysfs / "bus/pci/devices/0009:01:00.0"
    slot.mkdir(parents=True)
    (slot / "numa_node").write_text("3\n")
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho 00000009:01:00.0\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert placement._nearest("1", sysfs) == 3
