"""Studies with known truth: recipes times seeds, with step times, losses, and what is wrong.

Step times and losses come from formulas. planted_run.yaml has the words that say what a study is,
and the usual; planted.yaml has the studies in these words.
"""

import json
import math
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatch
from functools import cache
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import yaml
from scipy.signal import lfilter

from analysis.comparison import Finding, compare
from analysis.study import read_study
from experiments.config import recipes as recipe_files
from models.scaling import SCALINGS
from tests.make_runs import over, proof, stretches, windows, write_run

NAMES = {
    "B": "baseline",
    "C": "baseline_compiled",
    "R": "rowwise_fp8_compiled",
    "T": "tensorwise_fp8_compiled",
    "GW": "rowwise_gw_hp_fp8_compiled",
    "AG": "tensorwise_fp8_allgather",
}
IN_FP8 = 1 - 536870912 / 7516459008  # share of the matmuls of the 8 B model: all but the head
BEGIN = datetime(2026, 3, 2, 8, 0, tzinfo=UTC)

HERE = Path(__file__).parent
USUAL = yaml.safe_load((HERE / "planted_run.yaml").read_text())
CASES = yaml.load((HERE / "planted.yaml").read_text(), yaml.CSafeLoader)


def study(folder: Path, **words) -> Path:
    """Write a study, in the words of planted_run.yaml."""
    s, rng = chosen("study", words), generator(folder.name)
    jobs = list(product(s.recipes, range(s.seeds)))
    if s.order == "seed":
        jobs.sort(key=lambda job: job[1])
    of_gpu = np.exp(rng.normal(0, s.gpu_spread, 16))
    of_host = np.exp(rng.normal(0, s.host_spread, 64))
    free = [0.0] * s.gpus  # when each GPU is
    of_seed = [learning(s.steps, rng) + rng.normal(0, 0.02) for _ in range(s.seeds)]
    drawn = {}
    for recipe, seed in jobs:
        warm_up = s.warm_up.get(recipe, 60.0) * math.exp(rng.normal(0, 0.02))
        gpu, host = int(np.argmin(free)), 1
        begin = free[gpu]
        if s.hosts > 1:
            host, begin = int(rng.integers(s.hosts)), float(rng.integers(0, 40000))
        seconds = step_times(s, recipe, of_gpu[gpu] * of_host[host], rng)
        drawn[recipe, seed] = of_seed[seed] + loss_differences(s, recipe, rng)
        run = {
            "recipe": NAMES.get(recipe, recipe),
            "seed": seed,
            "overlays": [s.overlay],
            "steps": s.steps,
            "begin": begin,
            "warm_up": warm_up,
            "gpu": str(gpu),
            "host": f"nid{host:03d}",
        }
        changes = [each for each in s.changes if is_of(f"{recipe}/{seed}", each)]
        ended = write_changed(folder, run, changes, seconds, drawn[recipe, seed], drawn)
        free[gpu] = max(free[gpu], ended)
    if s.file is not None:
        names = [NAMES.get(recipe, recipe) for recipe in s.recipes]
        plan = {"recipes": names, "baseline": names[0], "seeds": [*range(s.seeds)]}
        plan |= {"overlays": [s.overlay]} | s.file
        (folder / "study.yaml").write_text(json.dumps(plan))
    return folder


def chosen(section: str, words: dict) -> SimpleNamespace:
    """Put what is said over the usual."""
    assert words.keys() <= USUAL[section].keys(), words
    return SimpleNamespace(**over(USUAL[section], words))


# ---- step times and losses ----


def generator(name: str) -> np.random.Generator:
    """Make a generator of random numbers by name."""
    number = 0
    for byte in name.encode():
        number = (number * 131 + byte) % 2**31
    return np.random.default_rng(number)


def step_times(s: SimpleNamespace, recipe: str, slow: float, rng) -> np.ndarray:
    """Draw the seconds of a run's steps, of which the first takes twice as long."""
    usual = s.step_s / s.speed.get(recipe, 1.2) * slow * math.exp(rng.normal(0, s.start_spread))
    seconds = usual * np.exp(wander(s.steps, s.rho, s.sd, rng))
    seconds[0] *= 2
    return seconds


def learning(n: int, rng) -> np.ndarray:
    """Draw the losses of a seed."""
    step = np.arange(1, n + 1)
    falling = 3.2 + 8.56 * np.exp(-step / (60 + n * 0.08))
    return falling + wander(n, 0.2, 0.12, rng) * np.minimum(1, step / 50)


def loss_differences(s: SimpleNamespace, recipe: str, rng) -> np.ndarray | float:
    """Draw how far a run's losses are from eager bf16's of its seed: nothing at first, then noise
    around an offset."""
    if recipe == "B":
        return 0.0
    grown = np.minimum(1, np.arange(1, s.steps + 1) / (0.3 * s.steps))
    offset = rng.normal(0, s.pair) + wander(s.steps, 0.9, 0.0012, rng)
    rounding = rng.normal(0, 1e-4, s.steps)
    return offset * grown + rounding + s.above.get(recipe, 0.0) * grown


def wander(n: int, rho: float, sd: float, rng) -> np.ndarray:
    """Draw noise in which each value has a share `rho` of the one before."""
    noise = rng.normal(0, sd * math.sqrt(1 - rho * rho), n)
    noise[0] = rng.normal(0, sd)
    return lfilter([1], [1, -rho], noise)


# ---- what is wrong ----

