"""The job files on a real Slurm with fake GPUs: submitted as a user submits them, with the CPU
overlay."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tests import processes
from tests.runs import ROOT, lines_of, manifest_of

FOUR = ["baseline", "baseline_compiled", "rowwise_fp8_compiled", "tensorwise_fp8_compiled"]
STEPS = 30
KEYS = ["compile.enable=false", "training.seq_len=64", "training.local_batch_size=1", f"training.steps={STEPS}",
        "checkpoint.enable=true", "checkpoint.interval=10", "checkpoint.keep_latest_k=2"]  # fmt: skip
STUDY, MULTINODE = "launch/alps_fp8.sbatch", "launch/alps_multinode.sbatch"
HAS_SLURM = all(
    shutil.which(name, path=os.environ["PATH"] + ":/usr/sbin")
    for name in ("slurmctld", "slurmd", "munged")
)

slurm = pytest.mark.skipif(
    not HAS_SLURM, reason="needs Slurm: slurmctld slurmd slurm-client munge libslurm-dev gcc"
)


class Cluster:
    """A Slurm; `runs` is where its jobs keep theirs."""

    def __init__(self, folder: Path, configuration: str):
        self.runs = folder / "runs"
        self.logs = folder
        # A thread for each of many runs on two cores; and no interpreter of an image
        variables = {"SLURM_CONF": configuration, "RUNS": str(self.runs), "PYTHON": sys.executable}
        variables |= {"OMP_NUM_THREADS": "1", "SCRATCH": str(folder)}
        variables["MAX_REQUEUES"] = "20"  # a slow machine may meet the limit again
        self.environment = os.environ | variables | {"MEASURED_BF16_PEAK_FLOPS": "1e11"}

    def command(self, *command: str, check: bool = True) -> str:
        return processes.run(command, check=check, env=self.environment).stdout.strip()

    def submit(self, *arguments: str) -> str:
        """Number of a job; arguments before the job file are sbatch's."""
        return self.command(
            "sbatch", "--parsable", f"--output={self.logs}/%j.log", *map(str, arguments)
        )

    def log(self, job: str) -> str:
        path = self.logs / f"{job}.log"
        return path.read_text() if path.exists() else ""

    def state(self, job: str) -> dict[str, str]:
        return dict(re.findall(r"(\w+)=(\S+)", self.command("scontrol", "show", "job", job)))

    def wait(self, job: str) -> dict[str, str]:
        """Its last state."""
        until(
            lambda: self.state(job)["JobState"] in ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT"),
            lambda: self.log(job),
        )
        return self.state(job)


def until(true, say=lambda: "", seconds: float = 300) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, say()
        time.sleep(0.05)


def losses_of(run: Path) -> list[tuple]:
    """(last step, losses) of each window."""
    return [(line["step"], line["losses"]) for line in lines_of(run)]


def trains(run: Path) -> bool:
    """Whether it is past a checkpoint."""
    return len(lines_of(run)) >= 11


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    folder = tmp_path_factory.mktemp("slurm")
    script = [ROOT / "tests/launch/slurm.sh", "up", folder / "slurm"]
    try:
        yield Cluster(
            folder,
            subprocess.run(
                script, capture_output=True, text=True, timeout=120, check=True
            ).stdout.strip(),
        )
    finally:
        processes.run([*script[:1], "down", *script[2:]])


class Job:
    """A job that was submitted, and what is done to its run, in a thread, once that trains."""

    def __init__(
        self, cluster: Cluster, arguments: list[str], folder: str, run: str, act=lambda job: None
    ):
        self.cluster, self.number = cluster, cluster.submit(*arguments)
        self.folder = cluster.runs / f"{folder}-{self.number}"
        self.run = self.folder / run
        self.thread = threading.Thread(target=self._act, args=[act])
        self.thread.start()

    def _act(self, act) -> None:
        until(lambda: trains(self.run), lambda: self.cluster.log(self.number))
        act(self)

    def end(self) -> dict[str, str]:
        """Its last state."""
        self.thread.join()
        return self.cluster.wait(self.number)


def hold_until_signalled(job: Job) -> None:
    pid = manifest_of(job.run)["pid"]
    os.kill(pid, signal.SIGSTOP)
    usr1, status = 1 << (signal.SIGUSR1 - 1), Path(f"/proc/{pid}/status")
    with suppress(
        ProcessLookupError, FileNotFoundError
    ):  # a slow machine's time limit may have ended it
        until(lambda: int(re.search(r"ShdPnd:\s*(\w+)", status.read_text())[1], 16) & usr1)
        os.kill(pid, signal.SIGCONT)


