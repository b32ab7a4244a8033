"""A real Slurm with fake GPUs for tests: jobs that are submitted as a user submits them."""

import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import pytest

from experiments.records.run import Manifest, read_log
from tests import processes

SLURM = "tests/launch/slurm.sh"
MISSING = "needs Slurm: slurmctld slurmd slurm-client munge libslurm-dev gcc"


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
        command = ["scontrol", "show", "job", self.number]
        over = re.compile(r"JobState=(COMPLETED|FAILED|CANCELLED|TIMEOUT) ")
        self.until(lambda: over.search(slurm(*command)))
        state = dict(re.findall(r"(\w+)=(\S+)", slurm(*command)))
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
def slurm_folder(tmp_path_factory):
    """Of a Slurm that is up; `runs` in it is where jobs keep theirs."""
    folder = tmp_path_factory.mktemp("slurm")
    with pytest.MonkeyPatch.context() as patch:
        try:
            up = subprocess.run([SLURM, "up", folder], capture_output=True, text=True, timeout=120)
            assert up.returncode == 0, up.stderr
            variables = {
                "SLURM_CONF": up.stdout.strip(),
                "RUNS": f"{folder}/runs",
                "SCRATCH": str(folder),
                "PYTHON": "tests/launch/python.sh",
                "REAL_PYTHON": sys.executable,
                "OMP_NUM_THREADS": "1",  # many runs on two cores
            }
            for name, value in variables.items():
                patch.setenv(name, value)
            yield folder
        finally:
            processes.run([SLURM, "down", folder])


def steps_of(run: Path) -> list[int]:
    return [interval.step for interval in read_log(run / "metrics.jsonl")]


def manifest_of(run: Path) -> Manifest:
    return Manifest.read(run / "manifest.json")


def on_slurm(test):
    """Mark a test that needs a cluster."""
    path = os.environ["PATH"] + ":/usr/sbin"
    there = [shutil.which(name, path=path) for name in ("slurmctld", "slurmd", "munged", "gcc")]
    there.append(Path("/usr/include/slurm/spank.h").exists())
    return pytest.mark.slow(pytest.mark.skipif(not all(there), reason=MISSING)(test))
