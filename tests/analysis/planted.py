"""Studies with known truth: recipes times seeds, with step times, losses, and what is wrong.

Step times and losses come from formulas. planted_run.yaml has the words that say what a study is,
and the usual; planted.yaml has the studies in these words.
"""

import json
import math
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatch
from functools import cache
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
IN_MATMULS, HEAD = 7516459008, 536870912  # parameters: without the embedding; of the head
BEGIN = datetime(2026, 3, 2, 8, 0, tzinfo=UTC)

HERE = Path(__file__).parent
USUAL = yaml.safe_load((HERE / "planted_run.yaml").read_text())
CASES = yaml.load((HERE / "planted.yaml").read_text(), yaml.CSafeLoader)
RECORDED = ("recipe", "seed", "steps", "warm_up", "timing", "host", "world_size", "overlays")
LOGGED = ("warm_up", "every", "tokens", "useful", "wait", "lr", "lr_warmup", "settling")


def study(folder: Path, **words) -> Path:
    """Write a study, in the words of planted_run.yaml."""
    s, rng = chosen("study", words), generator(folder.name)
    seeds = list(range(s.seeds)) if isinstance(s.seeds, int) else s.seeds
    jobs = [(recipe, seed) for seed in seeds for recipe in s.recipes]
    if s.order == "recipe":
        jobs.sort(key=lambda job: s.recipes.index(job[0]))
    of_gpu = np.exp(rng.normal(0, s.gpu_spread, 16))
    of_host = np.exp(rng.normal(0, s.host_spread, 64))
    free = [0.0] * (s.gpus if s.place == "gpus" else 1)  # when each GPU is
    of_seed = {seed: learning(s.steps, rng) + rng.normal(0, 0.02) for seed in seeds}
    drawn = {}
    for recipe, seed in jobs:
        warm_up = s.warm_up.get(recipe, 60.0) * math.exp(rng.normal(0, 0.02))
        gpu, host = int(np.argmin(free)), 1
        begin = free[gpu]
        if s.place == "hosts":
            host, begin = int(rng.integers(s.hosts)), float(rng.integers(0, 40000))
        elif s.place == "by_seed":
            host = seeds.index(seed)
        seconds = step_times(s, recipe, of_gpu[gpu] * of_host[host], rng)
        drawn[recipe, seed] = of_seed[seed] + loss_differences(s, recipe, rng)
        run = {"recipe": NAMES.get(recipe, recipe), "seed": seed, "overlays": [s.overlay],
               "steps": s.steps, "made": s.steps, "begin": begin, "warm_up": warm_up,
               "gpu": str(gpu), "host": f"nid{host:03d}"}  # fmt: skip
        changes = changes_of(f"{recipe}/{seed}", s.changes)
        ended = write_changed(folder, run, changes, seconds, drawn[recipe, seed], drawn)
        free[gpu] = max(free[gpu], ended)
    if s.plan:
        names = [NAMES.get(recipe, recipe) for recipe in s.recipes]
        baseline = NAMES["B"] if "B" in s.recipes else names[0]
        plan = {"recipes": names, "baseline": baseline, "seeds": seeds, "overlays": [s.overlay]}
        (folder / "study.yaml").write_text(json.dumps(plan | s.file))
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
    noise = s.states * jumps(s.steps, 0.01, rng) if s.states else 0.0
    seconds = usual * np.exp(noise + wander(s.steps, s.rho, s.sd, rng))
    seconds[0] *= 2
    return seconds


def learning(n: int, rng, sd=0.12, end=3.2) -> np.ndarray:
    """Draw the losses of a seed."""
    step = np.arange(1, n + 1)
    falling = (11.76 - end) * np.exp(-step / (60 + n * 0.08))
    return end + falling + wander(n, 0.2, sd, rng) * np.minimum(1, step / 50)


def loss_differences(s: SimpleNamespace, recipe: str, rng, wobble=0.0012) -> np.ndarray | float:
    """Draw how far a run's losses are from eager bf16's of its seed: nothing at first, then noise
    around an offset."""
    if recipe == "B":
        return 0.0
    grown = np.minimum(1, np.arange(1, s.steps + 1) / (0.3 * s.steps))
    offset = rng.normal(0, s.pair) + wander(s.steps, 0.9, wobble, rng)
    rounding = rng.normal(0, 1e-4, s.steps)
    return offset * grown + rounding + s.above.get(recipe, 0.0) * grown


def wander(n: int, rho: float, sd: float, rng) -> np.ndarray:
    """Draw noise in which each value has a share `rho` of the one before."""
    noise = rng.normal(0, sd * math.sqrt(1 - rho * rho), n)
    noise[0] = rng.normal(0, sd)
    return lfilter([1], [1, -rho], noise)


def jumps(n: int, chance: float, rng) -> np.ndarray:
    """Draw which of two states each step is in."""
    return np.cumsum(rng.random(n) < chance) % 2


