"""The job files on a real Slurm with fake GPUs: submitted as a user submits them, with the CPU
overlay. Stand-ins train in the place of a study's runs; a run over two nodes is real."""

import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import pytest

from experiments.records.files import read, read_windows
from experiments.records.run import Manifest, Proof
from tests import processes
from tests.processes import ROOT

FOUR = ["baseline", "baseline_compiled", "rowwise_fp8_compiled", "tensorwise_fp8_compiled"]
STEPS = 60  # of the real run
STUDY, MULTINODE = "launch/alps_fp8.sbatch", "launch/alps_multinode.sbatch"
MEASURE, SLURM = "launch/measure_all.sh", "tests/launch/slurm.sh"
MISSING = "needs Slurm: slurmctld slurmd slurm-client munge libslurm-dev gcc"


# ---- without a cluster ----


@pytest.mark.skipif(not shutil.which("shellcheck"), reason="needs shellcheck")
def test_shell_files_are_clean():
    files = [*ROOT.glob("launch/*.s*"), *ROOT.glob("tests/launch/*.sh"), ROOT / ".ci/run"]
    processes.run(["shellcheck", "-x", *files])


def login(*arguments: str, file=STUDY) -> subprocess.CompletedProcess:
    """The job file as a program on a login node."""
    outside = {name: value for name, value in os.environ.items() if not name.startswith("SLURM")}
    environment = outside | {"PYTHON": sys.executable}
    return processes.run(["bash", file, *arguments], check=False, env=environment)


@pytest.mark.slow
def test_dry_run_on_a_login_node_says_what_would_run():
    done = login("--dry-run", "--overlay", "cpu", "baseline", "--seeds", "0,1")
    assert done.returncode == 0 and "would run baseline seed 1: 60 steps" in done.stdout, done


@pytest.mark.parametrize(
    ("arguments", "file", "code", "word"),
    [
        (["--help"], STUDY, 0, "MAX_REQUEUES"),
        (["-h"], MULTINODE, 0, "NAME [--overlay O]"),
        (["-h"], MEASURE, 0, "Exit codes"),
        (["tensorwise_fp8"], STUDY, 2, "did you mean `tensorwise_fp8_compiled`"),
        (["baseline"], STUDY, 2, "sbatch"),
        # without its number of processes the recipe for several GPUs would be refused
        (["--dry-run", "tensorwise_fp8_allgather"], MULTINODE, 2, f"{STUDY} --dry-run"),
        (["--dry-run", "sped"], MEASURE, 2, "speed"),
    ],
)
def test_help_and_mistakes(arguments, file, code, word):
    done = login(*arguments, file=file)
    assert done.returncode == code and word in done.stdout + done.stderr


def test_measure_all_names_recipes_and_studies_that_exist():
    known = {
        path.stem for path in [*ROOT.glob("recipes/**/*.yaml"), *ROOT.glob("extensions/*/*/*.yaml")]
    }
    printed = login("--dry-run", file=MEASURE).stdout
    named = re.findall(r"-m experiments\.study ([^-\n]*)", printed)
    assert len(named) > 10 and set(re.split(r"\+\S+|\s", " ".join(named))) - {""} <= known


def test_make_alone_lists_what_there_is():
    lines = processes.run(["make"]).stdout.splitlines()
    assert any(line.startswith("make study ") for line in lines)


@pytest.mark.parametrize(
    ("code", "keeps", "requeued", "words"),
    [
        (1, "true", 0, "not requeued (0 times so far). To go on: sbatch launch/alps_fp8.sbatch "),
        (2, "true", 0, ""),  # nothing to go on with
        (75, "false", 0, "not requeued (without checkpoint.enable=true"),
        (75, "true", 5, "not requeued (5 times so far)"),
    ],
)
def test_a_job_that_is_not_requeued_says_how_to_go_on(code, keeps, requeued, words, tmp_path):
    (tmp_path / "recipe.yaml").write_text(f"checkpoint:\n  enable: {keeps}\n")
    script = 'source launch/job.sh; out=$0; finish "$1" sbatch launch/alps_fp8.sbatch "$0"'
    ended = os.environ | {"SLURM_RESTART_COUNT": str(requeued)}
    done = processes.run(["bash", "-c", script, tmp_path, code], check=False, env=ended)
    assert done.returncode == code and words in done.stdout
    assert bool(done.stdout) == bool(words)


# ---- jobs ----


class Job(NamedTuple):
    """A job that was submitted."""

    number: str
    folder: Path

    def run(self, path: str = "baseline/seed0", name: str = "fp8") -> Path:
        return self.folder / "runs" / f"{name}-{self.number}" / path

    def log(self) -> str:
        return Path(self.folder, f"{self.number}.log").read_text()

    def end(self) -> str:
        """State, exit code and number of restarts."""
        state = {"JobState": ""}

        def ended() -> bool:
            state.update(re.findall(r"(\w+)=(\S+)", slurm("scontrol", "show", "job", self.number)))
            return state["JobState"] in ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT")

        self.until(ended)
        return f"{state['JobState']} {state['ExitCode']}, {state['Restarts']} restarts"

    def until(self, true) -> None:
        deadline = time.monotonic() + 300
        while not true():
            assert time.monotonic() < deadline, self.log()
            time.sleep(0.1)


def slurm(*command: str) -> str:
    return processes.run(command).stdout.strip()


