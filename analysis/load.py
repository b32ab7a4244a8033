"""Runs into data frames: `frames = load(["runs/four_way-…"])`.

Reads run directories, logs of the published project and plain torchtitan's TensorBoard folders.
"""

import math
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
from analysis.runs import COLUMNS, UNREADABLE, Run, read_run, unreadable_run
from experiments.records.files import RecordError
from experiments.records.run import MANIFEST, METRICS, NOT_STEADY_STEPS, RECIPE, Step, Window

DRIFT = 0.15  # of the step time, between the first third and another part of the steady steps
# Parts that are compared with the first third of a run's steady steps, and their columns.
PARTS = {"last": "last_third", "last tenth": "last_tenth", "middle": "middle_third"}
MIN_DRIFT_STEPS = 30  # steady steps without which nothing is said of a drift
LEAST_TENTH = 10  # steady steps that the last tenth has in any case
SLOW = 3  # times the median: steps that are longer are not usual
STALL = 20  # times the usual step: a step as long as that is named in any case
STALLED = (
    0.02  # of a run's time, in slow steps that other runs of its recipe do not have: named too
)
MOST = 0.5  # of the last tenth: a loss that is not finite in more of it has diverged
VARY = 0.01  # of the usual tokens a step: how far the mean is from these
_NAMED, _ALIKE = 3, 10  # how many of more than so many problems that are alike are named


class LoadError(ValueError):
    """There is nothing to analyse; the message says why."""


@dataclass(frozen=True)
class Frames:
    """What was loaded. Unknown is NaN or None; times in seconds, rates per second over all devices,
    shares of 1.

    Args:
        runs: one row a run, in the order in which they were started where that is known. `run`
            identifies it; then `analysis.runs.COLUMNS`, and what is worked out:

            status: completed, running, interrupted, failed, diverged (also where the loss is not
                finite at the end of a log that says completed), short (its log ends before the last
                step, or before the longest log of the same folder)
            steps, tokens: the last step, the tokens until then
            steps_asked, steps_planned: what it should have made; before it was cut by a budget
            warm_up_s, wall_s: from the start of the process to the end of the first and of the last
                step, summed over a resumed run's attempts; wall_s_without_warm_up. Unknown where
                the run's clock does not fit its step times.
            final_loss: mean over the last tenth of the steps
            lost_at_end: the part of its log windows in which the loss is not finite; 1 if it is not
                in the last one
            tokens_per_step: tokens of all devices, padding included; valid_share: without padding
            steady_steps, step_s: how many steady steps, and the mean of their seconds; iqr: the
                distance of their quartiles as a share of the median; usual_s: the mean of steps up
                to `SLOW` times the median
            first_third_s: the median of the first third; middle_third, last_third, last_tenth: how
                many times that the median step takes in these, see `thirds`
            stall_s, stall: the longest step, and its number if it is a stall, see `without_stalls`;
                without_stalls_s: the mean steady step, in a run that stalled of its usual ones
            clock_s: seconds a step by the clock, over all steps after the first ten, steady or not,
                of the last attempt
            tokens_per_s: by the mean steady step, padding included
            fp8_share: of the linear layers' FLOPs, over all steps of the run: less than its proof's
                where there are phases in bf16. fp8_share_of_steps: of the steps
            mfu_bf16_peak, mfu_fp8_peak, mfu_mixed_peak: of tokens_per_s
            peak_memory_bytes: of one device
            orphans: how many trainable parameters are in no optimizer, as the recipe asks
            doubts: why the run is not what its recipe says, a sentence each

            A run whose records cannot be read has status unreadable, and nothing but its recipe.
        windows: one row a log window: run, recipe, seed, and `analysis.runs.WINDOW_COLUMNS`.
            `elapsed_s` counts on from the earlier attempts of a run that was resumed.
        steps: one row a step: run, recipe, seed, step, loss (NaN where the log has no value of the
            step), seconds, steady: its seconds are known, and its window does not name it among
            those that are `not_steady`.
        later: steps after the one to which a study's budget has cut its runs.
        problems: a sentence for each run that is not completed, each that could not be read, and
            each thing in a log that makes its figures doubtful.
    """

    runs: pd.DataFrame
    windows: pd.DataFrame
    steps: pd.DataFrame
    later: pd.DataFrame
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
    if all(run.facts["status"] == UNREADABLE for run in found):
        raise LoadError("; ".join(_summarized(unreadable)) or "no path was given to load runs from")
    found.sort(key=lambda run: ("start" not in run.facts, run.facts.get("start")))
    runs, windows = _frames(found)
    runs, windows, later = _cut_to_equal_length(runs, windows)
    steps, later = _by_step(windows), _by_step(later)
    slows = thirds(pd.concat([steps, later]), runs["precisions"])
    runs = runs.join(_logged(windows)).join(paces(steps)).join(slows).join(clock(runs, windows))
    runs = _work_out(without_stalls(runs), steps)
    problems = []
    runs["status"] = [_status(row) for _, row in runs.iterrows()]
    for run, (_, row) in zip(found, runs.iterrows(), strict=True):
        said = [*run.problems, *row["doubts"], *_oddities(row), *_ending(row)]
        problems += [f"{run.path}: {words}" for words in said]
    runs = runs.rename_axis("run").reset_index()
    return Frames(runs, windows, steps, later, _summarized(problems + unreadable))


