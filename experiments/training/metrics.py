"""Measure a run: the breakdown of its start, its log intervals, and traces of its steps."""

import math
import os
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.distributed as dist
from torch._dynamo.utils import calculate_time_spent, counters
from torch.profiler import ProfilerAction, profile, schedule
from torchtitan.components.metrics import MetricsProcessor

from experiments.records.run import METRICS, LogInterval, Timing
from experiments.training.plan import Plan
from models import device

if TYPE_CHECKING:
    from experiments.training.attempt import RunDirectory

# ---- the start, to the end of the first step ----


def compiled_s() -> float:
    """Return torch.compile's seconds in this process so far, backward graphs included."""
    return calculate_time_spent().get("total_wall_time", 0.0)


def compile_cache() -> str:
    """Return `cold` if inductor compiled any graph, `warm` if all came from its cache, else `none`.

    Some graphs cannot be cached (bypass): a block's with recomputation, whose random numbers are an
    operator that inductor has no key for.
    """
    found, graphs = counters["inductor"], counters["aot_autograd"]["autograd_cache_hit"]
    if found["fxgraph_cache_miss"] + found["fxgraph_cache_bypass"]:
        return "cold"
    return "warm" if graphs + found["fxgraph_cache_hit"] else "none"


def seconds_since_process_start() -> float:
    """Return the seconds since the kernel started this process, to 10 ms: imports count."""
    start_ticks = int(Path("/proc/self/stat").read_text().rsplit(")", 1)[1].split()[19])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - start_ticks / os.sysconf("SC_CLK_TCK")


class Timeline:
    """Seconds of each part of the start, in the order of the parts' first marks."""

    def __init__(self):
        self.breakdown: dict[str, float] = {}

    def mark(self, part: str) -> None:
        """Count the time since the last mark for a part."""
        since_last = seconds_since_process_start() - sum(self.breakdown.values())
        self.breakdown[part] = self.breakdown.get(part, 0.0) + since_last

    def end_first_step(self) -> Timing:
        """Count what torch.compile took of the first step as a part of its own; return all."""
        self.mark("first_step")
        self.breakdown["compile"] = compiled_s()
        self.breakdown["first_step"] -= self.breakdown["compile"]
        return Timing(
            time_to_first_step_s=sum(self.breakdown.values()),
            startup=dict(self.breakdown),
            compile_cache=compile_cache(),
        )


TIMELINE = Timeline()


# ---- log intervals ----


