"""Why a recipe gets no plain yes: what else differs from the opponent, and what its runs show
besides their steady steps and final losses. The sentences are in analysis/answer.py."""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator
from itertools import repeat
from operator import itemgetter
from typing import NamedTuple

import numpy as np
import pandas as pd
import yaml

from analysis.load import DRIFT, PARTS, Frames
from analysis.losses import FAR, LEVEL, FarOff, Verdict, paired
from analysis.newest import ROOT
from analysis.rates import SMALL, Completed, SpeedUp, interval
from analysis.runs import cause, flat

RATIOS_DIFFER = 0.02  # two ratios that are so far apart are both told
PADDING_DIFFERS = 0.05  # of the tokens
SHARES_DIFFER = 0.01  # of runs that convert the same layers: no more than by rounding
LEAST_COMPILED = 0.5  # of the opponent's graphs, and of its time to compile them
EQUAL = 0.1  # of the steps in FP8: losses that equal bf16's to the last bit in more are copies
TOO_GOOD = 0.02  # of the loss: FP8 does not make it lower by more
OFTEN = 0.02  # of a run's log: in more of it losses or gradients are not finite, or losses far off
# Runs that differ in one of these do not compare. Where some do not say, it is doubtful.
SHARED = ["device", "torch", "torchao", "flavor", "parameters", "overlays", "dataset", "data",
          "seq_len", "world_size", "tokens_per_step", "flops_per_token", "steps_asked"]  # fmt: skip
# Machines and code that differ in one of these may differ in speed.
MACHINE = {"driver": "driver", "power_limit_w": "power limit (W)", "torchtitan": "torchtitan",
           "sm_clock_max_mhz": "highest clock (MHz)", "attention": "attention kernels",
           "code": "commit", "triton": "triton", "cuda": "CUDA", "cudnn": "cuDNN",
           "python": "Python", "cpu": "host CPU", "threads": "CPU threads",
           "memory_gib": "device memory (GiB)", "host": "host",
           "visible_devices": "visible GPUs"}  # fmt: skip
PLACES = ("host", "visible_devices")
# Keys of a resolved recipe that change nothing of what is computed.
LABELS = ("name", "description", "debug.seed", "data.cache_dir")
NAMED = 5  # of many runs or keys


class Doubt(NamedTuple):
    """One thing that forbids a plain yes."""

    kind: str  # a key of `analysis.answer.DOUBTS`
    facts: dict  # what its sentence names


def find_doubts(
    recipe: Completed,
    opponent: Completed,
    frames: Frames,
    gain: SpeedUp,
    judged: Verdict,
    far: FarOff,
    missing: Counter,
) -> Iterator[Doubt]:
    """Find what forbids a plain yes for an FP8 recipe, among all runs that were started.

    Args:
        missing: by recipe, how many runs of its study left no record.
    """
    both = pd.concat([recipe.runs, opponent.runs])
    for doubt, runs in both.explode("doubts").groupby("doubts", sort=False)["run"]:
        each = "each of " * (len(runs) > 1) + _listed(runs)
        yield Doubt("run", {"runs": each, "doubt": doubt})
    yield from _proofs(recipe.runs, opponent.runs)
    yield from _setups(recipe.runs, opponent.runs, both, gain)
    yield from _paces(recipe.runs, opponent.runs, both, gain)
    yield from _unfinished(recipe.recipe, opponent.recipe, frames.runs, missing)
    yield from _losses(recipe, opponent)
    yield from _later(recipe, opponent, frames.later, judged.margin)
    if len(far.below) or judged.share < -TOO_GOOD:
        words = far.sentence("below", far.below) if len(far.below) else judged.sentence()
        yield Doubt("below", {"words": words.removesuffix(".")})


def _listed(names: Collection[str]) -> str:
    """Name the first few, and count the others."""
    more = f" and {len(names) - NAMED} more" * (len(names) > NAMED)
    return ", ".join(list(names)[:NAMED]) + more


