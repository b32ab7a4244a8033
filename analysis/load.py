"""Runs into data frames: `frames = load(["runs/four_way-…"])`.

Reads run directories, logs of the published project and plain torchtitan's TensorBoard folders.
"""

import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from analysis.other_logs.published import read_published
from analysis.other_logs.tensorboard import EVENTS, named_folder, read_tensorboard
from analysis.runs import Run, read_run
from experiments.records.files import RecordError
from experiments.records.run import MANIFEST, METRICS, RECIPE

DRIFT = 0.15  # of the step time, between the first and the last third of the steady steps
MIN_DRIFT_STEPS = 30  # steady steps without which nothing is said of a drift
_NAMED, _ALIKE = 3, 10  # how many of more than so many problems that are alike are named

RECORDED = [
    "path",
    "source",
    "recipe",
    "seed",
    "status",
    "error",
    "attempt",
    "start",
    "date",
    "steps_asked",
    "steps_planned",
    "overlays",
    "flavor",
    "float8",
    "compiled",
    "parameters",
    "flops_per_token",
    "seq_len",
    "dataset",
    "data",
    "device",
    "device_type",
    "world_size",
    "driver",
    "power_limit_w",
    "sm_clock_max_mhz",
    "peak_bf16",
    "peak_fp8",
    "peak_source",
    "code",
    "commit",
    "torch",
    "torchao",
    "torchtitan",
    "warm_up_s",
    "wall_s",
    "phases",
    "compile_cache",
    "fp8_share",
    "fp8_emulated",
    "fp8_matmul",
    "attention",
    "gathered_bytes",
    "reduced_bytes",
    "orphans",
]
WORKED_OUT = [
    "steps",
    "tokens_per_step",
    "tokens",
    "batch",
    "final_loss",
    "wall_s_without_warm_up",
    "fp8_share_of_steps",
    "peak_memory_bytes",
    "tokens_per_s",
    "tokens_per_s_q1",
    "tokens_per_s_q3",
    "valid_tokens_per_s",
    "data_wait_share",
    "mfu_bf16_peak",
    "mfu_fp8_peak",
    "mfu_mixed_peak",
    "mfu_logged",
]
_INTERNAL = ["study", "study_budget_s", "precisions", "fp8_flops"]


class LoadError(ValueError):
    """There is nothing to analyse; the message says why."""


@dataclass(frozen=True)
class Frames:
    """What was loaded. Unknown is NaN or None; times in seconds, rates per second over all devices,
    shares of 1.

    Args:
        runs: one row a run, in the order in which they were started where that is known. `run`
            identifies it, `path` is where it is, `source` which program wrote it. Then what was
            recorded (`analysis.runs`), and

            status: completed, running, interrupted, failed, diverged (also where the loss is not
                finite at the end of a log that says completed), short (its log ends before the last
                step, or before the longest log of the same folder)
            steps, tokens: the last step, the tokens until then
            steps_asked, steps_planned: what it should have made; before it was cut by a budget
            warm_up_s, wall_s: from the start of the process to the end of the first and of the last
                step, summed over a resumed run's attempts; wall_s_without_warm_up. Unknown where
                the run's clock does not fit its step times.
            final_loss: mean over the last tenth of the steps
            tokens_per_step, batch: tokens and sequences per step
            tokens_per_s, tokens_per_s_q1, tokens_per_s_q3, valid_tokens_per_s: median over the
                steady steps and its quartiles, padding included; without padding
            fp8_share: of the linear layers' FLOPs, over all steps of the run: less than its proof's
                where there are phases in bf16. fp8_share_of_steps: of the steps
            data_wait_share: of the steady steps' time
            mfu_bf16_peak, mfu_fp8_peak, mfu_mixed_peak: of that median; mfu_logged: what another
                program called its MFU
            peak_memory_bytes: of one device
            orphans: how many trainable parameters are in no optimizer, as the recipe asks
        windows: one row a log window: run, recipe, seed, and `analysis.runs.WINDOW_COLUMNS`.
            `elapsed_s` counts on from the earlier attempts of a run that was resumed.
        problems: a sentence for each run that is not completed, each that could not be read, and
            each thing in a log that makes its figures doubtful.
    """

    runs: pd.DataFrame
    windows: pd.DataFrame
    problems: list[str]


