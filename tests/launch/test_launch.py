"""The job files on a real Slurm with fake GPUs: submitted as a user submits them, with the CPU
overlay. Stand-ins train in the place of a study's runs."""

import os
import re
import shlex
import shutil
import subprocess
import sys

import pytest

from experiments.config.recipes import FOUR_RECIPES
from experiments.jobs.progress import PROGRESS_MARK
from tests import processes
from tests.launch.jobs import Job, on_slurm, record_of, slurm, steps_of, submit
from tests.processes import ROOT

STUDY, MEASURE = "launch/alps_fp8.sbatch", "launch/measure_all.sh"


# ---- without a cluster ----


@pytest.mark.skipif(not shutil.which("shellcheck"), reason="needs shellcheck")
def test_shell_files_are_clean():
    patterns = ["launch/*.s*", "extensions/*/*.sbatch", "extensions/*/*.sh", "tests/launch/*.sh"]
    patterns += [".ci/run"]
    files = [file for pattern in patterns for file in ROOT.glob(pattern)]
    processes.run(["shellcheck", "-x", *files])


def login(line: str) -> subprocess.CompletedProcess:
    """A job file as a program on a login node."""
    outside = {name: value for name, value in os.environ.items() if not name.startswith("SLURM")}
    environment = outside | {"PYTHON": sys.executable}
    return processes.run(["bash", *line.split()], check=False, env=environment)


@pytest.mark.parametrize(
    ("line", "code", "word"),
    [
        (f"{STUDY} --help", 0, "MAX_REQUEUES"),
        (f"{STUDY} --dry-run --overlay cpu baseline --seeds 1,", 0, "would run baseline seed 1: "),
        (f"{STUDY} --dry-run tensorwise_fp8", 2, "did you mean `tensorwise_fp8_compiled`"),
        (f"{STUDY} --dry-run baseline --steps 5", 2, "training.steps=5"),
        (f"{STUDY} baseline", 2, "--dry-run"),
        (f"{MEASURE} --dry-run sped", 2, "speed"),
    ],
)
def test_on_a_login_node(line, code, word):
    done = login(line)
    assert done.returncode == code and word in done.stdout + done.stderr


def test_measure_all_names_recipes_and_studies_that_exist():
    known = {
        path.stem for path in [*ROOT.glob("recipes/**/*.yaml"), *ROOT.glob("extensions/*/*/*.yaml")]
    }
    printed = login(f"{MEASURE} --dry-run").stdout
    named = re.findall(r"-m experiments\.study ([^-\n]*)", printed)
    for line in re.findall(r"^[^#].* -m .*$", printed, re.MULTILINE):  # what can be pasted
        assert shutil.which(shlex.split(line)[0]), line
    assert named and set(re.split(r"\+\S+|\s", " ".join(named))) - {""} <= known


# ---- the end of a job ----

END = """
source launch/job.sh
out=$1 container=()
run_step $2
finish "$code" sbatch launch/alps_fp8.sbatch "$out"
"""


@pytest.fixture
def end(tmp_path, program):
    """Ends a job after a step of `code`, in which Python marked progress or did not."""
    program("scontrol", "echo SCONTROL $*; exit ${REFUSED-0}")
    out = tmp_path / "runs"

    def call(code: int, progress: bool = False, **variables: str):
        lines = [f"mkdir -p {out}; touch {out}/{PROGRESS_MARK}"] if progress else []
        program("srun", "\n".join([*lines, f"exit {code}"]))
        environment = os.environ | {"SLURM_JOB_ID": "7"} | variables
        done = processes.run(["bash", "-c", END, "job", out, "step"], check=False, env=environment)
        assert done.returncode == code and not done.stderr
        return done.stdout

    return call


def test_a_job_requeues_itself_only_after_progress_since_its_start(end):
    assert "SCONTROL requeue 7" in end(75, progress=True)
    for code in (75, 138):  # 138: SIGUSR1 before Python listened
        output = end(code)  # the mark of the start before does not count
        assert "SCONTROL" not in output and "not requeued" in output and "--time" in output
        assert "To resume: sbatch launch/alps_fp8.sbatch " in output


def test_a_job_that_is_not_requeued_says_why(end):
    assert "requeued 5 times" in end(75, progress=True, SLURM_RESTART_COUNT="5")
    variables = {"SLURM_RESTART_COUNT": "2", "MAX_REQUEUES": "2"}
    assert "requeued 2 times" in end(75, progress=True, **variables)
    refused = end(75, progress=True, REFUSED="1")
    assert "SCONTROL requeue 7" in refused and "not requeued (Slurm" in refused


def test_other_ends_of_a_job(end):
    assert end(0) == end(2) == ""  # after bad input there is nothing to resume
    for code in (1, 3, 130, 137):
        assert "To resume: sbatch launch/alps_fp8.sbatch " in end(code)


# ---- jobs ----


@pytest.fixture(scope="module")
def jobs(slurm_folder) -> dict[str, Job]:
    """All at once on four nodes; of two that have made some steps one is cancelled, and one is
    signalled, as before a time limit."""
    keys = ["--overlay", "cpu", "training.steps=200", "checkpoint.enable=true"]
    one = ["--gpus-per-node=1", STUDY, "baseline", *keys]
    four = submit(slurm_folder, STUDY, *keys, KILLED="baseline_compiled", STEP_S="0.02")
    queue = submit(slurm_folder, *one, "--seeds", "0,1", STEP_S="0.5")
    limited = submit(slurm_folder, *one, STEP_S="0.5")
    for job, signals in (queue, []), (limited, ["--signal=USR1"]):
        run = job.run()
        job.until(lambda run=run: len(steps_of(run)) > 2)
        slurm("scancel", *signals, job.number)
    return {"four": four, "queue": queue, "limited": limited}


@on_slurm
def test_four_recipes_side_by_side_of_which_one_is_killed(jobs):
    job = jobs["four"]
    assert job.end() == "FAILED 1:0, 0 restarts"
    ran = [record_of(job.run(f"{recipe}/seed0")) for recipe in FOUR_RECIPES]
    assert [(each.last_attempt.hardware.visible_devices, each.status) for each in ran] == [
        ("0", "completed"), ("1", "running"), ("2", "completed"), ("3", "completed"),
    ]  # fmt: skip
    assert "baseline_compiled seed 0: killed by SIGKILL at step 12" in job.log()
    assert job.run("report.html").exists()


@on_slurm
def test_more_runs_than_gpus_and_scancel(slurm_folder, jobs):
    """One GPU, two seeds: the second waits. Cancelled under the first, which the folder goes on
    with."""
    job = jobs["queue"]
    assert job.end().startswith("CANCELLED")
    first, second = job.run(), job.run("baseline/seed1")
    job.until(lambda: record_of(first).status == "interrupted")
    assert not second.exists()
    again = submit(slurm_folder, "--gpus-per-node=1", STUDY, str(job.run("")))
    assert again.end() == "COMPLETED 0:0, 0 restarts", again.log()
    assert record_of(first).last_attempt.end < record_of(second).last_attempt.start
    assert steps_of(first) == [*range(1, 201)]


@on_slurm
def test_a_time_limit_requeues_a_study_with_checkpoints(jobs):
    job = jobs["limited"]
    assert job.end() == "COMPLETED 0:0, 1 restarts", job.log()
    assert steps_of(job.run()) == [*range(1, 201)]
    assert "sbatch launch/alps_fp8.sbatch " in job.log() and ".venv/bin/python -m" not in job.log()
