"""What terminal, page and README share: the matrix of recipes, the table of runs, what was trained,
and notes."""

import math
from itertools import groupby
from operator import itemgetter

import pandas as pd

from analysis.comparison import COMPILED, OWN, Comparison, in_order

# IQR as a share of the median: published FP8 gains 6 to 34 %; the README's runs have at most 17 %.
NOISY = 0.3
# What the table of runs shows: column to the fact, and its format.
_CELLS = {
    "final\nloss": ("final_loss", ".3f"),
    "tokens/s": ("tokens_per_s", ",.0f"),
    "IQR": ("iqr", ".1%"),
    "MFU": ("mfu_bf16_peak", ".1%"),
    "warm-up\ns": ("warm_up_s", ".1f"),
    "wall\ns": ("wall_s", ".1f"),
    "after\nwarm-up": ("wall_s_without_warm_up", ".1f"),
    "FP8\nshare": ("fp8_share", ".1%"),
    "memory\nGiB": ("peak_memory_gib", ".1f"),
    "status": ("runs", ""),
}
COLUMNS = tuple(_CELLS)
_AVERAGED = ["final_loss", "tokens_per_s", "tokens_per_s_q1", "tokens_per_s_q3", "mfu_bf16_peak",
             "warm_up_s", "wall_s", "wall_s_without_warm_up", "fp8_share",
             "peak_memory_bytes"]  # fmt: skip
# What may differ between runs that are compared, and could explain a part of a difference.
_NAMED = {
    "device": "device",  # refused where two are known
    "torch": "torch",
    "torchao": "torchao",
    "torchtitan": "torchtitan",
    "code": "commit",
    "driver": "driver",
    "power_limit_w": "power limit (W)",
    "sm_clock_max_mhz": "highest clock (MHz)",
    "attention": "attention kernels",
}


_SENT = "gathered {gathered_bytes:,.0f} bytes, reduced {reduced_bytes:,.0f} bytes"


def matrix(comparison: Comparison) -> tuple[list[str], list[list[str]]]:
    """(names of the columns, a line a recipe): its speed, when it pays back, its loss, and the
    proof of FP8."""
    opponent = comparison.opponent
    step = max((v.step for v in comparison.verdicts.values()), default=0)
    loss = f"loss after {step:,} steps" if step else "loss"
    over = "over compiled bf16" if opponent == COMPILED else f"over {opponent}"
    lines = []
    for recipe in in_order([*comparison.recipes, *comparison.diverged]):
        speed, ratio, pays = "-", "1" if recipe == opponent else "-", "-"
        if recipe in comparison.rates:
            rate = comparison.rates[recipe]
            speed = f"{rate.mean:,.0f}" if rate.runs else "too short"
        if (recipe, opponent) in comparison.speed_ups:
            ratio = comparison.speed_ups[recipe, opponent].word
        if (recipe, opponent) in comparison.break_evens:
            pays = comparison.break_evens[recipe, opponent].word
        found = _loss(comparison, recipe), _proof(comparison, recipe)
        lines.append([recipe, speed, ratio, pays, *found])
    return ["recipe", "tokens/s", over, "pays back", loss, "FP8 proof"], lines


def _loss(comparison: Comparison, recipe: str) -> str:
    if recipe in comparison.diverged:
        return "diverged in {} of {}".format(*comparison.diverged[recipe])
    if recipe in comparison.left:
        runs = len(comparison.completed[recipe].runs)
        return f"{len(comparison.left[recipe])} of {runs} left the others"
    if recipe in comparison.verdicts:
        return comparison.verdicts[recipe].word
    return "reference" if recipe == comparison.baseline else "-"


def _proof(comparison: Comparison, recipe: str) -> str:
    if recipe not in comparison.proof:
        return "-"
    if comparison.proof[recipe]:
        return f"{comparison.proof[recipe]:.0%}"
    runs = comparison.completed[recipe].runs
    if runs["fp8_emulated"].eq(True).any():
        return "emulated"
    return "differs" if runs["fp8_share"].gt(0).all() else "none"


def rows_of(comparison: Comparison) -> list[dict]:
    """`Frames.runs` as dictionaries, recipe by recipe and seed by seed; what is unknown is None."""
    runs = comparison.frames.runs
    order = in_order(runs["recipe"])
    ordered = runs.sort_values("seed", kind="stable")
    ordered = ordered.sort_values("recipe", kind="stable", key=lambda names: names.map(order.index))
    rows = ordered.to_dict("records")
    return [{key: known(value) for key, value in row.items()} for row in rows]


