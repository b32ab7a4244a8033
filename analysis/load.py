"""Runs into data frames: `frames = load(["runs/four_way-…"])`.

Reads run directories, logs of the published project and plain torchtitan's TensorBoard folders.
"""

import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np
import pandas as pd

from analysis.other_logs.published import read_published
from analysis.other_logs.tensorboard import EVENTS, named_folder, read_tensorboard
from analysis.runs import LayoutError, Run, read_run
from experiments.records.files import RecordError
from experiments.records.run import MANIFEST, METRICS, RECIPE

DRIFT = 0.15  # of the step time, between the first and the last third of the steady steps
MIN_DRIFT_STEPS = 30  # steady steps without which nothing is said of a drift
_NAMED, _ALIKE = 3, 10  # how many of more than so many problems that are alike are named

RUN_COLUMNS = [
    "run",
    "path",
    "source",
    "recipe",
    "seed",
    "status",
    "error",
    "attempt",
    "start",
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
    "fp8_product",
    "attention",
    "gathered_bytes",
    "reduced_bytes",
    "orphans",
    "fp8_share_of_steps",
    "code",
    "steps",
    "final_loss",
    "wall_s_without_warm_up",
    "peak_memory_bytes",
    "mfu_logged",
    "tokens_per_step",
    "tokens",
    "batch",
    "date",
    "tokens_per_s",
    "tokens_per_s_q1",
    "tokens_per_s_q3",
    "valid_tokens_per_s",
    "data_wait_share",
    "mfu_bf16_peak",
    "mfu_fp8_peak",
    "mfu_mixed_peak",
]


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
    runs = list(_read(paths, unreadable))
    if not runs:
        raise LoadError("; ".join(_summarized(unreadable)) or "no path was given to load runs from")
    runs.sort(key=lambda run: ("start" not in run.facts, run.facts.get("start")))
    _cut_to_equal_length(runs)
    _ask_for_longest(runs)
    parent = Path(os.path.commonpath([run.path.resolve().parent for run in runs]))
    rows, windows = [], []
    for run in runs:
        name = run.path.resolve().relative_to(parent).as_posix()
        owner = {"run": name, "recipe": run.facts["recipe"], "seed": run.facts.get("seed")}
        owned = pd.concat([pd.DataFrame(owner, index=run.windows.index), run.windows], axis=1)
        by_step = steps(owned)
        _judge(run, by_step)
        rows.append({"run": name, "path": str(run.path), "source": run.source} | _row(run, by_step))
        windows.append(owned)
    frame = pd.DataFrame(rows, columns=RUN_COLUMNS)
    unknown = frame.columns[frame.isna().all()]
    problems = [*chain.from_iterable(run.problems for run in runs), *unreadable]
    return Frames(
        frame.astype(dict.fromkeys(unknown, float)),
        pd.concat(windows, ignore_index=True).astype({"seed": float}),
        _summarized(problems),
    )


def steps(windows: pd.DataFrame) -> pd.DataFrame:
    """Make one row a step of `Frames.windows`, or of some of its rows.

    Columns: run, recipe, seed, step, loss, seconds, data_wait_s (NaN where the log has no value of
    the step), steady: not among a process's first 10 steps, did not write a checkpoint, and its
    seconds are known.
    """
    values = ["losses", "step_s", "data_wait_s"]
    counts = windows["step_s"].map(len).to_numpy(int)
    by_step = windows[["run", "recipe", "seed", "step", "not_steady", *values]].explode(values)
    after = np.repeat(counts.cumsum(), counts) - np.arange(len(by_step)) - 1  # steps to the last
    by_step["step"] -= after
    by_step[values] = by_step[values].astype(float)
    not_steady = zip(by_step["step"], by_step.pop("not_steady"), strict=True)
    by_step["steady"] = [step not in others for step, others in not_steady]
    by_step["steady"] &= by_step["step_s"].notna()
    names = {"losses": "loss", "step_s": "seconds"}
    return by_step.rename(columns=names).reset_index(drop=True)


