"""The tables: a row a recipe, a row a run, and what was trained."""

import math

import numpy as np
import pandas as pd

from analysis.answer import figure, short
from analysis.break_even import wall_times
from analysis.comparison import BASELINE, COMPILED, Comparison, Finding
from analysis.runs import Run
from analysis.speed import MEAN, MIN_STEADY, mfu, timed, tokens_per_s

# What the table of runs shows: its column, the key in `measured`, and the format.
COLUMNS = {
    "final loss": ("final_loss", "{:.3f}"),
    "tokens/s": ("tokens_per_s", "{:,.0f}"),
    "IQR": ("iqr", "{:.1%}"),
    "MFU": ("mfu_bf16_peak", "{:.1%}"),
    "first step s": ("time_to_first_step_s", "{:.1f}"),
    "wall s": ("wall_s", "{:.1f}"),
    "FP8 share": ("fp8_share", "{:.0%}"),
    "memory GiB": ("peak_memory_gib", "{:.1f}"),
    "status": ("status", "{}"),
}
HOW_TO_READ = (
    "tokens/s: by the mean steady step, of all GPUs of a run together. IQR: the distance of the "
    "quartiles of the step time. MFU: of one GPU, of its bf16 peak. FP8 share: of the linear "
    "layers' matmul FLOPs. Break-even step: from which on the wall time, first step (compile) "
    "included, is less than the reference's. First step: from process start to the end of step 1. "
    "Wall: from process start."
)


# ---- a row a recipe ----


def recipe_table(comparison: Comparison) -> pd.DataFrame:
    """Word the comparison, a row a recipe: speed, loss, proof of FP8; on a CPU speed is last."""
    reference = comparison.reference
    beside = "compiled bf16" if reference == COMPILED else reference
    rows = {}
    for recipe in comparison.recipes:
        runs, finding = comparison.study.completed(recipe), comparison.findings.get(recipe)
        speed = {
            "tokens/s": speed_word(runs),
            f"over {beside}": "1" if recipe == reference else ratio_word(finding),
            "break-even step": break_even_word(finding),
        }
        loss = {
            "final loss": written(pd.Series([run.final_loss for run in runs]).mean(), "{:.3f}"),
            f"minus {beside}": loss_word(finding),
            "FP8 share of matmul FLOPs": share_word(runs) if recipe in comparison.fp8 else "-",
        }
        of = {"runs": f"{len(runs)} of {len(comparison.study.started(recipe))}"}
        rows[recipe] = of | (loss | speed if comparison.on_cpu else speed | loss)
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("recipe")


def speed_word(runs: list[Run]) -> str:
    if not runs:
        return "-"
    rates = [tokens_per_s(run) for run in timed(runs)]
    if not rates:
        return f"too short (< {MIN_STEADY} steady steps)"
    return f"{math.exp(sum(map(math.log, rates)) / len(rates)):,.0f}"


def ratio_word(finding: Finding | None) -> str:
    if not finding or not finding.speed.runs:
        return "-"
    alone = ", one run" if finding.speed.runs == 1 else finding.speed.ratio.interval
    return f"{finding.speed.ratio.mean:.2f}{alone}"


def break_even_word(finding: Finding | None) -> str:
    """Word the break-even step; eager bf16 is another reference, and has none."""
    return str(finding.break_even) if finding and finding.recipe != BASELINE else "-"


def loss_word(finding: Finding | None) -> str:
    """Word how far a recipe's final loss is from the reference's."""
    if not finding:
        return "-"
    diverged = f"{finding.recipe} diverged"
    if finding.diverged and finding.diverged[0].startswith(diverged):
        return finding.diverged[0].removeprefix(f"{finding.recipe} ")
    if not finding.loss.by_seed:
        return "-"
    return f"{figure(finding.loss.difference)}, {finding.loss.word}"


def share_word(runs: list[Run]) -> str:
    if any(run.proof and run.proof.emulated for run in runs):
        return "emulated"
    ends = [f"{run.fp8_share:.0%}" for run in sorted(runs, key=lambda run: run.fp8_share)]
    return " to ".join(dict.fromkeys([*ends[:1], *ends[-1:]])).replace("nan%", "unknown") or "-"


def written(value, form: str) -> str:
    """Write a value, "-" if it is unknown."""
    return "-" if value is None or pd.isna(value) else form.format(value)


# ---- a row a run ----


