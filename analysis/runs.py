"""Read a run: how it was made (`facts`), and what each step took (`steps`).

A run is read from its directory, or from the two files of a study that is kept in results/:

    runs.jsonl      a line for each run: `PackedRun`
    steps.parquet   a row for each step of each attempt: the columns of `tabulate_log`, and `run`,
                    the run's folder

Times are in seconds. A share is a number from 0 to 1.
"""

import io
import math
import re
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any

import pandas as pd
import yaml

from experiments.config.yaml_with_origins import load_sections
from experiments.records.run import (
    METRICS,
    PACKED_RUNS,
    RECIPE,
    RUN_RECORD,
    Attempt,
    Environment,
    LogInterval,
    Proof,
    Record,
    RecordError,
    RunRecord,
    Stretch,
    Timing,
    missing_steps,
    read_if_there,
    read_log,
    read_run_record,
)

MIN_SEEDS = 3  # of each recipe, for a verdict on the loss
MIN_STEPS = 30  # of a run that is judged: the final loss is then the mean of three steps
MAX_ERROR_LENGTH = 200  # characters of an error message that an ending quotes
PACKED_STEPS = "steps.parquet"
LARGEST_NUMBER = 1e39  # beyond float32's largest: a log with a larger number is damaged
# Endings of runs.
COMPLETED = "completed"
DIVERGED = "diverged"
INTERRUPTED = "interrupted"
KILLED = "running or killed"
NO_RECORD = "left no record"
UNREADABLE = "unreadable records"
SHORT_LOG = "too short a log"
# Columns of a log's table, and their types. Extensions may add columns.
COLUMNS = {
    "attempt": int,
    "step": int,
    "is_steady": bool,
    "memory_was_short": bool,
    "loss": float,
    "step_s": float,
    "data_wait_s": float,
    "tokens": float,
    "valid_tokens": float,
    "peak_memory_bytes": float,
    "lr": float,
    "grad_norm": float,
    "elapsed_s": float,
}


# ---- steps ----


@cache
def empty_steps() -> pd.DataFrame:
    """Make the steps of a run without a log: one table for all such runs."""
    return steps_table(tabulate_log([]), {})


def tabulate_log(log: list[LogInterval]) -> pd.DataFrame:
    """Make a table of a log: a row for each step of each attempt.

    It has `COLUMNS`, and a column `EXTENSION.NAME` for what an extension adds.
    """
    # A log interval {step: 20, losses: [3.1, 3.0], step_s: [0.5, 0.6], lr: 0.01} becomes two rows:
    # 19: loss 3.1, step_s 0.5, lr NaN
    # 20: loss 3.0, step_s 0.6, lr 0.01
    rows: list[dict[str, Any]] = []
    columns = [*COLUMNS]
    for interval in log:
        mean_s = fmean(interval.step_s)
        for number, step in enumerate(interval.steps):
            row = {
                "attempt": interval.attempt,
                "step": step,
                "is_steady": step not in interval.not_steady,
                "memory_was_short": step in interval.allocator_retries,
                "loss": interval.losses[number],
                "step_s": interval.step_s[number],
                "data_wait_s": interval.data_wait_s[number],
                "tokens": interval.tokens_per_s * mean_s,
                "valid_tokens": interval.valid_tokens_per_s * mean_s,
                "peak_memory_bytes": interval.peak_memory_bytes,
            }
            rows.append(row)
        last_row = rows[-1]
        last_row["lr"] = interval.lr
        last_row["grad_norm"] = interval.grad_norm
        last_row["elapsed_s"] = interval.elapsed_s
        for extension, section in (interval.model_extra or {}).items():
            for key, value in section.items():
                column = f"{extension}.{key}"
                last_row[column] = value
                if column not in columns:
                    columns.append(column)
    return pd.DataFrame(rows, columns=columns).astype(COLUMNS)


def steps_table(log: pd.DataFrame, stretches: dict[str, Stretch]) -> pd.DataFrame:
    """Make `Run.steps` of the table of a log. `stretches`: of the proof, by first step."""
    attempt_s = log.groupby("attempt")["elapsed_s"].max()  # each attempt's clock begins at 0
    # The seconds of the attempts before each attempt
    earlier_attempts_s = log["attempt"].map(attempt_s.cumsum() - attempt_s)
    table = log.assign(wall_s=log["elapsed_s"] + earlier_attempts_s, in_fp8=True)
    table = table.drop(columns="elapsed_s")
    # A killed process loses its last steps; the next one makes them again.
    table = table.drop_duplicates("step", keep="last").set_index("step").sort_index()
    for first, stretch in stretches.items():
        table.loc[int(first) :, "in_fp8"] = stretch.in_fp8
    return table


