"""The job files on a real Slurm with fake GPUs: submitted as a user submits them, with the CPU
overlay. Stand-ins train in the place of a study's runs; a run over two nodes is real."""

import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from experiments.records.files import last_window, read, read_windows
from experiments.records.run import Manifest, Proof
from tests import processes
from tests.processes import ROOT

FOUR = ["baseline", "baseline_compiled", "rowwise_fp8_compiled", "tensorwise_fp8_compiled"]
STEPS = 60  # of the real run
STUDY, MULTINODE = "launch/alps_fp8.sbatch", "launch/alps_multinode.sbatch"
SLURM_PATH = os.environ["PATH"] + ":/usr/sbin"
HAS_SLURM = all(shutil.which(name, path=SLURM_PATH) for name in ("slurmctld", "slurmd", "munged"))
MISSING = "needs Slurm: slurmctld slurmd slurm-client munge libslurm-dev gcc"


# ---- without a cluster ----


@pytest.mark.skipif(not shutil.which("shellcheck"), reason="needs shellcheck")
def test_shell_files_are_clean():
    files = [
        *ROOT.glob("launch/*.sh"),
        *ROOT.glob("launch/*.sbatch"),
        *ROOT.glob("tests/launch/*.sh"),
    ]
    processes.run(["shellcheck", "-x", *files, ROOT / ".ci/run"])


def login(*arguments: str, file=STUDY) -> subprocess.CompletedProcess:
    """The job file as a program on a login node."""
    outside = {name: value for name, value in os.environ.items() if not name.startswith("SLURM")}
    environment = outside | {"PYTHON": sys.executable}
    return processes.run(["bash", file, *arguments], check=False, env=environment)


@pytest.mark.slow
def test_dry_run_on_a_login_node_says_what_would_run():
    names = ["baseline", "tensorwise_fp8_compiled"]
    done = login("--dry-run", "--overlay", "cpu", "--seeds", "0,1", *names)
    assert done.returncode == 0, done.stderr
    would = [line for line in done.stdout.splitlines() if line.startswith("would run")]
    assert len(would) == 4 and "tensorwise_fp8_compiled seed 1: 60 steps" in would[3]


@pytest.mark.parametrize(
    ("arguments", "file", "word"),
    [
        (["tensorwise_fp8"], STUDY, "did you mean tensorwise_fp8_compiled"),
        (["baseline"], STUDY, "sbatch"),
        # without its number of processes the recipe for several GPUs would be refused
        (["--dry-run", "tensorwise_fp8_allgather"], MULTINODE, f"{STUDY} --dry-run"),
    ],
)
def test_login_node_mistakes(arguments, file, word):
    done = login(*arguments, file=file)
    assert done.returncode == 2 and done.stderr.startswith("error: ") and word in done.stderr


# ---- jobs ----


class Cluster:
    """A Slurm; `runs` is where its jobs keep theirs."""

    def __init__(self, folder: Path, configuration: str):
        self.folder, self.runs = folder, folder / "runs"
        self.environment = os.environ | {
            "SLURM_CONF": configuration,
            "RUNS": str(self.runs),
            "SCRATCH": str(folder),
            "PYTHON": str(ROOT / "tests/launch/python.sh"),
            "REAL_PYTHON": sys.executable,
            "OMP_NUM_THREADS": "1",  # many runs on two cores
        }

    def command(self, *command: str) -> str:
        return processes.run(command, env=self.environment).stdout.strip()

    def submit(self, *arguments: str, **variables: str) -> "Job":
        """Arguments before the job file are sbatch's."""
        export = ",".join(["ALL", *(f"{name}={value}" for name, value in variables.items())])
        options = ["--parsable", f"--export={export}", f"--output={self.folder}/%j.log"]
        return Job(self, self.command("sbatch", *options, *arguments))


class Job:
    """A job that was submitted."""

    def __init__(self, cluster: Cluster, number: str):
        self.cluster, self.number = cluster, number

    def out(self, name: str = "fp8") -> Path:
        return self.cluster.runs / f"{name}-{self.number}"

    def state(self) -> dict[str, str]:
        shown = self.cluster.command("scontrol", "show", "job", self.number)
        return dict(re.findall(r"(\w+)=(\S+)", shown))

    def log(self) -> str:
        path = self.cluster.folder / f"{self.number}.log"
        return path.read_text() if path.exists() else ""

    def end(self) -> str:
        """State and exit code."""
        ends = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT")
        self.until(lambda: self.state()["JobState"] in ends)
        state = self.state()
        return f"{state['JobState']} {state['ExitCode']}"

    def until(self, true) -> None:
        deadline = time.monotonic() + 300
        while not true():
            assert time.monotonic() < deadline, self.log()
            time.sleep(0.1)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    folder = tmp_path_factory.mktemp("slurm")
    script = [ROOT / "tests/launch/slurm.sh", "up", folder / "slurm"]
    try:
        up = subprocess.run(script, capture_output=True, text=True, timeout=120, check=True)
        yield Cluster(folder, up.stdout.strip())
    finally:
        processes.run([script[0], "down", script[2]])