def measured(run: Run) -> dict:
    """What a run is, and what it measured; NaN where that is unknown."""
    seconds = run.steps["seconds"][run.steps["steady"]]
    wall = run.steps["elapsed"].max()
    emulated = run.proof and run.proof.emulated
    return {
        "recipe": run.recipe,
        "seed": run.seed,
        "completed": run.completed,
        "status": run.ending if run.completed else f"{run.ending}, step {run.length:,}",
        "place": run.place,
        "steps": run.length,
        "final_loss": run.final_loss,
        "tokens_per_s": tokens_per_s(run),
        "iqr": (seconds.quantile(0.75) - seconds.quantile(0.25)) / seconds.median(),
        "mfu_bf16_peak": mfu(run) if run.manifest else math.nan,
        "time_to_first_step_s": first_step_s(run),
        "wall_s": wall,
        "fp8_share": math.nan if emulated else run.fp8_share,
        "peak_memory_gib": run.steps["memory"].max() / 2**30,
    }


def first_step_s(run: Run) -> float:
    """Seconds from process start to the end of the first step, of all attempts together."""
    return sum(timing.warm_up_s for timing in run.timings.values()) or math.nan


def measured_runs(comparison: Comparison) -> pd.DataFrame:
    """`measured` of every run, recipe by recipe and seed by seed."""
    runs = [run for recipe in comparison.recipes for run in comparison.study.started(recipe)]
    return pd.DataFrame(map(measured, runs))


def run_table(comparison: Comparison) -> pd.DataFrame:
    """Word the table of runs, indexed by recipe and seed."""
    facts = measured_runs(comparison)
    table = {column: [written(value, form) for value in facts[key]]
             for column, (key, form) in COLUMNS.items()}  # fmt: skip
    return pd.DataFrame(table, [facts["recipe"], facts["seed"]])


def ways_table(comparison: Comparison) -> pd.DataFrame:
    """Word the ratio of each recipe by each way to count tokens/s."""
    found = {}
    for recipe, finding in comparison.findings.items():
        for way, ratio in finding.speed.by.items():
            column = way if way == MEAN else f"by {way}"
            found.setdefault(recipe, {})[column] = f"{ratio.mean:.2f}{ratio.interval}"
    return pd.DataFrame(found).rename_axis("over the reference")


# ---- what was trained ----


def trained(comparison: Comparison) -> str:
    """Say what was trained, with what, when and where, by the first completed run."""
    runs = [run for of in comparison.completed.values() for run in of]
    if not runs:
        return "No run was completed."
    first, steps = runs[0].manifest, runs[0].steps
    days = sorted(f"{run.manifest.start:%Y-%m-%d}" for run in runs)
    commits = {str(run.manifest.git.commit)[:9] for run in runs}
    facts = {
        "model": first.flavor,
        "parameters": short(first.parameters),
        "steps": f"{len(steps):,} of {steps['tokens'].median():,.0f} tokens",
        "rows": f"{first.seq_len:,} tokens",
        "data": first.dataset,
        "overlays": ", ".join(first.overlays),
        "seeds": len({run.seed for run in runs}),
        "days": " to ".join(dict.fromkeys([days[0], days[-1]])),
        "commit": ", ".join(sorted(commits)),
        **first.packages,
        "on": first.hardware.name,
        "driver": first.hardware.driver,
        "power limit": first.hardware.power_limit_w,
        "processes": first.world_size,
    }
    return f"Trained: {'; '.join(f'{key} {value}' for key, value in facts.items() if value)}."


def notes(comparison: Comparison) -> list[str]:
    """Say how to read the tables, and what runs noted of themselves."""
    noted: dict[str, list[str]] = {}
    for runs in comparison.completed.values():
        for run in runs:
            matmul = run.manifest.fp8_matmul
            for note in [*run.manifest.notes, *([f"FP8 matmuls: {matmul.why}"] if matmul else [])]:
                noted.setdefault(note, []).append(run.name)
    return [HOW_TO_READ, *(f"{note} ({', '.join(runs)})." for note, runs in noted.items())]


# ---- what notebooks show ----


def first_runs(comparison: Comparison) -> dict[str, Run]:
    """Choose each recipe's first completed run."""
    return {recipe: runs[0] for recipe, runs in comparison.completed.items()}


def proofs(comparison: Comparison) -> pd.DataFrame:
    """Put what each recipe's first run proved into a row; columns as `parameters.orphans`."""
    first = first_runs(comparison)
    rows = [run.proof.model_dump() for run in first.values()]
    return pd.json_normalize(rows, max_level=2).set_index(pd.Index([*first]))


def cost_by_steps(comparison: Comparison, lengths: list[int]) -> pd.DataFrame:
    """Average the wall hours of a run of each length (rows) by recipe (columns), the first step
    (compile) included: measured within the runs, and beyond them as the mean steady step."""
    hours = {recipe: wall_times(runs, np.array(lengths)).mean(axis=0) / 3600
             for recipe, runs in comparison.completed.items()}  # fmt: skip
    return pd.DataFrame(hours, index=pd.Index(lengths, name="steps"))