def _proofs(recipe: pd.DataFrame, opponent: pd.DataFrame) -> Iterator[Doubt]:
    """Yield doubts where it is not proven that all runs ran in FP8, and compiled as the opponent's
    did."""
    shares = recipe.loc[recipe["fp8_emulated"].ne(True), "fp8_share"]
    if not shares.gt(0).all():
        yield Doubt("proof", {})
    if shares.max() - shares.min() > SHARES_DIFFER:
        yield Doubt("proofs", {})
    own, others = (of.groupby("compile_cache")["compile_s"].min() for of in (recipe, opponent))
    graphs = recipe["compiled_graphs"].min() / opponent["compiled_graphs"].min()
    if (own / others < LEAST_COMPILED).any() or graphs < LEAST_COMPILED:
        yield Doubt("compiled", {})


# ---- settings and machines ----


def _setups(
    recipe: pd.DataFrame, opponent: pd.DataFrame, both: pd.DataFrame, gain: SpeedUp
) -> Iterator[Doubt]:
    """Yield doubts where settings, machines or data differ, or are not known of all runs."""
    unexpected = _settings(both.dropna(subset="settings"))
    if unexpected:
        yield Doubt("settings", {"keys": _listed(unexpected)})
    for column, words in (dict.fromkeys(SHARED) | MACHINE).items():
        kinds = [of[column].map(str).replace(["nan", "None"], "unknown").value_counts()
                 for of in (recipe, opponent)]  # fmt: skip
        alike = column in PLACES and _are_alike(column, recipe, opponent, gain.ratio)
        if not (alike or _shares(kinds[0]) == _shares(kinds[1])):
            told = [", ".join(f"{kind} ({n})" for kind, n in of.items()) for of in kinds]
            yield Doubt("machine", {"what": f"{words or column} {' beside '.join(told)}"})
    no_recipe = both["settings"].map(lambda keys: keys == {})
    for kind, unknown in ("data", both["data"].isna()), ("recipe", no_recipe):
        if unknown.any():
            yield Doubt(kind, {"runs": _listed(both.loc[unknown, "run"])})
    own, others = (1 - of["valid_share"].mean() for of in (recipe, opponent))
    if abs(own - others) > PADDING_DIFFERS:
        yield Doubt("padding", {"own": own, "others": others})


def _are_alike(place: str, recipe: pd.DataFrame, opponent: pd.DataFrame, ratio: float) -> bool:
    """Tell whether places do not matter: each run has its own, or each recipe that ran on several
    was as fast on all of them."""
    by_place = [of.groupby(of[place].map(str))["step_s"] for of in (recipe, opponent)]
    if max(seconds.size().max() for seconds in by_place) == 1:
        return True
    means = [seconds.mean() for seconds in by_place if len(seconds) > 1]
    apart = [of.max() / of.min() - 1 for of in means]
    return bool(apart) and max(apart) <= max(RATIOS_DIFFER, abs(ratio - 1) / 2)


def _shares(counts: pd.Series) -> dict[str, float]:
    return (counts / counts.sum()).round(6).to_dict()


def _settings(runs: pd.DataFrame) -> list[str]:
    """List the keys in which the resolved recipes of two recipes' runs differ otherwise than the
    recipes' files say. Of a recipe without a file in recipes/ only FP8's keys are expected."""
    rows = pd.DataFrame([*runs["settings"]], runs["recipe"], dtype=object)
    rows = rows.dropna(how="all").map(_plain)
    known = {name: of_file(name) for name in rows.index.unique()}
    files = pd.DataFrame([of or {} for of in known.values()], known, dtype=object)
    said = ["quantize."]
    if None not in known.values():
        files = files.map(_plain)
        said = [key for key in files if files[key].nunique() > 1]
    found = []
    for key in rows.columns[rows.nunique() > 1]:
        as_said = key.startswith(tuple(said))
        if key in files:
            values = files[key].reindex(rows.index)
            as_said &= (values.isin(["nan", "None"]) | (values == rows[key])).all()
        if not as_said and not key.startswith(LABELS):
            found.append(key)
    return found