@pytest.fixture(scope="module")
def jobs(cluster) -> dict[str, Job]:
    """All at once on four nodes. Slurm signals one when 30 to 90 of its 180 s have gone by."""
    baseline = [STUDY, "--overlay", "cpu", "baseline", *KEYS]
    allgather = [MULTINODE, "tensorwise_fp8_allgather", "--overlay", "cpu", *KEYS]
    return {
        "limited": Job(
            cluster, ["--time=3", "--signal=USR1@90", *baseline], "fp8", "baseline/seed0", hold_until_signalled
        ),
        "four": Job(
            cluster, [STUDY, "--overlay", "cpu", *KEYS], "fp8", "baseline_compiled/seed0",
            lambda job: os.kill(manifest_of(job.run)["pid"], signal.SIGKILL),
        ),
        "two_nodes": Job(
            cluster, ["--ntasks-per-node=1", *allgather], "fp8-multinode", "",
            lambda job: cluster.command("scancel", "--signal=USR1", job.number),  # as before a time limit
        ),
        "queue": Job(
            cluster, ["--gpus-per-node=1", *baseline, "--seeds", "0,1"], "fp8", "baseline/seed0",
            lambda job: cluster.command("scancel", job.number),
        ),
        "without_checkpoints": Job(
            cluster, [*baseline, "checkpoint.enable=false"], "fp8", "baseline/seed0",
            lambda job: cluster.command("scancel", "--signal=USR1", job.number),
        ),
    }  # fmt: skip


@pytest.fixture(scope="module")
def four(jobs):
    """(folder, last state, log) of the four recipes side by side, one of which, baseline_compiled,
    is killed."""
    job = jobs["four"]
    return job.folder, job.end(), job.cluster.log(job.number)


@pytest.fixture(scope="module")
def uninterrupted(four):
    return losses_of(four[0] / "baseline/seed0")


# ---- without a cluster ----


def test_shell_files_are_clean():
    if not shutil.which("shellcheck"):
        pytest.skip("needs shellcheck")
    files = [
        *ROOT.glob("launch/*.sh"),
        *ROOT.glob("launch/*.sbatch"),
        ROOT / "tests/launch/slurm.sh",
        ROOT / ".ci/run",
    ]
    processes.run(["shellcheck", "-x", *files])


def login(*arguments: str, file=STUDY) -> subprocess.CompletedProcess:
    """The job file as a program on a login node."""
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("SLURM")
    }
    command = ["bash", file, *arguments]
    environment["PYTHON"] = sys.executable
    return processes.run(command, check=False, env=environment)


@pytest.mark.slow
def test_dry_run_on_a_login_node_says_what_would_run():
    done = login(
        "--dry-run", "--overlay", "cpu", "--seeds", "0,1", "baseline", "tensorwise_fp8_compiled"
    )
    assert done.returncode == 0, done.stderr
    would = [line for line in done.stdout.splitlines() if line.startswith("would run")]
    assert (
        len(would) == 4
        and "tensorwise_fp8_compiled seed 1: 60 steps" in would[3]
        and "28 linear" in would[3]
    )
    assert "python_stdlib: " in done.stdout


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ["tensorwise_fp8"],
            "unknown recipe `tensorwise_fp8`; did you mean tensorwise_fp8_compiled",
        ),
        (["baseline"], "submit it: sbatch"),
        (["baseline", "--overlay"], "--overlay needs a value"),
    ],
)
def test_login_node_mistakes(arguments, sentence):
    done = login(*arguments)
    assert done.returncode == 2 and done.stderr.startswith("error: ") and sentence in done.stderr


def test_a_run_over_nodes_is_checked_with_its_number_of_processes():
    """Without it the recipe that is for several GPUs would be refused."""
    said = login("--dry-run", "tensorwise_fp8_allgather", file=MULTINODE).stderr
    assert "bash launch/alps_fp8.sbatch --dry-run tensorwise_fp8_allgather --processes N" in said


# ---- jobs ----


@slurm
@pytest.mark.slow
def test_unknown_name_ends_the_job_at_once(cluster):
    job = cluster.submit(STUDY, "baseline", "rowise_fp8_compiled")
    state = cluster.wait(job)
    assert (state["JobState"], state["ExitCode"]) == ("FAILED", "2:0")
    assert state["RunTime"] <= "00:00:03"  # it takes longer to import torch
    assert "unknown recipe `rowise_fp8_compiled`; did you mean rowwise_fp8_compiled" in cluster.log(
        job
    )


@slurm
@pytest.mark.slow
def test_after_bad_input_there_is_nothing_to_go_on_with(cluster):
    job = cluster.submit(STUDY, "--overlay", "cpu", "baseline", "training.stepz=3")
    assert cluster.wait(job)["ExitCode"] == "2:0"
    assert "training.stepz: unknown key" in cluster.log(job) and "To go on" not in cluster.log(job)
    assert not (cluster.runs / f"fp8-{job}").exists()