# ---- a run ----


@dataclass(eq=False)
class PlannedRun:
    """A run of a study. `Run` is a planned run with records; others have no step.

    Args:
        seed: as text, because the seed of an unreadable run is its folder's name; empty if none
            was set.
        ending: how the run ended.
        lost_endings: how earlier attempts ended that failed or diverged, and whose steps were made
            again.
        place: the GPU, or the first of several, for people; the host if no GPU is on record; empty
            without records.
        steps: a row for each step, of the last attempt that made the step. Columns:
            `attempt`: its number, from 1.
            `is_steady`: the step counts for a rate.
            `in_fp8`: the step is in FP8.
            `loss`: in nats per token. `step_s`: seconds. `data_wait_s`: those spent on a wait for
            data. `tokens`, `valid_tokens`: with and without padding. `peak_memory_bytes`.
            `memory_was_short`: the allocator had to free cached memory.
            `lr`, `grad_norm`, `wall_s`, and `EXTENSION.NAME` of an extension: NaN except at the end
            of each log interval. `wall_s` counts all attempts, their starts included.
        steady_steps: the rows of `steps` that count for rates.
        clock: `wall_s` at the end of each log interval, by step.
        length: the last step of the log; 0 without a step.
        first_step_s: from process start to the end of the first step, the sum over all attempts;
            NaN if unknown.
        fp8_share: the FP8 share of the matmul FLOPs over all steps: NaN without proof, 0 if
            emulated.
    """

    recipe: str
    seed: str
    ending: str = NO_RECORD
    lost_endings: list[str] = field(default_factory=list)
    place: str = ""
    steps: pd.DataFrame = field(default_factory=empty_steps)
    steady_steps: pd.DataFrame = field(init=False)
    clock: pd.Series = field(init=False)
    length: int = field(init=False)
    first_step_s: float = field(init=False, default=math.nan)
    fp8_share: float = field(init=False, default=math.nan)

    def __post_init__(self) -> None:
        self.steady_steps = self.steps[self.steps["is_steady"]]
        self.clock = self.steps["wall_s"].dropna()
        self.length = max(self.steps.index, default=0)

    @property
    def name(self) -> str:
        return f"{self.recipe}/seed{self.seed}" if self.seed else self.recipe

    @property
    def completed(self) -> bool:
        """True if the run made all its steps."""
        return self.ending == COMPLETED


