"""Read a run: how it was made (`facts`), and what each step took (`steps`).

A run is read from its directory, or from the two files of a study that is kept in results/:

    runs.jsonl      a `PackedRun` a line
    steps.parquet   a row a step of each attempt: `log_table` of metrics.jsonl, and `run`

Times are in seconds, shares of 1.
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
MAX_ERROR_LENGTH = 200  # characters of an error in an ending
PACKED_STEPS = "steps.parquet"
LARGEST_NUMBER = 1e39  # in a log
# Endings of runs.
COMPLETED = "completed"
DIVERGED = "diverged"
INTERRUPTED = "interrupted"
KILLED = "running or killed"
NO_RECORD = "left no record"
UNREADABLE = "unreadable records"
SHORT_LOG = "too short a log"
# Columns of a log's table. The table has more columns where extensions add to a log.
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


@dataclass(eq=False)
class Run:
    """A run, or a planned run without records.

    Args:
        seed: as text, because the seed of an unreadable run is its folder's name; empty if none
            was set.
        path: the run directory; None where there is none.
        ending: how the run ended.
        lost_attempts: the endings of earlier attempts that failed or diverged and whose steps were
            made again.
        facts: all known values of record, resolved recipe, proof and environment by key.path.
        unknown_keys: what keys begin with that the run's records do not tell, as older records.
        place: the GPU, or the first of several, for people.
        machines, gpus: names of the machines and GPUs that the run used; empty if unknown.
        attempts: the attempts whose steps count.
        packages: versions by the name of the environment file; None where the file is missing.
        spans: start and end of each attempt; of a killed attempt the end of its log.
        steps: a row a step, of the last attempt that made the step. Columns:
            `attempt`: its number, from 1.
            `is_steady`: the step counts for a rate.
            `in_fp8`: the step is in FP8.
            `loss`: in nats per token. `step_s`: seconds. `data_wait_s`: those spent on a wait for
            data. `tokens`, `valid_tokens`: with and without padding. `peak_memory_bytes`.
            `memory_was_short`: the allocator had to free cached memory.
            `lr`, `grad_norm`, `wall_s`, and `EXTENSION.NAME` of an extension: NaN except at the end
            of each log interval. `wall_s` counts all attempts, their starts included.
        timings: of each attempt that finished its first step.
        steady_steps: the steps that count for rates.
        clock: wall time at the end of each log interval, by step.
        length: the last step of the log; 0 without a step.
        first_step_s: from process start to the end of the first step, the sum over all attempts;
            NaN if unknown.
        fp8_share: the FP8 share of the matmul FLOPs over all steps: NaN without proof, 0 if
            emulated.
    """

    recipe: str
    seed: str
    path: Path | None = None
    ending: str = NO_RECORD
    lost_attempts: list[str] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    unknown_keys: tuple[str, ...] = ()
    place: str = ""
    machines: frozenset[str] = frozenset()
    gpus: frozenset[str] = frozenset()
    attempts: list[Attempt] = field(default_factory=list)
    packages: dict[str, dict[str, str] | None] = field(default_factory=dict)
    spans: list[tuple[datetime, datetime]] = field(default_factory=list)
    steps: pd.DataFrame = field(default_factory=lambda: empty_steps())
    record: RunRecord | None = None
    timings: list[Timing] = field(default_factory=list)
    proof: Proof | None = None
    steady_steps: pd.DataFrame = field(init=False)
    clock: pd.Series = field(init=False)
    length: int = field(init=False)
    first_step_s: float = field(init=False)
    fp8_share: float = field(init=False)

    def __post_init__(self) -> None:
        self.steady_steps = self.steps[self.steps["is_steady"]]
        self.clock = self.steps["wall_s"].dropna()
        self.length = max(self.steps.index, default=0)
        self.first_step_s = math.nan
        if self.timings:
            self.first_step_s = sum(timing.time_to_first_step_s for timing in self.timings)
        self.fp8_share = math.nan
        if self.proof and self.proof.emulated:
            self.fp8_share = 0.0
        elif self.proof:
            self.fp8_share = self.proof.fp8_share * self.steps["in_fp8"].mean()

    @property
    def name(self) -> str:
        return f"{self.recipe}/seed{self.seed}" if self.seed else self.recipe

    @property
    def completed(self) -> bool:
        """True if the run made all its steps."""
        return self.ending == COMPLETED


# ---- a run directory ----


def read_run(path: Path) -> Run:
    """Read a run directory. Raises `RecordError` if a record is missing or does not fit."""
    record = read_run_record(path)
    log = log_table(read_log(path / METRICS))
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
        log: as `log_table` makes it.
        recipe: the sections of recipe.yaml.
        environments: of the attempts whose environment is known, by name.
    """
    attempts = record.attempts
    last = record.last_attempt
    check_attempts(path, attempts, log)
    run = Run(
        recipe=record.recipe,
        seed=str(record.seed),
        path=path,
        ending=describe_ending(last),
        # Slurm may call every GPU of a host 0, and each container has a host name of its own.
        place=last.hardware.uuid or f"GPU {last.hardware.visible_devices} of {last.host}",
        spans=find_spans(attempts, log),
        steps=steps_table(log, record.proof.stretches if record.proof else {}),
        record=record,
        timings=[attempt.timing for attempt in attempts if attempt.timing],
        proof=record.proof,
    )
    if run.completed and run.length < record.steps:
        run.ending = SHORT_LOG
    missing = missing_steps(run.steps.index, run.length)
    if run.completed and missing:
        raise RecordError(f"{path / METRICS}: has lost lines: steps {missing} are not on record")
    run.lost_attempts = find_lost_attempts(attempts, log, run.steps)
    run.attempts = [attempts[number - 1] for number in run.steps["attempt"].unique()] or [last]
    run.facts = collect_facts(run, recipe)
    run.unknown_keys = find_unknown_keys(run)
    for attempt in run.attempts:
        environment = environments.get(attempt.environment)
        run.packages[attempt.environment] = environment and environment.packages
    return run


