"""Does it learn the same? The loss, and its difference to the baseline's."""

import math

import pandas as pd
from matplotlib.axes import Axes

from analysis.comparison import in_order
from analysis.load import final_from
from analysis.losses import LEVEL
from analysis.plots.series import curves, draw_curves, draw_line, finish
from analysis.plots.style import GREY, SMALL, NoData, name, note, plot


@plot
def loss(axes: Axes, runs: pd.DataFrame, windows: pd.DataFrame, log: bool = False) -> None:
    """Training loss (nats per token) by step: means over a tenth of the steps, drawn in their
    middle.

    The last one is the final loss where log windows divide that tenth. Line: mean of a recipe's
    seeds; band: from the smallest to the largest of them. `log`: of the loss, where one recipe's is
    many times the others'.
    """
    drawn = curves(runs, windows, "loss")
    for index, (group, frame) in enumerate(drawn):
        tenth = len(frame.loc[final_from(frame.index[-1]) :])
        smooth = frame.rolling(tenth, center=True).mean().dropna(how="all")
        draw_curves(axes, group, smooth, stagger=index / len(drawn))
    finish(axes, "loss (nats per token)")
    seeds = [frame.shape[1] for group, frame in drawn if group.completed] or [1]
    counts = " to ".join(dict.fromkeys(f"{count}" for count in (min(seeds), max(seeds))))
    band = f" Line: mean, band: range of {counts} seeds." if max(seeds) > 1 else ""
    if log:
        axes.set_yscale("log")
        for ticks in (axes.yaxis.set_major_formatter, axes.yaxis.set_minor_formatter):
            ticks("{x:,.10g}")
    note(axes, f"Smoothed: mean over a tenth of the steps.{band}")


@plot
def loss_difference(
    axes: Axes, differences: dict[str, pd.DataFrame], margin: float | None, baseline: str
) -> None:
    """Loss of each recipe minus the baseline's, by step, with its band and the margin of "the
    same".

    Args:
        differences: by recipe, see `analysis.losses.loss_difference`.
        margin: what counts as the same, in nats per token; None or NaN if there is none.
        baseline: the recipe that was subtracted.
    """
    kept = {
        r: differences[r].set_index("step") for r in in_order(differences) if len(differences[r])
    }
    if not kept:
        raise NoData(f"no recipe has a loss at the same step and seed as {name(baseline)}")
    for index, (recipe, frame) in enumerate(kept.items()):
        draw_line(
            axes, recipe, frame.rename(columns={"difference": "middle"}), stagger=index / len(kept)
        )
    axes.axhline(0, color="black", linewidth=0.8)
    finish(axes, f"loss − loss of {name(baseline)}\n(nats per token)")
    several = any(frame["low"].notna().any() for frame in kept.values())
    words = [
        f"Bands: {LEVEL:.0%} interval over the seeds, as in the verdict."
        if several
        else "One seed: no interval."
    ]
    if margin and not math.isnan(margin):
        axes.axhspan(-margin, margin, color=GREY, alpha=0.15, linewidth=0, zorder=0)
        axes.annotate(f"margin ± {margin:.3g}", (0, margin), xycoords=axes.get_yaxis_transform(), xytext=(3, -2),
                      textcoords="offset points", va="top", fontsize=SMALL, color=GREY,
                      bbox={"facecolor": "white", "alpha": 0.7, "linewidth": 0, "pad": 1}, zorder=4)  # fmt: skip
        words.insert(0, "Grey: so near, two losses count as the same.")
    note(axes, " ".join(words))