def _by_step(windows: pd.DataFrame) -> pd.DataFrame:
    """Make `Frames.steps` of windows."""
    frame = windows[["run", "recipe", "seed"]]
    frame = frame.assign(steps=list(map(Window.steps, windows.itertuples())))
    frame = frame.explode("steps", ignore_index=True)
    steps = pd.DataFrame(frame.pop("steps").tolist(), columns=Step._fields)
    steps = steps.astype({"step": int, "loss": float, "seconds": float, "steady": bool})
    steps["steady"] &= steps["seconds"].notna()
    return frame.join(steps)


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
        folders = list(of_one_run.values())
        try:
            if read is read_tensorboard:
                yield from read(folders)
            else:
                yield read(folders[0])
        except RecordError as error:
            problems.append(str(error))
            if read is read_run:
                yield unreadable_run(folders[0])


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


def _frames(found: list[Run]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Put the facts and the windows of runs into one frame each; a run is named by its place."""
    parent = Path(os.path.commonpath([run.path.resolve().parent for run in found]))
    names = [run.path.resolve().relative_to(parent).as_posix() for run in found]
    facts = [{"phases": {}, "precisions": {}, "failures": []} | run.facts for run in found]
    runs = pd.DataFrame(facts, index=names, columns=[*COLUMNS])
    runs = runs.astype(dict.fromkeys(runs.columns[runs.isna().all()], float))
    runs["path"] = [str(run.path) for run in found]
    seeds = pd.Series([run.facts.get("seed") for run in found], names, dtype=object)
    if seeds.notna().any():
        runs["seed"] = seeds  # large ones are no floats
    runs["doubts"] = [run.doubts for run in found]
    logs = [run.windows.assign(run=name) for name, run in zip(names, found, strict=True)]
    return runs, pd.concat(logs, ignore_index=True).join(runs[["recipe", "seed"]], on="run")


def _cut_to_equal_length(
    runs: pd.DataFrame, windows: pd.DataFrame
) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """Cut the runs of a study whose time budget has stopped some of them to the last window that
    all of them have. They then count as completed. Returns runs, windows, and those cut off."""
    runs = runs.assign(steps_planned=math.nan)
    budgeted = runs[runs["study_budget_s"].notna()].query("status in ['completed', 'interrupted']")
    within = windows["run"].isin(budgeted.index)
    cut = budgeted.loc[windows.loc[within, "run"].unique()]
    counts = windows.loc[within, "step"].value_counts()
    if (cut["status"] == "completed").all() or counts.max() < len(cut):
        return runs, windows, windows[:0]
    last = counts.index[counts == len(cut)].max()
    later = within & (windows["step"] > last)
    windows, later = windows[~later].reset_index(drop=True), windows[later]
    wall_s = windows.groupby("run")["elapsed_s"].last()
    cut = cut.assign(steps_planned=cut["steps_asked"], steps_asked=last, wall_s=wall_s)
    runs.loc[cut.index] = cut.assign(status="completed", error=math.nan)
    return runs, windows, later


# ---- what the logs say ----


def _logged(windows: pd.DataFrame) -> pd.DataFrame:
    """Work out by run what its windows hold: steps, tokens, memory, losses that are not finite."""
    seconds = windows["step_s"].map(sum).astype(float)
    windows = windows.assign(
        tokens=windows["tokens_per_s"] * seconds,
        valid=windows["valid_tokens_per_s"] * seconds,
        count=windows["step_s"].map(len).astype(float),
        lost=windows["step"].where(~np.isfinite(windows["loss"])),
    )
    windows["tokens_per_step"] = windows["tokens"] / windows["count"]
    ends = windows["step"] >= final_from(windows.groupby("run")["step"].transform("max"))
    windows["lost_at_end"] = windows["lost"].notna().astype(float).where(ends)
    logged = windows.groupby("run").agg(
        steps=("step", "max"),
        count=("count", "sum"),
        tokens_per_step=("tokens_per_step", "median"),
        tokens=("tokens", "sum"),
        valid=("valid", "mean"),
        windows=("step", "count"),
        peak_memory_bytes=("peak_memory_bytes", "max"),
        lost=("lost", "count"),
        lost_from=("lost", "min"),
        lost_until=("lost", "max"),
        lost_at_end=("lost_at_end", "mean"),
    )
    logged["lost_at_end"] = logged["lost_at_end"].mask(logged["lost_until"] == logged["steps"], 1.0)
    logged["mean_tokens"] = logged["tokens"] / logged["count"]
    # Tokens a step are whole but for the rounding of logged times.
    logged["tokens_per_step"] = logged["tokens_per_step"].round()
    logged["valid_share"] = logged.pop("valid") * logged.pop("windows") / logged.pop("tokens")
    return logged


_PACES = ["steady_steps", "step_s", "iqr", "usual_s", "stall_s", "stall"]


def paces(steps: pd.DataFrame) -> pd.DataFrame:
    """Work out by run how long its steady steps take, see `Frames`."""
    paces = {}
    for run, steady in steps[steps["steady"]].groupby("run"):
        seconds = steady.set_index("step")["seconds"]
        low, median, high = seconds.quantile([0.25, 0.5, 0.75])
        usual = seconds[seconds <= SLOW * median]
        paces[run] = [
            len(seconds),
            seconds.mean(),
            (high - low) / median,
            usual.mean(),
            seconds.max(),
            seconds.idxmax(),
        ]
    return pd.DataFrame(paces, _PACES, dtype=float).T


def thirds(steps: pd.DataFrame, precisions: pd.Series) -> pd.DataFrame:
    """Work out by run the median of its first third, and how many times that the others take.

    Of a run with phases only the steps in the precision that most of them have are compared.

    Args:
        steps: also those that a budget has cut.
        precisions: by run, see `analysis.runs.Run`.
    """
    slows = {}
    for run, steady in steps[steps["steady"]].groupby("run"):
        in_fp8 = _in_fp8(precisions[run], steady["step"])
        seconds = steady["seconds"].to_numpy()[in_fp8 == in_fp8.mode()[0]]
        if len(seconds) >= MIN_DRIFT_STEPS:
            third, tenth = len(seconds) // 3, max(LEAST_TENTH, len(seconds) // 10)
            first = np.median(seconds[:third])
            parts = seconds[-third:], seconds[-tenth:], seconds[third:-third]
            slows[run] = [first, *(np.median(part) / first for part in parts)]
    return pd.DataFrame(slows, ["first_third_s", *PARTS.values()], dtype=float).T


def without_stalls(runs: pd.DataFrame) -> pd.DataFrame:
    """Keep the stalls that are a run's own: of `STALL` times its usual step, or of more than
    `STALLED` of its time beyond what slow steps take of each run of its recipe."""
    slow = runs["step_s"] / runs["usual_s"]
    shared = slow.groupby(runs["recipe"]).transform("min")
    own = (runs["stall_s"] > STALL * runs["usual_s"]) | (slow > (1 + STALLED) * shared)
    runs["without_stalls_s"] = runs["usual_s"].where(own, runs["step_s"])
    runs["stall"] = runs["stall"].where(own)
    return runs


def clock(runs: pd.DataFrame, windows: pd.DataFrame) -> pd.Series:
    """Work out `clock_s`, of a resumed run by the windows of its last attempt."""
    before = runs["resumed_after"].fillna(0).reindex(windows["run"]).to_numpy()
    late = windows[windows["step"] >= NOT_STEADY_STEPS + before]
    late = late.groupby("run")[["step", "elapsed_s"]]
    passed = late.last() - late.first()
    return (passed["elapsed_s"] / passed["step"]).rename("clock_s")


def _work_out(runs: pd.DataFrame, steps: pd.DataFrame) -> pd.DataFrame:
    """Add the steps that were asked for beside the longest log, the final loss, and shares, rates
    and utilisation."""
    runs["steps"] = runs["steps"].fillna(0).astype(int)
    longest = runs.groupby("study")["steps"].transform("max")
    runs["steps_asked"] = runs["steps_asked"].mask(runs["steps"] < longest, longest)
    final = final_from(runs["steps"])
    late = steps[steps["step"] >= final.reindex(steps["run"]).to_numpy()]
    runs["final_loss"] = late.groupby("run")["loss"].mean().mask(runs["lost_at_end"] > MOST)
    runs["fp8_share_of_steps"] = runs.apply(_share_of_steps, axis="columns")
    runs = runs.eval("""
        fp8_share = fp8_share * fp8_share_of_steps
        tokens = tokens_per_step * steps
        wall_s_without_warm_up = wall_s - warm_up_s
        tokens_per_s = tokens_per_step / step_s
        mfu_bf16_peak = tokens_per_s / world_size * flops_per_token / peak_bf16
        mfu_fp8_peak = tokens_per_s / world_size * flops_per_token / peak_fp8
        in_fp8 = fp8_flops * fp8_share_of_steps * world_size / tokens_per_step
        ideal_s = in_fp8 / peak_fp8 + (flops_per_token - in_fp8) / peak_bf16
        mfu_mixed_peak = tokens_per_s / world_size * ideal_s
    """)
    vary = (runs.pop("mean_tokens") / runs["tokens_per_step"] - 1).abs() > VARY
    for doubts in runs.loc[vary, "doubts"]:
        doubts.append("its tokens a step vary")
    mfu = runs["mfu_mixed_peak"].fillna(runs["mfu_bf16_peak"])
    for doubts, share in zip(runs["doubts"][mfu > 1], mfu[mfu > 1], strict=True):
        doubts.append(f"its MFU is {share:.0%}, and no GPU is faster than its peak")
    return runs.drop(columns=["in_fp8", "ideal_s"])


def _share_of_steps(run: pd.Series) -> float:
    """The part of the steps, as far as the run came, that are in FP8: all, without phases."""
    steps = range(1, max(1, run["steps"]) + 1)
    return _in_fp8(run["precisions"], steps).mean()


def _in_fp8(precisions: dict[int, bool], steps: Iterable[int]) -> pd.Series:
    """Tell of each step whether it is in FP8: all of them, without phases."""
    in_fp8 = pd.Series(precisions or {1: True}).sort_index()
    return in_fp8.reindex(steps, method="ffill").astype(float)


def _status(run: pd.Series) -> str:
    """Tell the status by what the log shows: diverged if it ends in losses that are not finite."""
    if run["lost_at_end"] > MOST:
        return "diverged"
    short = run["status"] == "completed" and run["steps"] < run["steps_asked"]
    return "short" if short else run["status"]


def _ending(run: pd.Series) -> Iterator[str]:
    """Say how a run ended that is not averaged with others, and where losses are not finite."""
    where = f"at step {run['steps']}"
    if run["steps_asked"] > 0:
        where += f" of {run['steps_asked']:.0f}"
    why = f" ({run['error']})" if isinstance(run["error"], str) else ""
    words = {"completed": "", UNREADABLE: "", "diverged": f"diverged {where}",
             "running": f"not ended (running, or killed) {where}",
             "short": f"short, its log ends {where}"}  # fmt: skip
    said = words.get(run["status"], f"{run['status']} {where}")
    if said:
        yield f"{said}{why}, so it is not averaged with others"
    if run["lost"] > 0:
        yield (
            f"its loss is not finite in {run['lost']:.0f} of its log windows, from step "
            f"{run['lost_from']:.0f} to step {run['lost_until']:.0f}"
        )


def _oddities(run: pd.Series) -> Iterator[str]:
    """Name steps that the log lacks, a step that stalled, and a step time that changes between the
    run's thirds by more than its noise."""
    if run["count"] < run["steps"]:
        yield f"{run['steps'] - run['count']:.0f} steps are missing from its log"
    if run["stall"] > 0:
        yield (
            f"its step {run['stall']:.0f} took {run['stall_s']:.3g} s, and steady steps without "
            f"such ones {run['usual_s']:.3g} s"
        )
    early = run["first_third_s"]
    late = early * run["last_third"]
    if abs(late - early) > max(DRIFT, 0.9 * run["iqr"]) * early:
        yield (
            f"its step time drifts: the median is {early:.3g} s in the first third of the steady "
            f"steps and {late:.3g} s in the last, so its rate is a mixture"
        )
