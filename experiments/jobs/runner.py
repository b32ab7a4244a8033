"""Start runs as processes, as many at once as there are GPUs, and watch them.

Each run of a study compiles in empty cache folders of its own, which are removed after it:
otherwise the first run would pay for what later runs compile, and their times to the first step
would not compare.
"""

import itertools
import math
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from experiments.jobs.command import (
    EXIT_BAD_INPUT,
    EXIT_COMPLETED,
    EXIT_DIVERGED,
    EXIT_RESUME,
    EXIT_STOPPED,
    STARTER_PID,
    StopRequest,
)
from experiments.records.files import write_whole
from experiments.records.run import (
    LOG,
    MANIFEST,
    RECIPE,
    Manifest,
    RecordError,
    last_interval,
    last_step,
)

CACHE_VARIABLES = {"TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"}
# Those that the user has not set. This is looked at before torch is imported, which sets one by
# itself.
UNSET_CACHE_VARIABLES = CACHE_VARIABLES - os.environ.keys()
RUN_MODULE = "experiments.run"
PROGRESS_INTERVAL_S = 10
KILL_AFTER_S = 30  # from a second Ctrl-C to the killing of what is deaf to it
MEMORY_NODES = Path("/sys/devices/system/node")
ENDING_BY_EXIT_CODE = {
    EXIT_COMPLETED: "completed",
    EXIT_DIVERGED: "diverged",
    EXIT_RESUME: "interrupted",
    EXIT_STOPPED: "interrupted",
}


@dataclass(eq=False)
class RunProcess:
    """A run of a study, from its turn to its end."""

    title: str
    directory: Path
    recipe: str  # the text of its recipe.yaml
    steps: int
    world_size: int = 1
    steps_before: int = 0  # the last step on record when the study began
    exit_code: int = (
        EXIT_RESUME  # how it ended: negative for a signal; EXIT_RESUME if its turn did not come
    )
    process: subprocess.Popen | None = None
    unreported_start: datetime | None = (
        None  # until the run has put the beginning of its process on record
    )
    gpus: list[str | None] = field(default_factory=list)
    cache_folder: tempfile.TemporaryDirectory | None = None

    @property
    def step(self) -> int:
        """The last step on record."""
        return last_step(self.directory)

    def start(self, gpus: list[str | None]) -> bool:
        """Start the run on some GPUs, near the cores and memory of one; False if the disk is full.

        stderr is added to the run's log; stdout, which repeats the log, is dropped.
        """
        self.gpus, names = gpus, ",".join(gpu for gpu in gpus if gpu)
        variables = {STARTER_PID: str(os.getpid())}
        if names:
            variables["CUDA_VISIBLE_DEVICES"] = names
        near = (
            find_numa_command(gpus[0]) if len(gpus) == 1 else []
        )  # else each process binds itself
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            write_whole(self.directory / RECIPE, self.recipe)
            self.cache_folder = tempfile.TemporaryDirectory(
                prefix="compile-cache-", ignore_cleanup_errors=True
            )
            variables |= {
                name: f"{self.cache_folder.name}/{name}" for name in UNSET_CACHE_VARIABLES
            }
            with open(self.directory / LOG, "a", encoding="utf-8") as log:
                # A session of its own: this process passes a terminal's Ctrl-C on
                self.unreported_start = datetime.now(UTC)
                self.process = subprocess.Popen(
                    [*near, sys.executable, "-m", RUN_MODULE, str(self.directory)],
                    env=os.environ | variables,
                    stdout=subprocess.DEVNULL,
                    stderr=log,
                    start_new_session=True,
                )
        except OSError as error:  # the next run may find room
            self.exit_code = EXIT_BAD_INPUT
            self.report(f"failed: {error}")
            return False
        self.report(f"started on GPU {names}" if names else "started")
        return True

    def poll_and_report(self) -> bool:
        """Poll the process; once it has ended, set `code`, delete its caches and say how it ended.

        Returns whether it has ended.
        """
        self.steps_before = min(
            self.steps_before, self.step
        )  # without checkpoints a run begins again at 0
        self._report_notes()
        code = self.process.poll()
        if code is None:
            return False
        self.exit_code = code
        self.cache_folder.cleanup()
        outcome = ENDING_BY_EXIT_CODE.get(code, "failed")
        if code < 0:
            outcome = f"killed by {signal.Signals(-code).name}"
        if self.step:
            outcome += f" at step {self.step}"
        if code:
            log = self.directory / LOG
            lines = log.read_text("utf-8", errors="replace").split("\n")
            outcome += ": " + next(filter(None, reversed(lines)), f"see {log}")
        self.report(outcome)
        return True

    def _report_notes(self) -> None:
        """Say once what the run's manifest notes of its beginning, as damaged checkpoints."""
        if not self.unreported_start:
            return
        with suppress(RecordError):  # there is none yet, or the run says what is wrong with it
            manifest = Manifest.read(self.directory / MANIFEST)
            if manifest.start >= self.unreported_start:
                self.unreported_start = None
                for note in manifest.notes:
                    self.report(note)

    def report_progress(self, left_s: float) -> None:
        """Say how far the run is, and how many seconds are left for all of them."""
        interval = last_interval(self.directory)
        if interval:
            self.report(
                f"step {interval.step}/{self.steps}  loss {interval.loss or math.nan:.3f}  "
                f"{interval.tokens_per_s:,.0f} tokens/s  "
                f"all runs: {timedelta(seconds=round(left_s))} left"
            )

    def report(self, event: str) -> None:
        print(f"{datetime.now():%H:%M:%S} {self.title}: {event}")


