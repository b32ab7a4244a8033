"""Read a run directory: how the run was made (`facts`), and what each step took (`steps`).

Times are in seconds, shares of 1.
"""

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
    ATTEMPT,
    MANIFEST,
    METRICS,
    PROOF,
    RECIPE,
    TIMING,
    Environment,
    LogInterval,
    Manifest,
    Proof,
    RecordError,
    Stretch,
    Timing,
    missing_steps,
    read_if_there,
    read_log,
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
NUMBERS = ["loss", "seconds", "wait", "tokens", "useful", "lr", "elapsed", "memory"]
COLUMNS = {"step": int, "process": int, "steady": bool, "in_fp8": bool, "short": bool}
COLUMNS |= dict.fromkeys(NUMBERS, float)


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
        facts: all known values of manifest, resolved recipe, proof and environment by key.path.
        unknown: what keys begin with that the run's records do not tell, as older ones.
        place: the GPU, or the first of several, for people.
        machines, gpus: names of those that it used; empty if unknown.
        attempts: the manifests of the attempts whose steps count.
        packages: versions by the name of the environment file; None where the file is missing.
        spans: start and end of each attempt.
        steps: a row a step. `process`: the attempt, from 0, an index into `spans`; `steady`: the
            step counts for a rate; `in_fp8`: the step is in FP8; `wait`: seconds of waiting for
            data; `useful`: tokens without padding; `memory`: bytes; `short`: the GPU's memory was
            short. `lr` and `elapsed` are known at
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
    attempts: list[Manifest] = field(default_factory=list)
    packages: dict[str, dict[str, str] | None] = field(default_factory=dict)
    spans: list[tuple] = field(default_factory=list)
    steps: pd.DataFrame = field(default_factory=lambda: no_steps())
    manifest: Manifest | None = None
    timings: list[Timing] = field(default_factory=list)
    proof: Proof | None = None

    @property
    def name(self) -> str:
        return f"{self.recipe}/seed{self.seed}" if self.seed else self.recipe

    @property
    def completed(self) -> bool:
        """True if the run made all its steps, or was ended by the study's time budget."""
        cut = self.ending == INTERRUPTED and self.manifest.study_budget_s
        return self.ending == "completed" or bool(cut)

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
    manifest = Manifest.read(path / MANIFEST)
    attempts = [path / ATTEMPT.format(number) for number in range(1, manifest.attempt)]
    folders = [*attempts, path]
    manifests = [Manifest.read(folder / MANIFEST) for folder in folders]
    logs = [read_log(folder / METRICS) for folder in folders]
    timings = [Timing.read_if_there(folder / TIMING) for folder in folders]
    check_attempts(folders, logs, timings)
    proof = Proof.read_if_there(path / PROOF)
    run = Run(
        recipe=manifest.recipe,
        seed=str(manifest.seed),
        path=path,
        ending=ending(manifest),
        # Slurm may call every GPU of a host 0, and each container has a host name of its own.
        place=manifest.hardware.uuid
        or f"GPU {manifest.hardware.visible_devices} of {manifest.host}",
        spans=[span(*attempt) for attempt in zip(manifests, logs, strict=True)],
        steps=steps_table(logs, proof.stretches if proof else {}),
        manifest=manifest,
        timings=[timing for timing in timings if timing],
        proof=proof,
    )
    if run.ending == "completed" and run.length < manifest.steps:
        run.ending = SHORT_LOG
    lost = missing_steps(run.steps.index, run.length)
    if run.completed and lost:
        raise RecordError(f"{path / METRICS}: has lost lines: steps {lost} are not on record")
    run.earlier = failures_with_lost_steps(manifests, logs, run.steps)
    # An attempt counts whose steps were not lost.
    run.attempts = [manifests[number] for number in run.steps["process"].unique()] or [manifest]
    seen = {
        "tokens_per_step": f"{run.steps['tokens'].median():.0f}",
        "compile_cache": run.timings[0].compile_cache if run.timings else None,
    }
    records = [attempt.model_dump() for attempt in run.attempts]
    run.facts = joined([*records, seen, work_of_a_step(proof), read_yaml(path / RECIPE)])
    run.facts["steps"] = manifest.steps  # a run may be made longer
    run.unknown = unknown_keys(run)
    names = {attempt.environment for attempt in run.attempts}
    run.packages = {name: read_packages(path, name) for name in names}
    return run


def check_attempts(
    folders: list[Path], logs: list[list[LogInterval]], timings: list[Timing | None]
) -> None:
    """Check the clock of each attempt, and the record of its start. Raises `RecordError`.

    A log begins with the lines that it took over from the attempt before. Without that attempt's
    log their clock would count as this attempt's.
    """
    earlier = set()
    for folder, log, timing in zip(folders, logs, timings, strict=True):
        clocks = [(interval.step, interval.elapsed_s) for interval in log]
        added = [elapsed_s for step, elapsed_s in clocks if (step, elapsed_s) not in earlier]
        if added != sorted(added):
            raise RecordError(
                f"{folder / METRICS}: elapsed_s: the clock runs backwards; perhaps the log of an "
                "earlier attempt was lost"
            )
        if added and not timing:
            raise RecordError(f"{folder / TIMING}: is missing, although steps were made")
        earlier.update(clocks)


