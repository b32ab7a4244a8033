"""Run directories and studies with known truth, by formulas: step times and losses of so many runs.

The studies are in planted.yaml, and what all runs record is in planted_run.yaml. What is given in
seconds or shares is what a run took or is.
"""

import json
import math
import os
import shutil
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path

import numpy as np
import yaml
from scipy.signal import lfilter

from experiments.config import recipes

B, C, R, T = "baseline", "baseline_compiled", "rowwise_fp8_compiled", "tensorwise_fp8_compiled"
GW, AG = "rowwise_gw_hp_fp8_compiled", "tensorwise_fp8_allgather"
FOUR, THREE = (B, C, R, T), (B, C, T)
TOK, PARAMS, IN_MATMULS, HEAD = (
    4096,
    8053329920,
    7516459008,
    536870912,
)  # 8.05 B, its matmuls without the embedding, the head
SPEED = {B: 1 / 1.08, C: 1.0, R: 1.06, T: 1.24, GW: 1.10, AG: 1.27}
WARM = {B: 14.0, C: 41.0, R: 75.0, T: 60.0}  # s, from process start to the end of step 1


RUN = yaml.load((Path(__file__).parent / "planted_run.yaml").read_text(), yaml.CSafeLoader)


def seeded(name: str) -> np.random.Generator:
    h = 0
    for c in name.encode():
        h = (h * 131 + c) % 2**31
    return np.random.default_rng(h)


def ar1(n, rho, sd, rng):
    """Noise in which each value has a share `rho` of the one before."""
    noise = rng.normal(0, sd * math.sqrt(1 - rho * rho), n)
    noise[0] = rng.normal(0, sd)
    return lfilter([1], [1, -rho], noise)


@cache
def resolved(recipe: str, overlay: str) -> str:
    """Resolve a recipe, as JSON; a user's own is tensorwise FP8's under another name."""
    known = recipe if recipe in recipes.files(recipes.RECIPES) else T
    text = recipes.to_yaml(recipes.load(known, [overlay]))
    return json.dumps(yaml.load(text, yaml.CSafeLoader))


def deep(old, new):
    """`new` over `old`, dict by dict."""
    if isinstance(old, dict) and isinstance(new, dict):
        return old | {k: deep(old.get(k), v) for k, v in new.items()}
    return new


def nested(key: str, value) -> dict:
    """Sections within sections of a key.path."""
    for name in reversed(key.split(".")):
        value = {name: value}
    return value


def stamp(seconds: float) -> str:
    return (datetime(2026, 3, 2, 8, 0, tzinfo=UTC) + timedelta(seconds=float(seconds))).isoformat()


def manifest(recipe, seed, n, float8, o) -> dict:
    m = RUN["manifest"] | {
        "status": o["status"],
        "error": o["error"],
        "host": o["host"],
        "recipe": recipe,
        "overlays": [o["overlay"]],
        "seed": seed,
        "steps": o["steps"] or n,
        "study_budget_s": o["budget"],
        "compiled": recipe != B,
        "float8": float8,
        "world_size": o["world"],
    }
    m["hardware"] = m["hardware"] | {"name": o["device"], "visible_devices": o["gpu"]}
    return m


def proof(recipe, float8, o) -> dict:
    tokens = o["tok"] // o["world"]
    total = 6 * IN_MATMULS * tokens
    part = 2 / 3 if float8 == "rowwise_with_gw_hp" else bool(float8)
    expected, flops = (round(part * 6 * (IN_MATMULS - HEAD) * tokens * s) for s in (1, o["share"]))
    rows = flops * 2 // 3 if float8 and "rowwise" in float8 else 0
    switches = o["switch"] or {}
    stretches = {
        str(first): {
            "in_fp8": on,
            "profiled_step": int(first) + 2,
            "gemm_flops": {"aten::_scaled_mm": flops * on, "aten::mm": total - flops * on},
            "row_scaled_flops": rows * on,
            "compile_s": switches.get(str(first), 0.0),
        }
        for first, on in (o["phases"] or {1: bool(float8)}).items()
    }
    p = RUN["proof"] | {
        "recipe_name": float8,
        "fp8_flops": flops,
        "fp8_flops_expected": expected,
        "fp8_share_of_matmul_flops": flops / total,
        "stretches": stretches,
        "compiled_graphs": 0 if recipe == B else 2,
    }
    if o["world"] > 1:
        gathered = PARAMS * (1 if "allgather" in recipe else 2)
        p["sharded"] = {"gathered_bytes": gathered, "gathered_bytes_expected": gathered}
    return p


