"""Measure log windows: the duration of each step without extra synchronisation, losses, rates."""

import math
import time
from itertools import pairwise

import torch
import torch.distributed as dist

from experiments.records.run import Window
from experiments.training.plan import Plan
from experiments.training.proof import Proof
from models import device


class Clock:
    """Times steps: by CUDA events, read when a window ends anyway; by the host's clock on a CPU."""

    def __init__(self):
        self.marks: list = []

    def start(self) -> None:
        """Begin the first step."""
        self.tick()

    def tick(self) -> None:
        """End a step, and begin the next."""
        if device.TYPE == "cpu":
            self.marks.append(time.perf_counter())
        else:
            self.marks.append(torch.cuda.Event(enable_timing=True))
            self.marks[-1].record()

    def read(self) -> list[float]:
        """Return the seconds of each step since the last call, once the last step has ended."""
        marks, self.marks = self.marks, self.marks[-1:]
        if device.TYPE == "cpu":
            return [end - start for start, end in pairwise(marks)]
        marks[-1].synchronize()
        return [start.elapsed_time(end) / 1000 for start, end in pairwise(marks)]


class Meter:
    """Collects the steps of a log window; `close` makes its record."""

    def __init__(self, plan: Plan, proof: Proof):
        self.plan, self.proof = plan, proof
        self.clock = Clock()
        self._clear()

    def _clear(self) -> None:
        self.losses: list[torch.Tensor] = []  # this rank's part of each step's, on the device
        self.valid_tokens: list[float] = []  # of all ranks
        self.data_wait_s: list[float] = []
        self.not_steady: list[int] = []

    def end_step(
        self, step: int, loss: torch.Tensor, tokens: float, waited_s: float, steady: bool
    ) -> None:
        """Take the step's time and note what it did."""
        self.clock.tick()
        self.losses.append(loss)
        self.valid_tokens.append(tokens)
        self.data_wait_s.append(waited_s)
        if not steady:
            self.not_steady.append(step)

    def close(
        self, step: int, grad_norm: float, lr: float, peak_memory: float, ranges: dict[str, float]
    ) -> Window:
        """Make the record of the window that `step` ends. All ranks call it."""
        losses = torch.stack(self.losses)
        if self.plan.world_size > 1:
            dist.all_reduce(losses)
        step_s = self.clock.read()
        seconds = sum(step_s)
        tokens = self.proof.tokens * self.plan.world_size * len(step_s)  # padding included
        window = Window(
            step=step,
            elapsed_s=round(device.seconds_since_process_start(), 3),
            loss=finite(losses.mean().item()),
            losses=list(map(finite, losses.tolist())),
            grad_norm=finite(grad_norm),
            lr=lr,
            tokens_per_s=tokens / seconds,
            valid_tokens_per_s=sum(self.valid_tokens) / seconds,
            step_s=[round(s, 6) for s in step_s],
            data_wait_s=[round(s, 6) for s in self.data_wait_s],
            not_steady=self.not_steady,
            peak_memory_bytes=int(peak_memory),
            fp8_ranges={name: finite(value) for name, value in ranges.items()},
            **self.utilisation(tokens / seconds),
        )
        self._clear()
        return window

    def utilisation(self, tokens_per_s: float) -> dict[str, float | None]:
        """Give the three MFUs of all ranks together at `tokens_per_s`: fractions of 1.

        Without a datasheet's peak there are none.
        """
        peak, flops = device.peak(), self.plan.flops_per_token
        if peak is None:
            return {}
        in_fp8 = self.proof.fp8_flops_per_token
        rate = tokens_per_s / self.plan.world_size
        by_fp8 = by_both = None
        if peak.fp8:
            by_fp8 = rate * flops / peak.fp8
            by_both = rate * (in_fp8 / peak.fp8 + (flops - in_fp8) / peak.bf16)
        return {
            "mfu_bf16_peak": rate * flops / peak.bf16,
            "mfu_fp8_peak": by_fp8,
            "mfu_mixed_peak": by_both,
        }


def finite(value: float) -> float | None:
    """Write a number that is not finite as null."""
    return value if math.isfinite(value) else None
