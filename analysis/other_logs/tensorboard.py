"""TensorBoard folders of plain torchtitan, read as runs."""

import re
from pathlib import Path

import numpy as np

from analysis.record import Run, windows_table
from analysis.summary import LayoutError

SOURCE = "tensorboard"
EVENTS = "events.out.tfevents.*"
_LOSS, _RATE, _SECONDS = "loss_metrics/global_avg_loss", "throughput(tps)", "time_metrics/end_to_end(s)"


def read_tensorboard(folder: Path) -> Run:
    """The event files of one folder, which are one process's: a resumed training is a run for each process.

    The recipe is the name of the folder that was trained into: torchtitan logs to FOLDER/tb/TIME. `warm_up_s` and
    `wall_s` begin where the log does, when torchtitan had built its metrics. Rates are over all devices where the log
    counts the tokens of all (`n_tokens_seen`), else of one device.

    Raises:
        LayoutError: they hold no loss of torchtitan's.
    """
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # takes half a second

    log = EventAccumulator(str(folder), size_guidance={"scalars": 0}).Reload()
    tags = log.Tags()["scalars"]
    if _LOSS not in tags:
        raise LayoutError(f"{folder}: its TensorBoard events hold no {_LOSS}, so they are not torchtitan's")
    values = {tag: {event.step: event.value for event in log.Scalars(tag)} for tag in tags}
    step = np.array(sorted(values[_LOSS]))

    def column(tag: str) -> np.ndarray:
        return np.array([values.get(tag, {}).get(s, np.nan) for s in step.tolist()])

    # torchtitan logs step 1 and every log_freq-th, and divides a window's time by log_freq, also that of step 1.
    log_freq = int(np.gcd.reduce(step[step > 1])) or 1
    count = np.diff(step, prepend=max(0, step[0] - log_freq))
    seconds, rate, tokens = column(_SECONDS) * log_freq, column(_RATE), column("n_tokens_seen")
    devices = _devices(np.diff(tokens) / (rate * seconds)[1:])
    waits = column("time_metrics/data_loading(%)") / 100 * seconds / count
    windows = windows_table(
        step, count, seconds, loss=column(_LOSS), lr=column("lr"), grad_norm=column("grad_norm"),
        tokens_per_s=rate * (devices or 1), data_wait_s=[[w] * n for w, n in zip(waits, count, strict=True)],
        peak_memory_bytes=column("memory/max_reserved(GiB)") * 2**30, mfu_logged=column("mfu(%)") / 100,
    )  # fmt: skip
    return Run(
        path=folder,
        source=SOURCE,
        windows=windows,
        problems=[f"{folder}: TensorBoard does not say how a run ended, it is taken as completed at step {step[-1]}"],
        recipe=recipe_name(folder.resolve()),
        status="completed",
        warm_up_s=_known(seconds[0]) if step[0] == 1 else None,
        wall_s=_known(seconds.sum()),
        world_size=devices,
    )


def recipe_name(folder: Path) -> str:
    """Name of the innermost folder that torchtitan did not name (as `tb`, `20260131-1200`, `rank_0`)."""
    named_by_torchtitan = re.compile(r"tb|tensorboard|\d{8}-\d{4}|rank_\d+|replica_\d+")
    return next(p.name for p in (folder, *folder.parents) if not named_by_torchtitan.fullmatch(p.name))


def _devices(tokens_over_one_devices: np.ndarray) -> int | None:
    """Number of devices from the tokens of all over those of one, window by window; None if the log does not tell."""
    known = tokens_over_one_devices[np.isfinite(tokens_over_one_devices)]
    return round(float(np.median(known))) if len(known) else None


def _known(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
