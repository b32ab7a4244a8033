"""Traces of steps, by torchtitan's keys `profiling.*`, for chrome://tracing and ui.perfetto.dev.

torchtitan's own context has no trace of a CPU, and cannot wait for the proof's profiler, beside
which no other may run.
"""

import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from torch.profiler import ProfilerAction, profile, schedule


def tracer(config, step: Callable[[], int]) -> AbstractContextManager[profile | None]:
    """Make what traces `profiler_active` steps in each `profile_freq`; None where the recipe asks
    for no traces.

    `step` gives the step that has ended.
    """
    keys = config.profiling
    if not keys.enable_profiling:
        return nullcontext()

    def write(profiler: profile) -> None:
        folder = Path(config.job.dump_folder, keys.save_traces_folder, f"iteration_{step()}")
        folder.mkdir(parents=True, exist_ok=True)
        profiler.export_chrome_trace(str(folder / f"rank{os.environ['RANK']}_trace.json"))

    warmup, active = keys.profiler_warmup, keys.profiler_active
    wait = keys.profile_freq - warmup - active
    cycle = schedule(wait=wait, warmup=warmup, active=active)
    return profile(schedule=cycle, on_trace_ready=write, record_shapes=True)


def end_step(profiler: profile) -> bool:
    """Go on to the next step; returns whether tracing makes it slower."""
    before = profiler.current_action
    profiler.step()
    return {before, profiler.current_action} != {ProfilerAction.NONE}
