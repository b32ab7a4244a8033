"""Make one attempt at a run: its directory, its training, its end.

What the files of the directory hold is in experiments/records/run.py.
"""

import logging
import os
import platform
import re
import shlex
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.metadata import distributions
from pathlib import Path
from typing import NamedTuple, TextIO

import torch
from torch import distributed as dist
from torch.distributed.checkpoint.api import CheckpointException

from experiments.config.recipes import hash_text, require_same_recipe, to_yaml
from experiments.jobs.command import (
    EXIT_BAD_INPUT,
    EXIT_COMPLETED,
    EXIT_DIVERGED,
    EXIT_FAILED,
    Interrupted,
    StopRequest,
    configure_log,
)
from experiments.jobs.runner import CACHE_VARIABLES
from experiments.records import run as records
from experiments.records.files import (
    RETRY_HINT,
    check_folder,
    describe_full_disk,
    lock_folder,
    make_run_folder,
    write_whole,
)
from experiments.training import checkpoint, machine, places
from experiments.training.machine import CheckResult
from experiments.training.plan import OpenedPlan, Plan
from experiments.training.proof import ProofError
from experiments.training.sizes import explain_shortage
from experiments.training.trainer import Diverged, Trainer, casts_weights
from experiments.training.wandb_runs import name_wandb_run
from models import device
from models.errors import InputError

# The last two are not `Exception`s
FAILURES = (Exception, CheckpointException, KeyboardInterrupt)
# Their versions decide a run; Triton may be installed under another name
DECISIVE_PACKAGES = ("torch", "torchao", "torchtitan", "triton")
GIT_TIMEOUT_S = 20


class RunEnd(NamedTuple):
    """How a run ended: its status for the record, the exit code, and a sentence about an error."""

    status: records.Status
    exit_code: int
    error: str | None = None


def make_attempt(
    plan: OpenedPlan, results: list[CheckResult], out: Path | None, stop: StopRequest
) -> int:
    """Train into `out` (None: a new folder under runs/); return the exit code.

    Raises `InputError` for a folder that cannot be used.

    Args:
        results: what the checks of the machine and the data returned, for the log.
    """
    if plan.world_size == 1:
        init_single_process()
    out = out or make_run_folder(plan.recipe.name, plan.config.debug.seed)
    directory = RunDirectory(out, plan) if os.environ["RANK"] == "0" else None
    end = _train(plan, results, out, directory, stop)
    if dist.is_initialized():
        with only_logged("could not leave the process group cleanly"):
            # Ranks end after the last record: a launcher ends all of them when one has failed.
            # After a failure the other ranks may never come
            if end.status != "failed":
                dist.barrier()
            dist.destroy_process_group()
    return end.exit_code


def init_single_process() -> None:
    """Set torch.distributed, needed by torchtitan, to one process.

    The process then waits for no other one and needs no NCCL.
    """
    os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    dist.Backend.default_device_backend_map[device.TYPE] = "gloo"


@contextmanager
def log_full_disk_of_threads():
    """Log a sentence when a thread fails because the disk is full, as TensorBoard's does.

    The thread's next curve then ends the run.
    """
    usual_hook = threading.excepthook

    def log_full_disk(failure) -> None:
        sentence = describe_full_disk(failure.exc_value)
        if sentence:
            logging.warning(sentence)
        else:
            usual_hook(failure)

    threading.excepthook = log_full_disk
    try:
        yield
    finally:
        threading.excepthook = usual_hook


@log_full_disk_of_threads()
def _train(
    plan: OpenedPlan,
    results: list[CheckResult],
    out: Path,
    directory: "RunDirectory | None",
    stop: StopRequest,
) -> RunEnd:
    """Train in this process to any end; write the records; return the end.

    Args:
        directory: takes the records; None in all ranks except the first.
    """
    plan.config.job.dump_folder = str(out)  # where torchtitan writes
    if plan.config.metrics.enable_wandb:
        name_wandb_run(plan.recipe.name, plan.config.debug.seed, out)
    configure_log(out / records.LOG if directory else None, TrueLines(plan.config))
    for topic, sentence in results:
        level = logging.WARNING if topic == machine.TORCH_TOPIC else logging.INFO
        logging.log(level, f"{topic}: {sentence}")
    if directory:
        for note in directory.attempt.notes:
            logging.warning(note)
    trainer = None
    end = RunEnd("completed", EXIT_COMPLETED)
    try:
        trainer = Trainer(plan, stop, directory)
        machines, gpus = places.gather_places(trainer.all_reduce)
        if directory:
            directory.attempt.machines = machines
            directory.attempt.gpus = gpus
            directory.write()
        trainer.train(directory.checkpoint_step if directory else 0)
    except FAILURES as error:
        end = _describe_end(error, stop, plan, out)
    if trainer and directory:
        with only_logged("could not note what a reader should know"):
            directory.attempt.notes += trainer.notes()
    if trainer:
        with only_logged("could not close the run cleanly"):
            trainer.close()
    if end.error:  # last, so that a study shows it
        logging.error(end.error)
    if directory:
        directory.finish(end)
    return end


