"""Traces of steps, by torchtitan's keys `profiling.*`, for chrome://tracing and ui.perfetto.dev.

torchtitan's own context has no trace of a CPU, and cannot wait for the proof's profiler, beside
which no other may run.
"""

import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from torch.profiler import ProfilerAction, profile, schedule


class Tracer:
    """Writes a trace of `profiler_active` steps in each `profile_freq`, after the proof."""

    def __init__(self, keys, folder: Path, step: Callable[[], int]):
        """`keys` are the recipe's section `profiling`; `step` gives the step that has ended."""
        self.folder, self.step = folder, step
        warmup, active = keys.profiler_warmup, keys.profiler_active
        wait = keys.profile_freq - warmup - active
        self.profiler = profile(
            schedule=schedule(wait=wait, warmup=warmup, active=active),
            on_trace_ready=self._write,
            record_shapes=True,
        )

    def __enter__(self) -> "Tracer":
        self.profiler.start()
        return self

    def __exit__(self, *_) -> None:
        self.profiler.stop()

    def end_step(self) -> bool:
        """Go on to the next step; returns whether tracing makes it slower."""
        before = self.profiler.current_action
        self.profiler.step()
        return {before, self.profiler.current_action} != {ProfilerAction.NONE}

    def _write(self, profiler: profile) -> None:
        folder = self.folder / f"iteration_{self.step()}"
        folder.mkdir(parents=True, exist_ok=True)
        profiler.export_chrome_trace(str(folder / f"rank{os.environ['RANK']}_trace.json"))


def tracer(config, step: Callable[[], int]) -> AbstractContextManager[Tracer | None]:
    """Give the run's tracer, None where the recipe asks for none."""
    keys = config.profiling
    if not keys.enable_profiling:
        return nullcontext()
    return Tracer(keys, Path(config.job.dump_folder) / keys.save_traces_folder, step)
