"""The job files on a real Slurm with fake GPUs: submitted as a user submits them, with the CPU
overlay. Stand-ins train in the place of a study's runs."""

import os
import re
import shutil
import subprocess
import sys

import pytest

from experiments.config.recipes import THE_FOUR
from tests import processes
from tests.launch.jobs import Job, manifest_of, on_slurm, slurm, steps_of, submit
from tests.processes import ROOT

STUDY, MEASURE = "launch/alps_fp8.sbatch", "launch/measure_all.sh"


# ---- without a cluster ----


@pytest.mark.skipif(not shutil.which("shellcheck"), reason="needs shellcheck")
def test_shell_files_are_clean():
    patterns = ["launch/*.s*", "extensions/*/*.sbatch", "tests/launch/*.sh", ".ci/run"]
    files = [file for pattern in patterns for file in ROOT.glob(pattern)]
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
        (["tensorwise_fp8"], STUDY, 2, "did you mean `tensorwise_fp8_compiled`"),
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


@pytest.fixture(scope="module")
def jobs(slurm_folder) -> dict[str, Job]:
    """All at once on four nodes; two are signalled once a run has made 11 steps, as before a time
    limit, and one is cancelled."""
    keys = ["--overlay", "cpu", "training.steps=200", "checkpoint.enable=true"]
    one = ["--gpus-per-node=1", STUDY, "baseline", *keys]
    jobs = {
        "four": submit(slurm_folder, STUDY, *keys, KILLED="baseline_compiled", STEP_S="0.02"),
        "queue": submit(slurm_folder, *one, "--seeds", "0,1", STEP_S="0.5"),
        "limited": submit(slurm_folder, *one, STEP_S="0.5"),
    }
    for name in ("queue", "limited"):
        run = jobs[name].run()
        jobs[name].until(lambda run=run: len(steps_of(run)) > 11)
        signals = [] if name == "queue" else ["--signal=USR1"]
        slurm("scancel", *signals, jobs[name].number)
    return jobs


@on_slurm
def test_four_recipes_side_by_side_of_which_one_is_killed(jobs):
    job = jobs["four"]
    assert job.end() == "FAILED 1:0, 0 restarts"
    manifests = [manifest_of(job.run(f"{recipe}/seed0")) for recipe in THE_FOUR]
    assert [m.hardware.visible_devices for m in manifests] == ["0", "1", "2", "3"]
    ends = ["completed", "running", "completed", "completed"]
    assert [manifest.status for manifest in manifests] == ends
    assert "baseline_compiled seed 0: killed by SIGKILL at step 12" in job.log()
    assert job.run("report.html").stat().st_size > 10_000


@on_slurm
def test_more_runs_than_gpus_and_scancel(slurm_folder, jobs):
    """One GPU, two seeds: the second waits. Cancelled under the first, which the folder goes on
    with."""
    job = jobs["queue"]
    assert job.end().startswith("CANCELLED")
    first, second = job.run(), job.run("baseline/seed1")
    job.until(lambda: manifest_of(first).status == "interrupted")
    assert not second.exists()
    again = submit(slurm_folder, "--gpus-per-node=1", STUDY, str(job.run("")))
    assert again.end() == "COMPLETED 0:0, 0 restarts", again.log()
    assert manifest_of(first).end < manifest_of(second).start
    assert steps_of(first) == [*range(1, 201)]


@on_slurm
def test_a_time_limit_requeues_a_study_with_checkpoints(jobs):
    job = jobs["limited"]
    assert job.end() == "COMPLETED 0:0, 1 restarts", job.log()
    assert steps_of(job.run()) == [*range(1, 201)]
