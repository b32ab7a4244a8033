"""Make one attempt at a run: its directory, its training, its end.

What the files of the directory hold is in experiments/records/run.py.
"""

import logging
import os
import platform
import shlex
import socket
import subprocess
import sys
import threading
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.metadata import distributions
from itertools import chain
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
from experiments.records import run as records
from experiments.records.files import (
    AGAIN,
    check_folder,
    full_disk,
    lock_folder,
    make_run_folder,
    write_whole,
)
from experiments.training import checkpoint, machine, places
from experiments.training.machine import Finding
from experiments.training.plan import Plan
from experiments.training.proof import ProofError
from experiments.training.sizes import explain_shortage
from experiments.training.trainer import Diverged, Trainer, TrueLines
from models import device
from models.errors import InputError

FAILURES = (Exception, CheckpointException, KeyboardInterrupt)  # two are BaseExceptions
# Triton may be installed under another name
_DECISIVE = ("torch", "torchao", "torchtitan", "triton")


class End(NamedTuple):
    """Status for the record, exit code, error sentence."""

    status: str
    code: int
    error: str | None = None


def run(plan: Plan, findings: list[Finding], out: Path | None, stop: StopRequest) -> int:
    """Train into `out` (None: a new folder under runs/); return the exit code.

    Raises `InputError` for a folder that cannot be used.
    """
    if plan.world_size == 1:
        init_single_process()
    out = out or make_run_folder(plan.recipe.name, plan.config.debug.seed)
    directory = RunDirectory(out, plan) if os.environ["RANK"] == "0" else None
    end = train(plan, findings, out, directory, stop)
    if dist.is_initialized():
        with only_logged("could not leave the process group cleanly"):
            # Ranks end after the last record: a launcher ends all of them when one has failed
            if end.status != "failed":  # else the others may never come
                dist.barrier()
            dist.destroy_process_group()
    return end.code


def init_single_process() -> None:
    """Set torch.distributed, needed by torchtitan, to this process alone.

    It then waits for nobody and needs no NCCL.
    """
    os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    dist.Backend.default_device_backend_map[device.TYPE] = "gloo"


@contextmanager
def threads_logged():
    """Log a sentence for a full disk in a thread, as in TensorBoard's: its next curve ends the
    run."""
    before = threading.excepthook

    def log(failed) -> None:
        full = full_disk(failed.exc_value, [])
        if full:
            logging.warning(full)
        else:
            before(failed)

    threading.excepthook = log
    try:
        yield
    finally:
        threading.excepthook = before


@threads_logged()
def train(
    plan: Plan,
    findings: list[Finding],
    out: Path,
    directory: "RunDirectory | None",
    stop: StopRequest,
) -> End:
    """Train in this process to the end, whatever it is; write the records; return the end.

    Args:
        findings: what was found before, for the log.
        directory: takes the records; None in all ranks but the first.
    """
    plan.config.job.dump_folder = str(out)  # where torchtitan writes
    log, after = (out / records.LOG, directory.step) if directory else (None, 0)
    trainer, end = None, End("completed", EXIT_COMPLETED)
    configure_log(log, TrueLines(plan.config))
    for topic, finding in findings:
        level = logging.WARNING if topic == machine.TORCH else logging.INFO
        logging.log(level, f"{topic}: {finding}")
    for note in directory.attempt.notes if directory else ():
        logging.warning(note)
    try:
        trainer = Trainer(plan, stop, directory)
        ranks = places.of_all_ranks(trainer.all_reduce)
        if directory:
            directory.attempt.machines = ranks["machines"]
            directory.attempt.gpus = ranks["gpus"]
            directory.write()
        trainer.train(after)
    except FAILURES as error:
        end = _end(error, stop, plan, out)
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


def _end(error: BaseException, stop: StopRequest, plan: Plan, out: Path) -> End:
    """Map an exception of a run in the folder `out` to its status and exit code."""
    match error:
        case Interrupted():
            return End("interrupted", error.exit_code, str(error))
        case KeyboardInterrupt():
            return End(
                "interrupted",
                stop.exit_code,
                f"stopped by {stop.signal_name} before the end of a step",
            )
        case Diverged():
            return End("diverged", EXIT_DIVERGED, str(error))
        case InputError():
            return End("failed", EXIT_BAD_INPUT, str(error))
        case ProofError():
            return End("failed", EXIT_FAILED, str(error))
    return End("failed", EXIT_FAILED, _failure(error, plan, out))