def known(value):
    """`value`, or None for what is not a number or infinite."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def by_recipe(rows: list[dict]) -> list[tuple[dict, list[dict]]]:
    """For each recipe a row of means over its completed runs, and its runs; `rows` as from
    `rows_of`."""
    groups = [list(runs) for _, runs in groupby(rows, key=itemgetter("recipe"))]
    return [(_averaged(runs), runs) for runs in groups]


def _averaged(runs: list[dict]) -> dict:
    done = pd.DataFrame(row for row in runs if row["status"] == "completed")
    count = {"runs": f"{len(done)} of {len(runs)} completed"}
    if done.empty:
        return runs[0] | count
    numbers = done[_AVERAGED].astype(float)
    means = numbers.mean().to_dict() | {"loss_spread": numbers["final_loss"].std()}
    means = {column: known(mean) for column, mean in means.items()}
    return next(row for row in runs if row["status"] == "completed") | means | count


def seed(row: dict) -> str:
    return "-" if row["seed"] is None else f"{row['seed']:.0f}"


def cells(row: dict) -> list[str]:
    """Cells of `COLUMNS`, of a run or of a recipe's means."""
    facts = {"runs": status(row), "iqr": _iqr(row)} | row
    if row["peak_memory_bytes"]:
        facts["peak_memory_gib"] = row["peak_memory_bytes"] / 2**30
    found = {column: _format(facts.get(fact), spec) for column, (fact, spec) in _CELLS.items()}
    if row.get("loss_spread"):
        found["final\nloss"] += f" ± {row['loss_spread']:.3f}"
    if row["fp8_emulated"]:
        found["FP8\nshare"] = "emulated"
    return list(found.values())


def status(row: dict) -> str:
    """What became of a run, and where it ended. A run that was killed could not record its end."""
    if row["steps_planned"]:
        return f"{row['steps']:.0f} of {row['steps_planned']:.0f}"
    word = "not ended" if row["status"] == "running" else row["status"]
    return word if row["steps_asked"] in (None, row["steps"]) else f"{word} at {row['steps']:.0f}"


def _iqr(row: dict) -> float | None:
    """Distance of the quartiles of tokens/s, as a share of the median."""
    median = row["tokens_per_s"]
    return median and (row["tokens_per_s_q3"] - row["tokens_per_s_q1"]) / median


def _format(value, spec: str) -> str:
    return "-" if value is None else format(value, spec)


def trained(rows: list[dict]) -> str:
    """What was trained, with what, when and where.

    By the first completed run: the runs of a study share it, but for commits and days, which are
    all named.
    """
    row = next((row for row in rows if row["status"] == "completed"), rows[0])
    facts = {key: value for key, value in row.items() if value is not None}
    days = sorted(_kinds(rows, "date"))
    facts |= {
        "flavor": row["flavor"] or "unknown",
        "seeds": len(_kinds(rows, "seed")),
        "code": ", ".join(_kinds(rows, "code")),
        "date": " to ".join(dict.fromkeys([*days[:1], *days[-1:]])),
        "overlays": ", ".join(row["overlays"] or []),
    }
    for name in ("parameters", "tokens"):
        facts[name] = row[name] and _short(row[name])
    parts = [text.format_map(facts) for key, text in _TRAINED.items() if facts.get(key)]
    return f"Trained: {'; '.join(parts)}."


_TRAINED = {
    "flavor": "model {flavor}",
    "parameters": "{parameters} parameters",
    "steps": "{steps:,} steps",
    "tokens_per_step": "{tokens_per_step:,.0f} tokens a step",
    "seq_len": "rows of {seq_len:,.0f} tokens",
    "tokens": "{tokens} tokens a run",
    "dataset": "data {dataset}",
    "overlays": "overlays {overlays}",
    "seeds": "seeds: {seeds}",
    "date": "{date}",
    "code": "commit {code}",
    "torch": "torch {torch}",
    "torchao": "torchao {torchao}",
    "torchtitan": "torchtitan {torchtitan}",
    "driver": "driver {driver}",
    "device": "{device}",
    "world_size": "processes: {world_size:.0f}",
    "power_limit_w": "power limit {power_limit_w:.0f} W",
    "sm_clock_max_mhz": "clock up to {sm_clock_max_mhz:.0f} MHz",
}


