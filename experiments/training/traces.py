"""Traces of steps, by torchtitan's keys `profiling.*`, for chrome://tracing and ui.perfetto.dev.

torchtitan's own context has no trace of a CPU, and cannot wait for the proof's profiler, beside
which no other may run.
"""

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import torch.distributed as dist
from torch.profiler import ProfilerAction, profile, schedule


def tracer(config, begin: int, skip: int) -> AbstractContextManager[profile | None]:
    """Trace `profiler_active` steps in each `profile_freq`; None if the recipe asks for no traces.

    `begin` steps ended before this process began; its first `skip` steps are not counted.
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


def end_step(profiler: profile) -> bool:
    """Go on to the next step; returns whether tracing makes it slower."""
    before = profiler.current_action
    profiler.step()
    return {before, profiler.current_action} != {ProfilerAction.NONE}
