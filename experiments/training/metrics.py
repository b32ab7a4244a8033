"""Measure a run: the breakdown of its start, its log intervals, and traces of its steps."""

import math
import os
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.distributed as dist
from torch._dynamo.utils import calculate_time_spent, counters
from torch.profiler import ProfilerAction, profile, schedule
from torchtitan.components.metrics import MetricsProcessor

from experiments.records.run import METRICS, CacheState, LogInterval, Timing
from experiments.training.plan import Plan
from models import device

if TYPE_CHECKING:
    from experiments.training.attempt import RunDirectory

# ---- the start, to the end of the first step ----


def compiled_s() -> float:
    """Return torch.compile's seconds in this process so far, backward graphs included."""
    return calculate_time_spent().get("total_wall_time", 0.0)


def describe_compile_cache() -> CacheState:
    """Return `cold` if inductor compiled any graph, `warm` if all came from its cache, else `none`.

    Some graphs cannot be cached (bypass): a block's with recomputation, whose random numbers are an
    operator that inductor has no key for.
    """
    inductor = counters["inductor"]
    if inductor["fxgraph_cache_miss"] or inductor["fxgraph_cache_bypass"]:
        return "cold"
    if inductor["fxgraph_cache_hit"] or counters["aot_autograd"]["autograd_cache_hit"]:
        return "warm"
    return "none"


def seconds_since_process_start() -> float:
    """Return the seconds since the kernel started this process, to 10 ms: imports count."""
    fields = Path("/proc/self/stat").read_text().rsplit(")", 1)[1].split()
    start_ticks = int(fields[19])  # field 22 of proc_pid_stat(5), where fields[0] is the third
    return time.clock_gettime(time.CLOCK_BOOTTIME) - start_ticks / os.sysconf("SC_CLK_TCK")


class Timeline:
    """Seconds of each part of the start, in the order of the parts' first marks."""

    def __init__(self):
        self.breakdown: dict[str, float] = {}

    def mark(self, part: str) -> None:
        """Count the time since the last mark for a part."""
        since_last_mark = seconds_since_process_start() - sum(self.breakdown.values())
        self.breakdown[part] = self.breakdown.get(part, 0.0) + since_last_mark

    def end_first_step(self) -> Timing:
        """Count what torch.compile took of the first step as a part of its own; return all."""
        self.mark("first_step")
        self.breakdown["compile"] = compiled_s()
        self.breakdown["first_step"] -= self.breakdown["compile"]
        return Timing(
            time_to_first_step_s=sum(self.breakdown.values()),
            startup=dict(self.breakdown),
            compile_cache=describe_compile_cache(),
        )


TIMELINE = Timeline()


# ---- log intervals ----


class Meter:
    """Collects the steps of a log interval, and records it.

    Args:
        processor: torchtitan's, with the waits for micro-batches.
        all_reduce: adds up values of a run's processes.
        directory: takes the records; None in all ranks except the first.
    """

    def __init__(
        self,
        plan: Plan,
        processor: MetricsProcessor,
        all_reduce: Callable,
        directory: "RunDirectory | None",
    ):
        self.plan = plan
        self.processor = processor
        self.all_reduce = all_reduce
        self.directory = directory
        self._begin_interval()
        self.total_retries = device.allocator_retries()
        self.stopwatch = device.Stopwatch()  # a lap is a step

    def _begin_interval(self) -> None:
        self.losses: list[torch.Tensor] = []  # this process's part of each step's, on the device
        self.valid_tokens = 0.0  # of the run
        self.not_steady: list[int] = []  # steps
        self.retries: list[int] = []  # of the allocator in each step

    def end_step(self, step: int, loss: torch.Tensor, valid_tokens: float, is_steady: bool) -> None:
        """Note the end of a step, its loss, and the allocator's retries."""
        self.stopwatch.lap()
        self.losses.append(loss)
        self.valid_tokens += valid_tokens
        if not is_steady:
            self.not_steady.append(step)
        total_retries = device.allocator_retries()
        self.retries.append(total_retries - self.total_retries)
        self.total_retries = total_retries

    def record_interval(
        self,
        step: int,
        grad_norm: float,
        lr: float,
        fp8_flops_per_token: float,
        sections: Mapping[str, Mapping[str, float]],
    ) -> LogInterval:
        """Record the interval up to `step`, and begin the next.

        Args:
            sections: numbers of extensions, by extension and name.
        """
        extension_sections: dict[str, dict[str, float | None]] = {}
        for extension, section in sections.items():
            extension_sections[extension] = {
                key: _replace_infinite(value) for key, value in section.items()
            }
        losses = self.all_reduce(torch.stack(self.losses))
        step_s = self.stopwatch.read()
        memory = self.processor.device_memory_monitor.get_peak_stats()
        retries = self.all_reduce(torch.tensor(self.retries), "max").tolist()
        first_step = step - len(step_s) + 1
        device_tokens_per_s = self.plan.tokens * len(step_s) / sum(step_s)
        mfus = calculate_mfus(self.plan, device_tokens_per_s, fp8_flops_per_token)
        interval = LogInterval(
            attempt=self.directory.attempt.number if self.directory else 1,
            step=step,
            elapsed_s=round(seconds_since_process_start(), 3),
            loss=_replace_infinite(losses.mean().item()),
            losses=[_replace_infinite(loss) for loss in losses.tolist()],
            grad_norm=_replace_infinite(grad_norm),
            lr=lr,
            tokens_per_s=device_tokens_per_s * self.plan.world_size,
            valid_tokens_per_s=self.valid_tokens / sum(step_s),
            step_s=step_s,
            data_wait_s=self._sum_data_waits(len(step_s)),
            not_steady=self.not_steady,
            allocator_retries=[s for s, count in enumerate(retries, first_step) if count],
            peak_memory_bytes=int(memory.max_reserved_gib * 2**30),
            mfu_bf16_peak=mfus.bf16_peak,
            mfu_fp8_peak=mfus.fp8_peak,
            mfu_mixed_peak=mfus.mixed_peak,
            **extension_sections,
        )
        if self.directory:
            interval.append_to(self.directory.path / METRICS)
        self._begin_interval()
        return interval

    def _sum_data_waits(self, n_steps: int) -> list[float]:
        """Add up the host's waits for the micro-batches of each step, in seconds.

        torchtitan's list has the waits since its last log, which empties it. Each step has as many.
        """
        waits = torch.tensor(self.processor.data_loading_times, dtype=torch.float64)
        return [round(wait_s, 6) for wait_s in waits.reshape(n_steps, -1).sum(1).tolist()]