def _short(number: float) -> str:
    """Three digits with k, M or B."""
    for unit, name in (1e9, "B"), (1e6, "M"):
        if number >= unit:
            return f"{number / unit:.3g} {name}"
    return f"{number / 1e3:.3g} k"


def notes(rows: list[dict]) -> list[str]:
    """What a reader must know to read the tables right."""
    lines = [
        "tokens/s of a recipe and its ratio to another: by the mean steady step (after the first "
        "10); of a run: by the median step, with IQR, its quartiles' distance. FP8 proof and "
        "share: of the FLOPs of the linear layers, as seen in one profiled step. Pays back: where "
        "the total wall time, warm-up included, drops below the other's. Wall: from process start; "
        "after warm-up: from the end of step 1."
    ]
    lines += [f"MFU is of the bf16 peak ({source})." for source in _kinds(rows, "peak_source")]
    lines += [
        f"tokens/s are of all {n:.0f} processes together, MFU and memory of one."
        for n in _kinds(rows, "world_size")
        if n > 1
    ]
    peaks = _kinds(rows, "peak_bf16")
    if max(peaks, default=0) > 1.01 * min(peaks, default=0):
        lines.append("That peak differs between the runs: compare tokens/s, not MFU.")
    cut = {(row["steps"], row["steps_planned"]) for row in rows if row["steps_planned"]}
    lines += [
        "The study's time budget ended before its runs: all are compared over their first "
        f"{steps:,.0f} of {planned:,.0f} steps."
        for steps, planned in cut
    ]
    if any(row["source"] != OWN for row in rows):
        lines.append(
            "Logs of other programs: their clock starts with the training loop, not with the "
            "process."
        )
    return lines + _differences(rows) + _warnings(rows)


def _differences(rows: list[dict]) -> list[str]:
    """What the runs do not share, and could explain a part of a difference."""
    done = [row for row in rows if row["status"] == "completed"]
    lines = []
    for column, name in _NAMED.items():
        kinds = _by_kind(done, column, "unknown")
        if len(kinds) > 1:
            lines.append(
                f"The runs differ in {name}: {_joined(kinds)}. Part of a difference may come from "
                "that."
            )
    sent = [row | {"sent": _SENT.format_map(row)} for row in done if row["gathered_bytes"]]
    for opening, found in (
        ("Sent among the ranks in a step", _by_kind(sent, "sent")),
        ("FP8 products", _by_kind(done, "fp8_matmul")),
    ):
        if found:
            lines.append(f"{opening}: {_joined(found)}.")
    return lines


def _warnings(rows: list[dict]) -> list[str]:
    """What is wrong with some runs."""
    lines = []
    warm = [row for row in rows if row["compile_cache"] == "warm"]
    if warm:
        lines.append(
            "These runs reused compiled kernels, so their warm-up has no compilation: "
            f"{_names(warm)}."
        )
    lost = [row for row in rows if row["orphans"]]
    if lost:
        lines.append(
            "The recipe leaves trainable parameters out of the optimizer on purpose, so they never "
            f"learn: {_joined(_by_kind(lost, 'orphans'))}."
        )
    noisy = [row for row in rows if (_iqr(row) or 0) > NOISY]
    if noisy:
        lines.append(
            f"The quartiles of the step time are more than {NOISY:.0%} apart, as where something "
            f"else runs on the machine: {_names(noisy)}. Repeat such runs before comparing speeds."
        )
    return lines


def _by_kind(rows: list[dict], column: str, unknown=None) -> dict:
    """The values of a column in order, and the runs that have each; of `unknown` None, without
    those that have none."""
    found: dict = {}
    for row in rows:
        value = unknown if row[column] is None else row[column]
        if value is not None:
            found.setdefault(value, []).append(row)
    return found


def _joined(kinds: dict) -> str:
    return "; ".join(
        f"{f'{kind:.0f}' if isinstance(kind, float) else kind} ({_names(rows)})"
        for kind, rows in kinds.items()
    )


def _names(rows: list[dict]) -> str:
    """Runs for people: each recipe once, with its seeds."""
    seeds: dict[str, list[str]] = {}
    for row in rows:
        seeds.setdefault(row["recipe"], []).append(seed(row))
    return ", ".join(
        recipe if "-" in of else f"{recipe} seed{'s' * (len(of) > 1)} {', '.join(of)}"
        for recipe, of in seeds.items()
    )


def _kinds(rows: list[dict], column: str) -> list:
    """The different values of a column, in order; without those that are unknown."""
    return list(_by_kind(rows, column))