def run_all(runs: list[RunProcess], stop: StopRequest) -> None:
    """Start runs and wait for them, as many at once as there are GPUs.

    A request to `stop` is passed on to the runs, and no other is started. No run takes more GPUs
    than there are.
    """
    stop.waits_for_step_end = True
    for number, run in enumerate(runs, 1):
        run.title = f"[{number}/{len(runs)}] {run.title}"
    try:
        _run_queue(runs, stop)
    finally:  # whatever ends the work ends the runs too
        _send_signal(runs, signal.SIGTERM)
        stop.waits_for_step_end = False


def _run_queue(runs: list[RunProcess], stop: StopRequest) -> None:
    """Start runs as GPUs become free, forward stop signals, and say how runs get on and end."""
    waiting, running, asked, kill_at = list(runs), [], False, math.inf
    line_at = begun = time.monotonic()
    while running or (waiting and not stop.exit_code):
        try:
            if not stop.exit_code:
                _start_waiting(waiting, running)
            time.sleep(0.2)
            if stop.exit_code and not asked:
                asked = True
                _send_signal(
                    running, signal.SIGUSR1 if stop.exit_code == EXIT_RESUME else signal.SIGTERM
                )
            if time.monotonic() > kill_at:
                _send_signal(running, signal.SIGKILL)
            running = [run for run in running if not run.poll_and_report()]
            if time.monotonic() > line_at + PROGRESS_INTERVAL_S:
                line_at = time.monotonic()
                made = sum(run.step - run.steps_before for run in runs)
                left = sum(run.steps - run.step for run in running + waiting)
                for run in running:
                    run.report_progress((line_at - begun) / max(1, made) * left)
        except KeyboardInterrupt:  # a second Ctrl-C: runs do not wait for a step's end either
            kill_at = time.monotonic() + KILL_AFTER_S
            _send_signal(running, signal.SIGINT)


def _start_waiting(waiting: list[RunProcess], running: list[RunProcess]) -> None:
    """Move runs from `waiting` to `running`, as far as there are free GPUs."""
    there = list_visible_gpus()
    while waiting:
        taken = list(itertools.chain.from_iterable(run.gpus for run in running))
        free = [gpu for gpu in there if gpu not in taken]
        # without GPUs the machine is one, for all processes
        count = min(waiting[0].world_size, len(there))
        if count > len(free):
            return
        run = waiting.pop(0)
        if run.start(free[:count]):
            running.append(run)


def _send_signal(runs: list[RunProcess], request: signal.Signals) -> None:
    for run in runs:
        if run.process:
            run.process.send_signal(request)


# ---- folders and GPUs ----


def list_compile_folders() -> list[str]:
    """List the folders for the kernels of runs.

    The folder of temporary files stands for each variable that the user has not set.
    """
    named = (CACHE_VARIABLES - UNSET_CACHE_VARIABLES) & os.environ.keys()
    chosen = [os.environ[name] for name in named]
    return [*chosen, tempfile.gettempdir()] if UNSET_CACHE_VARIABLES else chosen


def list_visible_gpus() -> list[str | None]:
    """List the GPUs of CUDA_VISIBLE_DEVICES (indices or UUIDs), or all of this machine.

    [None] without a GPU, whatever the variable says.
    """
    import torch

    count = torch.cuda.device_count()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = [str(index) for index in range(count)]
    if visible:
        names = [name.strip() for name in visible.split(",")]
    return names[:count] or [None]


def find_numa_command(gpu: str | None) -> list[str]:
    """Return the `numactl` command to bind a process to its Hopper GPU's Grace CPU and memory.

    The memory is the CPU's. Empty on other machines, where a GPU's number does not say which cores
    are near.
    """
    # A Grace Hopper lists each GPU's own memory as a node without cores
    cpus = [cores for cores in MEMORY_NODES.glob("node*/cpulist") if cores.read_text().strip()]
    numbered = gpu is not None and gpu.isdecimal()
    if not numbered or platform.machine() != "aarch64" or len(cpus) != len(list_visible_gpus()):
        return []
    command = ["numactl", f"--cpunodebind={gpu}", f"--membind={gpu}"]
    # A container may lack numactl or forbid any choice: then nothing starts with it
    if not shutil.which("numactl"):
        return []
    permitted = subprocess.run([*command, "true"], capture_output=True).returncode == 0
    return command if permitted else []