def _describe_end(error: BaseException, stop: StopRequest, plan: Plan, out: Path) -> RunEnd:
    """Map an exception of a run in the folder `out` to its end."""
    match error:
        case Interrupted():
            return RunEnd("interrupted", error.exit_code, str(error))
        case KeyboardInterrupt():
            sentence = f"stopped by {stop.signal_name} before the end of a step"
            return RunEnd("interrupted", stop.exit_code, sentence)
        case Diverged():
            return RunEnd("diverged", EXIT_DIVERGED, str(error))
        case InputError():
            return RunEnd("failed", EXIT_BAD_INPUT, str(error))
        case ProofError():
            return RunEnd("failed", EXIT_FAILED, str(error))
    return RunEnd("failed", EXIT_FAILED, _describe_failure(error, plan, out))


def _describe_failure(error: BaseException, plan: Plan, out: Path) -> str:
    """Say in a sentence why a run failed; log the traceback of what is not the machine's state."""
    is_about_checkpoint = isinstance(error, CheckpointException)
    cause = error
    if isinstance(error, CheckpointException):
        cause = checkpoint.find_first_cause(error)
    caches = [Path(os.environ[name]) for name in CACHE_VARIABLES if os.environ.get(name)]
    full_disk = describe_full_disk(cause, [out, *caches])
    if full_disk and is_about_checkpoint:
        return f"a checkpoint could not be written: {full_disk}: {RETRY_HINT}"
    if full_disk:
        return f"{full_disk}: {RETRY_HINT}"
    logging.error("the run failed", exc_info=error)
    if isinstance(cause, torch.OutOfMemoryError):
        return explain_shortage(plan)
    sentence = f"{type(cause).__name__}: {cause}"
    if is_about_checkpoint:
        sentence = f"a checkpoint could not be written or read: {sentence}"
    return sentence.splitlines()[0]


@contextmanager
def only_logged(sentence: str) -> Iterator[None]:
    """Log a failure within instead of raising it: why the run ended is known already."""
    try:
        yield
    except FAILURES as error:
        full_disk = describe_full_disk(error)
        if full_disk:
            logging.warning(f"{sentence}: {full_disk}")
        else:
            logging.warning(sentence, exc_info=True)


# ---- the run's directory ----


class RunDirectory:
    """A run directory, locked against other processes.

    Attributes:
        checkpoint_step: of the checkpoint to go on from; 0 without one.
        record: of the run.
        attempt: the last one of the record, which is this process. `write` puts changes of both on
            record.
    """

    def __init__(self, path: Path, plan: OpenedPlan):
        """Lock the directory, and put the beginning of this attempt on record.

        Raises `InputError` if the directory holds something else than this run unfinished, and if
        another live process holds it; then no record in it has changed. Raises OSError.
        """
        self.path = path
        self._lock, started_record, log = _claim_folder(path, plan.config.training.steps)
        require_same_recipe(path, plan.recipe)
        self.keeps_checkpoint = not plan.recipe.provenance.overlay_checkpoints
        self.checkpoint_step, notes = self._find_checkpoint(plan)
        # Recipe and log first: a full disk stops here
        write_whole(path / records.RECIPE, to_yaml(plan.recipe))
        (path / records.LOG).touch()
        attempts = started_record.attempts if started_record else []
        numbers = [attempt.number for attempt in attempts]
        numbers += [interval.attempt for interval in log]
        self.attempt = _make_attempt_record(plan, max(numbers, default=0) + 1, path)
        if self.checkpoint_step:
            notes += _note_lost_steps(path, log, self.checkpoint_step)
        elif numbers:
            notes.append(_note_new_beginning(log, plan.config.checkpoint.enable))
        self.attempt.notes = notes
        self.record = _make_run_record(plan, [*attempts, self.attempt])
        if started_record and self.checkpoint_step:
            self.record.proof = started_record.proof
        self.write()
        records.cut_torn_line(path / records.METRICS)

    def _find_checkpoint(self, plan: OpenedPlan) -> tuple[int, list[str]]:
        """Find the step of the checkpoint to go on from, and notes; 0 without one."""
        if not plan.config.checkpoint.enable:
            return 0, []
        step, notes = checkpoint.find_newest(
            self.path / records.CHECKPOINT, plan.identity, plan.config.training.steps
        )
        if not step:
            _check_initial_checkpoint(plan.config.checkpoint.initial_load_path)
        return step, notes

    def write(self) -> None:
        """Write run.json. Raises OSError."""
        self.record.write(self.path / records.RUN_RECORD)

    def finish(self, end: RunEnd) -> None:
        """Put the end on record and on the screen, and unlock the directory.

        A completed run keeps no checkpoint unless somebody asked for one. All ranks have written
        theirs by then, since a save ends in all ranks at once.
        """
        self.attempt.status = end.status
        self.attempt.error = end.error
        self.attempt.end = datetime.now(UTC)
        line = f"{end.status}: {self.path}"
        if end.error:
            line += f" ({end.error})"
        try:
            self.write()
            if end.status == "completed" and not self.keeps_checkpoint:
                for sentence in checkpoint.delete_all(self.path / records.CHECKPOINT):
                    logging.info(sentence)
        except OSError as error:  # a full disk: what was written before stays as it is
            line += f": not on record: {error.strerror or error}"
        self._lock.close()
        print(line)


