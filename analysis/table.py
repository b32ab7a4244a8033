"""Write the tables: a row a recipe, and a row a run."""

import numpy as np
import pandas as pd
from scipy.stats import gmean

from analysis.answer import share_word
from analysis.comparison import COMPILED, Comparison, Finding
from analysis.losses import EQUIVALENT_COMPUTE, TOLERANCE
from analysis.runs import Run
from analysis.speed import mfu, timed, tokens_per_s

# What the table of runs shows of `measured`.
FORMATS = {
    "final_loss": "{:.3f}",
    "tokens_per_s": "{:,.0f}",
    "iqr": "{:.1%}",
    "mfu_bf16_peak": "{:.1%}",
    "time_to_first_step_s": "{:.1f}",
    "wall_s": "{:.1f}",
    "fp8_share": "{:.0%}",
    "peak_memory_gib": "{:.1f}",
    "status": "{}",
}
HOW_TO_READ = (
    "tokens/s, tokens_per_s: by the mean steady step, of all GPUs of a run together. iqr: the "
    "distance of the quartiles of the step time, as a share. mfu_bf16_peak: the MFU of one GPU. "
    "FP8 share, fp8_share: of the linear layers' matmul FLOPs. Break-even step: from which on the "
    "wall time, first step (compile) included, is less than the reference's. "
    "time_to_first_step_s: from process start to the end of step 1. wall_s: of all processes of a "
    "run.",
    f"The same loss: within {TOLERANCE:.2%} of the reference's, as DeepSeek-V3 reports for FP8 "
    "(arXiv 2412.19437). By the scaling law of Hoffmann et al. 2022 (arXiv 2203.15556) the "
    f"equivalent compute is {EQUIVALENT_COMPUTE:.0%} of that of a compute-optimal model of 8.05 B "
    "parameters.",
)


# ---- a row a run ----


def measured(run: Run) -> dict:
    """Collect what a run is and what it measured; NaN is unknown."""
    seconds = run.steady["seconds"]
    return {
        "recipe": run.recipe,
        "seed": run.seed,
        "completed": run.completed,
        "status": run.ending,
        "place": run.place,
        "steps": run.length,
        "final_loss": run.final_loss,
        "tokens_per_s": tokens_per_s(run),
        "iqr": np.ptp(seconds.quantile([0.25, 0.75])) / seconds.median(),
        "mfu_bf16_peak": mfu(run),
        "time_to_first_step_s": run.first_step_s,
        "wall_s": run.steps["elapsed"].max(),
        "fp8_share": run.fp8_share,
        "peak_memory_gib": run.steps["memory"].max() / 2**30,
    }


def measured_runs(comparison: Comparison) -> pd.DataFrame:
    """List `measured` of every run."""
    return pd.DataFrame(map(measured, comparison.study.runs))


def run_table(comparison: Comparison) -> pd.DataFrame:
    """Write the table of runs, indexed by recipe and seed."""
    facts = measured_runs(comparison).set_index(["recipe", "seed"])
    words = {key: facts[key].map(form.format, "ignore") for key, form in FORMATS.items()}
    return pd.DataFrame(words, dtype=object).fillna("-")


# ---- a row a recipe ----


def recipe_table(comparison: Comparison) -> pd.DataFrame:
    """Write the table of recipes: speed, loss, share of FP8."""
    reference = comparison.reference
    beside = "compiled bf16" if reference == COMPILED else reference
    rows = {}
    for recipe in comparison.study.recipes:
        runs = comparison.study.completed[recipe]
        finding = comparison.findings.get(recipe, Finding())
        rows[recipe] = {
            "runs": f"{len(runs)} of {len(comparison.study.started(recipe))}",
            "tokens/s": speed_word(runs),
            f"over {beside}": str(finding.speed.ratio),
            "break-even step": str(finding.break_even) if finding.recipe else "-",
            "final loss": f"{np.mean([run.final_loss for run in runs]):.3f}" if runs else "-",
            f"minus {beside}": loss_word(finding),
            "FP8 share of matmul FLOPs": share_word(runs) if recipe in comparison.fp8 else "-",
        }
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("recipe")


def speed_word(runs: list[Run]) -> str:
    """Write the geometric mean of the tokens/s of some runs."""
    speeds = [tokens_per_s(run) for run in timed(runs)]
    return f"{gmean(speeds):,.0f}" if speeds else "-"


def loss_word(finding: Finding) -> str:
    """Write how far a recipe's final loss is from its reference's, and the verdict."""
    loss = finding.loss
    return f"{loss.difference:+.4f}, {loss.word}" if loss.by_seed else "-"


def notes(comparison: Comparison) -> list[str]:
    """Write how to read the tables, and the notes on record."""
    runs = [run for run in comparison.study.runs if run.completed]
    noted = pd.Series({run.name: run.record.last_attempt.notes for run in runs}).explode().dropna()
    return [*HOW_TO_READ, *(f"{name}: {note}." for name, note in noted.items())]
