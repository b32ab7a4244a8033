"""Studies with known truth: recipes times seeds, with step times, losses, and what is wrong.

Step times and losses come from formulas. planted.yaml has the studies in the words of `study`, and
planted_usual.yaml what is usual of each recipe.
"""

import json
import math
from fnmatch import fnmatch
from functools import reduce
from itertools import product
from pathlib import Path

import numpy as np
import yaml
from scipy.signal import lfilter

from analysis.comparison import ComparisonResult, compare
from analysis.study import read_study
from tests.make_runs import over, write_run

HERE = Path(__file__).parent
CASES = yaml.load((HERE / "planted.yaml").read_text(), yaml.CSafeLoader)
USUAL = yaml.safe_load((HERE / "planted_usual.yaml").read_text())
FP8 = "tensorwise_fp8_compiled"


def study(
    folder: Path,
    recipes="BCT",
    seeds=(0, 1, 2),
    steps=1000,
    by_recipe=False,
    places=1,
    place_spread=0.0,
    start_spread=0.003,
    sd=0.01,
    rho=0.6,
    pair=0.0005,
    changes=(),
    file=True,
) -> Path:
    """Write a study.

    Args:
        recipes: letters of planted_usual.yaml, or names.
        by_recipe: whether one recipe's seeds come before the next recipe's.
        places: GPUs, of which each run takes the one that is free first.
        place_spread, start_spread: standard deviations of the speeds of places, and of starts.
        sd: standard deviation of the noise of step times.
        rho: what a step has of the noise of the step before.
        pair: standard deviation of the differences of final losses.
        changes: of some runs, as planted.yaml explains them.
        file: whether there is a study.yaml.
    """
    rng = np.random.default_rng([*folder.name.encode()])
    usual = {
        name: USUAL["run"] | {"recipe": name} | USUAL["recipes"].get(name, {}) for name in recipes
    }
    jobs = [(recipe, seed) for seed, recipe in product(seeds, recipes)]
    if by_recipe:
        jobs.sort()
    of_place = np.exp(rng.normal(0, place_spread, places))
    free = np.zeros(places)  # when each is
    of_seed = {seed: learning(steps, rng) for seed in seeds}
    for recipe, seed in jobs:
        own = [change for change in changes if is_of(f"{recipe}/{seed}", change)]
        place = free.argmin()
        facts = {
            "seed": seed,
            "begin": free[place],
            "hardware": {"visible_devices": str(place)},
        }
        run = reduce(over, own, usual[recipe] | facts)
        slow = of_place[place] * math.exp(rng.normal(0, start_spread))
        usual_s = slow * run.pop("step_s") / run.pop("speed")
        seconds = usual_s * np.exp(wander(steps, rho, sd, rng))
        losses = of_seed[seed] + differences(steps, pair, rng)
        for change in own:
            seconds = changed(seconds, rng, **change.get("seconds", {}))
            losses = changed(losses, rng, **change.get("losses", {}))
        run |= {
            "seconds": seconds,
            "losses": losses,
            "warm_up": run["warm_up"] * slow,
        }
        run.pop("runs", None)  # whose the changes were
        path = folder / run.pop("folder", f"{run['recipe']}/seed{seed}")
        if not run.pop("absent"):
            free[place] = write_run(path, **run)
    if file:
        names = [usual[recipe]["recipe"] for recipe in recipes]
        plan = {
            "recipes": names,
            "reference": names[0],
            "seeds": [*seeds],
        }
        (folder / "study.yaml").write_text(json.dumps(plan))
    return folder


def is_of(run: str, change: dict) -> bool:
    """Whether a change is of a run, RECIPE/SEED."""
    return any(fnmatch(run, pattern) for pattern in change.get("runs", ["*"]))


# ---- step times and losses ----


def learning(n: int, rng) -> np.ndarray:
    """Draw the losses of a seed."""
    step = np.arange(1, n + 1)
    falling = 3.2 + 8.56 * np.exp(-step / (60 + n * 0.08)) + rng.normal(0, 0.02)
    noise = wander(n, 0.2, 0.12, rng)
    return falling + noise * np.minimum(1, step / 50)


def differences(n: int, pair: float, rng) -> np.ndarray:
    """Draw how far a run's losses are from others' of its seed: rounding at first, then noise
    around an offset."""
    offset = rng.normal(0, pair) + wander(n, 0.9, 0.0012, rng)
    grown = np.minimum(1, np.arange(1, n + 1) / (0.3 * n))
    rounding = rng.normal(0, 1e-4, n)
    return offset * grown + rounding


def wander(n: int, rho: float, sd: float, rng) -> np.ndarray:
    """Draw noise in which each value has a share `rho` of the one before."""
    noise = rng.normal(0, sd * math.sqrt(1 - rho * rho), n)
    return lfilter([1], [1, -rho], noise)


SHAPES = {  # how much of an effect each step has, by the steps since it began
    "grow": lambda since, steps, rng: np.minimum(1, since / steps),
    "decay": lambda since, steps, rng: np.exp(-since / steps),
    "chance": lambda since, share, rng: rng.random(len(since)) < share,
    "flicker": lambda since, steps, rng: np.cumsum(rng.random(len(since)) < 1 / steps) % 2,
}


def changed(
    values: np.ndarray,
    rng,
    steps=(1, None),
    shape=None,
    by=0.0,
    plus=0.0,
    to=None,
) -> np.ndarray:
    """Change step times or losses: by a share, plus a number, or to a number, in some steps."""
    first, *last_and_stride = steps
    size = np.zeros(len(values))
    size[slice(first - 1, *last_and_stride)] = 1
    if shape:
        name, number = shape
        since = np.arange(len(values)) - (first - 1)
        size *= SHAPES[name](since, number, rng)
    if to is not None:
        return np.where(size, to, values)
    return values * (1 + by * size) + plus * size


# ---- for other tests ----


def compared(folder: Path, own: list[dict], other: list[dict], **words) -> ComparisonResult:
    """Compare tensorwise FP8 and compiled bf16 by what the run of each seed is, in the words of a
    change."""
    changes = []
    for recipe, runs in ("T", own), ("C", other):
        changes += [{"runs": [f"{recipe}/{seed}"]} | run for seed, run in enumerate(runs)]
    study(folder, "CT", range(len(own)), start_spread=0.0, changes=changes, **words)
    return compare(read_study(folder)).results[FP8]
