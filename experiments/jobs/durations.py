"""Estimate how long the runs of a study take.

The seconds of a run are those of its steps, and all others: imports, compilation, the profiler, the
end. Both are taken from the study's runs of the same recipe so far. A recipe that has not run yet
takes them from an earlier run of it on this machine, else from a first guess. What the study's
other recipes took corrects these: on a busy machine all of them take longer.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, geometric_mean, median

from experiments.records.run import (
    METRICS,
    RUN_RECORD,
    LogInterval,
    RecordError,
    RunRecord,
    read_log,
)

COMPILATION_TIME = "20 to 110 s"
COMPILATION_HINT = f"compiling: {COMPILATION_TIME} as a rule"
EAGER_START_S = 10.0
COMPILED_BF16_START_S = 30.0
COMPILED_FP8_START_S = 50.0
"""First guesses. The kept runs of two CPU cores began in 4 to 29 s eager, in 20 to 78 s compiled in
bf16, in 19 to 125 s compiled in FP8 (`python -m analysis.report results/…`)."""
MIN_START_S = 1.0
"""No run begins faster: its imports take longer."""
MAX_SEARCHED_STUDIES = 20


@dataclass(frozen=True)
class Duration:
    """Seconds of a run."""

    overhead_s: float  # besides its steps: imports, compilation, the end
    step_s: float | None  # of a usual step; None before the second one


@dataclass(frozen=True)
class Workload:
    """What decides how long a run takes, as far as a first guess knows it."""

    recipe: str
    is_compiled: bool = False
    in_fp8: bool = False
    step_factor: float = 1.0  # a first guess: its step time, divided by that in bf16

    def guess_start(self) -> float:
        """Guess the seconds besides the steps."""
        if not self.is_compiled:
            return EAGER_START_S
        return COMPILED_FP8_START_S if self.in_fp8 else COMPILED_BF16_START_S


@dataclass(frozen=True)
class RunProgress:
    """How far a run is."""

    workload: Workload
    remaining_steps: int
    elapsed_s: float | None = None  # since its process started; None before that
    since_record_s: float = 0.0  # since its last step on record
    duration: Duration | None = None  # measured; None before the end of its first step
    has_ended: bool = False


@dataclass(frozen=True)
class RunSize:
    """What runs of a recipe have in common that take equally long."""

    device_name: str
    parameters: int
    seq_len: int
    world_size: int
    step_tokens: int  # of all processes

    def is_of(self, record: RunRecord, interval: LogInterval) -> bool:
        """Tell if a run with this record, and one of its log intervals, has this size."""
        step_tokens = interval.tokens_per_s * fmean(interval.step_s)
        run_size = RunSize(
            record.last_attempt.hardware.name,
            record.parameters,
            record.seq_len,
            record.world_size,
            round(step_tokens),
        )
        return run_size == self


# ---- measure ----


def measure_duration(intervals: Sequence[LogInterval], wall_s: float | None = None) -> Duration:
    """Measure an attempt by its lines of metrics.jsonl.

    Args:
        intervals: one or more.
        wall_s: seconds of its process, if it has ended; else those to its last step count.
    """
    step_times: list[float] = []
    for interval in intervals:
        step_times += interval.step_s
    if wall_s is None:
        wall_s = intervals[-1].elapsed_s
    if len(step_times) == 1:
        return Duration(wall_s, None)
    step_s = median(step_times[1:])  # the first one compiles
    return Duration(max(0.0, wall_s - len(step_times) * step_s), step_s)


def find_earlier_duration(
    study_folders: Iterable[Path], recipe: str, size: RunSize
) -> Duration | None:
    """Find what runs of a recipe took in the first of some studies that has runs of this size."""
    for study_folder in study_folders:
        durations = [*_measure_completed_runs(study_folder / recipe, size)]
        step_times = [duration.step_s for duration in durations if duration.step_s]
        if step_times:
            return Duration(fmean(duration.overhead_s for duration in durations), fmean(step_times))
    return None


def _measure_completed_runs(folder: Path, size: RunSize) -> Iterator[Duration]:
    """Measure the completed runs of this size in a recipe's folder.

    Runs that found their kernels compiled do not count, since those of a study compile anew.
    """
    for file in sorted(folder.glob(f"seed*/{RUN_RECORD}")):
        try:
            record = RunRecord.read(file)
            intervals = read_log(file.with_name(METRICS))
        except RecordError:  # nobody has asked for these runs
            continue
        timing = record.last_attempt.timing
        is_whole = record.status == "completed" and len(record.attempts) == 1
        is_warm = timing is not None and timing.compile_cache == "warm"
        if intervals and is_whole and not is_warm and size.is_of(record, intervals[-1]):
            yield measure_duration(intervals)


def list_study_folders(out: Path) -> list[Path]:
    """List the folders in which earlier runs may be: the study's, and the newest beside it."""
    change_times = {}
    for path in out.absolute().parent.glob("*"):
        with suppress(OSError):  # another process may delete it
            if path.is_dir():
                change_times[path] = path.stat().st_mtime
    newest_first = sorted(change_times, key=change_times.__getitem__, reverse=True)
    return [out, *newest_first[:MAX_SEARCHED_STUDIES]]


