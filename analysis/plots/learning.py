"""Does it learn the same? The loss, and its difference to the baseline's."""

import math

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.comparison import in_order
from analysis.losses import LEVEL
from analysis.plots.series import LineEnd, curves, draw_curves, in_lines, label_ends, thinned
from analysis.plots.style import GREY, SMALL, NoData, look, name, new_figure, note, panel, styled, thousands
from analysis.record import final_from


@styled
def loss(runs: pd.DataFrame, windows: pd.DataFrame) -> Figure:
    """Training loss (nats per token) by step: means over a tenth of the steps, drawn in their middle.

    The last one is the final loss where log windows divide that tenth. Line: mean of a recipe's seeds; band: from the
    smallest to the largest of them.
    """
    figure, ((axes,),) = new_figure()
    label_ends(axes, draw_loss(axes, runs, windows))
    return figure


@panel
def draw_loss(axes: Axes, runs: pd.DataFrame, windows: pd.DataFrame) -> list[LineEnd]:
    found, ends = curves(runs, windows, "loss"), []
    for index, (group, frame) in enumerate(found):
        tenth = len(frame.loc[final_from(frame.index[-1]) :])
        smooth = frame.rolling(tenth, center=True).mean().dropna(how="all")
        ends += draw_curves(axes, group, smooth, stagger=index / len(found))
    axes.set(xlabel="step", ylabel="loss (nats per token)")
    axes.margins(x=0)
    thousands(axes, "x", "y")
    seeds = [frame.shape[1] for group, frame in found if group.completed] or [1]
    counts = " to ".join(dict.fromkeys(f"{count}" for count in (min(seeds), max(seeds))))
    band = f" Line: mean, band: range of {counts} seeds." if max(seeds) > 1 else ""
    note(axes, f"Smoothed: mean over a tenth of the steps.{band}")
    return ends


@styled
def loss_difference(differences: dict[str, pd.DataFrame], margin: float | None, baseline: str) -> Figure:
    """Loss of each recipe minus the baseline's, by step, with its band and the margin of "the same".

    Args:
        differences: by recipe, a frame with columns step, difference, low, high (nats per token).
        margin: what counts as the same, in nats per token; None or NaN if there is none.
        baseline: the recipe that was subtracted.
    """
    figure, ((axes,),) = new_figure()
    label_ends(axes, draw_loss_difference(axes, differences, margin, baseline))
    return figure


@panel
def draw_loss_difference(
    axes: Axes, differences: dict[str, pd.DataFrame], margin: float | None, baseline: str
) -> list[LineEnd]:
    kept = {recipe: thinned(differences[recipe].dropna(subset="difference")) for recipe in in_order(differences)}
    kept = {recipe: frame for recipe, frame in kept.items() if not frame.empty}
    if not kept:
        raise NoData(f"no recipe has a loss at the same step and seed as {name(baseline)}")
    ends = []
    for index, (recipe, frame) in enumerate(kept.items()):
        colour, marker = look(recipe)
        every = max(1, len(frame) // 6)
        axes.fill_between(frame["step"], frame["low"], frame["high"], color=colour, alpha=0.15, linewidth=0)
        axes.plot(
            frame["step"], frame["difference"], color=colour, marker=marker, markeredgecolor="white",
            markeredgewidth=0.5, markevery=(index * every // len(kept), every),
        )  # fmt: skip
        ends.append(LineEnd(frame["step"].iloc[-1], frame["difference"].iloc[-1], in_lines(name(recipe)), colour))
    axes.axhline(0, color="black", linewidth=0.8)
    axes.set(xlabel="step", ylabel=f"loss − loss of {name(baseline)}\n(nats per token)")
    axes.margins(x=0)
    thousands(axes, "x")
    several = any(frame["low"].notna().any() for frame in kept.values())
    words = [f"Bands: {LEVEL:.0%} interval over the seeds, as in the verdict." if several else "One seed: no interval."]
    if margin and not math.isnan(margin):
        axes.axhspan(-margin, margin, color=GREY, alpha=0.15, linewidth=0, zorder=0)
        axes.annotate(f"margin ± {margin:.3g}", (0, margin), xycoords=axes.get_yaxis_transform(), xytext=(3, -2),
                      textcoords="offset points", va="top", fontsize=SMALL, color=GREY,
                      bbox={"facecolor": "white", "alpha": 0.7, "linewidth": 0, "pad": 1}, zorder=4)  # fmt: skip
        words.insert(0, "Grey: so near, two losses count as the same.")
    note(axes, " ".join(words))
    return ends