def _failure(error: BaseException, plan: Plan, out: Path) -> str:
    """Say in a sentence why a run failed; log the traceback of what is not the machine's state."""
    cause, task = error, ""
    if isinstance(error, CheckpointException):
        cause, task = checkpoint.cause_of(error), "a checkpoint could not be written or read: "
    full = full_disk(cause, _folders(out))
    if full:
        return f"{task.replace(' or read', '')}{full}: {AGAIN}"
    logging.error("the run failed", exc_info=error)
    if isinstance(cause, torch.OutOfMemoryError):
        return explain_shortage(plan)
    return f"{task}{type(cause).__name__}: {cause}".splitlines()[0]


def _folders(out: Path) -> list[Path]:
    """List the folders of a run's files: `out`, and the caches of compiled kernels."""
    caches = [os.environ.get(name) for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")]
    return [out, *(Path(folder) for folder in caches if folder)]


@contextmanager
def only_logged(sentence: str):
    """Log a failure within instead of raising it: why the run ended is known already."""
    try:
        yield
    except FAILURES as error:
        full = full_disk(error, [])
        logging.warning(f"{sentence}: {full}" if full else sentence, exc_info=not full)


# ---- the run's directory ----


class RunDirectory:
    """A run directory, locked against other processes.

    `step`: of the checkpoint to go on from; 0: none. `record`: of the run; `attempt`: the last one
    of the record, which is this process. `write` puts changes of both on record.
    """

    def __init__(self, path: Path, plan: Plan):
        """Lock the directory, and put the beginning of this attempt on record.

        Raises `InputError` if the directory holds something else than this run unfinished, and if
        another live process holds it; then no record in it has changed. Raises OSError.
        """
        self.path = path
        self._lock, earlier, log = _claim(path, plan.config.training.steps)
        require_same_recipe(path, plan.recipe)
        self.keeps_checkpoint = not plan.recipe.provenance.overlay_checkpoints
        self.step, notes = 0, []
        if plan.config.checkpoint.enable:
            folder, last = path / records.CHECKPOINT, plan.config.training.steps
            self.step, notes = checkpoint.newest(folder, plan.identity, last)
            if not self.step:
                _check_first(plan.config.checkpoint.initial_load_path)
        write_whole(path / records.RECIPE, to_yaml(plan.recipe))
        (path / records.LOG).touch()  # recipe and log first: a full disk stops here
        attempts = earlier.attempts if earlier else []
        numbers = [each.number for each in attempts] + [interval.attempt for interval in log]
        self.attempt = _attempt(plan, max(numbers, default=0) + 1, path)
        if self.step:
            notes += _lost_steps(path, log, self.step)
        elif numbers:
            notes += _begins_again(log, plan.config.checkpoint.enable)
        self.attempt.notes = notes
        self.record = _run_record(plan, [*attempts, self.attempt])
        if earlier and self.step:
            self.record.proof = earlier.proof
        self.write()
        records.cut_torn_line(path / records.METRICS)

    def write(self) -> None:
        """Write run.json. Raises OSError."""
        self.record.write(self.path / records.RUN_RECORD)

    def finish(self, end: End) -> None:
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


def _lost_steps(path: Path, log: list[records.LogInterval], last: int) -> list[str]:
    """Word the steps from 1 to `last` without a line in a run's log."""
    lost = records.missing_steps(chain(*(interval.steps for interval in log)), last)
    file = path / records.METRICS
    sentence = f"{file} has lost lines: steps {lost} are not on record: a report leaves the run out"
    return [sentence] if lost else []


def _begins_again(log: list[records.LogInterval], has_checkpoints: bool) -> list[str]:
    """Word which steps on record are made again, and the reason."""
    reason = "there is no whole checkpoint" if has_checkpoints else "checkpoint.enable is false"
    made = max((interval.step for interval in log), default=0)
    again = f", and makes {made} steps on record again" if made else ""
    return [f"{reason}: the run begins again at step 1{again}"]


def _check_first(path: str | None) -> None:
    """Check the checkpoint that a run begins with; None for first weights drawn at random.

    Raises `InputError`.
    """
    damage = path and checkpoint.find_damage(Path(path))
    if damage:
        raise InputError(
            f"checkpoint.initial_load_path={path}: holds no whole checkpoint ({damage})"
        )


def _claim(
    path: Path, steps: int
) -> tuple[TextIO, records.RunRecord | None, list[records.LogInterval]]:
    """Lock a run's folder; return the lock, and the records of an unfinished run in it.

    Raises `InputError` if the folder holds something else.
    """
    check_folder(path, "run", records.RECIPE, records.RUN_RECORD, records.MANIFEST_OF_LAYOUT_4)
    lock = lock_folder(path, "run")
    try:
        earlier = records.read_run_record(path)
        log = records.read_log(path / records.METRICS)
    except records.OtherLayout:
        raise
    except records.RecordError as error:
        fix = "move it away to go on with the run, or choose another --out"
        raise InputError(f"{path} holds a damaged record: {fix}:\n{error}") from None
    if earlier and earlier.status == "completed":
        sentence = f"{path} holds a completed run: choose another --out, or delete it"
        if steps > earlier.steps:
            sentence = (
                f"{path} holds a completed run of {earlier.steps} steps, which cannot be made "
                f"longer: start a new run with training.steps={steps}"
            )
        checkpoints = checkpoint.list_checkpoints(path / records.CHECKPOINT)
        if steps > earlier.steps and checkpoints:
            key = f"checkpoint.initial_load_path={checkpoints[max(checkpoints)]}"
            sentence += (
                f"; checkpoint.enable=true {shlex.quote(key)} begins it with this run's weights"
            )
        raise InputError(sentence)
    return lock, earlier, log


# ---- what a run says of itself ----


def _run_record(plan: Plan, attempts: list[records.Attempt]) -> records.RunRecord:
    """Write down what is trained."""
    recipe, config, training = plan.recipe, plan.config, plan.config.training
    return records.RunRecord(
        recipe=recipe.name,
        base=recipe.provenance.base,
        overlays=recipe.provenance.overlays,
        description=recipe.description,
        seed=config.debug.seed,
        steps=training.steps,
        compiled=config.compile.compiles_model,
        world_size=plan.world_size,
        flavor=_label(config),
        parameters=plan.args.parameters(),
        flops_per_token=plan.flops_per_token,
        flops_per_token_causal=plan.args.flops_per_token(training.seq_len, causal=True),
        seq_len=training.seq_len,
        dataset=training.dataset,
        data=plan.token_file.path.name,
        attempts=attempts,
    )


def _attempt(plan: Plan, number: int, path: Path) -> records.Attempt:
    """Write down what works on the run, and where; write the environment file."""
    matmul, peak = plan.fp8.matmul, device.find_peak_rates()
    commit, diff = _git("rev-parse", "HEAD"), _git("diff", "HEAD")
    packages = _packages()
    environment = records.Environment(packages=dict(sorted(packages.items())), diff=diff)
    return records.Attempt(
        number=number,
        status="running",
        start=datetime.now(UTC),
        command=shlex.join([Path(sys.executable).name, *sys.orig_argv[1:]]),
        host=socket.gethostname(),
        pid=os.getpid(),
        python=platform.python_version(),
        packages={name: packages[name] for name in _DECISIVE if name in packages},
        environment=_write_environment(path, environment),
        git={"commit": commit and commit.strip(), "changes": diff and hash_text(diff)},
        fp8_matmul=matmul and {"how": matmul.kind, "why": matmul.reason},
        hardware=machine.hardware(),
        peak_flops=peak and {"bf16": peak.bf16, "fp8": peak.fp8, "source": peak.source},
        cuda=torch.version.cuda,
        variables=places.variables(),
    )


def _packages() -> dict[str, str]:
    """List the versions of all packages; of two with one name, the one that Python imports."""
    first = reversed([*distributions()])  # in the order of sys.path: the first is imported
    return {package.name: package.version for package in first if package.name}


def _label(config) -> str:
    """Name the model in tables: its flavor, and changed sizes, as `cpu, dim 512`."""
    sizes = vars(config.model.sizes).items()
    return ", ".join([config.model.flavor, *(f"{name} {size}" for name, size in sizes if size)])


def _write_environment(path: Path, environment: records.Environment) -> str:
    """Write the environment file, of a study's runs once into its folder; return its name."""
    text = environment.model_dump_json(indent=2) + "\n"
    name = records.ENVIRONMENT.format(hash_text(text))
    above = path.absolute().parent.parent  # the study's folder is above the recipe's
    folder = above if (above / records.STUDY_FILE).exists() else path
    if not (folder / name).exists():
        write_whole(folder / name, text)
    return name


def _git(*arguments: str) -> str | None:
    """Ask git of this code; None outside a git checkout, and for an empty answer."""
    command, here = ["git", *arguments], Path(__file__).parent
    try:
        answer = subprocess.check_output(command, cwd=here, stderr=subprocess.DEVNULL, timeout=20)
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.decode(errors="replace") or None