@pytest.fixture(scope="module")
def jobs(cluster) -> dict[str, Job]:
    """All at once on four nodes; three are signalled once a run is past its 11th step, as before a
    time limit, and one is cancelled."""
    keys = ["--overlay", "cpu", "training.steps=200", "checkpoint.enable=true"]
    real = ["training.seq_len=64", "training.local_batch_size=1", f"training.steps={STEPS}",
            "compile.enable=false", "checkpoint.enable=true", "--overlay", "cpu"]  # fmt: skip
    allgather = [MULTINODE, "tensorwise_fp8_allgather", *real]
    one_gpu = ["--gpus-per-node=1", STUDY, "baseline", *keys]
    jobs = {
        "two_nodes": cluster.submit("--ntasks-per-node=1", *allgather),
        "four": cluster.submit(STUDY, *keys, KILLED="baseline_compiled", STEP_S="0.02"),
        "queue": cluster.submit(*one_gpu, "--seeds", "0,1", STEP_S="0.5"),
        "limited": cluster.submit(*one_gpu, STEP_S="0.5"),
        "without_checkpoints": cluster.submit(*one_gpu, "checkpoint.enable=false", STEP_S="0.5"),
        "bad_input": cluster.submit(*one_gpu, "training.stepz=3"),
        "unknown": cluster.submit(STUDY, "baseline", "rowise_fp8_compiled"),
    }
    runs = {name: jobs[name].out() / "baseline/seed0" for name in jobs}
    runs["two_nodes"] = jobs["two_nodes"].out("fp8-multinode")
    left = ["two_nodes", "queue", "limited", "without_checkpoints"]
    deadline = time.monotonic() + 300
    while left:
        for name in list(left):
            window = last_window(runs[name])
            if window and window.step > 11:
                left.remove(name)
                signals = [] if name == "queue" else ["--signal=USR1"]
                cluster.command("scancel", *signals, jobs[name].number)
        assert time.monotonic() < deadline, {name: jobs[name].log() for name in left}
        time.sleep(0.1)
    return jobs


def manifest_of(run: Path) -> Manifest:
    return read(run / "manifest.json", Manifest)


def on_slurm(test):
    """Mark a test that needs a cluster."""
    return pytest.mark.slow(pytest.mark.skipif(not HAS_SLURM, reason=MISSING)(test))


@on_slurm
def test_bad_input_ends_a_job_with_nothing_to_go_on_with(jobs):
    job = jobs["bad_input"]
    assert job.end() == "FAILED 2:0" and "training.stepz: unknown key" in job.log()
    assert "To go on" not in job.log() and not job.out().exists()
    assert jobs["unknown"].end() == "FAILED 2:0"
    assert "did you mean rowwise_fp8_compiled" in jobs["unknown"].log()
    assert jobs["unknown"].state()["RunTime"] <= "00:00:03"  # it takes longer to import torch


@on_slurm
def test_four_recipes_side_by_side_of_which_one_is_killed(jobs):
    job = jobs["four"]
    assert job.end() == "FAILED 1:0"
    manifests = [manifest_of(job.out() / recipe / "seed0") for recipe in FOUR]
    assert [m.hardware.visible_devices for m in manifests] == ["0", "1", "2", "3"]
    ends = ["completed", "running", "completed", "completed"]
    assert [manifest.status for manifest in manifests] == ends
    assert "baseline_compiled seed 0: killed by SIGKILL at step 12" in job.log()
    assert "Should this Llama be trained in FP8?" in job.log()
    assert (job.out() / "report.html").stat().st_size > 10_000


@on_slurm
def test_more_runs_than_gpus_and_scancel(cluster, jobs):
    """One GPU, two seeds: the second waits. Cancelled under the first, which the folder goes on
    with."""
    job = jobs["queue"]
    assert job.end().startswith("CANCELLED")
    first, second = (job.out() / f"baseline/seed{seed}" for seed in (0, 1))
    job.until(lambda: manifest_of(first).status == "interrupted")
    assert not second.exists()
    again = cluster.submit("--gpus-per-node=1", STUDY, str(job.out()))
    assert again.end() == "COMPLETED 0:0", again.log()
    assert manifest_of(first).end < manifest_of(second).start
    assert [window.step for window in read_windows(first / "metrics.jsonl")] == [*range(1, 201)]


@on_slurm
def test_a_time_limit_requeues_a_study_with_checkpoints_only(jobs):
    job = jobs["limited"]
    assert job.end() == "COMPLETED 0:0" and job.state()["Restarts"] == "1", job.log()
    run = job.out() / "baseline/seed0"
    assert [window.step for window in read_windows(run / "metrics.jsonl")] == [*range(1, 201)]
    job = jobs["without_checkpoints"]
    assert job.end() == "FAILED 75:0" and job.state()["Restarts"] == "0"
    assert "not requeued (without checkpoint.enable=true" in job.log() and "To go on: " in job.log()


@on_slurm
def test_two_nodes_stop_together_are_requeued_and_go_on(jobs):
    job = jobs["two_nodes"]
    assert job.end() == "COMPLETED 0:0" and job.state()["Restarts"] == "1", job.log()
    run = job.out("fp8-multinode")
    first, last = manifest_of(run / "attempt1"), manifest_of(run)
    assert (first.status, last.status, last.world_size) == ("interrupted", "completed", 2)
    assert "by SIGUSR1, a checkpoint was saved" in first.error
    windows = read_windows(run / "metrics.jsonl")
    assert [window.step for window in windows] == [*range(1, STEPS + 1)]
    proof = read(run / "attempt1/proof.json", Proof)
    assert proof.fp8_share_of_matmul_flops == pytest.approx(0.75)