@dataclass(eq=False, kw_only=True)
class Run(PlannedRun):
    """A run with records.

    Args:
        path: the run directory.
        record: run.json.
        attempts: the attempts whose steps count.
        spans: start and end of each attempt; of a killed attempt the end of its log.
        packages: versions by the name of the environment file; None where the file is missing.
        facts: all known values of record, resolved recipe, proof and environment by key.path.
        unknown_prefixes: beginnings of the keys of which the records do not tell, for example
            because they are older than the keys.
        machines, gpus: names of the machines and GPUs that the run used; empty if unknown.
        timings: of each attempt that finished its first step.
    """

    path: Path
    record: RunRecord
    attempts: list[Attempt] = field(default_factory=list)
    spans: list[tuple[datetime, datetime]] = field(default_factory=list)
    packages: dict[str, dict[str, str] | None] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    unknown_prefixes: tuple[str, ...] = ()
    machines: frozenset[str] = frozenset()
    gpus: frozenset[str] = frozenset()
    timings: list[Timing] = field(init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.timings = list_timings(self.record)
        if self.timings:
            self.first_step_s = sum(timing.time_to_first_step_s for timing in self.timings)
        proof = self.record.proof
        if proof and proof.emulated:
            self.fp8_share = 0.0
        elif proof:
            self.fp8_share = proof.fp8_share * self.steps["in_fp8"].mean()


# ---- a run directory ----


def read_run(path: Path) -> Run:
    """Read a run directory. Raises `RecordError` if a record is missing or does not fit."""
    record = read_run_record(path)
    if record is None:
        raise RecordError(f"{path}: holds no {RUN_RECORD}")
    log = tabulate_log(read_log(path / METRICS))
    return make_run(path, record, log, read_yaml(path / RECIPE), read_environments(path, record))


def make_run(
    path: Path,
    record: RunRecord,
    log: pd.DataFrame,
    recipe: dict,
    environments: dict[str, Environment],
) -> Run:
    """Make a run of its records. Raises `RecordError` if they do not go together.

    Args:
        log: as `tabulate_log` makes it.
        recipe: the sections of recipe.yaml.
        environments: by the name of the environment file; missing where there is none.
    """
    check_attempts(path, record.attempts, log)
    steps = steps_table(log, record.proof.stretches if record.proof else {})
    attempts = find_counted_attempts(record, steps)
    packages: dict[str, dict[str, str] | None] = {}
    for attempt in attempts:
        environment = environments.get(attempt.environment)
        packages[attempt.environment] = environment.packages if environment else None
    last = record.last_attempt
    # The UUID is safer: Slurm may call every GPU of a host 0, and a container invents a host.
    place = last.hardware.uuid or last.host
    if not last.hardware.uuid and last.hardware.visible_devices:
        place = f"GPU {last.hardware.visible_devices} of {last.host}"
    run = Run(
        recipe=record.recipe,
        seed="" if record.seed is None else str(record.seed),
        ending=describe_ending(last),
        lost_endings=find_lost_endings(record.attempts, log, steps),
        place=place,
        steps=steps,
        path=path,
        record=record,
        attempts=attempts,
        spans=find_spans(record.attempts, log),
        packages=packages,
        facts=collect_facts(record, attempts, steps, recipe),
        unknown_prefixes=find_unknown_prefixes(record, attempts),
    )
    if run.completed and run.length < record.steps:
        run.ending = SHORT_LOG
    missing = missing_steps(steps.index, run.length)
    if run.completed and missing:
        raise RecordError(f"{path / METRICS}: has lost lines: steps {missing} are not on record")
    return run


def check_attempts(path: Path, attempts: list[Attempt], log: pd.DataFrame) -> None:
    """Check that each attempt with steps is on record, with its start and a clock that runs.

    Raises `RecordError`.
    """
    started = [attempt.number for attempt in attempts if attempt.timing]
    are_numbered = attempts[-1].number == len(attempts)
    if not are_numbered or not log["attempt"].isin(started).all():
        raise RecordError(f"{path / RUN_RECORD}: attempts: one that made steps is not on record")
    for _, clock in log.dropna(subset="elapsed_s").groupby("attempt")["elapsed_s"]:
        if not clock.is_monotonic_increasing:
            raise RecordError(f"{path / METRICS}: elapsed_s: the clock runs backwards")


def find_counted_attempts(record: RunRecord, steps: pd.DataFrame) -> list[Attempt]:
    """Find the attempts whose steps count; the last attempt if no step was made."""
    if steps.empty:
        return [record.last_attempt]
    return [record.attempts[number - 1] for number in steps["attempt"].unique()]


def list_timings(record: RunRecord) -> list[Timing]:
    """List the timings of the attempts that finished their first step."""
    return [attempt.timing for attempt in record.attempts if attempt.timing]


def find_spans(attempts: list[Attempt], log: pd.DataFrame) -> list[tuple[datetime, datetime]]:
    """Find the start and the end of each attempt; of a killed attempt the end of its log."""
    logged_s = log.groupby("attempt")["elapsed_s"].max()
    spans = []
    for attempt in attempts:
        end_of_log = attempt.start + timedelta(seconds=logged_s.get(attempt.number, 0))
        spans.append((attempt.start, attempt.end or end_of_log))
    return spans


def find_lost_endings(attempts: list[Attempt], log: pd.DataFrame, steps: pd.DataFrame) -> list[str]:
    """List how earlier attempts ended that failed or diverged, and whose steps were made again.

    An attempt that was stopped or killed is not listed: the resumed run has the same losses.
    """
    endings = []
    for attempt in attempts[:-1]:
        last_step = log["step"][log["attempt"] == attempt.number].max()
        # The steps up to here that no later attempt made again.
        counted_steps = steps.index[steps["attempt"] <= attempt.number]
        is_made_again = last_step > max(counted_steps, default=0)
        if attempt.status in ("failed", "diverged") and is_made_again:
            endings.append(describe_ending(attempt))
    return endings


def describe_ending(attempt: Attempt) -> str:
    """Say how an attempt ended: its status, and the last line of its error."""
    if attempt.status == "running":
        return KILLED
    if attempt.status == "failed" and attempt.error:
        message = attempt.error.strip().splitlines()[-1]
        return f"failed: {message[:MAX_ERROR_LENGTH]}"
    return attempt.status


def mask_numbers(text: str) -> str:
    """Replace the numbers of a text, so that one cause on several runs is one text."""
    return re.sub("0x[0-9a-f]+|[0-9]+", "#", text)


# ---- facts ----


def collect_facts(
    record: RunRecord, attempts: list[Attempt], steps: pd.DataFrame, recipe: dict
) -> dict[str, Any]:
    """Collect the values of a run's records and of its resolved recipe by key.path."""
    records = [attempt.model_dump(exclude={"timing"}) for attempt in attempts]
    records.append(record.model_dump(exclude={"attempts", "proof"}))
    records.append({"tokens_per_step": f"{steps['tokens'].median():.0f}"})
    timings = list_timings(record)
    if timings:
        records.append({"compile_cache": timings[0].compile_cache})
    if record.proof:
        records.append(describe_step(record.proof))
    records.append(recipe)
    return join_records(records)


def describe_step(proof: Proof) -> dict:
    """Collect what the proof shows of a step's work and memory, whatever its precision."""
    parameters = proof.parameters
    return {
        "attention": proof.attention,
        "proof": {
            "matmul_flops": sum(proof.gemm_flops.values()),
            "trainable_parameters": parameters.trainable,
            "elements_in_optimizer": parameters.elements_in_optimizer,
            "bytes_per_parameter": parameters.bytes_per_parameter,
        },
    }


def find_unknown_prefixes(record: RunRecord, attempts: list[Attempt]) -> tuple[str, ...]:
    """List the beginnings of the keys of which the records of a run do not tell."""
    prefixes = []
    if any(attempt.variables is None for attempt in attempts):
        prefixes.append("variables.")
    if any(attempt.hardware.vboost is None for attempt in attempts):
        prefixes.append("hardware.vboost")
    if not record.proof:
        prefixes.append("proof.")
    return tuple(prefixes)


def read_environments(path: Path, record: RunRecord) -> dict[str, Environment]:
    """Read the environment files of a run's attempts, in its directory or in its study's folder.

    A missing or damaged file is left out: then only its name is known.
    """
    study_folder = path.absolute().parent.parent
    environments = {}
    for attempt in record.attempts:
        file_name = Path(attempt.environment).name  # a record cannot point to another folder
        for folder in (path, study_folder):
            with suppress(RecordError):
                environments[attempt.environment] = Environment.read(folder / file_name)
    return environments


def join_records(records: list[dict]) -> dict[str, Any]:
    """Join records to {key.path: value}: a value is "A, then B" where attempts of a run differ."""
    facts: dict[str, Any] = {}
    for record in records:
        for key, value in flatten(record).items():
            if key in facts and facts[key] != value:
                facts[key] = f"{facts[key]}, then {value}"
            else:
                facts[key] = value
    return facts


def read_yaml(path: Path) -> dict:
    """Read the sections of a YAML file; none without the file. Raises `RecordError`."""
    content = read_if_there(path)
    return {} if content is None else parse_yaml(content, path)


def parse_yaml(content: bytes, path: Path) -> dict:
    """Read the sections of a YAML file's `content`. Raises `RecordError`."""
    try:
        return load_sections(content)
    except (ValueError, yaml.YAMLError) as error:
        reason = str(error).partition("\n")[0]
        raise RecordError(f"{path}: holds no sections in YAML: {reason}") from error


def flatten(sections: dict) -> dict[str, Any]:
    """Flatten sections to {key.path: value}, without null values."""
    return pd.json_normalize(sections).iloc[0].dropna().to_dict()


# ---- a kept study ----


class PackedRun(Record):
    """The records of a run besides its steps: a line of runs.jsonl."""

    folder: str  # the run's path in its study: RECIPE/SEED
    record: RunRecord
    recipe: str  # the text of recipe.yaml
    environments: dict[str, Environment]  # by the name of the file


def read_packed_runs(folder: Path) -> list[Run]:
    """Read the runs of a kept study. Raises `RecordError` if its two files do not fit."""
    steps = read_packed_steps(folder / PACKED_STEPS)
    runs = []
    for packed_run in read_packed_records(folder):
        log = steps[steps["run"] == packed_run.folder].drop(columns="run")
        path = folder / packed_run.folder
        recipe = parse_yaml(packed_run.recipe.encode(), path)
        runs.append(make_run(path, packed_run.record, log, recipe, packed_run.environments))
    return runs


def read_packed_records(folder: Path) -> list[PackedRun]:
    """Read runs.jsonl. Raises `RecordError`."""
    path = folder / PACKED_RUNS
    lines = (read_if_there(path) or b"").splitlines()
    packed_runs = []
    for number, line in enumerate(lines, 1):
        packed_runs.append(PackedRun.parse(line, f"{path}: line {number}"))
    return packed_runs


def read_packed_steps(path: Path) -> pd.DataFrame:
    """Read steps.parquet. Raises `RecordError`."""
    try:
        steps = pd.read_parquet(io.BytesIO(read_if_there(path) or b""))
        steps = steps.astype({"run": str} | COLUMNS)
    except (ValueError, KeyError, OSError) as error:
        raise RecordError(f"{path}: holds no steps of runs: {error}") from error
    if (steps.select_dtypes("number").abs() > LARGEST_NUMBER).any(axis=None):
        raise RecordError(f"{path}: holds numbers that no run has")
    return steps
