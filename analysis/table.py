"""What terminal, page and README share: the matrix of recipes, the table of runs, what was trained,
and notes."""

import math
from itertools import groupby
from operator import itemgetter

import pandas as pd

from analysis.comparison import COMPILED, OWN, Comparison, in_order
from analysis.rates import completed

NOISY = 0.3  # IQR as a share of the median: the published FP8 gains 6 to 34 %; the README's runs have at most 17 %
COLUMNS = ("final\nloss", "tokens/s", "IQR", "MFU", "warm-up\ns", "wall\ns", "after\nwarm-up", "FP8\nshare",
           "memory\nGiB", "status")  # fmt: skip
_AVERAGED = ["final_loss", "tokens_per_s", "tokens_per_s_q1", "tokens_per_s_q3", "mfu_bf16_peak", "warm_up_s", "wall_s",
             "wall_s_without_warm_up", "fp8_share", "peak_memory_bytes"]  # fmt: skip
# What may differ between runs that are compared, and could explain a part of a difference: column
# to its name.
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


def matrix(comparison: Comparison) -> tuple[list[str], list[list[str]]]:
    """(names of the columns, a line a recipe): its speed, when it pays back, its loss, and the
    proof of FP8."""
    step = max((v.step for v in comparison.verdicts.values()), default=0)
    loss = f"loss after {step:,} steps" if step else "loss"
    opponent = "compiled bf16" if comparison.opponent == COMPILED else comparison.opponent
    columns = ["recipe", "tokens/s", f"over {opponent}", "pays back", loss, "FP8 proof"]
    lines = []
    for recipe in in_order([*comparison.recipes, *comparison.diverged, *comparison.bf16_diverged]):
        rate, pair = comparison.rates.get(recipe), (recipe, comparison.opponent)
        gain, paid = comparison.speed_ups.get(pair), comparison.break_evens.get(pair)
        speed = (
            "-" if rate is None else "too short" if math.isnan(rate.mean) else f"{rate.mean:,.0f}"
        )
        ratio = gain.word if gain else "1" if recipe == comparison.opponent else "-"
        pays = paid.word if paid else "-"
        lines.append(
            [recipe, speed, ratio, pays, _loss(comparison, recipe), _proof(comparison, recipe)]
        )
    return columns, lines


def _loss(comparison: Comparison, recipe: str) -> str:
    if lost := (comparison.diverged | comparison.bf16_diverged).get(recipe):
        return "diverged in {} of {}".format(*lost)
    if recipe in comparison.left:
        return f"{len(comparison.left[recipe])} of {comparison.completed(recipe)} left the others"
    if recipe in comparison.verdicts:
        return comparison.verdicts[recipe].word
    return "reference" if recipe == comparison.baseline else "-"


def _proof(comparison: Comparison, recipe: str) -> str:
    if recipe not in comparison.proof:
        return "-"
    if share := comparison.proof[recipe]:
        return f"{share:.0%}"
    runs = completed(comparison.frames.runs, comparison.frames.runs, recipe)
    return (
        "emulated"
        if runs["fp8_emulated"].eq(True).any()
        else "differs"
        if runs["fp8_share"].gt(0).all()
        else "none"
    )


def rows_of(comparison: Comparison) -> list[dict]:
    """`Frames.runs` as dictionaries, recipe by recipe and seed by seed; what is unknown is None."""
    runs = comparison.frames.runs
    order = {recipe: place for place, recipe in enumerate(in_order(runs["recipe"]))}
    rows = [{key: known(value) for key, value in row.items()} for row in runs.to_dict("records")]
    return sorted(
        rows, key=lambda row: (order[row["recipe"]], row["seed"] is None, row["seed"] or 0)
    )