def final_from(last: int) -> int:
    """The first step of the last tenth of `last` steps, whose mean loss is the final loss.

    A tenth is long enough to average batches out, and short enough to be the run's end.
    """
    return last - max(1, last // 10) + 1


# ---- what is there ----


def _read(paths: list[Path], problems: list[str]) -> Iterator[Run]:
    """Read everything at or below `paths` that looks like a run, each once; `problems` says what
    could not be read.

    Event folders of one training belong together: each of its processes has written one.
    """
    seen = set()
    events: dict[Path, list[Path]] = defaultdict(list)
    for path in paths:
        found = list(_walk(path))
        if not found:
            problems.append(f"{path}: holds no run")
        for read, place in found:
            if place.resolve() in seen:
                continue
            seen.add(place.resolve())
            if read is read_tensorboard:
                events[named_folder(place)].append(place)
                continue
            try:
                yield read(place)
            except (LayoutError, RecordError) as error:
                problems.append(str(error))
    for folders in events.values():
        try:
            yield from read_tensorboard(folders)
        except LayoutError as error:
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
    for group in alike.values():
        if len(group) > _ALIKE:
            group[_NAMED:] = [
                f"{len(group) - _NAMED:,} more runs or files have the same problem as {group[0]}"
            ]
    return list(chain.from_iterable(alike.values()))


# ---- what becomes of a run beside others ----


def _cut_to_equal_length(runs: list[Run]) -> None:
    """Cut the runs of a study whose time budget has stopped some of them to the last window that
    all of them have. They then count as completed."""
    stopped = ("completed", "interrupted")
    within = [
        run
        for run in runs
        if run.facts.get("study_budget_s") and run.facts["status"] in stopped and run.steps
    ]
    if all(run.facts["status"] == "completed" for run in within):
        return
    last = max(set.intersection(*(set(run.windows["step"]) for run in within)), default=None)
    if last is None:
        return
    for run in within:
        run.windows = run.windows[run.windows["step"] <= last]
        planned = run.facts["steps_asked"]
        run.facts |= {"status": "completed", "error": None}
        run.facts |= {"steps_asked": int(last), "steps_planned": planned}
        run.facts["wall_s"] = run.windows["elapsed_s"].iloc[-1]


def _ask_for_longest(runs: list[Run]) -> None:
    """Ask of another program's log as many steps as the longest log of its folder has."""
    longest: dict[Path, int] = defaultdict(int)
    for run in runs:
        if run.study:
            longest[run.study] = max(run.steps, longest[run.study])
    for run in runs:
        if run.study and run.steps < longest[run.study]:
            run.facts["steps_asked"] = longest[run.study]


# ---- what its log says ----


def _judge(run: Run, by_step: pd.DataFrame) -> None:
    """Set the status by what the log shows, and name what makes its figures doubtful."""
    for flaw in (_missing_steps(by_step), _drift(by_step)):
        if flaw:
            run.doubt(flaw)
    status, asked = run.facts["status"], run.facts.get("steps_asked") or 0
    where = f"at step {run.steps} of {asked}"
    lost = run.windows.loc[~np.isfinite(run.windows["loss"]), "step"].tolist()
    if status != "completed":
        word = "not ended (running, or killed)" if status == "running" else status
        why = f" ({run.facts['error']})" if run.facts.get("error") else ""
        run.doubt(f"{word} {where}{why}, so it is not averaged with others")
    elif lost:
        verdict = (
            f"{len(lost)} of its log windows have such losses, the last ends at step {lost[-1]}"
        )
        if lost[-1] >= final_from(run.steps):
            run.facts["status"] = "diverged"
            verdict = "it counts as diverged, although its log says completed"
        run.doubt(f"its loss is not finite by step {lost[0]}: {verdict}")
    elif run.steps < asked:
        run.facts["status"] = "short"
        run.doubt(f"short, its log ends {where}, so it is not averaged with others")


def _missing_steps(by_step: pd.DataFrame) -> str | None:
    """Name the steps that lie between the log's windows."""
    there = by_step["step"].tolist()
    missing = sorted(set(range(1, max(there, default=0))).difference(there))
    if not missing:
        return None
    return f"steps missing from its log: {len(missing):,} (from {missing[0]} to {missing[-1]})"


def _drift(by_step: pd.DataFrame) -> str | None:
    """Name a step time that changes between the run's thirds by more than its noise."""
    steady = by_step.loc[by_step["steady"], "seconds"]
    if len(steady) < MIN_DRIFT_STEPS:
        return None
    third, quartiles = len(steady) // 3, [0.25, 0.5, 0.75]
    low, early, high = steady[:third].quantile(quartiles)
    late_low, late, late_high = steady[-third:].quantile(quartiles)
    if abs(late / early - 1) < DRIFT or (late_low <= high and low <= late_high):
        return None
    return (
        f"its step time drifts: of the steady steps the median is {early:.3g} s in the first third "
        f"and {late:.3g} s in the last, so its rate is a mixture"
    )


def _row(run: Run, by_step: pd.DataFrame) -> dict:
    """Make the run's row of `Frames.runs`: what is recorded, and what follows from its windows."""
    facts, windows = {"phases": {}} | run.facts, run.windows
    durations = windows["step_s"].map(sum)
    tokens = (windows["tokens_per_s"] * durations / windows["step_s"].map(len)).dropna()
    in_fp8 = _share_in_fp8(facts.pop("precisions", {}), run.steps)
    facts |= {
        "fp8_share_of_steps": in_fp8,
        "steps": run.steps,
        "final_loss": _final_loss(run, by_step),
        "peak_memory_bytes": windows["peak_memory_bytes"].max(),
        "mfu_logged": windows["mfu_logged"].median(),
    }
    if facts.get("fp8_share"):
        facts["fp8_share"] *= in_fp8
    if facts.get("wall_s") and facts.get("warm_up_s"):
        facts["wall_s_without_warm_up"] = facts["wall_s"] - facts["warm_up_s"]
    if len(tokens):
        per_step = float(tokens.iloc[0])  # a whole number but for the rounding of logged times
        facts |= {"tokens_per_step": per_step, "tokens": round(per_step) * run.steps}
        if facts.get("seq_len"):
            facts["batch"] = round(per_step / facts["seq_len"])
    steady = by_step[by_step["steady"]]
    if len(tokens) and len(steady) > 1:
        facts |= _rates(facts, steady)
        valid, every = (
            windows[name] @ durations for name in ("valid_tokens_per_s", "tokens_per_s")
        )
        facts["valid_tokens_per_s"] = facts["tokens_per_s"] * (valid / every)
    return facts


def _share_in_fp8(precisions: dict[int, bool], steps: int) -> float:
    """The part of the steps, as far as the run came, that are in FP8: all, without phases."""
    if not precisions or not steps:
        return 1.0
    first = sorted(precisions)
    phase = np.searchsorted(first, np.arange(1, steps + 1), side="right") - 1
    return float(np.array([precisions[step] for step in first])[phase].mean())


def _final_loss(run: Run, by_step: pd.DataFrame) -> float | None:
    """Mean over the last tenth of the steps, as far as they were logged; None where one is not
    finite."""
    first = final_from(run.steps)
    logged = run.windows.loc[run.windows["step"] >= first, "loss"]
    losses = by_step.loc[by_step["step"] >= first, "loss"]
    return float(losses.mean()) if np.isfinite(logged).all() else None


def _rates(facts: dict, steady: pd.DataFrame) -> dict[str, float]:
    """Work out the rates of the steady steps, and the MFUs that follow from the median."""
    tokens, seconds = facts["tokens_per_step"], steady["seconds"]
    median = tokens / seconds.median()
    rates = {
        "tokens_per_s": median,
        "tokens_per_s_q1": tokens / seconds.quantile(0.75),
        "tokens_per_s_q3": tokens / seconds.quantile(0.25),
        "data_wait_share": steady["data_wait_s"].sum(skipna=False) / seconds.sum(),
    }
    flops, bf16, fp8 = (facts.get(name) for name in ("flops_per_token", "peak_bf16", "peak_fp8"))
    if not flops:
        return rates
    per_device = median / facts["world_size"]
    rates["mfu_bf16_peak"] = per_device * flops / bf16
    if fp8:
        rates["mfu_fp8_peak"] = per_device * flops / fp8
    if fp8 and "fp8_flops" in facts:
        in_fp8 = facts["fp8_flops"] * facts["fp8_share_of_steps"] * facts["world_size"] / tokens
        rates["mfu_mixed_peak"] = per_device * (in_fp8 / fp8 + (flops - in_fp8) / bf16)
    return rates
