"""What a run writes down while it trains: one flushed line per log window, step times without extra
synchronisation.

A line of metrics.jsonl (times in seconds, rates over all devices; what is not finite is null):
  step, elapsed_s        last step of the window; wall time since the process started
  loss, losses           mean over the window; every step's, in order
  grad_norm, lr          of the last step; the norm is the one before clipping
  tokens_per_s           tokens through the model, padding included; valid_tokens_per_s leaves
  padding out step_s, data_wait_s    every step's duration; the host's wait for data in it, which on
  a GPU may overlap with work not_steady             steps of the window that rates leave out: the
  process's first 10 (one of them is profiled),
                         and those that wrote a checkpoint, or looked at FP8's ranges
  peak_memory_bytes      highest reserved memory of the device in the window (on a CPU: resident set
  so far) mfu_bf16_peak, mfu_fp8_peak, mfu_mixed_peak     fractions, see the README; null where no
  peak applies fp8_ranges             in some windows of an FP8 run: see
  experiments/training/fp8_ranges.py; in TensorBoard too
"""

import json
import math
import os
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

from models import device  # before torchtitan: see there  # isort: skip
from torchtitan.components.metrics import MetricsProcessor

from experiments.training.fp8_ranges import fp8_ranges

NOT_STEADY_STEPS = (
    10  # a process's first steps: compilation, the profile, allocator and clocks settle
)


class Diverged(RuntimeError):
    """A loss or a gradient norm that is not finite."""


class JsonLines:
    """An append-only file of JSON lines that stays readable: a line is written whole or not at
    all."""

    def __init__(self, path: Path):
        self.descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def append(self, record: dict) -> None:
        """Write one line. Raises OSError on a full disk, leaving the lines before it as they
        were."""
        line = (json.dumps(record, allow_nan=False) + "\n").encode()
        size = os.fstat(self.descriptor).st_size
        try:
            written = os.write(self.descriptor, line)
            if written < len(line):  # the disk filled up within the line: writing the rest raises
                os.write(self.descriptor, line[written:])
        except OSError:
            os.ftruncate(self.descriptor, size)
            raise


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


class _Clock:
    """Step durations: CUDA events, read when the log synchronises anyway; the host's clock on a
    CPU."""

    def __init__(self):
        self.start()

    def start(self) -> None:
        """The first step begins."""
        self.marks = [self._mark()]

    @staticmethod
    def _mark():
        if device.TYPE == "cpu":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def tick(self) -> None:
        """End of a step."""
        self.marks.append(self._mark())

    def read(self) -> list[float]:
        """Seconds of every step since the last call. Waits for the last one to end."""
        if device.TYPE == "cuda":
            self.marks[-1].synchronize()
            seconds = [
                a.elapsed_time(b) / 1000 for a, b in zip(self.marks, self.marks[1:], strict=False)
            ]
        else:
            seconds = [b - a for a, b in zip(self.marks, self.marks[1:], strict=False)]
        self.marks = self.marks[-1:]
        return seconds


