"""What do phases in bf16 buy, and what do they cost? The final loss against the wall time."""

import math

from matplotlib.axes import Axes

from analysis.comparison import Comparison
from analysis.losses import LEVEL
from analysis.plots.series import short_lines
from analysis.plots.style import GREY, NoData, look, make_room, name, note, plot
from analysis.rates import completed


@plot
def trade(axes: Axes, comparison: Comparison) -> None:
    """A point a recipe: its final loss less the baseline's, against its wall time over the
    opponent's mean.

    Horizontal line: from the fastest to the slowest of its runs. Vertical line: the interval of the
    verdict.
    """
    runs, opponent = comparison.frames.runs, comparison.opponent
    wall = {
        recipe: completed(runs, runs, recipe)["wall_s"].dropna() for recipe in comparison.recipes
    }
    if comparison.baseline not in wall or not len(wall.get(opponent, ())):
        raise NoData(
            f"it takes completed runs of {name(comparison.baseline)} and of {name(opponent)}"
        )
    for recipe in (recipe for recipe in comparison.recipes if len(wall[recipe])):
        colour, marker = look(recipe)
        times = wall[recipe] / wall[opponent].mean()
        judged = comparison.verdicts.get(recipe)
        loss, low, high = (
            (judged.difference, judged.low, judged.high) if judged else (0.0, math.nan, math.nan)
        )
        axes.plot([times.min(), times.max()], [loss, loss], color=colour, linewidth=1)
        axes.plot([times.mean()] * 2, [low, high], color=colour, linewidth=1)
        label = short_lines(name(recipe))
        axes.plot(
            times.mean(),
            loss,
            marker,
            color=colour,
            markersize=7,
            markeredgecolor="white",
            label=label,
        )
    axes.axhline(0, color="black", linewidth=0.8, zorder=0)
    sentences = ["Left and below is better."]
    if comparison.margin and not math.isnan(comparison.margin):
        axes.axhspan(
            -comparison.margin, comparison.margin, color=GREY, alpha=0.15, linewidth=0, zorder=0
        )
        sentences.append("Grey: so near, two losses count as the same.")
    several = any(not math.isnan(judged.low) for judged in comparison.verdicts.values())
    sentences.append(
        f"Lines: range of the times, {LEVEL:.0%} interval of the loss." if several else "One seed."
    )
    axes.set(xlabel=f"wall time over {name(opponent)}, warm-up included",
             ylabel=f"final loss − that of {name(comparison.baseline)}\n(nats per token)")  # fmt: skip
    make_room(axes, len(wall))
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1), labelcolor="linecolor")
    note(axes, " ".join(sentences))