@slurm
@pytest.mark.slow
def test_no_requeue_where_it_would_start_again_from_the_first_step(jobs):
    job = jobs["without_checkpoints"]
    state, log = job.end(), job.cluster.log(job.number)
    assert (state["ExitCode"], state["Restarts"]) == ("75:0", "0")
    assert manifest_of(job.run)["status"] == "interrupted" and "requeued;" not in log
    assert (
        "not requeued (without checkpoint.enable=true unfinished runs start again from step 1). To go on: "
        in log
    )


@slurm
@pytest.mark.slow
def test_four_recipes_side_by_side_each_on_its_own_gpu(four):
    folder, _, log = four
    manifests = [manifest_of(folder / recipe / "seed0") for recipe in FOUR]
    assert [m["hardware"]["visible_devices"] for m in manifests] == ["0", "1", "2", "3"]
    assert max(m["start"] for m in manifests) < min(
        m["end"] for m in manifests if m["status"] == "completed"
    )
    assert (
        "Should this Llama be trained in FP8?" in log
        and (folder / "report.html").stat().st_size > 10_000
    )


@slurm
@pytest.mark.slow
def test_one_failure_stops_no_other_and_shows_in_the_exit_code(four):
    folder, state, log = four
    assert (state["JobState"], state["ExitCode"]) == ("FAILED", "1:0")
    assert "baseline_compiled seed 0: killed by SIGKILL at step" in log
    for recipe in {*FOUR} - {"baseline_compiled"}:
        assert manifest_of(folder / recipe / "seed0")["status"] == "completed"


@slurm
@pytest.mark.slow
def test_more_runs_than_gpus_and_scancel(cluster, jobs, uninterrupted):
    """One GPU, two seeds: the second waits. Cancelled under the first, whose checkpoint the folder
    goes on from."""
    job = jobs["queue"]
    assert job.end()["JobState"] == "CANCELLED"
    until(lambda: manifest_of(job.run)["status"] != "running")
    assert (
        manifest_of(job.run)["status"] == "interrupted"
        and not (job.folder / "baseline/seed1").exists()
    )
    last = lines_of(job.run)[-1]["step"]
    assert losses_of(job.run) == uninterrupted[:last]
    again = cluster.submit("--gpus-per-node=1", STUDY, str(job.folder))
    assert cluster.wait(again)["JobState"] == "COMPLETED", cluster.log(again)
    runs = [job.folder / f"baseline/seed{seed}" for seed in (0, 1)]
    first, second = map(manifest_of, runs)
    assert first["attempt"] == 2 and first["end"] < second["start"]
    assert f"Training starts at step {last + 1}\n" in (runs[0] / "log.txt").read_text()
    assert losses_of(runs[0]) == uninterrupted != losses_of(runs[1])


@slurm
@pytest.mark.slow
def test_two_nodes_stop_together_are_requeued_and_go_on(cluster, jobs):
    job = jobs["two_nodes"]
    state = job.end()
    assert (state["JobState"], state["Restarts"]) == ("COMPLETED", "1"), cluster.log(job.number)
    first, last = manifest_of(job.run / "attempt1"), manifest_of(job.run)
    assert (first["status"], last["status"], last["world_size"]) == ("interrupted", "completed", 2)
    assert [line["step"] for line in lines_of(job.run)] == list(range(1, STEPS + 1))
    assert json.loads((job.run / "attempt1/proof.json").read_text())[
        "fp8_share_of_matmul_flops"
    ] == pytest.approx(0.75)


@slurm
@pytest.mark.slow
def test_time_limit_requeues_and_the_run_goes_on_where_it_was(jobs, uninterrupted):
    job = jobs["limited"]
    state = job.end()
    assert state["JobState"] == "COMPLETED" and int(state["Restarts"]) >= 1, job.cluster.log(
        job.number
    )
    assert manifest_of(job.run)["status"] == "completed" and losses_of(job.run) == uninterrupted
    before = (
        job.run / f"attempt{manifest_of(job.run)['attempt'] - 1}"
    )  # an earlier one may have met it while it started
    assert "by SIGUSR1, a checkpoint was saved" in manifest_of(before)["error"]
    stopped = lines_of(before)[-1]
    assert f"Training starts at step {stopped['step'] + 1}\n" in (job.run / "log.txt").read_text()
    wall = json.loads((job.run / "summary.json").read_text())["wall_s"]
    assert wall > stopped["elapsed_s"] + lines_of(job.run)[-1]["step_s"][0]  # all attempts count