def check_attempts(path: Path, attempts: list[Attempt], log: pd.DataFrame) -> None:
    """Check that each attempt with steps is on record, with its start and a clock that runs.

    Raises `RecordError`.
    """
    started = [attempt.number for attempt in attempts if attempt.timing]
    if not log["attempt"].isin(started).all() or attempts[-1].number != len(attempts):
        raise RecordError(f"{path / RUN_RECORD}: attempts: one that made steps is not on record")
    for _, clock in log.dropna(subset="elapsed_s").groupby("attempt")["elapsed_s"]:
        if not clock.is_monotonic_increasing:
            raise RecordError(f"{path / METRICS}: elapsed_s: the clock runs backwards")


def find_spans(attempts: list[Attempt], log: pd.DataFrame) -> list[tuple[datetime, datetime]]:
    """Find the start and the end of each attempt; of a killed attempt the end of its log."""
    logged_s = log.groupby("attempt")["elapsed_s"].max()
    spans = []
    for attempt in attempts:
        end_of_log = attempt.start + timedelta(seconds=logged_s.get(attempt.number, 0))
        spans.append((attempt.start, attempt.end or end_of_log))
    return spans


def find_lost_attempts(
    attempts: list[Attempt], log: pd.DataFrame, steps: pd.DataFrame
) -> list[str]:
    """List how earlier attempts ended that failed or diverged, and whose steps were made again.

    An attempt that was stopped or killed is not listed: a resumed run has the losses that it would
    have had.
    """
    endings = []
    for attempt in attempts[:-1]:
        last_step = log["step"][log["attempt"] == attempt.number].max()
        last_counted_step = max(steps.index[steps["attempt"] <= attempt.number], default=0)
        if attempt.status in ("failed", "diverged") and last_step > last_counted_step:
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


