"""Describe the files of a run, and of a study beside its runs: their names and contents.

Training writes with these models and analysis reads with them; nothing else describes a run
directory. A study's folder has `study.yaml`, what the study was started with.

    recipe.yaml         fully resolved: `python -m experiments.run DIR/recipe.yaml` runs it again
    run.json            `RunRecord`: what was trained, every attempt at it, what ran in FP8
    metrics.jsonl       a `LogInterval` a line, of all attempts; after kill -9 its last line may be
                        torn. Steps that were made again have several lines: the last one counts
    environment-*.json  `Environment`: all packages and the diff to the commit, once a study
    log.txt             everything that was printed
    tb/                 TensorBoard
    checkpoint/         torchtitan's, where the recipe asks for it

A directory only grows: an attempt adds itself to run.json and its lines to metrics.jsonl. A study
that is kept in results/ has two files in place of its runs' directories, see analysis/runs.py.

Times are in seconds, sizes in bytes, rates per second over all devices, shares of 1. null is
unknown: a fact may be newer than the run.
"""

import errno
import os
import stat
from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from shlex import quote
from typing import Annotated, Literal, Self

from pydantic import (
    AwareDatetime,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from experiments.records.files import disk_full, write_whole
from models.errors import InputError

MAX_RECORD_BYTES = 2**30  # a log of a million intervals has 300 MB
MAX_PLANNED_RUNS = 5_000  # of a study
LayoutVersion = Literal[5]
LAYOUT_VERSION: LayoutVersion = 5  # of the directory; a record of another version is refused
NOT_STEADY_STEPS = 10  # the first of a process: compilation, allocator and clocks settle

RECIPE = "recipe.yaml"
RUN_RECORD = "run.json"
METRICS = "metrics.jsonl"
LOG = "log.txt"
CHECKPOINT = "checkpoint"
MANIFEST_OF_LAYOUT_4 = "manifest.json"
PACKED_RUNS = "runs.jsonl"  # of a kept study
ENVIRONMENT_TEMPLATE = "environment-{}.json"  # with a digest of its content
STUDY_FILE = "study.yaml"

# Limits that no run reaches, so that figures made of records are finite and dates exist.
Count = Annotated[int, Field(ge=0, lt=2**63)]  # what the length of a range can be
AtLeast1 = Annotated[int, Field(ge=1, lt=2**63)]
Steps = Annotated[int, Field(ge=1, le=10**9)]
AttemptNumber = Annotated[int, Field(ge=1, le=10_000)]
Seed = Annotated[int, Field(ge=0, lt=10**18)]
Flops = Annotated[int, Field(ge=0, lt=10**24)]
Number = Annotated[float, Field(ge=-1e39, le=1e39)]  # float32 ends at 3.4e38
Positive = Annotated[float, Field(gt=0, le=1e39)]
Seconds = Annotated[float, Field(ge=0, le=1e9)]
Share = Annotated[float, Field(ge=0, le=1)]
Moment = Annotated[
    AwareDatetime,
    Field(ge=datetime(1970, 1, 1, tzinfo=UTC), lt=datetime(2200, 1, 1, tzinfo=UTC)),
]
StepName = Annotated[str, Field(pattern=r"^[1-9][0-9]{0,8}$")]
Loss = Number | None
"""null where it was not finite."""
Status = Literal["running", "completed", "interrupted", "diverged", "failed"]
CacheState = Literal["cold", "warm", "none"]
StateKind = Literal["weights", "states"]


class StudyFile(BaseModel):
    """What a study was started with, as far as a reader of its runs needs it."""

    recipes: Annotated[list[str], Field(max_length=MAX_PLANNED_RUNS)] = []
    seeds: Annotated[list[Seed], Field(max_length=MAX_PLANNED_RUNS)] = []
    reference: str = "baseline"
    clock_start: str = "the process"  # what the wall times of its runs count from

    @model_validator(mode="after")
    def _limit_planned_runs(self) -> Self:
        if len(self.recipes) * len(self.seeds) > MAX_PLANNED_RUNS:
            raise ValueError(f"plans more than {MAX_PLANNED_RUNS} runs")
        return self


class RecordError(ValueError):
    """A record is missing or does not fit its model; the message names file and field."""


class OtherLayout(RecordError, InputError):
    """A run's directory is of another time; the message says what to do."""


def read_if_there(path: Path) -> bytes | None:
    """Read the file of a record; None if it is missing.

    Raises `RecordError` for what a sender may have put in its place: a link to anywhere, a pipe, a
    device, a folder, a file without end.
    """
    try:
        status = path.lstat()
        if not stat.S_ISREG(status.st_mode):
            raise RecordError(f"{path}: is not a file of its own: put a copy of the record there")
        if status.st_size > MAX_RECORD_BYTES:
            raise RecordError(f"{path}: is longer than {MAX_RECORD_BYTES:,} bytes, as no record is")
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise RecordError(f"{path}: {error.strerror}") from error


class Record(BaseModel):
    """A record with exactly these fields."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)

    def write(self, path: Path) -> None:
        """Write a record as JSON. Raises OSError."""
        write_whole(path, self.model_dump_json(indent=2) + "\n")

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a record. Raises `RecordError`."""
        content = read_if_there(path)
        if content is None:
            raise RecordError(f"{path}: {os.strerror(errno.ENOENT)}")
        return cls.parse(content, str(path))

    @classmethod
    def parse(cls, content: bytes, place: str) -> Self:
        """Read the JSON of a record. Raises `RecordError` with its `place`."""
        try:
            return cls.model_validate_json(content)
        except ValidationError as error:
            problem = error.errors(include_url=False)[0]
            field = ".".join(map(str, problem["loc"])) or "content"
            message = problem["msg"].removeprefix("Value error, ")
            if field == "layout_version":
                raise OtherLayout(
                    f"{place}: this directory has layout {problem['input']} and this code reads "
                    f"{LAYOUT_VERSION}: make the run again, or read it with the code of its own "
                    "commit"
                ) from error
            raise RecordError(f"{place}: {field}: {message}") from error


# ---- run.json ----


class Hardware(Record):
    type: Literal["cpu", "cuda"]
    name: str
    memory_bytes: AtLeast1
    threads: AtLeast1
    cpu: str | None = None
    cpu_instruction_sets: list[str] = []
    visible_devices: str | None = None  # CUDA_VISIBLE_DEVICES
    uuid: str | None = None  # of the GPU
    cudnn: str | None = None
    driver: str | None = None
    sm_clock_max_mhz: Number | None = None
    power_limit_w: Number | None = None
    vboost: Count | None = None  # a trade of memory clock for core clock


class Peak(Record):
    """Dense peak rates in FLOP/s."""

    bf16: Positive
    fp8: Positive | None
    source: str


class Fp8Matmul(Record):
    """How FP8 matrices are multiplied."""

    how: str
    why: str


class Git(Record):
    """The code: null outside a git checkout."""

    commit: str | None
    # Digest of the diff to the commit, which the environment file holds; null without changes. New
    # files that git does not know are in neither
    changes: str | None


class Timing(Record):
    time_to_first_step_s: Annotated[float, Field(gt=0, le=1e9)]  # from process start to its end
    startup: dict[str, Number]  # its breakdown
    compile_cache: CacheState


class Attempt(Record):
    """One process that worked on a run: its code, its machine, its end."""

    number: AttemptNumber
    status: Status
    start: Moment
    end: Moment | None = None
    error: str | None = None
    command: str
    host: str
    pid: Count
    python: str
    packages: dict[str, str]  # the versions that decide a run: torch, torchao, torchtitan, triton
    environment: str  # the name of the environment file
    git: Git
    fp8_matmul: Fp8Matmul | None
    hardware: Hardware
    peak_flops: Peak | None  # a GPU's by its datasheet, null without one; a CPU's as measured
    cuda: str | None
    # Of each rank: the boot id of its machine, and the UUID of its GPU. A CPU has no UUID
    machines: list[str | None] = []
    gpus: list[str | None] = []
    variables: dict[str, str] | None = None  # that can change code or speed
    timing: Timing | None = None  # once the first step is made
    notes: list[str] = []  # what a reader of the figures should know, seen by the end


class Stretch(Record):
    """The profile of one step, for a stretch of steps with the same work."""

    in_fp8: bool
    profiled_step: Steps
    gemm_flops: dict[str, Flops]  # by operator
    row_scaled_flops: Flops | None = None  # by FP8 matmuls that are given scales of rows
    compile_s: Seconds = 0.0  # of a stretch that begins later than the process

    @property
    def fp8_flops(self) -> int:
        """FLOPs of the FP8 matmuls."""
        return sum(count for name, count in self.gemm_flops.items() if "_scaled_mm" in name)


class Parameters(Record):
    """The parameters in the optimizer and outside it, and their moves in its first step."""

    trainable: Count  # tensors, as in the next line
    in_optimizer: Count
    elements_in_optimizer: Count
    orphans: list[str]  # trainable, but in no optimizer, as the recipe asks
    frozen: list[str]
    moved_in_first_step: Count
    still_in_first_step: list[str]
    dtype_cannot_hold_first_update: list[str]
    bytes_per_parameter: dict[StateKind, Number] = {}


class Proof(Record):
    """The evidence of what a run did; an extension adds its own under its name."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, dict]

    recipe_name: str | None  # quantize.linear.float8.recipe_name
    emulated: bool
    converted_modules: dict[str, list[Count]]  # name: shape of the weight
    profiled_step: Steps
    gemm_flops: dict[str, Flops]  # of the last stretch in FP8, where there is one
    fp8_flops: Flops  # per step of one device
    fp8_flops_expected: Flops  # by the converted layers, without what is computed twice
    stretches: dict[StepName, Stretch]  # by first step, ascending
    attention: str | None = None  # whose kernels computed it
    compiled_graphs: Count | None = None  # that torch.compile made
    parameters: Parameters

    @model_validator(mode="after")
    def _require_ascending_stretches(self) -> Self:
        if [*self.stretches] != sorted(self.stretches, key=int):
            raise ValueError("the first steps of stretches do not ascend")
        return self

    @property
    def fp8_share(self) -> float:
        """The FP8 share of the matmul FLOPs; 0 without a matmul."""
        return self.fp8_flops / max(1, sum(self.gemm_flops.values()))


class RunRecord(Record):
    """What a run trains, the attempts at it, and what it proved."""

    layout_version: LayoutVersion = LAYOUT_VERSION
    recipe: str
    base: str | None
    overlays: list[str]
    description: str
    seed: Count | None  # null where none was set: in a study of another program
    steps: Steps  # asked for
    compiled: bool  # the blocks, or the whole model; false if only the loss is compiled
    world_size: AtLeast1
    flavor: str
    parameters: AtLeast1
    flops_per_token: Positive
    flops_per_token_causal: Positive
    seq_len: AtLeast1
    dataset: str
    data: str | None  # the token file: name and digest of its content
    # Digests of the weights before step 1 and of the tokens of step 1; null of several processes,
    # each of which has a part
    first_weights: str | None = None
    first_batch: str | None = None
    attempts: Annotated[list[Attempt], Field(min_length=1)]  # ascending
    proof: Proof | None = None  # of the steps that count

    @property
    def last_attempt(self) -> Attempt:
        return self.attempts[-1]

    @property
    def status(self) -> str:
        return self.last_attempt.status


def read_run_record(folder: Path) -> RunRecord | None:
    """Read what a run's folder says of the run; None if no attempt was begun.

    Raises `RecordError`, and `OtherLayout` for a folder of another layout.
    """
    if (folder / RUN_RECORD).exists():
        return RunRecord.read(folder / RUN_RECORD)
    if (folder / MANIFEST_OF_LAYOUT_4).exists():
        raise OtherLayout(
            f"{folder}: this directory has layout 4 or older, and this code reads "
            f"{LAYOUT_VERSION}: convert it, or its study's folder: python -m tools.convert "
            f"{quote(str(folder))}"
        )
    return None


def check_layout(folder: Path) -> None:
    """Raise `InputError` for a run's folder of another layout; the run reports other faults."""
    try:
        read_run_record(folder)
    except OtherLayout:
        raise
    except RecordError:
        pass


class Environment(Record):
    """All installed packages, and how the code differs from its commit."""

    packages: dict[str, str]
    diff: str | None


# ---- metrics.jsonl ----


class LogInterval(Record):
    """A log interval: a line of metrics.jsonl. An extension adds a section of its name."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, dict[str, Number | None]]

    attempt: AttemptNumber
    step: Steps  # the last of the interval
    elapsed_s: Seconds  # wall time since the attempt's process started
    loss: Loss  # mean over the interval
    losses: list[Loss]  # of each step
    grad_norm: Number | None  # of the last step, before clipping; null where it was not finite
    lr: Number  # of the last step
    tokens_per_s: Positive  # over all steps of the interval, padding included
    valid_tokens_per_s: Annotated[float, Field(ge=0, le=1e39)]  # without padding
    # Duration of each step, measured from the end of the previous step, so it includes that step's
    # checkpoint or trace
    step_s: list[Annotated[float, Field(gt=0, le=1e9)]]
    # The host's wait for data in each step, which on a GPU may overlap with work
    data_wait_s: list[Seconds]
    # Steps that a table's rates leave out: a process's first 10, the first 3 of each stretch that
    # does the same work (one of them is profiled), and the step after one that saved a checkpoint
    # or a trace
    not_steady: list[Steps]
    # Steps in which the memory of a GPU was short: the allocator gave its cache back, which waits
    # for the GPU, and asked again
    allocator_retries: list[Steps] = []
    # Highest reserved memory of the device (on a CPU: resident set so far)
    peak_memory_bytes: Count
    mfu_bf16_peak: Number | None = None  # null where no datasheet gives the peak
    mfu_fp8_peak: Number | None = None
    mfu_mixed_peak: Number | None = None

    @model_validator(mode="after")
    def _require_values_of_each_step(self) -> Self:
        n_steps = len(self.step_s)
        if not 0 < n_steps == len(self.losses) == len(self.data_wait_s) <= self.step:
            raise ValueError("step_s, losses and data_wait_s have a value for each step")
        return self

    @property
    def steps(self) -> range:
        """The steps of the interval."""
        return range(self.step - len(self.step_s) + 1, self.step + 1)

    def append_to(self, path: Path) -> None:
        """Add a line to metrics.jsonl at once; a full disk tears at most this last line. Raises
        OSError."""
        line = f"{self.model_dump_json(exclude_defaults=True)}\n".encode()
        with disk_full(path, len(line)), open(path, "ab") as file:
            file.write(line)


def read_log(path: Path) -> list[LogInterval]:
    """Read the lines of all attempts: none if the file is missing, and no torn last line.

    Raises `RecordError`.
    """
    lines = (read_if_there(path) or b"").split(b"\n")[:-1]
    intervals = []
    for number, line in enumerate(lines, 1):
        intervals.append(LogInterval.parse(line, f"{path}: line {number}"))
    for previous, interval in pairwise(intervals):
        is_same_attempt = interval.attempt == previous.attempt
        has_repeated_steps = is_same_attempt and interval.steps[0] <= previous.step
        if interval.attempt < previous.attempt or has_repeated_steps:
            raise RecordError(f"{path}: step: the steps of an attempt's lines do not ascend")
    return intervals


def cut_torn_line(path: Path) -> None:
    """Take a torn last line off metrics.jsonl, which the next line would be added to. Raises
    OSError."""
    with suppress(FileNotFoundError), open(path, "r+b") as file:
        file.truncate(file.read().rfind(b"\n") + 1)


def missing_steps(steps: Iterable[int], last_step: int) -> str:
    """List the numbers from 1 to `last_step` missing in `steps`, as `1 to 4, 9`.

    Empty if no number is missing.
    """
    known_steps = sorted({step for step in steps if step <= last_step})
    gaps = []
    for previous, step in pairwise([0, *known_steps, last_step + 1]):
        if step == previous + 2:
            gaps.append(f"{previous + 1}")
        elif step > previous + 2:
            gaps.append(f"{previous + 1} to {step - 1}")
    return ", ".join(gaps)


def last_interval(folder: Path) -> LogInterval | None:
    """Read the newest whole line of a run's metrics.jsonl; None before the first one."""
    with suppress(OSError, ValueError, IndexError):
        line = (folder / METRICS).read_bytes().rsplit(b"\n", 2)[-2]
        return LogInterval.model_validate_json(line)
    return None


def last_step(folder: Path) -> int:
    """Read the last step on record; 0 before the first one."""
    interval = last_interval(folder)
    return interval.step if interval else 0
