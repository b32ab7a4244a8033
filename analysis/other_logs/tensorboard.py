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

from analysis.other_logs.log import make_run
from analysis.runs import Run
from experiments.records.files import RecordError

EVENTS = "events.out.tfevents.*"
_LOSS = "loss_metrics/global_avg_loss"
_TAGS = {
    _LOSS: "loss",
    "throughput(tps)": "tokens_per_s",
    "time_metrics/end_to_end(s)": "seconds",
    "time_metrics/data_loading(%)": "data_wait",
    "memory/max_reserved(GiB)": "peak_memory_bytes",
    "mfu(%)": "mfu_logged",
    "n_tokens_seen": "tokens",
    "grad_norm": "grad_norm",
    "lr": "lr",
}
_NAMED_BY_TORCHTITAN = re.compile(r"tb|tensorboard|\d{8}-\d{4}|rank_\d+|replica_\d+")


def named_folder(folder: Path) -> Path:
    """Choose the folder that was trained into: the innermost one that torchtitan did not name."""
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
        last = run.windows["step"].iloc[-1]
        run.problems.append(
            f"TensorBoard does not say how a run ended, it is taken as completed at step {last}"
        )
    return trainings


def _first_ranks(folders: list[Path]) -> list[Path]:
    """Choose of the folders rank_0, rank_1, ... beside each other only the first."""
    last_first = sorted(folders, key=lambda folder: _number(folder.name), reverse=True)
    chosen = {re.sub(r"rank_\d+$", "rank", str(folder.resolve())): folder for folder in last_first}
    return list(chosen.values())


def _number(name: str) -> int:
    """Read the first number in a name, 0 without one."""
    return int(re.search(r"\d+|$", name)[0] or 0)


def _read(file: Path) -> Run | None:
    """Read what one process logged; None if there is no loss in its file of events, as of a process
    that soon died."""
    from tensorboard.backend.event_processing import event_accumulator  # takes half a second

    events = event_accumulator.EventAccumulator(str(file), size_guidance={"scalars": 0}).Reload()
    scalars = {}
    for tag in _TAGS.keys() & events.Tags()["scalars"]:
        logged = {event.step: event.value for event in events.Scalars(tag) if event.step > 0}
        scalars[_TAGS[tag]] = pd.Series(logged, dtype=float)
    if scalars.get("loss", pd.Series()).empty:
        return None
    log = pd.DataFrame(scalars, scalars["loss"].index.sort_values(), _TAGS.values())
    log = log.reset_index(names="step")
    # torchtitan logs step 1 and every log_freq-th, and divides a window's time by log_freq, also
    # the time of step 1.
    log_freq = int(np.gcd.reduce(log["step"][log["step"] > 1])) or 1
    log["seconds"] *= log_freq
    log[["data_wait", "mfu_logged"]] /= 100
    log["peak_memory_bytes"] *= 2**30
    log["count"] = np.diff(log["step"], prepend=max(0, log["step"][0] - log_freq))
    trained_into = named_folder(file.parent)
    facts = {
        "source": "tensorboard",
        "study": str(trained_into.parent),
        "recipe": trained_into.name,
        "status": "completed",
    }
    # tokens of all devices over the tokens of one
    devices = (log["tokens"].diff() / (log["tokens_per_s"] * log["seconds"])).median()
    if devices > 0:
        facts["world_size"] = round(devices)
        log["tokens_per_s"] *= round(devices)
    return make_run(file.parent, log, facts)


def _go_on(run: Run, process: Run) -> None:
    """Add the log of a process that goes on with a training, and may repeat steps of its end."""
    before, resumed = run.windows, process.windows
    resumed["elapsed_s"] += before["elapsed_s"].iloc[-1]
    run.facts["wall_s"] = resumed["elapsed_s"].iloc[-1]
    kept = before[before["step"] < resumed["step"][0]]
    run.windows = pd.concat([kept, resumed], ignore_index=True)
    if process.path != run.path:
        run.path = named_folder(run.path)