class Mfus(NamedTuple):
    """The FLOP/s of a device, divided by peaks of its datasheet: shares of 1."""

    bf16_peak: float | None = None  # None without a known peak
    fp8_peak: float | None = None
    mixed_peak: float | None = None


def calculate_mfus(plan: Plan, tokens_per_s: float, fp8_flops_per_token: float) -> Mfus:
    """Divide the FLOP/s of a device by the peaks of its datasheet.

    Args:
        tokens_per_s: of one device.
    """
    peak = device.find_peak_rates()
    if peak is None:
        return Mfus()
    flops_per_s = tokens_per_s * plan.flops_per_token
    mfus = Mfus(flops_per_s / peak.bf16)
    if peak.fp8 is None:
        return mfus
    bf16_flops_per_token = plan.flops_per_token - fp8_flops_per_token
    ideal_s_per_token = fp8_flops_per_token / peak.fp8 + bf16_flops_per_token / peak.bf16
    return mfus._replace(
        fp8_peak=flops_per_s / peak.fp8, mixed_peak=tokens_per_s * ideal_s_per_token
    )


def _replace_infinite(value: float) -> float | None:
    """Return a finite number, and None for any other."""
    return value if math.isfinite(value) else None


# ---- traces, by torchtitan's keys `profiling.*`, for chrome://tracing and ui.perfetto.dev ----


def make_tracer(
    config, completed_steps: int, skipped_steps: int
) -> AbstractContextManager[profile | None]:
    """Trace `profiler_active` steps in each `profile_freq`; None if the recipe asks for no traces.

    torchtitan's own has no trace of a CPU, and cannot wait for the proof's profiler, beside which
    no other may run.

    Args:
        completed_steps: of the run, before this process began.
        skipped_steps: the first steps of this process, which do not count.
    """
    keys = config.profiling
    if not keys.enable_profiling:
        return nullcontext()

    def write_trace(profiler: profile) -> None:
        step_folder = f"iteration_{completed_steps + profiler.step_num}"
        folder = Path(config.job.dump_folder, keys.save_traces_folder, step_folder)
        folder.mkdir(parents=True, exist_ok=True)
        profiler.export_chrome_trace(str(folder / f"rank{dist.get_rank()}_trace.json"))

    cycle = schedule(
        wait=keys.profile_freq - keys.profiler_warmup - keys.profiler_active,
        warmup=keys.profiler_warmup,
        active=keys.profiler_active,
        skip_first=skipped_steps,
    )
    return profile(schedule=cycle, on_trace_ready=write_trace, record_shapes=True)


def end_traced_step(profiler: profile) -> bool:
    """Go on to the next step; return whether tracing made one of the two slower."""
    action = profiler.current_action
    profiler.step()
    return {action, profiler.current_action} != {ProfilerAction.NONE}