SHAPES = {  # how much of an effect each step has, by the steps since it began
    "grow": lambda since, steps, rng: np.minimum(1, since / steps),
    "decay": lambda since, steps, rng: np.exp(-since / steps),
    "chance": lambda since, share, rng: rng.random(len(since)) < share,
    "flicker": lambda since, steps, rng: np.cumsum(rng.random(len(since)) < 1 / steps) % 2,
}


def is_of(run: str, change: dict) -> bool:
    """Whether a change is of a run, RECIPE/SEED."""
    return any(fnmatch(run, pattern) for pattern in change.get("runs", ["*"]))


def write_changed(folder: Path, run: dict, changes: list[dict], seconds: np.ndarray,
                  losses: np.ndarray, drawn: dict) -> float:  # fmt: skip
    """Write a run with changes; returns when the run ended.

    Args:
        drawn: losses of all runs so far, by recipe and seed.
    """
    name = f"{run['recipe']}{run['seed']}"
    for change in changes:
        run = over(run, change)
        seconds = changed(seconds, chosen("effect", change.get("seconds", {})), name)
        effect = chosen("effect", change.get("losses", {}))
        if effect.like:
            losses = drawn[tuple(effect.like)]
        losses = changed(losses, effect, name)
    o = chosen("run", run)
    return 0.0 if o.absent else write_attempts(folder, seconds, losses, o)


def changed(values: np.ndarray, effect: SimpleNamespace, run: str) -> np.ndarray:
    """Change step times or losses: by a share, plus a number, or to a number, in some steps."""
    first, *last_and_stride = effect.steps
    size = np.zeros(len(values))
    size[slice(first - 1, *last_and_stride)] = 1
    if effect.shape:
        shape, number = effect.shape
        since = np.arange(len(values)) - (first - 1)
        size *= SHAPES[shape](since, number, generator(run + effect.draw))
    if effect.to is not None:
        return np.where(size, effect.to, values)
    return values * (1 + effect.by * size) + effect.plus * size


# ---- runs ----


def write_attempts(folder: Path, seconds: np.ndarray, losses: np.ndarray, o) -> float:
    """Write a run directory with its earlier attempts; returns when the run ended.

    Args:
        seconds, losses: of each step of the study.
        o: what the run is, in the words of planted_run.yaml.
    """
    records = records_of(o)
    attempts = [*o.earlier, [o.steps, o.made or o.steps, o.status]]
    path = folder / o.folder.format_map(vars(o))
    lines, first, begin = [], 1, o.begin
    for number, (kept, last, status) in enumerate(attempts, 1):
        own = slice(first - 1, last)
        lines += windows(seconds[own].tolist(), losses[own].tolist(), first, o.warm_up, **o.log)
        ended = begin + lines[-1]["elapsed_s"] + 5
        end = None if status == "running" else stamp(ended)
        records |= {"attempt": number, "status": status, "start": stamp(begin), "end": end}
        where = path if number == len(attempts) else path / f"attempt{number}"
        write_run(where, lines=spoilt(lines, o), **records)
        lines = [line for line in lines if line["step"] <= kept]
        first, begin = kept + 1, ended + 30
    for name in o.lose:
        (path / name).unlink()
    return ended


def records_of(o: SimpleNamespace) -> dict:
    """Make what all attempts of a run record, as arguments of `write_run`."""
    settings = over(resolved(o.recipe, *o.overlays), o.settings)
    float8 = settings["quantize"]["linear"]["float8"]["recipe_name"]
    scaling = SCALINGS.get(float8)
    proves = proof(float8, IN_FP8 * scaling.matmuls / 3 if scaling else 0.0, o.ran)
    proves["stretches"] = stretches(o.in_fp8, o.switch_s)
    manifest = {
        "hardware": {"visible_devices": o.gpu},
        "compiled": o.recipe != NAMES["B"],
        "float8": float8,
        "overlays": o.overlays,
    }
    return over(manifest, o.manifest) | {
        "recipe": o.recipe,
        "seed": o.seed,
        "steps": o.steps,
        "warm_up": o.warm_up,
        "timing": o.timing,
        "host": o.host,
        "world_size": o.world_size,
        "error": o.error,
        "settings": settings,
        "proves": over(proves, o.proof),
    }


@cache
def resolved(recipe: str, *overlays: str) -> dict:
    """Resolve a recipe; a user's own is tensorwise FP8's under another name."""
    known = recipe if recipe in recipe_files.files(recipe_files.RECIPES) else NAMES["T"]
    text = recipe_files.to_yaml(recipe_files.load(known, overlays))
    return yaml.load(text, yaml.CSafeLoader)


def spoilt(lines: list[dict], o: SimpleNamespace) -> list[dict]:
    """Spoil a log: its clock, or lines that it has twice."""
    again, end = o.twice
    return [
        line | {"elapsed_s": line["elapsed_s"] + o.clock_jump * (line["step"] > 500)}
        for line in lines[:end] + lines[again:]
    ]


def stamp(seconds: float) -> str:
    return (BEGIN + timedelta(seconds=seconds)).isoformat()


# ---- for other tests ----


def compared(folder: Path, own: list[dict], other: list[dict], **words) -> Finding:
    """Compare tensorwise FP8 and compiled bf16 by what the run of each seed is, in the words of a
    change."""
    changes = []
    for recipe, runs in ("T", own), ("C", other):
        for seed, run in enumerate(runs):
            changes.append({"runs": [f"{recipe}/{seed}"]} | run)
    study(folder, recipes="CT", seeds=len(own), changes=changes, **words)
    return compare(read_study(folder)).findings[NAMES["T"]]