def _note_lost_steps(path: Path, log: list[records.LogInterval], last_step: int) -> list[str]:
    """Word the steps from 1 to `last_step` without a line in a run's log."""
    logged_steps: set[int] = set()
    for interval in log:
        logged_steps.update(interval.steps)
    lost_steps = records.missing_steps(logged_steps, last_step)
    if not lost_steps:
        return []
    file = path / records.METRICS
    return [
        f"{file} has lost lines: steps {lost_steps} are not on record: a report leaves the run out"
    ]


def _note_new_beginning(log: list[records.LogInterval], has_checkpoints: bool) -> str:
    """Word which steps on record are made again, and the reason."""
    sentence = "checkpoint.enable is false: the run begins again at step 1"
    if has_checkpoints:
        sentence = "there is no whole checkpoint: the run begins again at step 1"
    if log:
        last_step = max(interval.step for interval in log)
        sentence += f", and makes {last_step} steps on record again"
    return sentence


def _check_initial_checkpoint(path: str | None) -> None:
    """Check the checkpoint that a run begins with; None for first weights drawn at random.

    Raises `InputError`.
    """
    damage = path and checkpoint.find_damage(Path(path))
    if damage:
        raise InputError(
            f"checkpoint.initial_load_path={path}: holds no whole checkpoint ({damage})"
        )


def _claim_folder(
    path: Path, steps: int
) -> tuple[TextIO, records.RunRecord | None, list[records.LogInterval]]:
    """Lock a run's folder; return the lock, and the records of an unfinished run in it.

    Raises `InputError` if the folder holds something else.
    """
    check_folder(path, "run", records.RECIPE, records.RUN_RECORD, records.MANIFEST_OF_LAYOUT_4)
    lock = lock_folder(path, "run")
    try:
        record = records.read_run_record(path)
        log = records.read_log(path / records.METRICS)
    except records.OtherLayout:
        raise
    except records.RecordError as error:
        raise InputError(
            f"{path} holds a damaged record: move it away to go on with the run, or choose another "
            f"--out:\n{error}"
        ) from None
    if record and record.status == "completed":
        raise InputError(_refuse_completed_run(path, record.steps, steps))
    return lock, record, log


def _refuse_completed_run(path: Path, completed_steps: int, steps: int) -> str:
    """Say how to train again, or for more steps, where a run is completed."""
    if steps <= completed_steps:
        return f"{path} holds a completed run: choose another --out, or delete it"
    sentence = (
        f"{path} holds a completed run of {completed_steps} steps, which cannot be made longer: "
        f"start a new run with training.steps={steps}"
    )
    checkpoints = checkpoint.list_checkpoints(path / records.CHECKPOINT)
    if checkpoints:
        key = f"checkpoint.initial_load_path={checkpoints[max(checkpoints)]}"
        sentence += f"; checkpoint.enable=true {shlex.quote(key)} begins it with this run's weights"
    return sentence


# ---- the records of a run ----