def windows(n, secs, losses, clock, o, first_steps, settled) -> list[dict]:
    """Log windows of steps 1 to n: `clock` is elapsed_s at the end of each step, `first_steps`
    begin a process."""
    ends = {*range(o["log_freq"], n + 1, o["log_freq"]), n, *(f - 1 for f in first_steps)} - {0}
    lines, begin = [], 1
    for end in sorted(ends):
        steps = range(begin, end + 1)
        t, wait, logged = (
            [float(x) for x in values[begin - 1 : end]] for values in (secs, o["wait"], losses)
        )
        logged = [x if math.isfinite(x) else None for x in logged]
        rate = o["tok"] * len(t) / sum(t)
        lines.append(
            {
                "step": end,
                "elapsed_s": round(float(clock[end - 1]), 3),
                "loss": None,
                "losses": logged,
                "grad_norm": 1.0,
                "lr": o["lr"] * min(1.0, end / 100),
                "tokens_per_s": rate,
                "valid_tokens_per_s": rate * o["valid"],
                "step_s": t,
                "data_wait_s": wait,
                "not_steady": [s for s in steps if s in settled],
                "peak_memory_bytes": 80 * 2**30,
            }
        )
        begin = end + 1
    return lines


def run(path, recipe, seed, secs, losses, **options) -> float:
    """Write a run directory: `secs[i]` is the time of step i+1, `warm` the time to the end of step
    1. Returns when it ended.

    preempted: steps at which a signal ended an attempt with a checkpoint; killed: (checkpoint, last
    step) of attempts that died.
    """
    o, n = RUN["options"] | options, len(secs)
    path.mkdir(parents=True)
    if o["wait"] is None:
        o["wait"] = np.full(n, 3e-4)
    cfg = json.loads(resolved(recipe, o["overlay"]))
    float8 = o["float8"]
    if float8 == "auto":
        float8 = cfg["quantize"]["linear"]["float8"]["recipe_name"]
    settings = {
        "name": recipe,
        "debug.seed": seed,
        "training.steps": o["steps"] or n,
        "metrics.log_freq": o["log_freq"],
        "optimizer.lr": o["lr"],
    }
    for key, value in (settings | o["settings"]).items():
        cfg = deep(cfg, nested(key, value))
    (path / "recipe.yaml").write_text(json.dumps(cfg))
    man = manifest(recipe, seed, n, float8, o)
    compiled = man["compiled"]
    comp = (0.6 * o["warm"] if compiled else 0.0) if o["compile_s"] is None else o["compile_s"]
    timing = {
        "time_to_first_step_s": o["warm"],
        "startup": {"compile": comp},
        "compile_cache": o["cache"] if compiled else "none",
    }
    # By attempt: the step of its last checkpoint, its last step, its status and error.
    attempts = [(s, s, "interrupted", "stopped by SIGUSR1") for s in o["preempted"]]
    attempts += [(kept, last, "running", None) for kept, last in o["killed"]]
    attempts = [*sorted(attempts, key=lambda attempt: attempt[0]), (n, n, o["status"], o["error"])]
    firsts = [1] + [kept + 1 for kept, *_ in attempts[:-1]]
    settled = {s for f in firsts for s in range(f, f + 10)} | set(o["ns"])
    settled |= {int(f) + k for f in o["phases"] or () for k in range(3)}
    settled |= {end + 1 for end in o.get("saves", ())}
    # Each process begins at 0; what it took over keeps the stamps of the process that logged it.
    begin, stamps = o["begin"], np.zeros(n)
    for number, (kept, last, status, error) in enumerate(attempts, 1):
        start = firsts[number - 1]
        own = o["warm"] + np.concatenate([[0], np.cumsum(secs[start:last])])
        clock = stamps.copy()
        clock[start - 1 : last] = own
        lines = windows(last, secs, losses, clock, o, firsts[:number], settled)
        where = path if number == len(attempts) else path / f"attempt{number}"
        where.mkdir(exist_ok=True)
        if o["hook"]:
            lines = o["hook"](lines)
        (where / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        ended = begin + float(own[-1]) + 5
        m = man | {"attempt": number, "start": stamp(begin), "status": status, "error": error}
        m["end"] = None if status == "running" else stamp(ended)
        records = {"manifest": (m, o["man"]), "timing": (timing, o["timing"]),
                   "proof": (proof(recipe, float8, o), o["proof"])}  # fmt: skip
        for name, (record, changed) in records.items():
            (where / f"{name}.json").write_text(json.dumps(deep(record, changed)))
        stamps[start - 1 : kept] = own[: kept - start + 1]
        begin = ended + 30
    for name in o["lose"] or ():
        (path / name).unlink()
    return ended


def curve(n, rng, sd=0.12, end=3.2):
    s = np.arange(1, n + 1)
    return (
        end
        + (11.76 - end) * np.exp(-s / (60 + n * 0.08))
        + ar1(n, 0.2, sd, rng) * np.minimum(1, s / 50)
    )


def apart(n, rng, pair, wobble=0.0012):
    """How far a recipe's loss is from another's of the same seed: nothing at first, then noise
    around an offset of sd `pair`."""
    s = np.arange(1, n + 1)
    return (rng.normal(0, pair) + ar1(n, 0.9, wobble, rng)) * np.minimum(
        1, s / (0.3 * n)
    ) + rng.normal(0, 1e-4, n)


def study(  # noqa: C901
    folder,
    recs=THREE,
    seeds=3,
    n=1000,
    speed=None,
    base=0.47,
    off=0.003,
    sd=0.01,
    rho=0.6,
    pair=0.0005,
    shift=None,
    warm=None,
    opts=None,
    secs_hook=None,
    loss_hook=None,
    each=None,
    place="one",
    gpus=4,
    gpu_off=0.0,
    host_off=0.0,
    hosts=8,
    plan=True,
    order="seed",
    overlay="h200",
    studyfile=None,
    noise=None,
) -> Path:
    """Write a study.

    each(recipe, seed): options of `run`, None to leave the run out. secs_hook, loss_hook: (recipe,
    seed, array) -> array. place: "one" GPU, one run after the other; "gpus": one run a GPU of a
    node, the next takes the first that is free; "hosts": each run on a random node; "by_seed": all
    of a seed on one node. gpu_off, host_off: standard deviations of their speeds; off: of starts.
    """
    rng = seeded(folder.name)
    seeds = list(range(seeds)) if isinstance(seeds, int) else list(seeds)
    speed, warm = SPEED | (speed or {}), WARM | (warm or {})
    of_gpu, of_host = np.exp(rng.normal(0, gpu_off, 16)), np.exp(rng.normal(0, host_off, 64))
    free = dict.fromkeys(range(gpus if place == "gpus" else 1), 0.0)
    jobs = [(r, s) for s in seeds for r in recs]
    if order == "recipe":
        jobs.sort(key=lambda job: recs.index(job[0]))
    bases, clock = {s: curve(n, rng) + rng.normal(0, 0.02) for s in seeds}, 0.0
    for recipe, seed in jobs:
        option = {
            "warm": warm.get(recipe, 60.0) * math.exp(rng.normal(0, 0.02)),
            "overlay": overlay,
        } | (opts or {})
        factor = 1.0
        if place == "gpus":
            g = min(free, key=lambda g: (free[g], g))
            option |= {"gpu": str(g), "begin": free[g]}
            factor = of_gpu[g]
        elif place == "hosts":
            h = int(rng.integers(hosts))
            option |= {"host": f"nid{h:03d}", "gpu": "0", "begin": float(rng.integers(0, 40000))}
            factor = of_host[h]
        elif place == "by_seed":
            option |= {"host": f"nid{seeds.index(seed):03d}", "begin": clock}
            factor = of_host[seeds.index(seed)]
        else:
            option["begin"] = clock
        secs = (
            base
            / speed.get(recipe, 1.2)
            * factor
            * math.exp(rng.normal(0, off))
            * np.exp(noise(n, rng) if noise else ar1(n, rho, sd, rng))
        )
        secs[0] *= 2
        losses = (
            bases[seed]
            + (0 if recipe == B else apart(n, rng, pair))
            + (shift or {}).get(recipe, 0.0) * np.minimum(1, np.arange(1, n + 1) / (0.3 * n))
        )
        if secs_hook:
            secs = secs_hook(recipe, seed, secs.copy())
        if loss_hook:
            losses = loss_hook(recipe, seed, losses.copy())
        own = each(recipe, seed) if each else {}
        if own is None:
            continue
        own = dict(own)
        cut = own.pop("cut", None)
        if cut:
            own.setdefault("steps", n)
            secs, losses = secs[:cut], losses[:cut]
        as_seed, as_recipe = own.pop("seed", seed), own.pop("recipe", recipe)
        option |= own
        path = folder / as_recipe / f"seed{as_seed}"
        ended = run(path, as_recipe, as_seed, secs, losses, **option)
        clock = max(clock, ended)
        if place == "gpus":
            free[g] = ended
    if plan:
        facts = {
            "recipes": list(recs),
            "baseline": B if B in recs else recs[0],
            "seeds": seeds,
            "overlays": [overlay],
        } | (studyfile or {})
        (folder / "study.yaml").write_text(json.dumps(facts))
    return folder


def hit(r, s, *which):
    return r == T and s in which


def between(a, b, factor):
    return lambda x: np.where((np.arange(len(x)) >= a) & (np.arange(len(x)) < b), x * factor, x)


def at(steps, seconds):
    def f(x):
        x[[s - 1 for s in steps]] = seconds
        return x

    return f


def of(recipe, change, seeds=None):
    """A hook that changes one recipe's arrays."""
    return lambda r, s, x: change(x) if r == recipe and (seeds is None or s in seeds) else x


def edit(path: Path, **changed) -> None:
    path.write_text(json.dumps(deep(json.loads(path.read_text()), changed)))


def write(name: str, folder: Path) -> dict:
    """Write a study of planted.yaml, and return what is said of it there."""
    case = CASES[name]
    names = globals() | {"folder": folder / name, "os": os, "shutil": shutil}
    eval(case["write"], names)  # an expression of this project's own
    return case


CASES = yaml.load(Path(__file__).with_suffix(".yaml").read_text(), yaml.CSafeLoader)

# What sound studies differ in: all are right to say yes.
SOUND = {
    "recs": [THREE, FOUR, (C, T)],
    "seeds": [3, 4, 5],
    "n": [400, 1000],
    "speed": [{T: ratio, R: 1.06} for ratio in (1.1, 1.15, 1.2, 1.25, 1.3)],
    "off": [0.001, 0.003],
    "sd": [0.005, 0.02],
    "pair": [0.0003, 0.0006],
    "place": ["one", "gpus", "hosts"],
    "gpu_off": [0.0, 0.004],
    "host_off": [0.0, 0.003],
    "order": ["seed", "recipe"],
}