def _plain(value) -> str:
    """Write a value as text, 5e-5 as 5e-05."""
    try:
        return str(float(value))
    except (TypeError, ValueError):
        return str(value)


def of_file(recipe: str) -> dict | None:
    """Read what a recipe's file and those of its ancestors say below base.yaml, by key.path; None
    where there is no such file."""
    paths = (ROOT / "recipes").rglob(f"{recipe}.yaml")
    paths = [path for path in paths if path.parent.name not in ("studies", "overlays")]
    if not paths:
        return None
    said = yaml.safe_load(paths[0].read_text())
    parent = said.pop("base", None)
    above = of_file(parent) if parent not in (None, "base") else {}
    return (above or {}) | flat(said)


# ---- speed ----


def _paces(
    recipe: pd.DataFrame, opponent: pd.DataFrame, both: pd.DataFrame, gain: SpeedUp
) -> Iterator[Doubt]:
    """Yield doubts where the mean steady step is not all there is to say of the speed."""
    no_clock = both["clock_s"].isna().groupby(both["recipe"]).transform("all")
    unusable = both.loc[both["wall_s"].isna() | no_clock, "run"]
    if len(unusable):
        yield Doubt("no clock", {"runs": _listed(unusable)})
    by_clock, usual, without = (
        gain.by[column] for column in ("clock_s", "usual_s", "without_stalls_s")
    )
    opposite = (gain.ratio - 1) * (by_clock.mean - 1) < 0
    halved = by_clock.mean - 1 < 0.5 * (gain.ratio - 1)
    otherwise = gain.as_fast or opposite or (gain.ratio > 1 and halved)
    if otherwise and _told(by_clock.mean, gain):
        yield Doubt("clock", {"ratio": by_clock.mean})
    if _told(usual.mean, gain) and gain.ratio > 1 + SMALL >= usual.mean:
        yield Doubt("slow steps", {"ratio": usual.mean})
    stalled = both[both["stall"] > 0].sort_values("stall_s")
    if len(stalled) and (_told(without.mean, gain) or without.unclear != gain.unclear):
        facts = stalled.iloc[-1][["run", "stall", "stall_s"]].to_dict()
        yield Doubt("stall", facts | {"without": without.words})
    change = gain.change
    if change:
        yield Doubt(change.kind, change._asdict())
    if not change or change.kind != "drift":
        yield from _uneven(recipe, opponent)
        yield from _uneven(opponent, recipe)


def _uneven(runs: pd.DataFrame, others: pd.DataFrame) -> Iterator[Doubt]:
    """Yield a doubt for the run whose step time changes most beyond what all other recipe's do."""
    slows, usual = (of.set_index("run")[[*PARTS.values()]] for of in (runs, others))
    beyond = np.maximum(slows / usual.max(), usual.min() / slows).stack()
    if beyond.max() > 1 + DRIFT:
        run, part = beyond.idxmax()
        facts = {"times": slows.loc[run, part], "part": part.replace("_", " ")}
        yield Doubt("uneven", {"run": run} | facts)


def _told(ratio: float, gain: SpeedUp) -> bool:
    """Whether a ratio is so far from the one by the mean steady step that both are told."""
    return abs(ratio / gain.ratio - 1) > RATIOS_DIFFER


# ---- runs that did not end, and losses ----


