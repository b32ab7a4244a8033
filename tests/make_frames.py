"""Frames as analysis.load makes them, of runs with planted truths."""

import numpy as np
import pandas as pd

TOKENS = 100  # a step


def run(recipe, seed=0, warm_up=5.0, seconds=0.1, losses=None, steps=100, status="completed"):
    """Frames of one run: `warm_up` ends with step 1, the first 10 steps are not steady; `seconds`
    may be an array."""
    number = np.arange(1, steps + 1)
    seconds = np.where(number == 1, 0, seconds)
    name = {"run": f"{recipe}/seed{seed}/{status}", "recipe": recipe, "seed": seed}
    losses = np.full(steps, 3.0) if losses is None else losses
    row = {"status": status, "tokens_per_step": TOKENS, "world_size": 2}
    windows = {"step": number, "elapsed_s": warm_up + seconds.cumsum(), "loss": losses}
    by_step = {"step": number, "loss": losses, "seconds": seconds, "steady": number > 10}
    return pd.DataFrame([name | row]), pd.DataFrame(name | windows), pd.DataFrame(name | by_step)


def study(*runs):
    """(runs, windows, steps) of several."""
    return tuple(pd.concat(frames, ignore_index=True) for frames in zip(*runs, strict=True))