class Metrics(MetricsProcessor):
    """torchtitan's processor (console, TensorBoard, W&B), which also keeps what metrics.jsonl
    records.

    The trainer hands over each step's loss and tokens, has torchtitan log within the step, and
    calls `end_step` after.
    """

    def __init__(self, job_config, parallel_dims, model_args):
        super().__init__(job_config, parallel_dims)
        self.fp8_flops_per_token = 0.0  # set by the proof once a step was profiled
        # Set by whoever keeps the records:
        self.on_resume: Callable[[int], None] = lambda step: (
            None
        )  # before the first step; the checkpoint's, 0: none
        self.on_step: Callable[[int], None] = lambda step: None  # a step has ended
        self.on_window: Callable[[dict], None] = lambda line: None  # a log window has ended
        # Set by the trainer:
        self.stops_here: Callable[[], bool] = lambda: (
            False
        )  # whether training stops after this step
        self.diverged = ""  # why training ends with this step: what was not finite
        self.clock = _Clock()
        self._windows = 0
        self._pending: dict | None = None
        self._reset_window()

    def _reset_window(self):
        self.losses: list[
            torch.Tensor
        ] = []  # one per step, on the device: summed over micro-batches
        self.valid_tokens = 0
        self.tokens = 0
        self.not_steady: list[int] = []
        self._waits: list[float] = []

    def should_log(self, step: int) -> bool:
        """Also at the last step and where a checkpoint is saved, so that no step is lost at an end
        or over a resume.

        torchtitan asks this once in every step, after the work.
        """
        keys = self.job_config
        last = self.stops_here() or step == keys.training.steps or self.diverged
        saved = keys.checkpoint.enable and step % keys.checkpoint.interval == 0
        return super().should_log(step) or bool(last) or saved

    def log(self, step, global_avg_loss, global_max_loss, grad_norm, extra_metrics=None):
        """torchtitan's log, kept until `end_step` knows how long the step took."""
        peak_memory = self.device_memory_monitor.get_peak_stats().max_reserved_gib * 2**30
        self._pending = {
            "step": step,
            "grad_norm": grad_norm,
            "lr": float(extra_metrics["lr"]),
            "peak_memory": peak_memory,
            "ranges": self._fp8_ranges(step),
        }
        self._waits = list(self.data_loading_times)
        curves = {f"fp8_{name}": value for name, value in self._pending["ranges"].items()}
        super().log(step, global_avg_loss, global_max_loss, grad_norm, extra_metrics | curves)

    def _fp8_ranges(self, step: int) -> dict[str, float]:
        """Of the second log window, whose time no warm-up holds, and each
        `metrics.fp8_ranges_every`-th after it."""
        every, window = self.job_config.metrics.fp8_ranges_every, self._windows
        self._windows += 1
        if (
            not every
            or window % every != 1 % every
            or not (found := fp8_ranges(self.model_parts[0]))
        ):
            return {}
        self.not_steady.append(step)
        return found

    def end_step(self, step: int) -> None:
        """Close the step; at the end of a window, write its line. Raises `Diverged` after the line
        is written."""
        self.clock.tick()
        self.on_step(step)
        if self._pending is None:
            return
        line = self._line(**self._pending)
        self._pending = None
        self._reset_window()
        self.on_window(line)
        if None in line["losses"]:
            raise Diverged(f"the loss was not finite by step {step}")
        if self.diverged:
            raise Diverged(self.diverged)

    def _line(
        self, step: int, grad_norm: float, lr: float, peak_memory: float, ranges: dict[str, float]
    ) -> dict:
        losses, counts = (
            torch.stack(self.losses),
            torch.tensor([self.tokens, self.valid_tokens], dtype=torch.float64),
        )
        if self.parallel_dims.dp_cp_enabled:
            group = self.parallel_dims.get_mesh("loss").get_group()
            counts = counts.to(losses.device)
            dist.all_reduce(losses, group=group)
            dist.all_reduce(counts, group=group)
        (tokens, valid_tokens), mean_loss = counts.tolist(), losses.mean().item()
        step_s = self.clock.read()
        per_step = len(self._waits) // len(step_s)  # micro-batches
        waits = [sum(self._waits[i : i + per_step]) for i in range(0, len(self._waits), per_step)]
        seconds = sum(step_s)
        return {
            "step": step,
            "elapsed_s": round(device.seconds_since_process_start(), 3),
            "loss": _finite(mean_loss),
            "losses": [_finite(loss) for loss in losses.tolist()],
            "grad_norm": _finite(grad_norm),
            "lr": lr,
            "tokens_per_s": tokens / seconds,
            "valid_tokens_per_s": valid_tokens / seconds,
            "step_s": [round(s, 6) for s in step_s],
            "data_wait_s": [round(s, 6) for s in waits],
            "not_steady": sorted(set(self.not_steady)),
            "peak_memory_bytes": int(peak_memory),
            **self.utilisation(tokens / seconds / self.parallel_dims.world_size),
            **(
                {"fp8_ranges": {name: _finite(value) for name, value in ranges.items()}}
                if ranges
                else {}
            ),
        }

    def utilisation(self, tokens_per_s: float) -> dict[str, float | None]:
        """The three MFUs of one device that does `tokens_per_s`: fractions of 1."""
        peak, flops = device.peak(), self.num_flops_per_token
        mixed = None
        if peak.fp8:
            ideal = (
                self.fp8_flops_per_token / peak.fp8 + (flops - self.fp8_flops_per_token) / peak.bf16
            )
            mixed = tokens_per_s * ideal
        return {
            "mfu_bf16_peak": tokens_per_s * flops / peak.bf16,
            "mfu_fp8_peak": tokens_per_s * flops / peak.fp8 if peak.fp8 else None,
            "mfu_mixed_peak": mixed,
        }
