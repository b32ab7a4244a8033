"""Start runs as processes, as many at once as the machine has GPUs, and watch them.

Each run of a study compiles into empty cache folders, which are removed after it. With shared
folders the first run would compile for the later ones, and their times to the first step would not
compare.
"""

import math
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cache
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
from experiments.jobs.durations import (
    COMPILATION_HINT,
    Duration,
    RunProgress,
    Workload,
    estimate_remaining,
    measure_duration,
)
from experiments.records.files import write_whole
from experiments.records.run import (
    LOG,
    METRICS,
    RECIPE,
    RUN_RECORD,
    LogInterval,
    RecordError,
    RunRecord,
    last_interval,
    last_step,
    read_log,
)

CACHE_VARIABLES = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
RUN_MODULE = "experiments.run"
PROGRESS_INTERVAL_S = 10
LOG_PREFIX = r"^[\d-]+ [\d:]+ [A-Z]+ "  # time and level of a line: see `configure_log`
KILL_AFTER_S = 30  # from a second Ctrl-C to SIGKILL for runs that do not end
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
    workload: Workload
    world_size: int = 1
    description: str = ""  # of its plan
    steps_before: int = 0  # the last step on record when the study began
    # Negative for a signal; EXIT_RESUME for a run whose turn did not come
    exit_code: int = EXIT_RESUME
    is_stopping: bool = False  # a request to stop was passed on
    process: subprocess.Popen | None = None
    start_time: float | None = None  # of the process, by `time.monotonic`
    has_ended: bool = False
    duration: Duration | None = None  # of the attempt, once it has ended
    # When the process started; None once the notes in the run's record are printed
    unreported_start: datetime | None = None
    attempt_number: int = 0  # of the process, once its beginning is on record
    gpus: list[str | None] = field(default_factory=list)
    # Deleted when the run has ended
    temporary_folders: ExitStack = field(default_factory=ExitStack)

    @property
    def step(self) -> int:
        """The last step on record."""
        return last_step(self.directory)

    def start(self, gpus: list[str | None]) -> bool:
        """Start the run on `gpus`, near the cores and memory of a single GPU.

        The process appends its stderr to the run's log. Its stdout repeats the log and is dropped.
        Returns False if the disk is full.
        """
        self.gpus = gpus
        gpu_names = ",".join(gpu for gpu in gpus if gpu)
        variables = {STARTER_PID: str(os.getpid())}
        if gpu_names:
            variables["CUDA_VISIBLE_DEVICES"] = gpu_names
        else:
            variables |= describe_cpu_peak()
        # Each process of a run on several GPUs calls numactl itself
        numa_command = find_numa_command(gpus[0]) if len(gpus) == 1 else []
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            write_whole(self.directory / RECIPE, self.recipe)
            cache_folder = self.temporary_folders.enter_context(
                tempfile.TemporaryDirectory(prefix="compile-cache-", ignore_cleanup_errors=True)
            )
            for name in list_unset_cache_variables():
                variables[name] = f"{cache_folder}/{name}"
            with open(self.directory / LOG, "a", encoding="utf-8") as log:
                self.unreported_start = datetime.now(UTC)
                self.start_time = time.monotonic()
                self.process = subprocess.Popen(
                    [*numa_command, sys.executable, "-m", RUN_MODULE, str(self.directory)],
                    env=os.environ | variables,
                    stdout=subprocess.DEVNULL,
                    stderr=log,
                    start_new_session=True,  # this process passes a terminal's Ctrl-C on
                )
        except OSError as error:  # the next run may find room
            self.exit_code = EXIT_BAD_INPUT
            self.has_ended = True
            self.report(f"failed: {error}")
            return False
        event = f"started on GPU {gpu_names}" if gpu_names else "started"
        if self.workload.is_compiled:
            event += f"; {COMPILATION_HINT}"
        self.report(event)
        return True

    def poll_and_report(self) -> bool:
        """Poll the process; return True if it has ended.

        At its end this sets `exit_code`, deletes the caches and prints how the run ended.
        """
        # A run without checkpoints begins again at step 0
        self.steps_before = min(self.steps_before, self.step)
        self._report_notes()
        exit_code = self.process.poll() if self.process else self.exit_code
        if exit_code is None:
            return False
        self.exit_code = exit_code
        self.has_ended = True
        intervals = self._read_attempt()
        if intervals and self.start_time:
            self.duration = measure_duration(intervals, time.monotonic() - self.start_time)
        self.temporary_folders.close()
        if exit_code < 0 and self.is_stopping and -exit_code != signal.SIGKILL:
            ending = "stopped before its first step"  # it did not listen yet
        elif exit_code < 0:
            ending = f"killed by {signal.Signals(-exit_code).name}"
        else:
            ending = ENDING_BY_EXIT_CODE.get(exit_code, "failed")
        if self.step:
            ending += f" at step {self.step}"
        if exit_code and not ending.startswith("stopped"):
            ending += f": {self._read_last_log_line()}"
        self.report(ending)
        return True

    def _read_attempt(self) -> list[LogInterval]:
        """Read the log intervals of this process; none before its first step."""
        try:
            intervals = read_log(self.directory / METRICS)
        except RecordError:  # the run itself reports its fault
            return []
        return [interval for interval in intervals if interval.attempt == self.attempt_number]

    def read_progress(self) -> RunProgress:
        """Read how far the run is, or what it took."""
        if self.has_ended:
            return RunProgress(self.workload, 0, duration=self.duration, has_ended=True)
        if self.start_time is None:
            return RunProgress(self.workload, self.steps - self.steps_before)
        elapsed_s = time.monotonic() - self.start_time
        intervals = self._read_attempt()
        if not intervals:
            return RunProgress(self.workload, self.steps - self.steps_before, elapsed_s)
        return RunProgress(
            self.workload,
            self.steps - intervals[-1].step,
            elapsed_s,
            max(0.0, elapsed_s - intervals[-1].elapsed_s),
            measure_duration(intervals),
        )

    def _read_last_log_line(self) -> str:
        """Read the last line of the log that is not empty, without its time; name the log."""
        log = self.directory / LOG
        lines = log.read_text("utf-8", errors="replace").split("\n")
        for line in reversed(lines):
            if line:
                return f"{re.sub(LOG_PREFIX, '', line)} (log: {log})"
        return f"see {log}"

    def _report_notes(self) -> None:
        """Print the notes in the run's record once, as about damaged checkpoints."""
        if not self.unreported_start:
            return
        with suppress(RecordError):  # no record yet, or the run itself reports its fault
            attempt = RunRecord.read(self.directory / RUN_RECORD).last_attempt
            if attempt.start >= self.unreported_start:
                self.unreported_start = None
                self.attempt_number = attempt.number
                for note in attempt.notes:
                    self.report(note)

    def report_progress(self, remaining_s: float | None) -> None:
        """Print the run's last step, and the remaining seconds of all runs."""
        interval = last_interval(self.directory)
        if interval and interval.attempt == self.attempt_number:
            remaining = "unknown time"
            if remaining_s is not None:
                remaining = str(timedelta(seconds=round(remaining_s)))
            self.report(
                f"step {interval.step}/{self.steps}  loss {interval.loss or math.nan:.3f}  "
                f"{interval.tokens_per_s:,.0f} tokens/s  all runs: {remaining} left"
            )

    def report(self, event: str) -> None:
        """Print a line about the run."""
        print(f"{datetime.now():%H:%M:%S} {self.title}: {event}")


