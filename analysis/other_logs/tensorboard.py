"""TensorBoard folders of plain torchtitan, read as runs.

torchtitan trains into FOLDER and logs to FOLDER/tb/TIME, or, where all ranks log, to
FOLDER/tb/TIME/rank_K. Each process writes a file of events of its own, so a training that was
resumed has several.
"""

import re
from itertools import chain
from pathlib import Path

import numpy as np
import pandas as pd

from analysis.runs import Run, even_windows
from experiments.records.files import RecordError

EVENTS = "events.out.tfevents.*"
_LOSS, _RATE, _SECONDS = (
    "loss_metrics/global_avg_loss",
    "throughput(tps)",
    "time_metrics/end_to_end(s)",
)
_TAGS = [_LOSS, _RATE, _SECONDS, "time_metrics/data_loading(%)", "memory/max_reserved(GiB)",
         "mfu(%)", "n_tokens_seen", "grad_norm", "lr"]  # fmt: skip
_NAMED_BY_TORCHTITAN = re.compile(r"tb|tensorboard|\d{8}-\d{4}|rank_\d+|replica_\d+")


def named_folder(folder: Path) -> Path:
    """The folder that was trained into: the innermost one that torchtitan did not name."""
    folder = folder.resolve()
    return next(p for p in (folder, *folder.parents) if not _NAMED_BY_TORCHTITAN.fullmatch(p.name))


def read_tensorboard(folders: list[Path]) -> list[Run]:
    """Read the trainings in the event folders of one folder. A process that logs step 1 begins one,
    others go on with it.

    The recipe is the name of that folder. `warm_up_s` and `wall_s` begin where the logs do, when
    torchtitan had built its metrics. Rates are over all devices where the log counts the tokens of
    all (`n_tokens_seen`), else of one device. Where all ranks logged, the first one's log is read.

    Raises:
        RecordError: they hold no loss of torchtitan's.
    """
    files = list(chain.from_iterable(folder.glob(EVENTS) for folder in _first_ranks(folders)))
    files.sort(key=lambda file: (file.parent, _number(file.name)))  # by minute, then by second
    trainings: list[Run] = []
    for process in filter(None, map(_read, files)):
        if process.windows["step"][0] == 1 or not trainings:
            trainings.append(process)
        else:
            _go_on(trainings[-1], process)
    if not trainings:
        where = ", ".join(map(str, folders))
        raise RecordError(
            f"{where}: its TensorBoard events hold no {_LOSS}, so they are not torchtitan's"
        )
    for run in trainings:
        run.facts["wall_s"] = run.windows["elapsed_s"].iloc[-1]
        last = run.windows["step"].iloc[-1]
        run.problems.append(
            f"TensorBoard does not say how a run ended, it is taken as completed at step {last}"
        )
    return trainings


def _first_ranks(folders: list[Path]) -> list[Path]:
    """Of the folders rank_0, rank_1, ... beside each other only the first."""
    first: dict[str, Path] = {}
    for folder in sorted(folders, key=lambda folder: _number(folder.name)):
        first.setdefault(re.sub(r"rank_\d+$", "rank", str(folder.resolve())), folder)
    return list(first.values())


def _number(name: str) -> int:
    """The first number in a name, 0 without one."""
    match = re.search(r"\d+", name)
    return int(match[0]) if match else 0


def _read(file: Path) -> Run | None:
    """What one process logged; None if there is no loss in its file of events, as of a process that
    soon died."""
    from tensorboard.backend.event_processing import event_accumulator  # takes half a second

    log = event_accumulator.EventAccumulator(str(file), size_guidance={"scalars": 0}).Reload()
    tags = {}
    for tag in log.Tags()["scalars"]:
        tags[tag] = pd.Series({event.step: event.value for event in log.Scalars(tag)}, dtype=float)
    logged = tags.get(_LOSS, pd.Series()).drop(0, errors="ignore").index.sort_values()
    if logged.empty:
        return None
    scalars = pd.DataFrame(tags).reindex(index=logged, columns=_TAGS)
    step = logged.to_numpy()
    # torchtitan logs step 1 and every log_freq-th, and divides a window's time by log_freq, also
    # the time of step 1.
    log_freq = int(np.gcd.reduce(step[step > 1])) or 1
    seconds = scalars[_SECONDS] * log_freq
    ratio = (scalars["n_tokens_seen"].diff() / (scalars[_RATE] * seconds)).median()
    devices = 1
    trained_into = named_folder(file.parent)
    facts = {
        "source": "tensorboard",
        "study": str(trained_into.parent),
        "recipe": trained_into.name,
        "status": "completed",
    }
    if ratio > 0:  # tokens of all devices over the tokens of one
        facts["world_size"] = devices = round(ratio)
    if step[0] == 1:
        facts["warm_up_s"] = seconds.iloc[0]
    windows = even_windows(
        step,
        np.diff(step, prepend=max(0, step[0] - log_freq)),
        seconds.to_numpy(),
        (scalars["time_metrics/data_loading(%)"] / 100).to_numpy(),
        loss=scalars[_LOSS].to_numpy(),
        lr=scalars["lr"].to_numpy(),
        grad_norm=scalars["grad_norm"].to_numpy(),
        tokens_per_s=(scalars[_RATE] * devices).to_numpy(),
        peak_memory_bytes=(scalars["memory/max_reserved(GiB)"] * 2**30).to_numpy(),
        mfu_logged=(scalars["mfu(%)"] / 100).to_numpy(),
    )
    return Run(file.parent, facts, windows)


def _go_on(run: Run, process: Run) -> None:
    """Add the log of a process that goes on with a training, and may repeat steps of its end."""
    before, resumed = run.windows, process.windows
    resumed["elapsed_s"] += before["elapsed_s"].iloc[-1]
    kept = before[before["step"] < resumed["step"][0]]
    run.windows = pd.concat([kept, resumed], ignore_index=True)
    if process.path != run.path:
        run.path = named_folder(run.path)