def known(value):
    """`value`, or None for what is not a number or infinite."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def by_recipe(rows: list[dict]) -> list[tuple[dict, list[dict]]]:
    """For each recipe a row of means over its completed runs, and its runs; `rows` as from
    `rows_of`."""
    groups = [list(runs) for _, runs in groupby(rows, key=itemgetter("recipe"))]
    return [(_averaged(runs), runs) for runs in groups]


def _averaged(runs: list[dict]) -> dict:
    done = [row for row in runs if row["status"] == "completed"]
    if not done:
        return runs[0] | {"runs": f"0 of {len(runs)} completed"}
    numbers = pd.DataFrame(done)[_AVERAGED].astype(float)
    means = {column: known(mean) for column, mean in numbers.mean().items()}
    spread = known(numbers["final_loss"].std())
    return (
        done[0] | means | {"loss_spread": spread, "runs": f"{len(done)} of {len(runs)} completed"}
    )


def seed(row: dict) -> str:
    return "-" if row["seed"] is None else f"{row['seed']:.0f}"


def cells(row: dict) -> list[str]:
    """Cells of `COLUMNS`, of a run or of a recipe's means."""
    loss, memory = _format(row["final_loss"], ".3f"), row["peak_memory_bytes"]
    return [
        loss + (f" ± {row['loss_spread']:.3f}" if row.get("loss_spread") else ""),
        _format(row["tokens_per_s"], ",.0f"),
        _format(_spread(row), ".1%"),
        _format(row["mfu_bf16_peak"], ".1%"),
        _format(row["warm_up_s"], ".1f"),
        _format(row["wall_s"], ".1f"),
        _format(row["wall_s_without_warm_up"], ".1f"),
        "emulated" if row["fp8_emulated"] else _format(row["fp8_share"], ".1%"),
        _format(memory and memory / 2**30, ".1f"),
        row.get("runs") or status(row),
    ]


def status(row: dict) -> str:
    """What became of a run, and where it ended; one that was killed had no time to write that it is
    not running."""
    if row.get("steps_planned"):
        return f"{row['steps']:.0f} of {row['steps_planned']:.0f}"
    word = "not ended" if row["status"] == "running" else row["status"]
    return word if row["steps_asked"] in (None, row["steps"]) else f"{word} at {row['steps']:.0f}"


def _spread(row: dict) -> float | None:
    """Distance of the quartiles of tokens/s, as a share of the median."""
    median = row["tokens_per_s"]
    return median and (row["tokens_per_s_q3"] - row["tokens_per_s_q1"]) / median


def _format(value: float | None, spec: str) -> str:
    return "-" if value is None else format(value, spec)


def trained(rows: list[dict]) -> str:
    """What was trained, with what, when and where: of the first run, since those of a study share
    it, but for commits and days, of which all are named."""
    row = next((row for row in rows if row["status"] == "completed"), rows[0])
    seeds, machine = len({row["seed"] for row in rows}), row["device"]
    if machine and (processes := row["world_size"] or 1) > 1:
        machine = (
            f"{processes:.0f} {'processes on' if row['device_type'] == 'cpu' else 'x'} {machine}"
        )
    step, rows_of_tokens = (
        row["tokens_per_step"],
        row["seq_len"] and f" (rows of {row['seq_len']:,.0f})",
    )
    parts = [
        f"model {row['flavor'] or 'unknown'}",
        row["parameters"] and f"{_short(row['parameters'])} parameters",
        f"{row['steps']:,} steps",
        step and f"{step:,.0f} tokens a step{rows_of_tokens or ''}",
        row["tokens"] and f"{_short(row['tokens'])} tokens a run",
        row["dataset"] and f"data {row['dataset']}",
        row["overlays"] and f"overlays {', '.join(row['overlays'])}",
        f"{seeds} seeds" if seeds > 1 else "1 seed",
        " to ".join(sorted({*_kinds(rows, "date")})[:: max(1, len(_kinds(rows, "date")) - 1)]),
        row["code"] and f"commit {', '.join(_kinds(rows, 'code'))}",
        *(
            f"{name} {row[name]}"
            for name in ("torch", "torchao", "torchtitan", "driver")
            if row[name]
        ),
        machine,
        row["power_limit_w"] and f"power limit {row['power_limit_w']:.0f} W",
        row["sm_clock_max_mhz"] and f"clock up to {row['sm_clock_max_mhz']:.0f} MHz",
    ]
    return f"Trained: {'; '.join(part for part in parts if part)}."


def _short(number: float) -> str:
    """Three digits with k, M or B."""
    unit, name = next(
        ((unit, name) for unit, name in ((1e9, "B"), (1e6, "M")) if number >= unit), (1e3, "k")
    )
    return f"{number / unit:.3g} {name}"


