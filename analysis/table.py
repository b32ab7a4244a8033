"""The tables: a row a recipe, and a row a run."""

import math

import numpy as np
import pandas as pd

from analysis.answer import share_word
from analysis.break_even import wall_times
from analysis.comparison import BASELINE, COMPILED, Comparison, Finding
from analysis.losses import VERDICTS
from analysis.runs import Run
from analysis.speed import MEAN, MIN_STEADY, mfu, rate_table, timed, tokens_per_s

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
            # eager bf16 is another reference, and has none
            "break-even step": str(finding.break_even) if finding and recipe != BASELINE else "-",
        }
        loss = {
            "final loss": f"{np.mean([run.final_loss for run in runs]):.3f}" if runs else "-",
            f"minus {beside}": loss_word(finding),
            "FP8 share of matmul FLOPs": share_word(runs) if recipe in comparison.fp8 else "-",
        }
        of = {"runs": f"{len(runs)} of {len(comparison.study.started(recipe))}"}
        rows[recipe] = of | (loss | speed if comparison.on_cpu else speed | loss)
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("recipe")


def speed_word(runs: list[Run]) -> str:
    """Write the geometric mean of the tokens/s of some runs."""
    if not timed(runs):
        return f"too short (< {MIN_STEADY} steady steps)" if runs else "-"
    return f"{math.exp(rate_table(timed(runs))[MEAN].mean()):,.0f}"


def ratio_word(finding: Finding | None) -> str:
    if not finding or not finding.speed.runs:
        return "-"
    return f"{finding.speed.ratio.mean:.2f}{finding.speed.ratio.interval}"


def loss_word(finding: Finding | None) -> str:
    """Word how far a recipe's final loss is from the reference's."""
    if not finding:
        return "-"
    if finding.recipe in finding.diverged:
        return finding.diverged[finding.recipe]
    verdict = finding.loss
    apart = f"{verdict.difference:+.4f}" if verdict.by_seed else "-"
    return f"{apart}, {verdict.word}" if verdict.word in VERDICTS else apart


# ---- a row a run ----


def measured(run: Run) -> dict:
    """What a run is, and what it measured; NaN where that is unknown."""
    seconds = run.steady["seconds"]
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
        "wall_s": run.steps["elapsed"].max(),
        "fp8_share": math.nan if emulated else run.fp8_share,
        "peak_memory_gib": run.steps["memory"].max() / 2**30,
    }


def first_step_s(run: Run) -> float:
    """Seconds from process start to the end of the first step, of all attempts together."""
    return sum(timing.time_to_first_step_s for timing in run.timings) or math.nan


def measured_runs(comparison: Comparison) -> pd.DataFrame:
    """`measured` of every run, recipe by recipe and seed by seed."""
    runs = [run for recipe in comparison.recipes for run in comparison.study.started(recipe)]
    return pd.DataFrame(map(measured, runs))


def run_table(comparison: Comparison) -> pd.DataFrame:
    """Word the table of runs, indexed by recipe and seed."""
    facts = measured_runs(comparison).set_index(["recipe", "seed"])
    table = pd.DataFrame(index=facts.index)
    for column, (key, form) in COLUMNS.items():
        table[column] = facts[key].map(form.format).mask(facts[key].isna(), "-")
    return table


def ways_table(comparison: Comparison) -> pd.DataFrame:
    """Word the ratio of each recipe by each way to count tokens/s."""
    found = {
        recipe: {f"by {way}": str(ratio) for way, ratio in finding.speed.by.items()}
        for recipe, finding in comparison.findings.items()
    }
    return pd.DataFrame(found).rename_axis("over the reference")


def notes(comparison: Comparison) -> list[str]:
    """Say how to read the tables, and what runs noted of themselves."""
    noted: dict[str, list[str]] = {}
    for run in [run for of in comparison.completed.values() for run in of]:
        for note in run.manifest.notes:
            noted.setdefault(note, []).append(run.name)
        if run.manifest.fp8_matmul:
            note = f"FP8 matmuls: {run.manifest.fp8_matmul.why}"
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
    hours = {
        recipe: wall_times(runs, np.array(lengths)).mean(axis=0) / 3600
        for recipe, runs in comparison.completed.items()
    }
    return pd.DataFrame(hours, index=pd.Index(lengths, name="steps"))