# ---- estimate ----


def estimate_remaining(
    runs: Sequence[RunProgress], earlier: Mapping[str, Duration], n_parallel: int
) -> float | None:
    """Estimate the seconds until all runs have ended; None while no step time is known.

    Args:
        runs: all of a study, in the order of their starts.
        earlier: durations of earlier runs, by recipe.
        n_parallel: runs at a time.
    """
    free_at = [0.0] * n_parallel  # seconds from now, of each GPU
    for run in runs:
        if run.has_ended:
            continue
        remaining_s = _estimate_run(run, runs, earlier)
        if remaining_s is None:
            return None
        free_at.sort()
        free_at[0] += remaining_s
    return max(free_at)


def _estimate_run(
    run: RunProgress, runs: Sequence[RunProgress], earlier: Mapping[str, Duration]
) -> float | None:
    """Estimate the remaining seconds of a run."""
    step_s = _estimate_step(run, runs, earlier)
    if step_s is None:
        return None
    all_steps_s = run.remaining_steps * step_s
    if run.duration:
        return max(0.0, all_steps_s - run.since_record_s)
    return (
        max(0.0, _estimate_start(run.workload, runs, earlier) - (run.elapsed_s or 0)) + all_steps_s
    )


def _estimate_start(
    workload: Workload, runs: Sequence[RunProgress], earlier: Mapping[str, Duration]
) -> float:
    """Estimate a run's seconds besides its steps."""

    def expect(other: Workload) -> float:
        if other.recipe in earlier:
            return max(earlier[other.recipe].overhead_s, MIN_START_S)
        return other.guess_start()

    measured = []
    slowdowns = []
    for run in runs:
        if run.workload.is_compiled != workload.is_compiled:
            continue
        expected_s = expect(run.workload)
        if run.duration:
            slowdowns.append(max(run.duration.overhead_s, MIN_START_S) / expected_s)
        elif run.elapsed_s and run.elapsed_s > expected_s:  # it still compiles
            slowdowns.append(run.elapsed_s / expected_s)
        if run.duration and run.workload.recipe == workload.recipe:
            measured.append(run.duration.overhead_s)
    if measured:
        return fmean(measured)
    return expect(workload) * geometric_mean(slowdowns or [1.0])


def _estimate_step(
    run: RunProgress, runs: Sequence[RunProgress], earlier: Mapping[str, Duration]
) -> float | None:
    """Estimate the seconds of a run's step.

    In this order: its own steps; those of runs of its recipe; an earlier run of its recipe,
    corrected by what other recipes took; the steps of other recipes, by first guesses of their
    ratios; earlier runs of other recipes. None without any of these.
    """
    if run.duration and run.duration.step_s:
        return run.duration.step_s
    workload = run.workload
    measured: dict[Workload, list[float]] = {}
    for other in runs:
        if other.duration and other.duration.step_s:
            measured.setdefault(other.workload, []).append(other.duration.step_s)
    if workload in measured:
        return fmean(measured[workload])
    earlier_step_s = _get_step(earlier, workload)
    ratios = []
    bf16_times = []
    for other_workload, step_times in measured.items():
        other_step_s = _get_step(earlier, other_workload)
        if other_step_s:
            ratios.append(fmean(step_times) / other_step_s)
        bf16_times.append(fmean(step_times) / other_workload.step_factor)
    if earlier_step_s:
        return earlier_step_s * geometric_mean(ratios or [1.0])
    if not bf16_times:
        for other in runs:
            other_step_s = _get_step(earlier, other.workload)
            if other_step_s:
                bf16_times.append(other_step_s / other.workload.step_factor)
    if not bf16_times:
        return None
    return workload.step_factor * geometric_mean(bf16_times)


def _get_step(earlier: Mapping[str, Duration], workload: Workload) -> float | None:
    """Give the step time of an earlier run of a recipe, in seconds; None without one."""
    duration = earlier.get(workload.recipe)
    return duration.step_s if duration else None


# ---- words ----


def describe_estimate(
    runs: Sequence[RunProgress], earlier: Mapping[str, Duration], n_parallel: int
) -> str:
    """Say how long the runs of a study will take, and by what."""
    remaining_s = estimate_remaining(runs, earlier, n_parallel)
    if remaining_s is None:
        sentence = "unknown, because no run of this size is on record on this machine"
        if any(run.workload.is_compiled for run in runs):
            sentence += f"; each compiled run takes {COMPILATION_TIME} to compile"
        return sentence
    recipes = list(dict.fromkeys(run.workload.recipe for run in runs))
    guessed = [recipe for recipe in recipes if recipe not in earlier]
    minutes = math.ceil(remaining_s / 60)
    sentence = f"about {minutes} minute{'s' * (minutes != 1)}, by earlier runs on this machine"
    if guessed:
        sentence += f"; guessed for {', '.join(guessed)}, without an earlier run"
    return sentence
