"""Read a run directory: how the run was made (`facts`), and what each step took (`steps`).

Times are in seconds, shares of 1.
"""

import math
import re
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cache
from itertools import chain
from pathlib import Path
from statistics import fmean
from typing import Any

import pandas as pd
import yaml

from experiments.config.yaml_with_origins import load_sections
from experiments.records.run import (
    METRICS,
    RECIPE,
    RUN_RECORD,
    Attempt,
    Environment,
    LogInterval,
    Proof,
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
# Endings of runs.
DIVERGED = "diverged"
INTERRUPTED = "interrupted"
KILLED = "running or killed"
NO_RECORD = "left no record"
UNREADABLE = "unreadable records"
SHORT_LOG = "too short a log"
# Columns of a log's table, which has more where extensions add to a log.
COLUMNS = {"attempt": int, "step": int, "steady": bool, "short": bool}
COLUMNS |= dict.fromkeys(
    ["loss", "seconds", "wait", "tokens", "useful", "memory", "lr", "grad_norm", "elapsed_s"], float
)


@dataclass(eq=False)
class Run:
    """A run, or a planned run without records.

    Args:
        seed: as text, because the seed of an unreadable run is its folder's name; empty if none
            was set.
        path: the run directory; None where there is none.
        ending: how the run ended.
        earlier: how earlier attempts ended that failed or diverged and whose steps were thrown
            away.
        facts: all known values of record, resolved recipe, proof and environment by key.path.
        unknown: what keys begin with that the run's records do not tell, as older ones.
        place: the GPU, or the first of several, for people.
        machines, gpus: names of those that it used; empty if unknown.
        attempts: those whose steps count.
        packages: versions by the name of the environment file; None where the file is missing.
        spans: start and end of each attempt; of a killed one the end of its log.
        steps: a row a step. `process`: the attempt, from 0, an index into `spans`; `steady`: the
            step counts for a rate; `in_fp8`: the step is in FP8; `wait`: seconds of waiting for
            data; `useful`: tokens without padding; `memory`: bytes; `short`: the GPU's memory was
            short. `lr`, `grad_norm`, `elapsed`, and `EXTENSION.NAME` of an extension, are known at
            the end of each log interval. `elapsed` counts all attempts, their starts included.
        timings: of each attempt that finished its first step.
    """

    recipe: str
    seed: str
    path: Path | None = None
    ending: str = NO_RECORD
    earlier: list[str] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    unknown: tuple[str, ...] = ()
    place: str = ""
    machines: frozenset[str] = frozenset()
    gpus: frozenset[str] = frozenset()
    attempts: list[Attempt] = field(default_factory=list)
    packages: dict[str, dict[str, str] | None] = field(default_factory=dict)
    spans: list[tuple] = field(default_factory=list)
    steps: pd.DataFrame = field(default_factory=lambda: no_steps())
    record: RunRecord | None = None
    timings: list[Timing] = field(default_factory=list)
    proof: Proof | None = None

    @property
    def name(self) -> str:
        return f"{self.recipe}/seed{self.seed}" if self.seed else self.recipe

    @property
    def completed(self) -> bool:
        """True if the run made all its steps."""
        return self.ending == "completed"

    @property
    def clock(self) -> pd.Series:
        """Wall time at the end of each log interval, by step."""
        return self.steps["elapsed"].dropna()

    @property
    def steady(self) -> pd.DataFrame:
        """The steady steps: rates count these alone."""
        return self.steps[self.steps["steady"]]

    @property
    def length(self) -> int:
        """The last step of the log."""
        return max(self.steps.index, default=0)

    @property
    def final_loss(self) -> float:
        return last_tenth(self.steps["loss"]).mean()

    @property
    def first_step_s(self) -> float:
        """Seconds from process start to the end of the first step, all attempts added up."""
        return sum(timing.time_to_first_step_s for timing in self.timings) or math.nan

    @property
    def fp8_share(self) -> float:
        """The FP8 share of the matmul FLOPs over all steps: NaN without proof, 0 if emulated."""
        if not self.proof:
            return math.nan
        if self.proof.emulated:
            return 0.0
        return self.proof.fp8_share * self.steps["in_fp8"].mean()


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
    attempts, last, proof = record.attempts, record.last_attempt, record.proof
    check_attempts(path, attempts, log)
    clock = log.groupby("attempt")["elapsed_s"].max()
    spans = []
    for attempt in attempts:
        logged_s = timedelta(seconds=clock.get(attempt.number, 0))
        spans.append((attempt.start, attempt.end or attempt.start + logged_s))
    run = Run(
        recipe=record.recipe,
        seed=str(record.seed),
        path=path,
        ending=ending(last),
        # Slurm may call every GPU of a host 0, and each container has a host name of its own.
        place=last.hardware.uuid or f"GPU {last.hardware.visible_devices} of {last.host}",
        spans=spans,
        steps=steps_table(log, proof.stretches if proof else {}),
        record=record,
        timings=[attempt.timing for attempt in attempts if attempt.timing],
        proof=proof,
    )
    if run.completed and run.length < record.steps:
        run.ending = SHORT_LOG
    lost = missing_steps(run.steps.index, run.length)
    if run.completed and lost:
        raise RecordError(f"{path / METRICS}: has lost lines: steps {lost} are not on record")
    run.earlier = failures_with_lost_steps(attempts, log, run.steps)
    # An attempt counts whose steps were not lost.
    run.attempts = [attempts[number] for number in run.steps["process"].unique()] or [last]
    seen = {
        "tokens_per_step": f"{run.steps['tokens'].median():.0f}",
        "compile_cache": run.timings[0].compile_cache if run.timings else None,
    }
    of_run = record.model_dump(exclude={"attempts", "proof"})
    records = [attempt.model_dump(exclude={"timing"}) | of_run for attempt in run.attempts]
    run.facts = joined([*records, seen, work_of_a_step(proof), recipe])
    run.unknown = unknown_keys(run)
    for attempt in run.attempts:
        known = environments.get(attempt.environment)
        run.packages[attempt.environment] = known and known.packages
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


def failures_with_lost_steps(
    attempts: list[Attempt], log: pd.DataFrame, steps: pd.DataFrame
) -> list[str]:
    """List how earlier attempts ended that failed or diverged, and whose steps were made again.

    Attempts that were stopped or killed are none of them: a resumed run has the losses that it
    would have had.
    """
    endings = []
    for attempt in attempts[:-1]:
        made = log["step"][log["attempt"] == attempt.number].max()
        kept = max(steps.index[steps["process"] < attempt.number], default=0)
        if attempt.status in ("failed", "diverged") and made > kept:
            endings.append(ending(attempt))
    return endings


def work_of_a_step(proof: Proof | None) -> dict:
    """Collect what the proof shows of a step's work and memory, whatever its precision."""
    if not proof:
        return {}
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


def unknown_keys(run: Run) -> tuple[str, ...]:
    """List what keys begin with that the records of a run do not tell."""
    keys = {
        "variables.": [attempt.variables for attempt in run.attempts],
        "hardware.vboost": [attempt.hardware.vboost for attempt in run.attempts],
        "proof.": [run.proof],
    }
    return tuple(key for key, facts in keys.items() if None in facts)


def read_environments(path: Path, record: RunRecord) -> dict[str, Environment]:
    """Read the environment files of a run's attempts, beside the run or in its study.

    A missing or damaged one is left out: its name alone is known then.
    """
    environments = {}
    for attempt in record.attempts:
        name = attempt.environment
        for folder in (path, path.absolute().parent.parent):
            with suppress(RecordError):
                environments[name] = Environment.read(folder / Path(name).name)
    return environments


def joined(records: list[dict]) -> dict[str, Any]:
    """Put records into one: "A, then B" where attempts of a run differ."""
    facts = {}
    for record in records:
        for key, value in flat(record).items():
            known = facts.get(key, value)
            facts[key] = value if known == value else f"{known}, then {value}"
    return facts


def ending(attempt: Attempt) -> str:
    """Say how a process ended: its status, and the last line of its error."""
    if attempt.status == "running":
        return KILLED
    if attempt.status == "failed" and attempt.error:
        message = attempt.error.strip().splitlines()[-1]
        return f"failed: {message[:200]}"
    return attempt.status


def mask_numbers(text: str) -> str:
    """Replace the numbers of a text, so that one cause on several runs is one text."""
    return re.sub("0x[0-9a-f]+|[0-9]+", "#", text)


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


def flat(sections: dict) -> dict[str, Any]:
    """Flatten sections to {key.path: value}, without null values."""
    return pd.json_normalize(sections).iloc[0].dropna().to_dict()


# ---- steps ----


@cache
def no_steps() -> pd.DataFrame:
    """Make the steps of a run without a log, once for all."""
    return steps_table(log_table([]), {})


def log_table(log: list[LogInterval]) -> pd.DataFrame:
    """Make a table of a log: a row a step of each attempt.

    It has `COLUMNS`, and a column `EXTENSION.NAME` for what an extension adds.
    """
    # A log interval {step: 20, losses: [3.1, 3.0], step_s: [0.5, 0.6], lr: 0.01} becomes two rows:
    # 19: loss 3.1, seconds 0.5, lr NaN
    # 20: loss 3.0, seconds 0.6, lr 0.01
    rows = []
    for interval in log:
        mean_s = fmean(interval.step_s)
        for number, step in enumerate(interval.steps):
            row = {
                "attempt": interval.attempt,
                "step": step,
                "steady": step not in interval.not_steady,
                "short": step in interval.allocator_retries,
                "loss": interval.losses[number],
                "seconds": interval.step_s[number],
                "wait": interval.data_wait_s[number],
                "tokens": interval.tokens_per_s * mean_s,
                "useful": interval.valid_tokens_per_s * mean_s,
                "memory": interval.peak_memory_bytes,
            }
            rows.append(row)
        row |= {"lr": interval.lr, "grad_norm": interval.grad_norm, "elapsed_s": interval.elapsed_s}
        for name, section in interval.model_extra.items():
            row |= {f"{name}.{key}": value for key, value in section.items()}
    added = dict.fromkeys(chain(*rows))
    return pd.DataFrame(rows, columns=[*COLUMNS | added]).astype(COLUMNS)


def steps_table(log: pd.DataFrame, stretches: dict[str, Stretch]) -> pd.DataFrame:
    """Make `Run.steps` of the table of a log."""
    took_s = log.groupby("attempt")["elapsed_s"].max()  # the clock of each process begins at 0
    earlier_s = log["attempt"].map(took_s.cumsum() - took_s)
    table = log.assign(
        process=log["attempt"] - 1,
        in_fp8=True,
        elapsed=log["elapsed_s"] + earlier_s,
    )
    table = table.drop(columns=["attempt", "elapsed_s"])
    # A killed process loses its last steps; the next one makes them again.
    table = table.drop_duplicates("step", keep="last").set_index("step").sort_index()
    for first, stretch in stretches.items():
        table.loc[int(first) :, "in_fp8"] = stretch.in_fp8
    return table


def last_tenth(steps: pd.DataFrame | pd.Series) -> pd.DataFrame | pd.Series:
    """Choose the last tenth of the steps, whose mean loss is the final loss: enough steps to
    average batches out, and few enough to be the end of the run."""
    return steps.tail(max(1, len(steps) // 10))


def first_tenth(steps: pd.DataFrame | pd.Series) -> pd.DataFrame | pd.Series:
    """Choose the first tenth of the steps."""
    return steps.head(max(1, len(steps) // 10))