def load(paths: str | Path | Iterable[str | Path]) -> Frames:
    """Load all runs at or below `paths`.

    Args:
        paths: run directories, the published project's logs (NAME.jsonl), torchtitan's TensorBoard
            folders, or folders that hold such at any depth.

    Raises:
        LoadError: a path does not exist, or nothing at all could be loaded.
    """
    paths = [Path(path) for path in ([paths] if isinstance(paths, str | Path) else paths)]
    missing = [str(path) for path in paths if not path.exists()]
    if missing:
        raise LoadError(f"{', '.join(missing)}: no such file or folder")
    unreadable: list[str] = []
    found = list(_read(paths, unreadable))
    if not found:
        raise LoadError("; ".join(_summarized(unreadable)) or "no path was given to load runs from")
    found.sort(key=lambda run: ("start" not in run.facts, run.facts.get("start")))
    parent = Path(os.path.commonpath([run.path.resolve().parent for run in found]))
    names = [run.path.resolve().relative_to(parent).as_posix() for run in found]
    facts = [{"phases": {}, "precisions": {}, "path": run.path} | run.facts for run in found]
    runs = pd.DataFrame(facts, index=names).reindex(columns=[*RECORDED, *_INTERNAL])
    runs = runs.astype(dict.fromkeys(runs.columns[runs.isna().all()], float) | {"path": str})
    logs = [run.windows.assign(run=name) for name, run in zip(names, found, strict=True)]
    owners = runs[["recipe", "seed"]].astype({"seed": float})
    windows = pd.concat(logs, ignore_index=True).join(owners, on="run")
    windows = _cut_to_equal_length(runs, windows)
    by_step = steps(windows)
    runs = _with_rates(runs, windows, by_step)
    logged = dict(list(by_step.groupby("run")))
    problems = []
    for run, name in zip(found, names, strict=True):
        runs.loc[name, "status"], judged = _judge(runs.loc[name])
        doubts = [*run.problems, *_flaws(logged.get(name, by_step[:0])), *judged]
        problems += [f"{run.path}: {doubt}" for doubt in doubts]
    runs = runs.rename_axis("run").reset_index()[["run", *RECORDED, *WORKED_OUT]]
    return Frames(runs, windows, _summarized(problems + unreadable))


def steps(windows: pd.DataFrame) -> pd.DataFrame:
    """Make one row a step of `Frames.windows`, or of some of its rows.

    Columns: run, recipe, seed, step, loss, seconds, data_wait_s (NaN where the log has no value of
    the step), steady: not among a process's first 10 steps, did not write a checkpoint, and its
    seconds are known.
    """
    values = ["losses", "step_s", "data_wait_s"]
    by_step = windows[["run", "recipe", "seed", "not_steady", *values]].copy()
    ends = zip(windows["step"], windows["step_s"], strict=True)
    by_step["step"] = [[*range(end - len(times) + 1, end + 1)] for end, times in ends]
    by_step = by_step.explode(["step", *values], ignore_index=True)
    by_step = by_step.astype(dict.fromkeys(values, float) | {"step": int})
    not_steady = zip(by_step["step"], by_step.pop("not_steady"), strict=True)
    by_step["steady"] = [step not in others for step, others in not_steady]
    by_step["steady"] &= by_step["step_s"].notna()
    return by_step.rename(columns={"losses": "loss", "step_s": "seconds"})


