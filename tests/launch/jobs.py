"""A real Slurm with fake GPUs for tests: jobs that are submitted as a user submits them."""

import os
import random
import re
import shutil
import socket
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import pytest

from experiments.records.run import RUN_RECORD, RunRecord, read_log
from tests import processes

SLURM = "tests/launch/slurm.sh"
MISSING = "needs Slurm: slurmctld slurmd slurm-client munge libslurm-dev gcc"
MOUNT = ["unshare", "--mount", "mount", "-t", "tmpfs", "none", "/mnt"]  # as container.py does


def find_free_ports(count: int) -> int:
    """Find the first of so many ports in a row that no process uses: tests of another clone may run
    at the same time. They lie below those that Linux gives away by itself."""
    while True:
        first = random.SystemRandom().randrange(10_000, 30_000)
        try:
            with ExitStack() as sockets:
                for port in range(first, first + count):
                    sockets.enter_context(socket.socket()).bind(("127.0.0.1", port))
        except OSError:
            continue
        return first


class Job(NamedTuple):
    """A job that was submitted."""

    number: str
    folder: Path

    def run(self, path: str = "baseline/seed0", name: str = "fp8") -> Path:
        return self.folder / "scratch/runs" / f"{name}-{self.number}" / path

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
    """Of a Slurm that is up; jobs keep their runs in `scratch/runs`. Its containers see `scratch`
    alone, and `host/capstor` as /capstor."""
    folder = tmp_path_factory.mktemp("slurm")
    for name in ("scratch", "host/capstor", "host/iopsstor"):
        (folder / name).mkdir(parents=True)
    with pytest.MonkeyPatch.context() as patch:
        if has_mounts():
            patch.setenv("PYTHON", sys.executable)
        patch.setenv("PORT", str(find_free_ports(5)))
        try:
            up = subprocess.run([SLURM, "up", folder], capture_output=True, text=True, timeout=120)
            assert up.returncode == 0, up.stderr
            variables = {
                "SLURM_CONF": up.stdout.strip(),
                "RUNS": f"{folder}/scratch/runs",
                "SCRATCH": f"{folder}/scratch",
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


def record_of(run: Path) -> RunRecord:
    return RunRecord.read(run / RUN_RECORD)


def has_mounts() -> bool:
    """Whether this user may mount file systems, as root may outside of most sandboxes."""
    return not os.geteuid() and not subprocess.run(MOUNT, capture_output=True).returncode


def in_container(test):
    """Mark a test that needs a cluster whose steps run in containers."""
    reason = "needs root, and mounts of its own: " + " ".join(MOUNT)
    return on_slurm(pytest.mark.skipif(not has_mounts(), reason=reason)(test))


def on_slurm(test):
    """Mark a test that needs a cluster."""
    path = os.environ["PATH"] + ":/usr/sbin"
    there = [shutil.which(name, path=path) for name in ("slurmctld", "slurmd", "munged", "gcc")]
    there.append(Path("/usr/include/slurm/spank.h").exists())
    return pytest.mark.slow(pytest.mark.skipif(not all(there), reason=MISSING)(test))