def notes(rows: list[dict]) -> list[str]:
    """What a reader must know to read the tables right."""
    lines = [
        "tokens/s of a recipe and its ratio to another: by the mean steady step (after the first 10); of a run: by the "
        "median step, with IQR, its quartiles' distance. FP8 proof and share: of the FLOPs of the linear layers, as "
        "seen in one profiled step. Pays back: where the total wall time, warm-up included, drops below the other's. "
        "Wall: from process start; after warm-up: from the end of step 1.",
        *(f"MFU is of the bf16 peak ({source})." for source in _kinds(rows, "peak_source")),
        *(
            f"tokens/s are of all {n:.0f} processes together, MFU and memory of one."
            for n in _kinds(rows, "world_size")
            if n > 1
        ),
    ]
    peaks = _kinds(rows, "peak_bf16")
    if peaks and max(peaks) > 1.01 * min(peaks):
        lines.append(
            f"That peak differs by {max(peaks) / min(peaks) - 1:.0%} between the runs: compare tokens/s, not MFU."
        )
    for first, planned in {
        (row["steps"], row["steps_planned"]) for row in rows if row.get("steps_planned")
    }:
        lines.append(
            f"The study's time budget ended before its runs: all are compared over their first {first:,.0f} of "
            f"{planned:,.0f} steps."
        )
    if any(row["source"] != OWN for row in rows):
        lines.append(
            "Logs of other programs: their clock starts with the training loop, not with the process."
        )
    return lines + _differences(rows) + _warnings(rows)


def _differences(rows: list[dict]) -> list[str]:
    """What the runs do not share, and could explain a part of a difference."""
    rows = [row for row in rows if row["status"] == "completed"]
    lines = []
    for column, name in _NAMED.items():
        named = [row | {column: "unknown"} if row[column] is None else row for row in rows]
        if len(_kinds(named, column)) > 1:
            lines.append(
                f"The runs differ in {name}: {_by_kind(named, column)}. Part of a difference may come from that."
            )
    if sent := [row | {"sent": _sent(row)} for row in rows if row["gathered_bytes"]]:
        lines.append(f"Sent among the ranks in a step: {_by_kind(sent, 'sent')}.")
    if _kinds(rows, "fp8_product"):
        lines.append(f"FP8 products: {_by_kind(rows, 'fp8_product')}.")
    return lines


def _sent(row: dict) -> str:
    return f"gathered {row['gathered_bytes'] / 1e6:,.1f} MB, reduced {row['reduced_bytes'] / 1e6:,.1f} MB"


def _warnings(rows: list[dict]) -> list[str]:
    """What is wrong with some runs."""
    lines = []
    if warm := [row for row in rows if row["compile_cache"] == "warm"]:
        lines.append(
            f"Their warm-up leaves compilation out, as they found compiled kernels: {_names(warm)}."
        )
    if lost := [row for row in rows if row["orphans"]]:
        tensors = _by_kind(lost, "orphans")
        lines.append(
            f"With trainable parameters in no optimizer, which never learn, as asked: {tensors}."
        )
    if noisy := [row for row in rows if (_spread(row) or 0) > NOISY]:
        lines.append(
            f"The quartiles of the step time are more than {NOISY:.0%} apart, as where something else runs on the "
            f"machine: {_names(noisy)}. Repeat such runs before comparing speeds."
        )
    return lines


def _by_kind(rows: list[dict], column: str) -> str:
    """Each value of a column, and the runs that have it."""
    found = [
        (kind, _names([row for row in rows if row.get(column) == kind]))
        for kind in _kinds(rows, column)
    ]
    return "; ".join(
        f"{kind:.0f} ({runs})" if isinstance(kind, float) else f"{kind} ({runs})"
        for kind, runs in found
    )


def _names(rows: list[dict]) -> str:
    """Runs for people: each recipe once, with its seeds."""
    seeds = {}
    for row in rows:
        seeds.setdefault(row["recipe"], []).append(seed(row))
    return ", ".join(
        recipe if "-" in of else f"{recipe} seed{'s' if len(of) > 1 else ''} {', '.join(of)}"
        for recipe, of in seeds.items()
    )


def _kinds(rows: list[dict], column: str) -> list:
    """The different values of a column, in order; without those that are unknown."""
    return [
        x
        for x in dict.fromkeys(row.get(column) for row in rows)
        if x is not None and not pd.isna(x)
    ]
