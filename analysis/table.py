"""The tables: a row a recipe, and a row a run."""

import numpy as np
import pandas as pd
from scipy.stats import gmean

from analysis.answer import share_word
from analysis.break_even import wall_times
from analysis.comparison import COMPILED, Comparison, Finding
from analysis.losses import EQUIVALENT_COMPUTE, TOLERANCE, VERDICTS
from analysis.runs import Run
from analysis.speed import mfu, timed, tokens_per_s

# Parts of the time to the end of step 1, as timing.json has them.
STARTUP = ("import", "data", "compile")
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
    "Wall: from process start.",
    f"The same loss: within {TOLERANCE:.2%} of the reference's, as DeepSeek-V3 reports for FP8 "
    "(arXiv 2412.19437). By the scaling law of Hoffmann et al. 2022 (arXiv 2203.15556) this is "
    f"worth {EQUIVALENT_COMPUTE:.0%} of the compute of a compute-optimal model of 8.05 B "
    "parameters.",
)


# ---- a row a run ----


def measured(run: Run) -> dict:
    """Collect what a run is and what it measured; NaN is unknown."""
    seconds = run.steady["seconds"]
    startups = [timing.startup for timing in run.timings]
    return {
        "recipe": run.recipe,
        "seed": run.seed,
        "completed": run.completed,
        "status": run.status,
        "place": run.place,
        "steps": run.length,
        "final_loss": run.final_loss,
        "tokens_per_s": tokens_per_s(run),
        "iqr": (seconds.quantile(0.75) - seconds.quantile(0.25)) / seconds.median(),
        "mfu_bf16_peak": mfu(run),
        "time_to_first_step_s": run.first_step_s,
        **{f"{part}_s": sum(of.get(part, 0) for of in startups) for part in STARTUP},
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
    table = pd.DataFrame(index=facts.index)
    for column, (key, form) in COLUMNS.items():
        table[column] = facts[key].map(form.format).mask(facts[key].isna(), "-")
    return table


# ---- a row a recipe ----


def recipe_table(comparison: Comparison) -> pd.DataFrame:
    """Write the table of recipes: speed, loss, share of FP8. Speed of a CPU comes last."""
    reference = comparison.reference
    beside = "compiled bf16" if reference == COMPILED else reference
    rows = {}
    for recipe in comparison.study.recipes:
        runs = comparison.study.completed(recipe)
        finding = comparison.findings.get(recipe, Finding())
        speed = {
            "tokens/s": speed_word(runs),
            f"over {beside}": ratio_word(finding),
            "break-even step": str(finding.break_even),
        }
        loss = {
            "final loss": f"{np.mean([run.final_loss for run in runs]):.3f}" if runs else "-",
            f"minus {beside}": loss_word(finding),
            "FP8 share of matmul FLOPs": share_word(runs) if recipe in comparison.fp8 else "-",
        }
        count = {"runs": f"{len(runs)} of {len(comparison.study.started(recipe))}"}
        rows[recipe] = count | (loss | speed if comparison.study.on_cpu else speed | loss)
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("recipe")


def speed_word(runs: list[Run]) -> str:
    """Write the geometric mean of the tokens/s of some runs."""
    speeds = [tokens_per_s(run) for run in timed(runs)]
    return f"{gmean(speeds):,.0f}" if speeds else "-"


def ratio_word(finding: Finding) -> str:
    """Write how many times as fast as its reference a recipe is."""
    return str(finding.speed.ratio) if finding.speed.runs else "-"


def loss_word(finding: Finding) -> str:
    """Write how far a recipe's final loss is from its reference's, and the verdict."""
    if not finding.loss.by_seed:
        return "-"
    apart, word = f"{finding.loss.difference:+.4f}", finding.loss.word
    return f"{apart}, {word}" if word in VERDICTS else apart


def notes(comparison: Comparison) -> list[str]:
    """Write how to read the tables, and the notes in the manifests."""
    noted: dict[str, list[str]] = {}
    for runs in comparison.completed.values():
        for run in runs:
            for note in run.manifest.notes:
                noted.setdefault(note, []).append(run.name)
    return [*HOW_TO_READ, *(f"{note} ({', '.join(names)})." for note, names in noted.items())]


# ---- what notebooks show ----


def proofs(comparison: Comparison) -> pd.DataFrame:
    """List what each recipe's first run proved, a row a recipe; columns: `parameters.orphans`."""
    rows = [runs[0].proof.model_dump() for runs in comparison.completed.values()]
    return pd.json_normalize(rows, max_level=2).set_index(pd.Index([*comparison.completed]))


def cost_by_steps(comparison: Comparison, lengths: list[int]) -> pd.DataFrame:
    """Average the wall hours of a run, first step (compile) included: a row a length, a column a
    recipe. After the end of the runs each step is the mean steady step."""
    hours = {
        recipe: wall_times(runs, np.array(lengths)).mean(axis=0) / 3600
        for recipe, runs in comparison.completed.items()
    }
    return pd.DataFrame(hours, index=pd.Index(lengths, name="steps"))