def _unfinished(
    recipe: str, opponent: str, runs: pd.DataFrame, missing: Counter
) -> Iterator[Doubt]:
    """Yield a doubt for each cause that ended, or delayed, a larger share of the recipe's runs than
    of the opponent's."""
    lost = runs[~runs["status"].isin(["completed", "diverged"])]
    resumed = runs.explode("failures").dropna(subset="failures")
    kinds = {
        "unfinished": (lost["recipe"], map(cause, lost["status"], lost["error"])),
        "resumed": (resumed["recipe"], resumed["failures"]),
        "missing": ([*missing.elements()], repeat("")),
    }
    counts: dict[tuple[str, str], Counter] = defaultdict(Counter)
    for kind, (recipes, causes) in kinds.items():
        for of, why in zip(recipes, causes, strict=False):
            counts[kind, why][of] += 1
    asked = Counter(runs["recipe"]) + missing
    for (kind, why), count in counts.items():
        if count[recipe] / asked[recipe] > count[opponent] / asked[opponent]:
            facts = {"own": count[recipe], "asked": asked[recipe], "cause": why}
            yield Doubt(kind, facts | {"others": count[opponent], "of": asked[opponent]})


def _losses(recipe: Completed, opponent: Completed) -> Iterator[Doubt]:
    """Yield doubts where losses or gradients are not finite in a good part of a run, and where
    losses are equal to the last bit that should not be: of FP8 and bf16, and of two seeds of one
    recipe in their first step, weights and batch of which are the seed's."""
    for column, what in ("loss", "loss"), ("grad_norm", "gradient norm"):
        lost = [of.windows[column].isna().groupby(of.windows["run"]).mean()
                for of in (recipe, opponent)]  # fmt: skip
        less, more = sorted(lost, key=pd.Series.max)
        if more.max() - less.max() > OFTEN:
            facts = {"run": more.idxmax(), "share": more.max(), "others": less.max()}
            yield Doubt("not finite", {"what": what} | facts)
    pairs = paired(recipe, opponent)
    if not pairs.empty:
        apart = ((pairs["loss"] - pairs["reference"]) / pairs["reference"].abs()).to_numpy()
        (_, less), (side, share) = sorted(
            (("above", (apart > FAR).mean(axis=0).max()),
             ("below", (apart < -FAR).mean(axis=0).max())), key=itemgetter(1))  # fmt: skip
        if share - less > OFTEN:
            yield Doubt("spikes", {"percent": 100 * FAR, "side": side, "share": share})
        equal = (pairs["loss"] == pairs["reference"]).mean()
        in_bf16 = 1 - recipe.runs.set_index("seed")["fp8_share_of_steps"]
        copies = equal[equal > in_bf16.reindex(equal.index) + EQUAL]
        if len(copies):
            steps = round(len(pairs) * copies.max())
            facts = {"seeds": len(copies), "all": len(equal), "steps": steps, "of": len(pairs)}
            yield Doubt("alike", facts)
    for of in (recipe, opponent):
        firsts = of.steps.dropna(subset=["seed", "loss"]).groupby("seed")["loss"].first()
        if firsts.duplicated().any():
            yield Doubt("seeds", {"recipe": of.recipe})


def _later(
    recipe: Completed, opponent: Completed, later: pd.DataFrame, margin: float
) -> Iterator[Doubt]:
    """Yield a doubt for each run whose loss is above the opponent's after the step to which a
    budget has cut the runs: of the same seed and step where that is known, else at the cut."""
    own, others = (later[later["recipe"] == of.recipe] for of in (recipe, opponent))
    if own.empty:
        return
    beside = own.merge(others, on=["seed", "step"], how="left", suffixes=("", "_reference"))
    at_cut = opponent.runs.set_index("seed")["final_loss"]
    known = beside["loss_reference"].fillna(beside["seed"].map(at_cut)).fillna(at_cut.mean())
    for run, excess in (beside["loss"] - known).groupby(beside["run"]):
        low, _ = interval(excess.to_numpy(), level=LEVEL)
        if low > margin or excess.isna().any():
            facts = {"run": run, "excess": excess.mean(), "step": own["step"].min() - 1}
            yield Doubt("later", facts)
