"""TensorBoard folders of plain torchtitan, read as runs.

torchtitan trains into FOLDER and logs to FOLDER/tb/TIME, or, where all ranks log, to
FOLDER/tb/TIME/rank_K. Each process writes a file of events of its own, so a training that was
resumed has several.
"""

import math
import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np

from analysis.record import Facts, LayoutError, Run, known, printable
from analysis.windows import join, of_log, take

EVENTS = "events.out.tfevents.*"
_LOSS, _RATE, _SECONDS = (
    "loss_metrics/global_avg_loss",
    "throughput(tps)",
    "time_metrics/end_to_end(s)",
)
_NAMED_BY_TORCHTITAN = re.compile(r"tb|tensorboard|\d{8}-\d{4}|rank_\d+|replica_\d+")


def named_folder(folder: Path) -> Path:
    """The folder that was trained into: the innermost one that torchtitan did not name."""
    folder = folder.resolve()
    return next(p for p in (folder, *folder.parents) if not _NAMED_BY_TORCHTITAN.fullmatch(p.name))


def read_tensorboard(folders: list[Path]) -> list[Run]:
    """The trainings in the event folders of one folder; a process that logs step 1 begins one,
    others go on with it.

    The recipe is the name of that folder. `warm_up_s` and `wall_s` begin where the logs do, when
    torchtitan had built its metrics. Rates are over all devices where the log counts the tokens of
    all (`n_tokens_seen`), else of one device. Where all ranks logged, the first one's log is read.

    Raises:
        LayoutError: they hold no loss of torchtitan's.
    """
    files = [file for folder in _first_ranks(folders) for file in folder.glob(EVENTS)]
    files.sort(
        key=lambda file: (file.parent, _number(file.name))
    )  # by minute, and within it by second
    trainings: list[list[Run]] = []
    for process in filter(None, map(_read, files)):
        if process.windows["step"][0] == 1 or not trainings:
            trainings.append([])
        trainings[-1].append(process)
    if not trainings:
        where = ", ".join(map(str, folders))
        raise LayoutError(
            f"{where}: its TensorBoard events hold no {_LOSS}, so they are not torchtitan's"
        )
    return [_joined(processes) for processes in trainings]


def _first_ranks(folders: list[Path]) -> list[Path]:
    """Of the folders rank_0, rank_1, ... beside each other only the first."""
    first: dict[str, Path] = {}
    for folder in sorted(folders, key=lambda folder: _number(folder.name)):
        first.setdefault(re.sub(r"rank_\d+$", "rank", str(folder.resolve())), folder)
    return list(first.values())


def _number(name: str) -> int:
    """The first number in a name, 0 without one."""
    return int(match[0]) if (match := re.search(r"\d+", name)) else 0


def _read(file: Path) -> Run | None:
    """What one process logged; None if there is no loss in its file of events, as of a process that
    soon died."""
    from tensorboard.backend.event_processing.event_accumulator import (
        EventAccumulator,
    )  # takes half a second

    log = EventAccumulator(str(file), size_guidance={"scalars": 0}).Reload()
    values = {
        tag: {e.step: e.value for e in log.Scalars(tag) if e.step > 0}
        for tag in log.Tags()["scalars"]
    }
    if not values.get(_LOSS):
        return None
    step = np.array(sorted(values[_LOSS]))

    def column(tag: str) -> np.ndarray:
        return np.array([values.get(tag, {}).get(s, math.nan) for s in step.tolist()])

    # torchtitan logs step 1 and every log_freq-th, and divides a window's time by log_freq, also
    # that of step 1.
    log_freq = int(np.gcd.reduce(step[step > 1])) or 1
    count = np.diff(step, prepend=max(0, step[0] - log_freq))
    seconds, rate, tokens = column(_SECONDS) * log_freq, column(_RATE), column("n_tokens_seen")
    ratio = np.diff(tokens) / (rate * seconds)[1:]  # tokens of all devices over those of one
    devices = round(float(np.nanmedian(ratio))) if np.isfinite(ratio).any() else None
    waits = column("time_metrics/data_loading(%)") / 100 * seconds / count
    windows = of_log(
        step, count, seconds, loss=column(_LOSS), lr=column("lr"), grad_norm=column("grad_norm"),
        tokens_per_s=rate * (devices or 1), data_wait_s=[(w,) * n for w, n in zip(waits, count, strict=True)],
        peak_memory_bytes=column("memory/max_reserved(GiB)") * 2**30, mfu_logged=column("mfu(%)") / 100,
    )  # fmt: skip
    folder, elapsed = named_folder(file.parent), windows["elapsed_s"]
    facts = Facts(
        recipe=printable(folder.name),
        status="completed",
        world_size=devices,
        warm_up_s=known(elapsed[0]) if step[0] == 1 else None,
    )
    return Run(file.parent, "tensorboard", facts, windows, study=folder.parent)


def _joined(processes: list[Run]) -> Run:
    """One training: each process goes on with the steps of those before it, which it may repeat."""
    windows, passed = processes[0].windows, 0.0
    for before, process in pairwise(processes):
        passed += before.windows["elapsed_s"][-1]
        resumed = process.windows | {"elapsed_s": process.windows["elapsed_s"] + passed}
        windows = join([take(windows, windows["step"] < process.windows["step"][0]), resumed])
    path = (
        processes[0].path
        if len({run.path for run in processes}) == 1
        else named_folder(processes[0].path)
    )
    problem = f"{path}: TensorBoard does not say how a run ended, it is taken as completed at step {windows['step'][-1]}"
    run = replace(processes[0], path=path, windows=windows, problems=[problem])
    return run.changed(wall_s=known(windows["elapsed_s"][-1]))