def _make_run_record(plan: OpenedPlan, attempts: list[records.Attempt]) -> records.RunRecord:
    """Write down what is trained."""
    recipe = plan.recipe
    config = plan.config
    training = config.training
    return records.RunRecord(
        recipe=recipe.name,
        base=recipe.provenance.base,
        overlays=recipe.provenance.overlays,
        description=recipe.description,
        seed=config.debug.seed,
        steps=training.steps,
        compiled=config.compile.compiles_model,
        world_size=plan.world_size,
        flavor=_name_model(config),
        parameters=plan.args.parameters(),
        flops_per_token=plan.flops_per_token,
        flops_per_token_causal=plan.args.flops_per_token(training.seq_len, causal=True),
        seq_len=training.seq_len,
        dataset=training.dataset,
        data=plan.token_file.path.name,
        attempts=attempts,
    )


def _make_attempt_record(plan: Plan, number: int, path: Path) -> records.Attempt:
    """Write down what works on the run, and where; write the environment file."""
    matmul = plan.fp8.matmul
    peak = device.find_peak_rates()
    commit = _ask_git("rev-parse", "HEAD")
    diff = _ask_git("diff", "HEAD")
    packages = _list_packages()
    environment = records.Environment(packages=dict(sorted(packages.items())), diff=diff)
    return records.Attempt(
        number=number,
        status="running",
        start=datetime.now(UTC),
        command=shlex.join([Path(sys.executable).name, *sys.orig_argv[1:]]),
        host=socket.gethostname(),
        pid=os.getpid(),
        python=platform.python_version(),
        packages={name: packages[name] for name in DECISIVE_PACKAGES if name in packages},
        environment=_write_environment(path, environment),
        git=records.Git(commit=commit and commit.strip(), changes=diff and hash_text(diff)),
        fp8_matmul=matmul and records.Fp8Matmul(how=matmul.kind, why=matmul.reason),
        hardware=records.Hardware(**machine.hardware()),
        peak_flops=peak and records.Peak(**peak._asdict()),
        cuda=torch.version.cuda,
        variables=places.read_variables(),
    )


def _list_packages() -> dict[str, str]:
    """List the versions of all packages; of two with one name, the one that Python imports."""
    versions: dict[str, str] = {}
    for package in distributions():  # in the order of sys.path: the first is imported
        if package.name:
            versions.setdefault(package.name, package.version)
    return versions


def _name_model(config) -> str:
    """Name the model in tables: its flavor, and changed sizes, as `cpu, dim 512`."""
    sizes = [f"{name} {size}" for name, size in vars(config.model.sizes).items() if size]
    return ", ".join([config.model.flavor, *sizes])


def _write_environment(path: Path, environment: records.Environment) -> str:
    """Write the environment file, of a study's runs once into its folder; return its name."""
    text = environment.model_dump_json(indent=2) + "\n"
    name = records.ENVIRONMENT_TEMPLATE.format(hash_text(text))
    folder = path
    study_folder = path.absolute().parent.parent  # with a folder a recipe, with a run a seed
    if (study_folder / records.STUDY_FILE).exists():
        folder = study_folder
    if not (folder / name).exists():
        write_whole(folder / name, text)
    return name


def _ask_git(*arguments: str) -> str | None:
    """Ask git of this code; None outside a git checkout, and for an empty answer."""
    try:
        answer = subprocess.check_output(
            ["git", *arguments],
            cwd=Path(__file__).parent,
            stderr=subprocess.DEVNULL,
            timeout=GIT_TIMEOUT_S,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.decode(errors="replace") or None


# ---- the log ----

# Lines, or parts of lines, of torchtitan and torch that do not hold for any run here
UNTRUE_PATTERNS = (
    r'"_enforced": .*\n\s*',
    r'"eos_id": .*\n\s*',  # the token file's end of text is another
    r" \(warmup \d+\)$",  # the line before it may have shortened that
    r"^Peak FLOPS used for computing MFU: nan$",
    r"  \S*mfu: nan%",
    r"^CPU memory usage for model.*",  # it is the memory of the process, libraries included
    r"(?s:^.*Profiler clears events at the end of each cycle.*)",  # the proof's has one
    r"(?s:^.*Torchinductor does not support code generation for complex operators.*)",  # RoPE's
)
NO_CAST_PATTERN = r"^Mixed precision training is handled by .*"


class TrueLines(logging.Filter):
    """Takes out of a run's log what is not true of the run."""

    def __init__(self, config):
        super().__init__()
        patterns = [*UNTRUE_PATTERNS]
        if not casts_weights(config):
            patterns.append(NO_CAST_PATTERN)
        self.untrue = re.compile("|".join(patterns))

    def filter(self, record: logging.LogRecord) -> bool:
        """Correct a line; return whether anything of it is left."""
        record.msg = self.untrue.sub("", record.getMessage())
        record.args = None
        return bool(record.msg)