def run_all(runs: list[RunProcess], stop: StopRequest, earlier: Mapping[str, Duration]) -> None:
    """Start runs and wait for them, as many at once as the machine has GPUs.

    A request to stop is passed on to the runs, and no further run starts. A run takes at most the
    GPUs of this machine.

    Args:
        earlier: durations of earlier runs, by recipe, for the time that is left.
    """
    stop.waits_for_step_end = True
    for number, run in enumerate(runs, 1):
        run.title = f"[{number}/{len(runs)}] {run.title}"
    try:
        _run_queue(runs, stop, earlier)
    finally:  # any end of this function ends the runs too
        _send_signal(runs, signal.SIGTERM)
        stop.waits_for_step_end = False


def _run_queue(runs: list[RunProcess], stop: StopRequest, earlier: Mapping[str, Duration]) -> None:
    """Start runs as GPUs become free, forward stop signals, and report progress and ends."""
    waiting = list(runs)
    running: list[RunProcess] = []
    is_stopping = False
    kill_time = math.inf
    report_time = time.monotonic()
    while running or (waiting and not stop.exit_code):
        try:
            if not stop.exit_code:
                _start_waiting(waiting, running)
            time.sleep(0.2)
            if stop.exit_code and not is_stopping:
                is_stopping = True
                resumes = stop.exit_code == EXIT_RESUME
                _send_signal(running, signal.SIGUSR1 if resumes else signal.SIGTERM)
            if time.monotonic() > kill_time:
                _send_signal(running, signal.SIGKILL)
            running = [run for run in running if not run.poll_and_report()]
            if time.monotonic() > report_time + PROGRESS_INTERVAL_S:
                report_time = time.monotonic()
                remaining_s = estimate_remaining(
                    [run.read_progress() for run in runs], earlier, count_parallel_runs(runs)
                )
                for run in running:
                    run.report_progress(remaining_s)
        except KeyboardInterrupt:  # a second Ctrl-C: the runs end within their step
            kill_time = time.monotonic() + KILL_AFTER_S
            _send_signal(running, signal.SIGINT)