def final_from(last):
    """The first step of the last tenth of `last` steps, whose mean loss is the final loss.

    A tenth is long enough to average batches out, and short enough to be the run's end.
    """
    return last - np.maximum(1, last // 10) + 1


# ---- what is there ----


def _read(paths: list[Path], problems: list[str]) -> Iterator[Run]:
    """Read everything at or below `paths` that looks like a run, each once; `problems` says what
    could not be read.

    Event folders of one training belong together: each of its processes has written one.
    """
    places: dict[tuple[Callable, Path], dict[Path, Path]] = defaultdict(dict)
    for path in paths:
        found = list(_walk(path))
        if not found:
            problems.append(f"{path}: holds no run")
        for read, place in found:
            owner = named_folder(place) if read is read_tensorboard else place.resolve()
            places[read, owner].setdefault(place.resolve(), place)
    for (read, _), of_one_run in places.items():
        try:
            if read is read_tensorboard:
                yield from read_tensorboard(list(of_one_run.values()))
            else:
                yield from map(read, of_one_run.values())
        except RecordError as error:
            problems.append(str(error))


def _walk(path: Path) -> Iterator[tuple[Callable, Path]]:
    """(function that reads it, place) of everything at or below `path` that looks like a run."""
    if path.is_file():
        yield read_published, path
        return
    for name, folders, files in os.walk(path):
        folder = Path(name)
        if not {MANIFEST, RECIPE, METRICS}.isdisjoint(files):
            folders.clear()  # attempts and tb/ belong to this run
            yield read_run, folder
            continue
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        if any(folder.glob(EVENTS)):
            yield read_tensorboard, folder
        for log in sorted(folder.glob("*.jsonl")):
            yield read_published, log


def _summarized(problems: list[str]) -> list[str]:
    """Of many problems that say the same of other runs, keep the first few and a count."""
    alike: dict[str, list[str]] = defaultdict(list)
    for problem in problems:
        reason = problem.rsplit("/", 1)[-1].partition(": ")[2]  # without the run's place
        alike[re.sub(r"[\d.,]+", "#", reason)].append(problem)
    kept = []
    for group in alike.values():
        if len(group) > _ALIKE:
            more = f"{len(group) - _NAMED:,} more runs or files"
            group[_NAMED:] = [f"{more} have the same problem as {group[0]}"]
        kept += group
    return kept


# ---- what becomes of a run beside others ----


def _cut_to_equal_length(runs: pd.DataFrame, windows: pd.DataFrame) -> pd.DataFrame:
    """Cut the runs of a study whose time budget has stopped some of them to the last window that
    all of them have. They then count as completed."""
    budgeted = runs[runs["study_budget_s"].notna()].query("status in ['completed', 'interrupted']")
    within = windows["run"].isin(budgeted.index)
    cut = budgeted.loc[windows.loc[within, "run"].unique()]
    counts = windows.loc[within, "step"].value_counts()
    if (cut["status"] == "completed").all() or counts.max() < len(cut):
        return windows
    last = counts.index[counts == len(cut)].max()
    windows = windows[~within | (windows["step"] <= last)]
    wall_s = windows.groupby("run")["elapsed_s"].last()
    cut = cut.assign(steps_planned=cut["steps_asked"], steps_asked=last, wall_s=wall_s)
    runs.loc[cut.index] = cut.assign(status="completed", error=np.nan)
    return windows.reset_index(drop=True)


# ---- what the logs say ----


def _with_rates(runs: pd.DataFrame, windows: pd.DataFrame, by_step: pd.DataFrame) -> pd.DataFrame:
    """Add the columns `WORKED_OUT`, and how many windows have a loss that is not finite."""
    count, duration = (windows["step_s"].map(of).astype(float) for of in (len, sum))
    windows = windows.assign(count=count, duration=duration, lost=~np.isfinite(windows["loss"]))
    windows = windows.eval("""
        window_tokens = tokens_per_s * duration
        valid_tokens = valid_tokens_per_s * duration
        tokens_per_step = window_tokens / count
    """)
    logged = windows.groupby("run").agg(
        steps=("step", "max"),
        tokens_per_step=("tokens_per_step", "first"),  # whole but for the rounding of logged times
        window_tokens=("window_tokens", "mean"),
        valid_tokens=("valid_tokens", "mean"),
        peak_memory_bytes=("peak_memory_bytes", "max"),
        mfu_logged=("mfu_logged", "median"),
    )
    lost = windows[windows["lost"]].groupby("run")["step"]
    lost = lost.agg(lost="count", lost_from="min", lost_until="max")
    steady = by_step[by_step["steady"]].groupby("run")
    quartiles = [0.25, 0.5, 0.75]
    step_s = steady["seconds"].quantile(quartiles).unstack().reindex(columns=quartiles)
    step_s = step_s.set_axis(["low_s", "median_s", "high_s"], axis="columns")
    means = steady.agg(mean_s=("seconds", "mean"), data_wait_s=("data_wait_s", "mean"))

    runs = runs.join([logged, lost, step_s, means])
    runs["steps"] = runs["steps"].fillna(0).astype(int)
    longest = runs.groupby("study")["steps"].transform("max")
    runs["steps_asked"] = runs["steps_asked"].mask(runs["steps"] < longest, longest)
    runs["fp8_share_of_steps"] = runs.apply(_share_of_steps, axis="columns")
    final = final_from(runs["steps"])
    late = by_step[by_step["step"] >= final.reindex(by_step["run"]).to_numpy()]
    losses = late.groupby("run")["loss"].mean()
    runs["final_loss"] = losses.mask(runs["lost_until"] >= final)
    runs["batch"] = (runs["tokens_per_step"] / runs["seq_len"]).round()
    runs["tokens"] = runs["tokens_per_step"].round() * runs["steps"]
    return runs.eval("""
        fp8_share = fp8_share * fp8_share_of_steps
        wall_s_without_warm_up = wall_s - warm_up_s
        tokens_per_s = tokens_per_step / median_s
        tokens_per_s_q1 = tokens_per_step / high_s
        tokens_per_s_q3 = tokens_per_step / low_s
        valid_tokens_per_s = tokens_per_s * valid_tokens / window_tokens
        data_wait_share = data_wait_s / mean_s
        mfu_bf16_peak = tokens_per_s / world_size * flops_per_token / peak_bf16
        mfu_fp8_peak = tokens_per_s / world_size * flops_per_token / peak_fp8
        in_fp8 = fp8_flops * fp8_share_of_steps * world_size / tokens_per_step
        ideal_s = in_fp8 / peak_fp8 + (flops_per_token - in_fp8) / peak_bf16
        mfu_mixed_peak = tokens_per_s / world_size * ideal_s
    """)


def _share_of_steps(run: pd.Series) -> float:
    """The part of the steps, as far as the run came, that are in FP8: all, without phases."""
    if not run["precisions"] or not run["steps"]:
        return 1.0
    in_fp8 = pd.Series(run["precisions"]).sort_index()
    return in_fp8.reindex(range(1, run["steps"] + 1), method="ffill").astype(float).mean()


def _flaws(by_step: pd.DataFrame) -> list[str]:
    """Name steps that lie between the log's windows, and a step time that changes between the run's
    thirds by more than its noise."""
    flaws = []
    missing = sorted(set(range(1, max(by_step["step"], default=0))).difference(by_step["step"]))
    if missing:
        count = f"{len(missing):,} (from {missing[0]} to {missing[-1]})"
        flaws.append(f"steps missing from its log: {count}")
    steady = by_step.loc[by_step["steady"], "seconds"]
    third, quartiles = len(steady) // 3, [0.25, 0.5, 0.75]
    if len(steady) < MIN_DRIFT_STEPS:
        return flaws
    low, early, high = steady[:third].quantile(quartiles)
    late_low, late, late_high = steady[-third:].quantile(quartiles)
    if abs(late / early - 1) >= DRIFT and (late_low > high or low > late_high):
        flaws.append(
            f"its step time drifts: of the steady steps the median is {early:.3g} s in the first "
            f"third and {late:.3g} s in the last, so its rate is a mixture"
        )
    return flaws


def _judge(run: pd.Series) -> tuple[str, list[str]]:
    """The status by what the log shows, and why the run is not averaged with others."""
    status, where = run["status"], f"at step {run['steps']} of {run['steps_asked']:.0f}"
    if status != "completed":
        word = "not ended (running, or killed)" if status == "running" else status
        why = f" ({run['error']})" if isinstance(run["error"], str) else ""
        return status, [f"{word} {where}{why}, so it is not averaged with others"]
    if run["lost"] > 0:
        lost = f"its loss is not finite by step {run['lost_from']:.0f}"
        if run["lost_until"] >= final_from(run["steps"]):
            verdict = f"{lost}: it counts as diverged, although its log says completed"
            return "diverged", [verdict]
        count = f"{run['lost']:.0f} of its log windows have such losses"
        return status, [f"{lost}: {count}, the last ends at step {run['lost_until']:.0f}"]
    if run["steps"] < run["steps_asked"]:
        return "short", [f"short, its log ends {where}, so it is not averaged with others"]
    return status, []