# ---- what is wrong ----

SHAPES = {  # how much of an effect each step has, by the steps since it began
    "grow": lambda since, steps, rng: np.minimum(1, since / steps),
    "decay": lambda since, steps, rng: np.exp(-since / steps),
    "saw": lambda since, steps, rng: since % steps / steps,
    "chance": lambda since, share, rng: rng.random(len(since)) < share,
    "flicker": lambda since, steps, rng: jumps(len(since), 1 / steps, rng),
    "noise": lambda since, sd, rng: np.append(0, rng.normal(0, sd, len(since) - 1)),
}


def changes_of(run: str, changes: list[dict]) -> list[dict]:
    """Choose the changes of a run, RECIPE/SEED."""
    return [
        change
        for change in changes
        if any(fnmatch(run, pattern) for pattern in change.get("runs", ["*"]))
    ]


def write_changed(folder: Path, run: dict, changes: list[dict], seconds: np.ndarray,
                  losses: np.ndarray, drawn: dict) -> float:  # fmt: skip
    """Write a run with changes; returns when the run ended.

    Args:
        drawn: losses of all runs so far, by recipe and seed.
    """
    name = f"{run['recipe']}{run['seed']}"
    for change in changes:
        run = over(run, change)
        seconds = changed(seconds, change.get("seconds", {}), name)
        effect = change.get("losses", {})
        if "like" in effect:
            losses = drawn[tuple(effect["like"])]
        if "anew" in effect:
            losses = learning(len(losses), generator(effect["anew"] + str(run["seed"])))
        losses = changed(losses, effect, name)
    o = chosen("run", run)
    return 0.0 if o.absent else write_attempts(folder, seconds, losses, o)


def changed(values: np.ndarray, effect: dict, run: str) -> np.ndarray:
    """Change step times or losses: by a share, plus a number, or to a number, in some steps."""
    step = np.arange(1, len(values) + 1)
    first, last, stride = [*effect.get("steps", [1, len(values)]), 1][:3]
    size = np.isin(step, range(first, last + 1, stride)).astype(float)
    for shape in SHAPES.keys() & effect.keys():
        rng = generator(run + effect.get("draw", ""))
        size *= SHAPES[shape](step - first, effect[shape], rng)
    values = values * (1 + effect.get("by", 0) * size) + effect.get("plus", 0) * size
    return np.where(size, effect["to"], values) if "to" in effect else values


# ---- runs ----


def write_attempts(folder: Path, seconds: np.ndarray, losses: np.ndarray, o) -> float:
    """Write a run directory with its earlier attempts; returns when the run ended.

    Args:
        seconds, losses: of each step of the study.
        o: what the run is, in the words of planted_run.yaml.
    """
    records, log = records_of(o), {word: vars(o)[word] for word in LOGGED}
    attempts = [*o.earlier, [o.made, o.made, o.status, o.error]]
    path = folder / o.folder.format_map(vars(o))
    lines, first, begin = [], 1, o.begin
    for number, (kept, last, status, *error) in enumerate(attempts, 1):
        own = slice(first - 1, last)
        lines += windows(seconds[own].tolist(), losses[own].tolist(), first, **log)
        ended = begin + lines[-1]["elapsed_s"] + 5
        records |= {
            "attempt": number,
            "status": status,
            "error": error[0] if error else None,
            "start": stamp(begin),
            "end": stamp(ended) if status != "running" else None,
        }
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
    share = (1 - HEAD / IN_MATMULS) * scaling.matmuls / 3 if scaling else 0.0
    proves = proof(float8, share, o.ran, 6 * IN_MATMULS * o.tokens // o.world_size)
    in_fp8, by_rows = o.in_fp8 or {1: bool(scaling)}, bool(scaling) and scaling.by_rows
    proves["stretches"] = stretches(in_fp8, o.switch_s, proves["fp8_flops"], by_rows)
    manifest = {
        "hardware": {"visible_devices": o.gpu},
        "compiled": o.recipe != NAMES["B"],
        "float8": float8,
    }
    return {
        **{word: vars(o)[word] for word in RECORDED},
        **over(manifest, o.manifest),
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


def compared(folder: Path, own: dict, other: dict, seeds=3, **words) -> Finding:
    """Compare tensorwise FP8 and compiled bf16 by what their runs are.

    Args:
        own, other: words of a change; a list has a value for each seed, and a number in place of an
            effect on `seconds` or `losses` is what all are.
    """
    changes = []
    for recipe, options in ("T", own), ("C", other):
        for seed in range(seeds):
            change = {"runs": [f"{recipe}/{seed}"]}
            for word, value in options.items():
                value = value[seed] if isinstance(value, list) else value
                change[word] = {"to": value} if word in ("seconds", "losses") else value
            changes.append(change)
    study(folder, recipes="CT", seeds=seeds, changes=changes, **words)
    return compare(read_study(folder)).findings[NAMES["T"]]