def submit(folder: Path, *arguments: str, **variables: str) -> Job:
    """Arguments before the job file are sbatch's."""
    export = ",".join(["ALL", *(f"{name}={value}" for name, value in variables.items())])
    options = ["--parsable", f"--export={export}", f"--output={folder}/%j.log"]
    return Job(slurm("sbatch", *options, *arguments), folder)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Of a Slurm that is up; `runs` in it is where jobs keep theirs."""
    folder = tmp_path_factory.mktemp("slurm")
    with pytest.MonkeyPatch.context() as patch:
        try:
            up = subprocess.run([SLURM, "up", folder], capture_output=True, text=True, timeout=120)
            assert up.returncode == 0, up.stderr
            patch.setenv("SLURM_CONF", up.stdout.strip())
            patch.setenv("RUNS", str(folder / "runs"))
            patch.setenv("SCRATCH", str(folder))
            patch.setenv("PYTHON", "tests/launch/python.sh")
            patch.setenv("REAL_PYTHON", sys.executable)
            patch.setenv("OMP_NUM_THREADS", "1")  # many runs on two cores
            yield folder
        finally:
            processes.run([SLURM, "down", folder])


@pytest.fixture(scope="module")
def jobs(folder) -> dict[str, Job]:
    """All at once on four nodes; two are signalled once a run has made 11 steps, as before a time
    limit, and one is cancelled."""
    keys = ["--overlay", "cpu", "training.steps=200", "checkpoint.enable=true"]
    real = ["training.seq_len=64", "training.local_batch_size=1", f"training.steps={STEPS}",
            "compile.enable=false", "checkpoint.enable=true", "--overlay", "cpu"]  # fmt: skip
    allgather = ["--ntasks-per-node=1", MULTINODE, "tensorwise_fp8_allgather", *real]
    one = ["--gpus-per-node=1", STUDY, "baseline", *keys]
    jobs = {
        "two_nodes": submit(folder, *allgather),
        "four": submit(folder, STUDY, *keys, KILLED="baseline_compiled", STEP_S="0.02"),
        "queue": submit(folder, *one, "--seeds", "0,1", STEP_S="0.5"),
        "limited": submit(folder, *one, STEP_S="0.5"),
    }
    runs = {"two_nodes": jobs["two_nodes"].run("", "fp8-multinode")}
    runs |= {name: jobs[name].run() for name in ("queue", "limited")}
    for name, run in runs.items():
        jobs[name].until(lambda run=run: len(steps_of(run)) > 11)
        signals = [] if name == "queue" else ["--signal=USR1"]
        slurm("scancel", *signals, jobs[name].number)
    return jobs


def steps_of(run: Path) -> list[int]:
    return [window.step for window in read_windows(run / "metrics.jsonl")]


def manifest_of(run: Path) -> Manifest:
    return read(run / "manifest.json", Manifest)


def on_slurm(test):
    """Mark a test that needs a cluster."""
    path = os.environ["PATH"] + ":/usr/sbin"
    there = [shutil.which(name, path=path) for name in ("slurmctld", "slurmd", "munged", "gcc")]
    there.append(Path("/usr/include/slurm/spank.h").exists())
    return pytest.mark.slow(pytest.mark.skipif(not all(there), reason=MISSING)(test))


@on_slurm
def test_four_recipes_side_by_side_of_which_one_is_killed(jobs):
    job = jobs["four"]
    assert job.end() == "FAILED 1:0, 0 restarts"
    manifests = [manifest_of(job.run(f"{recipe}/seed0")) for recipe in FOUR]
    assert [m.hardware.visible_devices for m in manifests] == ["0", "1", "2", "3"]
    ends = ["completed", "running", "completed", "completed"]
    assert [manifest.status for manifest in manifests] == ends
    assert "baseline_compiled seed 0: killed by SIGKILL at step 12" in job.log()
    assert job.run("report.html").stat().st_size > 10_000


@on_slurm
def test_more_runs_than_gpus_and_scancel(folder, jobs):
    """One GPU, two seeds: the second waits. Cancelled under the first, which the folder goes on
    with."""
    job = jobs["queue"]
    assert job.end().startswith("CANCELLED")
    first, second = job.run(), job.run("baseline/seed1")
    job.until(lambda: manifest_of(first).status == "interrupted")
    assert not second.exists()
    again = submit(folder, "--gpus-per-node=1", STUDY, str(job.run("")))
    assert again.end() == "COMPLETED 0:0, 0 restarts", again.log()
    assert manifest_of(first).end < manifest_of(second).start
    assert steps_of(first) == [*range(1, 201)]


@on_slurm
def test_a_time_limit_requeues_a_study_with_checkpoints(jobs):
    job = jobs["limited"]
    assert job.end() == "COMPLETED 0:0, 1 restarts", job.log()
    assert steps_of(job.run()) == [*range(1, 201)]


@on_slurm
def test_two_nodes_stop_together_are_requeued_and_go_on(jobs):
    job = jobs["two_nodes"]
    assert job.end() == "COMPLETED 0:0, 1 restarts", job.log()
    run = job.run("", "fp8-multinode")
    first, last = manifest_of(run / "attempt1"), manifest_of(run)
    assert (first.status, last.status, last.world_size) == ("interrupted", "completed", 2)
    assert steps_of(run) == [*range(1, STEPS + 1)]
    proof = read(run / "attempt1/proof.json", Proof)
    assert proof.fp8_share_of_matmul_flops == pytest.approx(0.75)
