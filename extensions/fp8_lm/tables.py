"""Tables and figures of the notebook: optimizer states, gradients, and all levels together."""

import json
from dataclasses import replace
from pathlib import Path

import pandas as pd
from matplotlib.axes import Axes

from analysis.comparison import Comparison
from analysis.losses import SAME
from analysis.plots.bars import measure_completed_runs, set_rows
from analysis.plots.style import (
    GREY,
    PanelDrawing,
    find_look,
    full_name,
    short_name,
    write_headline,
    write_note,
)
from analysis.tables import proof_table


def final_losses(comparison: Comparison) -> pd.DataFrame:
    """Average each recipe's final loss, and say how far that is from the reference's."""
    losses = measure_completed_runs(comparison).groupby(level=0)["final_loss"].mean()
    differences = losses - losses[comparison.reference]
    return pd.DataFrame({"final loss": losses, "difference": differences})


def bytes_per_parameter(comparison: Comparison) -> pd.Series:
    """Add up the bytes a parameter that stay in memory from step to step: weights and states.

    They were measured from the tensors in memory after the first step, scales included.
    """
    return proof_table(comparison).filter(like="bytes_per_parameter").sum(axis=1)


# ---- precision_decoupling: which of AdamW's states bear few bits ----

DTYPES = {
    "training.dtype": "parameters",
    "fp8_lm.states.first_moment": "first moment",
    "fp8_lm.states.second_moment": "second moment",
    "fp8_lm.states.master_weights": "master weights",
}
# What the paper's table 6 and figure 8 say of the loss.
FP8_LM_LOSS = {
    "fp8_optimizer": "equal",
    "fp8_optimizer_bf16_master": "slightly higher",
    "fp8_optimizer_fp8_master": "higher",
    "fp8_optimizer_fp8_second_moment": "diverges",
}


def optimizer_states(comparison: Comparison) -> pd.DataFrame:
    """List the dtypes of weights and states, their measured bytes a parameter, and the loss."""
    facts = {recipe: runs[0].facts for recipe, runs in comparison.study.completed_by_recipe.items()}
    table = pd.DataFrame(facts, [*DTYPES]).T.rename(columns=DTYPES)
    table = table.replace("float8_e4m3fn", "E4M3")
    for moment in ("first moment", "second moment"):  # of torch's AdamW, as the parameters
        table[moment] = table[moment].fillna(table["parameters"])
    table["bytes"] = bytes_per_parameter(comparison)
    table = table.join(final_losses(comparison))
    table["FP8-LM"] = pd.Series(FP8_LM_LOSS)
    return table.fillna({"master weights": "none", "FP8-LM": ""})


# ---- gradients, optimizer states and all-gather in FP8, compared to bf16 ----

SUMS = Path(__file__).parent / "results/gradients/sums.json"
# Names for people of the methods of gradient_sums.py
METHODS = {
    "block": "in float32, a scale for 256 values",
    "tensor": "in float32, one scale",
    "best": "in FP8, best factor in hindsight",
    "auto": "in FP8, automatic scaling by mu",
    "pre": "in FP8, scaled before (1/ranks)",
    "post": "in FP8, scaled after",
}


def levels(comparison: Comparison) -> pd.DataFrame:
    """List what each recipe sends in a step, and how much less than bf16; the bytes in memory; the
    loss."""
    columns = {"sharded.gathered_bytes": "weights, MB", "sharded.reduced_bytes": "gradients, MB"}
    table = proof_table(comparison)[[*columns]].rename(columns=columns) / 1e6
    total_mb = table.sum(axis=1)
    change = total_mb / total_mb[comparison.reference] - 1
    table["sent, to bf16"] = change.map("{:+.0%}".format)
    table["bytes a parameter"] = bytes_per_parameter(comparison)
    return table.join(final_losses(comparison))


def gradient_sums() -> pd.DataFrame:
    """Read how exact sums of FP8 gradients are, in dB: a row a number of ranks, a column a
    method."""
    sums = pd.DataFrame(json.loads(SUMS.read_text())["sums"])
    table = sums.pivot(index="ranks", columns="how", values="snr_db")
    return table[list(METHODS)].rename(columns=METHODS)


TICKS = [-1, 0, 1, 10, 100, 1_000, 10_000]  # margins


@PanelDrawing
def final_loss_rows(axes: Axes, comparison: Comparison) -> None:
    """Draw how far each recipe's final loss is above the reference's, in margins, in rows.

    The axis is linear within one margin and logarithmic beyond, so that a loss that diverged and
    one that is the same are in one figure.
    """
    verdicts = {name: result.loss for name, result in comparison.results.items()}
    recipes = sorted(verdicts, key=lambda name: verdicts[name].difference)
    margin = verdicts[recipes[0]].margin
    axes.axvspan(-1, 1, color=GREY, alpha=0.15, linewidth=0, zorder=0)
    axes.axvline(0, color="black", linewidth=0.8)
    texts = []
    for row, name in enumerate(recipes):
        verdict = verdicts[name]
        look = find_look(name)
        seeds = [difference / margin for difference in verdict.difference_by_seed]
        axes.plot(seeds, [row] * len(seeds), look.marker, color=look.colour)
        digits = 4 if abs(verdict.difference) < 1 else 0
        texts.append(f"{verdict.difference:+,.{digits}f}\n{verdict.word}")
    axes.set_xscale("symlog", linthresh=1)
    x_label = f"final loss − that of {full_name(comparison.reference)},\nin margins"
    set_rows(axes, [*map(short_name, recipes)], x_label, texts)
    axes.set_xlim(left=-2)
    axes.set_xticks([tick for tick in TICKS if tick < axes.get_xlim()[1]])
    write_note(
        axes,
        f"A mark a seed. Grey: within one margin ({margin:.3g} nats per token) two losses count "
        "as the same. Beyond one margin the axis is logarithmic.",
    )
    same_names = [full_name(name) for name in recipes if verdicts[name].word == SAME]
    write_headline(
        axes, f"The same loss as {full_name(comparison.reference)}: {', '.join(same_names)}"
    )


def select_recipes(comparison: Comparison, max_margins: float = 5) -> Comparison:
    """Leave out recipes whose final loss is more than a few margins from the reference's."""
    near_results = {}
    for name, result in comparison.results.items():
        if abs(result.loss.difference) <= max_margins * result.loss.margin:
            near_results[name] = result
    return replace(comparison, results=near_results)