def collect_facts(run: Run, recipe: dict) -> dict[str, Any]:
    """Collect the values of a run's records and of its resolved recipe by key.path."""
    facts_of_run = run.record.model_dump(exclude={"attempts", "proof"})
    records = []
    for attempt in run.attempts:
        records.append(attempt.model_dump(exclude={"timing"}) | facts_of_run)
    records.append({"tokens_per_step": f"{run.steps['tokens'].median():.0f}"})
    if run.timings:
        records.append({"compile_cache": run.timings[0].compile_cache})
    if run.proof:
        records.append(describe_step(run.proof))
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


def find_unknown_keys(run: Run) -> tuple[str, ...]:
    """List what keys begin with that the records of a run do not tell."""
    keys = []
    if any(attempt.variables is None for attempt in run.attempts):
        keys.append("variables.")
    if any(attempt.hardware.vboost is None for attempt in run.attempts):
        keys.append("hardware.vboost")
    if not run.proof:
        keys.append("proof.")
    return tuple(keys)


def read_environments(path: Path, record: RunRecord) -> dict[str, Environment]:
    """Read the environment files of a run's attempts, beside the run or in its study.

    A missing or damaged file is left out: then only its name is known.
    """
    environments = {}
    for attempt in record.attempts:
        name = attempt.environment
        for folder in (path, path.absolute().parent.parent):
            with suppress(RecordError):
                environments[name] = Environment.read(folder / Path(name).name)
    return environments


def join_records(records: list[dict]) -> dict[str, Any]:
    """Put records into one: "A, then B" where attempts of a run differ."""
    facts = {}
    for record in records:
        for key, value in flatten(record).items():
            earlier_value = facts.get(key, value)
            facts[key] = value if earlier_value == value else f"{earlier_value}, then {value}"
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


# ---- steps ----


@cache
def empty_steps() -> pd.DataFrame:
    """Make the steps of a run without a log, once for all."""
    return steps_table(log_table([]), {})


def log_table(log: list[LogInterval]) -> pd.DataFrame:
    """Make a table of a log: a row a step of each attempt.

    It has `COLUMNS`, and a column `EXTENSION.NAME` for what an extension adds.
    """
    # A log interval {step: 20, losses: [3.1, 3.0], step_s: [0.5, 0.6], lr: 0.01} becomes two rows:
    # 19: loss 3.1, step_s 0.5, lr NaN
    # 20: loss 3.0, step_s 0.6, lr 0.01
    rows = []
    columns = dict(COLUMNS)
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
        row |= {"lr": interval.lr, "grad_norm": interval.grad_norm, "elapsed_s": interval.elapsed_s}
        for extension, section in interval.model_extra.items():
            for key, value in section.items():
                row[f"{extension}.{key}"] = value
                columns[f"{extension}.{key}"] = float
    return pd.DataFrame(rows, columns=[*columns]).astype(COLUMNS)


def steps_table(log: pd.DataFrame, stretches: dict[str, Stretch]) -> pd.DataFrame:
    """Make `Run.steps` of the table of a log."""
    attempt_s = log.groupby("attempt")["elapsed_s"].max()  # each attempt's clock begins at 0
    earlier_attempts_s = log["attempt"].map(attempt_s.cumsum() - attempt_s)
    table = log.assign(wall_s=log["elapsed_s"] + earlier_attempts_s, in_fp8=True)
    table = table.drop(columns="elapsed_s")
    # A killed process loses its last steps; the next one makes them again.
    table = table.drop_duplicates("step", keep="last").set_index("step").sort_index()
    for first, stretch in stretches.items():
        table.loc[int(first) :, "in_fp8"] = stretch.in_fp8
    return table


# ---- a kept study ----


class PackedRun(Record):
    """The records of a run besides its steps: a line of runs.jsonl."""

    folder: str  # that the run had in its study
    record: RunRecord
    recipe: str  # the text of recipe.yaml
    environments: dict[str, Environment]  # by the name of the file


def read_packed_runs(folder: Path) -> list[Run]:
    """Read the runs of a kept study. Raises `RecordError` if one of its two files does not fit."""
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