class Meter:
    """Collects the steps of a log interval, and records it."""

    def __init__(
        self,
        plan: Plan,
        processor: MetricsProcessor,
        all_reduce: Callable,
        directory: "RunDirectory | None",
    ):
        """Begin an interval now. `processor` is torchtitan's, with the waits for micro-batches;
        `all_reduce` adds up values of a run's processes; `directory` takes the records."""
        self.plan = plan
        self.processor = processor
        self.all_reduce = all_reduce
        self.directory = directory
        self._empty()
        self.retries_so_far = device.allocator_retries()
        self.stopwatch = device.Stopwatch()  # a lap is a step

    def _empty(self) -> None:
        """Forget the steps of the last interval."""
        self.losses: list[torch.Tensor] = []  # this process's part of each step's, on the device
        self.valid_tokens = 0.0  # of the run
        self.not_steady: list[int] = []
        self.retries: list[int] = []  # of the allocator in each step

    def end_step(self, step: int, loss: torch.Tensor, valid_tokens: float, steady: bool) -> None:
        """Note when a step ended, and what it did."""
        self.stopwatch.lap()
        self.losses.append(loss)
        self.valid_tokens += valid_tokens
        if not steady:
            self.not_steady.append(step)
        before, self.retries_so_far = self.retries_so_far, device.allocator_retries()
        self.retries.append(self.retries_so_far - before)

    def close(self, step: int, grad_norm: float, lr: float, in_fp8: float) -> LogInterval:
        """Record the interval up to `step`; `in_fp8`: FLOPs of a token.

        torchtitan's `log`, which is called after this, empties `data_loading_times`.
        """
        losses = self.all_reduce(torch.stack(self.losses))
        step_s = self.stopwatch.read()
        waits = np.reshape(self.processor.data_loading_times, (len(step_s), -1)).sum(1)
        memory = self.processor.device_memory_monitor.get_peak_stats()
        retries = self.all_reduce(torch.tensor(self.retries), "max").tolist()
        first = step - len(retries) + 1
        seconds = sum(step_s)
        tokens_per_s = self.plan.tokens * len(step_s) / seconds  # of a device
        interval = LogInterval(
            attempt=self.directory.attempt.number if self.directory else 1,
            step=step,
            elapsed_s=round(seconds_since_process_start(), 3),
            loss=finite(losses.mean().item()),
            losses=list(map(finite, losses.tolist())),
            grad_norm=finite(grad_norm),
            lr=lr,
            tokens_per_s=tokens_per_s * self.plan.world_size,
            valid_tokens_per_s=self.valid_tokens / seconds,
            step_s=step_s,
            data_wait_s=[round(s, 6) for s in waits.tolist()],
            not_steady=self.not_steady,
            allocator_retries=[at for at, count in enumerate(retries, first) if count],
            peak_memory_bytes=int(memory.max_reserved_gib * 2**30),
            **utilisation(self.plan, tokens_per_s, in_fp8),
        )
        if self.directory:
            interval.append_to(self.directory.path / METRICS)
        self._empty()
        return interval


def utilisation(plan: Plan, tokens_per_s: float, in_fp8: float) -> dict[str, float | None]:
    """Give the three MFUs of a device at its `tokens_per_s`: fractions of 1.

    `in_fp8` are the FLOPs of a token that ran in FP8. Without a datasheet's peak there are none.
    """
    peak, flops = device.find_peak_rates(), plan.flops_per_token
    if peak is None:
        return {}
    shares = {"mfu_bf16_peak": tokens_per_s * flops / peak.bf16}
    if peak.fp8:
        ideal_s = in_fp8 / peak.fp8 + (flops - in_fp8) / peak.bf16
        shares["mfu_fp8_peak"] = tokens_per_s * flops / peak.fp8
        shares["mfu_mixed_peak"] = tokens_per_s * ideal_s
    return shares


def finite(value: float) -> float | None:
    """Return a finite number, and None for any other."""
    return value if math.isfinite(value) else None


# ---- traces, by torchtitan's keys `profiling.*`, for chrome://tracing and ui.perfetto.dev ----


def tracer(config, begin: int, skip: int) -> AbstractContextManager[profile | None]:
    """Trace `profiler_active` steps in each `profile_freq`; None if the recipe asks for no traces.

    torchtitan's own has no trace of a CPU, and cannot wait for the proof's profiler, beside which
    no other may run. `begin` steps ended before this process began; its first `skip` steps are not
    counted.
    """
    keys = config.profiling
    if not keys.enable_profiling:
        return nullcontext()

    def write(profiler: profile) -> None:
        name = f"iteration_{begin + profiler.step_num}"
        folder = Path(config.job.dump_folder, keys.save_traces_folder, name)
        folder.mkdir(parents=True, exist_ok=True)
        profiler.export_chrome_trace(str(folder / f"rank{dist.get_rank()}_trace.json"))

    warmup, active = keys.profiler_warmup, keys.profiler_active
    wait = keys.profile_freq - warmup - active
    cycle = schedule(wait=wait, warmup=warmup, active=active, skip_first=skip)
    return profile(schedule=cycle, on_trace_ready=write, record_shapes=True)


def end_traced_step(profiler: profile) -> bool:
    """Go on to the next step; return whether tracing makes it slower."""
    before = profiler.current_action
    profiler.step()
    return {before, profiler.current_action} != {ProfilerAction.NONE}
