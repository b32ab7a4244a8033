"""Tables and figures of the notebook: optimizer states, gradients, and all levels together."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from analysis.comparison import Comparison
from analysis.plots.style import finding, legend_beside, note, plot
from analysis.runs import Run


def by_recipe(comparison: Comparison, describe: Callable[[Run], dict]) -> pd.DataFrame:
    """Describe each recipe by its first completed run; add the final loss of all its runs, and how
    far that is from the reference's."""
    rows = {}
    for recipe, runs in comparison.completed.items():
        rows[recipe] = describe(runs[0]) | {"final loss": np.mean([run.final_loss for run in runs])}
    table = pd.DataFrame.from_dict(rows, orient="index")
    table["difference"] = table["final loss"] - table.loc[comparison.reference, "final loss"]
    return table


def kept_bytes(run: Run) -> float:
    """Add up the bytes a parameter that training keeps from step to step: weights and states.

    They were measured from the tensors in memory after the first step, scales included.
    """
    return sum(run.proof.parameters.bytes_per_parameter.values())


# ---- precision_decoupling: which of AdamW's states bear few bits ----

# What the paper's table 6 and figure 8 say of the loss.
FP8_LM_LOSS = {
    "fp8_optimizer": "equal",
    "fp8_optimizer_bf16_master": "slightly higher",
    "fp8_optimizer_fp8_master": "higher",
    "fp8_optimizer_fp8_second_moment": "diverges",
}


def optimizer_states(comparison: Comparison) -> pd.DataFrame:
    """List the dtypes of what training keeps, its measured bytes a parameter, and the loss."""
    table = by_recipe(comparison, dtypes).replace({"float8_e4m3fn": "E4M3"})
    table["FP8-LM"] = [FP8_LM_LOSS.get(recipe, "") for recipe in table.index]
    return table


def dtypes(run: Run) -> dict:
    """Say in which dtypes training keeps its tensors, and in how many bytes a parameter."""
    dtype, states = run.facts["training.dtype"], "fp8_lm.states."
    return {
        "parameters": dtype,
        "first moment": run.facts.get(states + "first_moment") or dtype,
        "second moment": run.facts.get(states + "second_moment") or dtype,
        "master weights": run.facts.get(states + "master_weights") or "none",
        "bytes": kept_bytes(run),
    }


# ---- gradients, optimizer states and all-gather in FP8 beside bf16 ----

SUMS = Path(__file__).parent / "results" / "gradients" / "sums.json"
# The benchmark's ways to add up gradients over ranks, for people.
WAYS = {
    "block": "in float32, a scale for 256 values",
    "tensor": "in float32, one scale",
    "best": "in FP8, best factor in hindsight",
    "auto": "in FP8, automatic scaling by mu",
    "pre": "in FP8, scaled before (1/ranks)",
    "post": "in FP8, scaled after",
}


def levels(comparison: Comparison) -> pd.DataFrame:
    """List what each recipe sends in a step, beside bf16; what it keeps in memory; its loss."""
    table = by_recipe(comparison, sent_and_kept)
    sent = table["weights, MB"] + table["gradients, MB"]
    more = 100 * sent / sent[comparison.reference] - 100
    table.insert(2, "sent, to bf16", more.map("{:+.0f} %".format))
    return table


def sent_and_kept(run: Run) -> dict[str, float]:
    """Read what a run's proof says of bytes."""
    sent = run.proof.model_extra["sharded"]
    return {
        "weights, MB": sent["gathered_bytes"] / 1e6,
        "gradients, MB": sent["reduced_bytes"] / 1e6,
        "bytes a parameter": kept_bytes(run),
    }


def gradient_sums(path: Path = SUMS) -> pd.DataFrame:
    """Read how exact sums of FP8 gradients are, in dB: a row a number of ranks, a column a way."""
    sums = pd.DataFrame(json.loads(path.read_text())["sums"])
    table = sums.pivot(index="ranks", columns="how", values="snr_db")
    return table[list(WAYS)].rename(columns=WAYS)


SUM_COLOURS = ["#0072B2", "#56B4E9", "#444444", "#009E73", "#CC79A7", "#D55E00"]


@plot
def draw_gradient_sums(axes: Axes, sums: pd.DataFrame) -> None:
    """Draw signal to noise of gradients' sums by the number of ranks, a line a way to add up.

    `sums` as from `gradient_sums`.
    """
    in_fp8 = sums.columns.str.startswith("in FP8")
    styles = np.where(in_fp8, "s--", "o-").tolist()
    sums.plot(ax=axes, style=styles, color=SUM_COLOURS)
    axes.set_xscale("log", base=2)
    axes.set_xticks(sums.index, sums.index)
    axes.set(xlabel="ranks", ylabel="signal to noise of the sum (dB)", ylim=(0, None))
    legend_beside(axes, title="e4m3 gradients, added up")
    gained = sums.iloc[-1] - sums.iloc[0]
    lost = -gained[in_fp8]
    finding(
        axes,
        f"From {sums.index[0]} to {sums.index[-1]} ranks sums in FP8 lose {lost.min():.0f} to "
        f"{lost.max():.0f} dB, sums in float32 gain {gained[~in_fp8].min():.0f}",
    )
    note(axes, "20 dB: an error of a tenth, 40 dB: of a hundredth.")