def failures_with_lost_steps(
    manifests: list[Manifest], logs: list[list[LogInterval]], steps: pd.DataFrame
) -> list[str]:
    """List how earlier attempts ended that failed or diverged, and whose steps were made again.

    Attempts that were stopped or killed are none of them: a resumed run has the losses that it
    would have had.
    """
    endings = []
    for number, (manifest, log) in enumerate(zip(manifests[:-1], logs, strict=False)):
        kept = max(steps.index[steps["process"] <= number], default=0)
        lost_steps = bool(log) and log[-1].step > kept
        if manifest.status in ("failed", "diverged") and lost_steps:
            endings.append(ending(manifest))
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
    keys = []
    if any(attempt.variables is None for attempt in run.attempts):
        keys.append("variables.")
    if any(attempt.hardware.vboost is None for attempt in run.attempts):
        keys.append("hardware.vboost")
    if not run.proof:
        keys.append("proof.")
    elif not run.proof.parameters.bytes_per_parameter:
        keys.append("proof.bytes_per_parameter")
    return tuple(keys)


def read_packages(path: Path, name: str) -> dict[str, str] | None:
    """Read the packages of a run's environment file, which is beside the run or in its study.

    None if the file is missing or damaged: its name alone is known then.
    """
    for folder in (path, path.absolute().parent.parent):
        file = folder / Path(name).name
        with suppress(RecordError):
            if file.is_file():
                return Environment.read(file).packages
    return None


def span(manifest: Manifest, log: list[LogInterval]) -> tuple[datetime, datetime]:
    """Find when an attempt ran; if it was killed, to the end of its log."""
    logged = timedelta(seconds=log[-1].elapsed_s if log else 0)
    return manifest.start, manifest.end or manifest.start + logged


def joined(records: list[dict]) -> dict[str, Any]:
    """Put records into one: "A, then B" where attempts of a run differ."""
    facts = {}
    for record in records:
        for key, value in flat(record).items():
            known = facts.get(key, value)
            facts[key] = value if known == value else f"{known}, then {value}"
    return facts


def ending(manifest: Manifest) -> str:
    """Say how a process ended: its status, and the last line of its error."""
    if manifest.status == "running":
        return KILLED
    if manifest.status == "failed" and manifest.error:
        message = manifest.error.strip().splitlines()[-1]
        return f"failed: {message[:200]}"
    return manifest.status


def mask_numbers(text: str) -> str:
    """Replace the numbers of a text, so that one cause on several runs is one text."""
    return re.sub("0x[0-9a-f]+|[0-9]+", "#", text)


def read_yaml(path: Path) -> dict:
    """Read the sections of a YAML file; none without the file. Raises `RecordError`."""
    content = read_if_there(path)
    if content is None:
        return {}
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
    return steps_table([], {})


def steps_table(logs: list[list[LogInterval]], stretches: dict[str, Stretch]) -> pd.DataFrame:
    """Make `Run.steps` of the logs of all attempts."""
    # A log interval {step: 20, losses: [3.1, 3.0], step_s: [0.5, 0.6], lr: 0.01} becomes two rows:
    # 19: loss 3.1, seconds 0.5, lr NaN
    # 20: loss 3.0, seconds 0.6, lr 0.01
    logged = pd.Series(logs, dtype=object).explode().dropna()  # indexed by attempt
    log = pd.DataFrame(map(vars, logged), columns=[*LogInterval.model_fields])
    log["process"] = logged.index
    # A log begins with the intervals that it took over from the attempt before.
    log = log.drop_duplicates(["step", "elapsed_s"])
    took_s = log.groupby("process")["elapsed_s"].max()  # the clock of each process begins at 0
    log["elapsed"] = log["elapsed_s"] + log["process"].map(took_s.cumsum() - took_s)

    mean_s = log["step_s"].map(fmean)
    log["tokens"] = log["tokens_per_s"] * mean_s
    log["useful"] = log["valid_tokens_per_s"] * mean_s
    steps = log.explode(["losses", "step_s", "data_wait_s"])
    to_come = steps.groupby(level=0).cumcount(ascending=False)  # steps of the interval
    steps["step"] -= to_come
    steps.loc[to_come > 0, ["lr", "elapsed"]] = math.nan
    listed = steps[["step", "not_steady"]].to_numpy()
    short = steps[["step", "allocator_retries"]].to_numpy()
    table = steps.assign(
        steady=[step not in not_steady for step, not_steady in listed],
        in_fp8=True,
        short=[step in retries for step, retries in short],
        loss=steps["losses"],
        seconds=steps["step_s"],
        wait=steps["data_wait_s"],
        memory=steps["peak_memory_bytes"],
    )
    table = table[[*COLUMNS]].astype(COLUMNS)
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
