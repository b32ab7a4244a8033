"""Write the tables: of runs, of recipes, and those that only notebooks show."""

from statistics import fmean
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import gmean

from analysis.answer import describe_fp8_share
from analysis.break_even import interpolate_wall_s
from analysis.comparison import COMPILED, Comparison, ComparisonResult
from analysis.losses import EQUIVALENT_COMPUTE, MARGIN_SHARE, final_loss
from analysis.runs import PlannedRun, Run
from analysis.speed import mfu, select_timed, tokens_per_s
from analysis.study import Study

# The columns of `run_table`, with their formats.
RUN_COLUMNS = {
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
    "tokens/s and tokens_per_s count the tokens of all GPUs of a run, by the mean steady step. iqr "
    "is the interquartile range of the step time over its median. mfu_bf16_peak is the MFU of one "
    "GPU. FP8 share and fp8_share are shares of the linear layers' matmul FLOPs. The break-even "
    "step is the first step from which the wall time, first step (compile) included, is shorter "
    "than the reference's. time_to_first_step_s counts from the process start to the end of step "
    "1. wall_s is the wall time of all attempts at a run.",
    f"Two losses are the same if they differ by less than {MARGIN_SHARE:.2%}, the difference that "
    "DeepSeek-V3 reports for FP8 (arXiv 2412.19437). By the scaling law of Hoffmann et al. 2022 "
    f"(arXiv 2203.15556) this is what {EQUIVALENT_COMPUTE:.0%} more compute would buy a "
    "compute-optimal model of 8.05 B parameters.",
)


# ---- a row for each run ----


def measure_run(run: PlannedRun) -> dict[str, Any]:
    """Collect what a run is and what it measured: shares of 1, seconds (`_s`), GiB. NaN is
    unknown."""
    step_s = run.steady_steps["step_s"]
    return {
        "recipe": run.recipe,
        "seed": run.seed,
        "completed": run.completed,
        "status": run.ending,
        "place": run.place,
        "steps": run.length,
        "final_loss": final_loss(run),
        "tokens_per_s": tokens_per_s(run),
        "iqr": np.ptp(step_s.quantile([0.25, 0.75])) / step_s.median(),
        "mfu_bf16_peak": mfu(run),
        "time_to_first_step_s": run.first_step_s,
        "wall_s": run.steps["wall_s"].max(),
        "fp8_share": run.fp8_share,
        "peak_memory_gib": run.steps["peak_memory_bytes"].max() / 2**30,
    }


def measure_runs(study: Study) -> pd.DataFrame:
    """Measure all runs of a study: a row for each run, with the columns of `measure_run`."""
    return pd.DataFrame([measure_run(run) for run in study.runs])


def run_table(comparison: Comparison) -> pd.DataFrame:
    """Write the table of runs, indexed by recipe and seed."""
    measurements = measure_runs(comparison.study).set_index(["recipe", "seed"])
    cells = {}
    for column, text_format in RUN_COLUMNS.items():
        cells[column] = measurements[column].map(text_format.format, "ignore")
    return pd.DataFrame(cells, dtype=object).fillna("-")


# ---- a row for each step ----


def tabulate_steps(study: Study) -> pd.DataFrame:
    """Put the steps of all runs below each other: columns `recipe`, `seed`, `step`, then those of
    `PlannedRun.steps`."""
    tables = []
    for run in study.runs:
        table = run.steps.reset_index()
        if not isinstance(run, Run) or not run.record.proof:
            table["in_fp8"] = None  # not proven
        elif run.record.proof.recipe_name is None:
            table["in_fp8"] = False
        table.insert(0, "recipe", run.recipe)
        table.insert(1, "seed", run.seed)
        tables.append(table)
    return pd.concat(tables, ignore_index=True)


# ---- a row for each recipe ----


def recipe_table(comparison: Comparison) -> pd.DataFrame:
    """Write the table of recipes: speed, loss, share of FP8."""
    reference = comparison.reference
    reference_name = "compiled bf16" if reference == COMPILED else reference
    rows = {}
    for recipe in comparison.study.recipes:
        runs = comparison.study.completed_by_recipe.get(recipe, [])
        result = comparison.results.get(recipe, ComparisonResult())
        rows[recipe] = {
            "runs": f"{len(runs)} of {len(comparison.study.runs_by_recipe[recipe])}",
            "tokens/s": format_speed(runs),
            f"over {reference_name}": str(result.speed.ratio),
            "break-even step": str(result.break_even) if result.recipe else "-",
            "final loss": f"{fmean(map(final_loss, runs)):.3f}" if runs else "-",
            f"minus {reference_name}": format_loss_difference(result),
            "FP8 share of matmul FLOPs": "-",
        }
        if recipe in comparison.fp8:
            rows[recipe]["FP8 share of matmul FLOPs"] = describe_fp8_share(runs)
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("recipe")


def format_speed(runs: list[Run]) -> str:
    """Write the geometric mean of the tokens/s of some runs."""
    rates = [tokens_per_s(run) for run in select_timed(runs)]
    return f"{gmean(rates):,.0f}" if rates else "-"


def format_loss_difference(result: ComparisonResult) -> str:
    """Write how far a recipe's final loss is from its reference's, and the verdict."""
    loss = result.loss
    return f"{loss.difference:+.4f}, {loss.word}" if loss.difference_by_seed else "-"


def write_notes(comparison: Comparison) -> list[str]:
    """Write how to read the tables, and the notes that completed runs recorded."""
    sentences = [*HOW_TO_READ]
    for run in comparison.study.completed:
        for note in run.record.last_attempt.notes:
            sentences.append(f"{run.name}: {note}.")
    return sentences


# ---- for notebooks ----


def proof_table(comparison: Comparison) -> pd.DataFrame:
    """List what the first completed run of each recipe proved: a row for each recipe with a proof.

    Columns are named by key.path, as in `parameters.orphans`.
    """
    proofs = {}
    for recipe, runs in comparison.study.completed_by_recipe.items():
        proof = runs[0].record.proof
        if proof:
            proofs[recipe] = proof.model_dump()
    table = pd.json_normalize([*proofs.values()], max_level=2)
    return table.set_index(pd.Index([*proofs]))


def cost_table(comparison: Comparison, lengths: list[int]) -> pd.DataFrame:
    """Average the wall hours of a run, first step (compile) included. After the end of the runs
    each step is the mean steady step.

    Args:
        lengths: steps of a run.

    Returns:
        A row for each length, a column for each recipe.
    """
    hours = {}
    for recipe, runs in comparison.study.completed_by_recipe.items():
        hours[recipe] = interpolate_wall_s(runs, np.array(lengths)).mean(axis=0) / 3600
    return pd.DataFrame(hours, index=pd.Index(lengths, name="steps"))
