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
    BAD_INPUT,
    COME_BACK,
    COMPLETED,
    DIVERGED,
    FOR_GOOD,
    STARTER_PID,
    Stop,
)
from experiments.records.files import write_whole
from experiments.records.run import (
    LOG,
    RECIPE,
    RUN_RECORD,
    RecordError,
    RunRecord,
    last_interval,
    last_step,
)

CACHE_VARIABLES = {"TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"}
# Those that the user has not set. This is looked at before torch is imported, which sets one by
# itself.
COMPILE_CACHES = CACHE_VARIABLES - os.environ.keys()
COMMAND = "experiments.run"
LINE_EVERY_S = 10
GRACE_S = 30  # from a second Ctrl-C to the killing of what is deaf to it
NODES = Path("/sys/devices/system/node")
ENDS = {
    COMPLETED: "completed",
    DIVERGED: "diverged",
    COME_BACK: "interrupted",
    FOR_GOOD: "interrupted",
}


@dataclass(eq=False)
class Job:
    """A run of a study, from its turn to its end."""

    title: str
    directory: Path
    recipe: str  # the text of its recipe.yaml
    steps: int
    world_size: int = 1
    before: int = 0  # the last step on record when the study began
    attempt_number: int = 0  # of its process; 0 before the process has put its beginning on record
    code: int = COME_BACK  # how it ended: negative for a signal; COME_BACK if its turn did not come
    process: subprocess.Popen | None = None
    started: datetime | None = None
    gpus: list[str | None] = field(default_factory=list)
    caches: tempfile.TemporaryDirectory | None = None

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
        near = binding(gpus[0]) if len(gpus) == 1 else []  # else each process binds itself
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            write_whole(self.directory / RECIPE, self.recipe)
            self.caches = tempfile.TemporaryDirectory(
                prefix="compile-cache-", ignore_cleanup_errors=True
            )
            variables |= {name: f"{self.caches.name}/{name}" for name in COMPILE_CACHES}
            with open(self.directory / LOG, "a", encoding="utf-8") as log:
                # A session of its own: this process passes a terminal's Ctrl-C on
                self.started = datetime.now(UTC)
                self.process = subprocess.Popen(
                    [*near, sys.executable, "-m", COMMAND, str(self.directory)],
                    env=os.environ | variables,
                    stdout=subprocess.DEVNULL,
                    stderr=log,
                    start_new_session=True,
                )
        except OSError as error:  # the next run may find room
            self.code = BAD_INPUT
            self.say(f"failed: {error}")
            return False
        self.say(f"started on GPU {names}" if names else "started")
        return True

    def ended(self) -> bool:
        """Poll the process; once it has ended, set `code`, delete its caches and say how it ended.

        Returns whether it has ended.
        """
        self.before = min(self.before, self.step)  # without checkpoints a run begins again at 0
        self._say_beginning()
        code = self.process.poll()
        if code is None:
            return False
        self.code = code
        self.caches.cleanup()
        outcome = ENDS.get(code, "failed")
        if code < 0:
            outcome = f"killed by {signal.Signals(-code).name}"
        if self.step:
            outcome += f" at step {self.step}"
        if code:
            log = self.directory / LOG
            lines = log.read_text("utf-8", errors="replace").split("\n")
            outcome += ": " + next(filter(None, reversed(lines)), f"see {log}")
        self.say(outcome)
        return True

    def _say_beginning(self) -> None:
        """Say once what the run's record notes of its beginning, as damaged checkpoints."""
        if self.attempt_number:
            return
        with suppress(RecordError):  # there is none yet, or the run says what is wrong with it
            attempt = RunRecord.read(self.directory / RUN_RECORD).last_attempt
            if attempt.start >= self.started:
                self.attempt_number = attempt.number
                for note in attempt.notes:
                    self.say(note)

    def show(self, left_s: float) -> None:
        """Say how far the run is, and how many seconds are left for all of them."""
        interval = last_interval(self.directory)
        if interval and interval.attempt == self.attempt_number:
            self.say(
                f"step {interval.step}/{self.steps}  loss {interval.loss or math.nan:.3f}  "
                f"{interval.tokens_per_s:,.0f} tokens/s  "
                f"all runs: {timedelta(seconds=round(left_s))} left"
            )

    def say(self, event: str) -> None:
        print(f"{datetime.now():%H:%M:%S} {self.title}: {event}")


def run_all(runs: list[Job], stop: Stop) -> None:
    """Start runs and wait for them, as many at once as there are GPUs.

    A request to `stop` is passed on to the runs, and no other is started. No run takes more GPUs
    than there are.
    """
    stop.deferred = True
    for number, run in enumerate(runs, 1):
        run.title = f"[{number}/{len(runs)}] {run.title}"
    try:
        _work(runs, stop)
    finally:  # whatever ends the work ends the runs too
        _send(runs, signal.SIGTERM)
        stop.deferred = False


def _work(runs: list[Job], stop: Stop) -> None:
    """Start runs as GPUs become free, forward stop signals, and say how runs get on and end."""
    waiting, running, asked, kill_at = list(runs), [], False, math.inf
    line_at = begun = time.monotonic()
    while running or (waiting and not stop.code):
        try:
            if not stop.code:
                _start_next(waiting, running)
            time.sleep(0.2)
            if stop.code and not asked:
                asked = True
                _send(running, signal.SIGUSR1 if stop.code == COME_BACK else signal.SIGTERM)
            if time.monotonic() > kill_at:
                _send(running, signal.SIGKILL)
            running = [run for run in running if not run.ended()]
            if time.monotonic() > line_at + LINE_EVERY_S:
                line_at = time.monotonic()
                made = sum(run.step - run.before for run in runs)
                left = sum(run.steps - run.step for run in running + waiting)
                for run in running:
                    run.show((line_at - begun) / max(1, made) * left)
        except KeyboardInterrupt:  # a second Ctrl-C: runs do not wait for a step's end either
            kill_at = time.monotonic() + GRACE_S
            _send(running, signal.SIGINT)


def _start_next(waiting: list[Job], running: list[Job]) -> None:
    """Move runs from `waiting` to `running`, as far as there are free GPUs."""
    there = gpus()
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


def _send(runs: list[Job], request: signal.Signals) -> None:
    for run in runs:
        if run.process:
            run.process.send_signal(request)


# ---- folders and GPUs ----


def compile_folders() -> list[str]:
    """List the folders for the kernels of runs.

    The folder of temporary files stands for each variable that the user has not set.
    """
    named = (CACHE_VARIABLES - COMPILE_CACHES) & os.environ.keys()
    chosen = [os.environ[name] for name in named]
    return [*chosen, tempfile.gettempdir()] if COMPILE_CACHES else chosen


def gpus() -> list[str | None]:
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


def binding(gpu: str | None) -> list[str]:
    """Return the `numactl` command to bind a process to its Hopper GPU's Grace CPU and memory.

    The memory is the CPU's. Empty on other machines, where a GPU's number does not say which cores
    are near.
    """
    # A Grace Hopper lists each GPU's own memory as a node without cores
    cpus = [cores for cores in NODES.glob("node*/cpulist") if cores.read_text().strip()]
    numbered = gpu is not None and gpu.isdecimal()
    if not numbered or platform.machine() != "aarch64" or len(cpus) != len(gpus()):
        return []
    command = ["numactl", f"--cpunodebind={gpu}", f"--membind={gpu}"]
    # A container may lack numactl or forbid any choice: then nothing starts with it
    if not shutil.which("numactl"):
        return []
    permitted = subprocess.run([*command, "true"], capture_output=True).returncode == 0
    return command if permitted else []
