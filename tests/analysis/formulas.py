"""Runs in memory, with the step times and losses that a test asks for."""

import numpy as np
import pandas as pd

from analysis.runs import Run
from experiments.records.run import Hardware, Manifest, Timing

TOKENS = 100  # a step


def run(recipe="a", seed=0, seconds=0.1, losses=3.0, steps=100, first=5.0, place="here") -> Run:
    """A run whose first step ends after `first` seconds, and whose first 10 steps are not steady;
    `seconds` and `losses` may be arrays."""
    step = np.arange(1, steps + 1)
    seconds = np.broadcast_to(seconds, steps).astype(float)
    table = pd.DataFrame({
        "process": 0, "steady": step > 10, "in_fp8": True, "loss": losses, "seconds": seconds,
        "wait": 0.0, "tokens": float(TOKENS), "useful": float(TOKENS), "lr": 1e-3,
        "elapsed": first + np.cumsum(seconds) - seconds[0], "memory": 1e9,
    }, step)  # fmt: skip
    manifest = Manifest.model_construct(
        world_size=2, compiled=True, parameters=8_000_000_000, peak_flops=None, flops_per_token=1.0,
        start=pd.Timestamp("2026-01-01T00:00:00Z"),
        hardware=Hardware.model_construct(type="cuda", name="GPU"),
    )  # fmt: skip
    timing = Timing(time_to_first_step_s=first, startup={}, compile_cache="cold")
    return Run(recipe, str(seed), ending="completed", place=place, steps=table,
               manifest=manifest, timings=[timing])  # fmt: skip


def runs(recipe="a", seeds=3, **options) -> list[Run]:
    """Runs of so many seeds; an option that is a list has a value a seed."""
    chosen = [{key: value[seed] if isinstance(value, list) else value
               for key, value in options.items()} for seed in range(seeds)]  # fmt: skip
    return [run(recipe, seed, **of) for seed, of in enumerate(chosen)]