def count_parallel_runs(runs: list[RunProcess]) -> int:
    """Count the runs that this machine's GPUs have room for at a time."""
    max_world_size = max((run.world_size for run in runs), default=1)
    return max(1, len(list_visible_gpus()) // max_world_size)


def _start_waiting(waiting: list[RunProcess], running: list[RunProcess]) -> None:
    """Move runs from `waiting` to `running` while GPUs are free."""
    visible_gpus = list_visible_gpus()
    while waiting:
        used_gpus = [gpu for run in running for gpu in run.gpus]
        free_gpus = [gpu for gpu in visible_gpus if gpu not in used_gpus]
        # A machine without GPUs counts as one GPU, for all processes of a run
        n_gpus = min(waiting[0].world_size, len(visible_gpus))
        if n_gpus > len(free_gpus):
            return
        run = waiting.pop(0)
        if run.start(free_gpus[:n_gpus]):
            running.append(run)


def _send_signal(runs: list[RunProcess], number: signal.Signals) -> None:
    for run in runs:
        if run.process:
            run.is_stopping = True
            run.process.send_signal(number)


# ---- folders and GPUs ----


def list_unset_cache_variables() -> list[str]:
    """List the variables of compile caches that the user has not set.

    torch sets one of them while it is imported, to a folder that all runs would share.
    """
    from torch._inductor.runtime.cache_dir_utils import default_cache_dir

    unset_values: list[str | None] = [None]
    with suppress(KeyError, OSError):  # the user has no name, as in some containers
        unset_values.append(default_cache_dir())
    return [name for name in CACHE_VARIABLES if os.environ.get(name) in unset_values]


def list_compile_folders() -> list[str]:
    """List the folders for the compiled kernels of runs.

    The folder of temporary files stands for the variables that the user has not set.
    """
    unset_variables = list_unset_cache_variables()
    folders = [os.environ[name] for name in CACHE_VARIABLES if name not in unset_variables]
    if unset_variables:
        folders.append(tempfile.gettempdir())
    return folders


def list_visible_gpus() -> list[str | None]:
    """List the GPUs of CUDA_VISIBLE_DEVICES (indices or UUIDs), or all of this machine.

    Returns [None] on a machine without a GPU, with any value of the variable.
    """
    import torch

    n_gpus = torch.cuda.device_count()
    visible_devices = os.environ.get("CUDA_VISIBLE_DEVICES")
    names: list[str | None] = [str(index) for index in range(n_gpus)]
    if visible_devices:
        names = [name.strip() for name in visible_devices.split(",")]
    return names[:n_gpus] or [None]


@cache
def describe_cpu_peak() -> dict[str, str]:
    """Measure this CPU's peak once for all runs of a study, as a variable of their processes."""
    from models import device

    return {device.CPU_PEAK_VARIABLE: str(device.measure_cpu_peak())}


def find_numa_command(gpu: str | None) -> list[str]:
    """Return the `numactl` command that binds a process to the Grace CPU of its Hopper GPU, and to
    the memory of that CPU.

    Empty on other machines: there the number of a GPU does not tell the nearest cores.
    """
    if gpu is None or not gpu.isdecimal() or platform.machine() != "aarch64":
        return []
    # A Grace Hopper lists the memory of each GPU as a node without cores
    core_lists = [file.read_text().strip() for file in MEMORY_NODES.glob("node*/cpulist")]
    n_cpus = sum(cores != "" for cores in core_lists)
    if n_cpus != len(list_visible_gpus()):
        return []
    command = ["numactl", f"--cpunodebind={gpu}", f"--membind={gpu}"]
    # A container may lack numactl, or forbid every binding
    if not shutil.which("numactl"):
        return []
    is_permitted = subprocess.run([*command, "true"], capture_output=True).returncode == 0
    return command if is_permitted else []
