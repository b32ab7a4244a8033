"""Frames as analysis.load makes them, of runs with planted truths."""

import numpy as np
import pandas as pd

from analysis.load import Frames, clock, paces, thirds, without_stalls
from analysis.rates import Completed, completed_runs

TOKENS = 100  # a step


def run(recipe, seed=0, warm_up=5.0, seconds=0.1, losses=3.0, steps=100, status="completed"):
    """Frames of one run: `warm_up` ends with step 1, the first 10 steps are not steady; `seconds`
    and `losses` may be arrays."""
    step = np.arange(1, steps + 1)
    seconds = np.where(step == 1, 0, seconds)
    name = {"run": f"{recipe}/seed{seed}/{status}", "recipe": recipe, "seed": seed}
    row = {
        "status": status,
        "tokens_per_step": TOKENS,
        "world_size": 2,
        "resumed_after": np.nan,
        "precisions": {},
        "host": "here",
        "visible_devices": None,
    }
    windows = {"step": step, "elapsed_s": warm_up + seconds.cumsum()}
    by_step = {"step": step, "loss": losses, "seconds": seconds, "steady": step > 10}
    return pd.DataFrame([name | row]), pd.DataFrame(name | windows), pd.DataFrame(name | by_step)


def study(*runs) -> dict[str, Completed]:
    """The completed runs of several, by recipe."""
    frames = [pd.concat(frames, ignore_index=True) for frames in zip(*runs, strict=True)]
    runs, windows, steps = frames
    runs = runs.set_index("run")
    runs = runs.join(paces(steps)).join(thirds(steps, runs["precisions"]))
    runs = runs.join(clock(runs, windows)).reset_index()
    runs["tokens_per_s"] = runs["tokens_per_step"] / runs["step_s"]
    found = Frames(without_stalls(runs), windows, steps, steps[:0], [])
    return {recipe: completed_runs(recipe, found) for recipe in runs["recipe"].unique()}
