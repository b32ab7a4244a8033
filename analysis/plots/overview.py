"""The answer in four panels, for the README."""

from collections.abc import Sequence

import pandas as pd
from matplotlib.figure import Figure

from analysis.plots.learning import draw_loss
from analysis.plots.series import label_ends
from analysis.plots.speed import draw_mfu, draw_tokens_per_s
from analysis.plots.style import new_figure, styled
from analysis.plots.wall import draw_wall_with_warm_up
from analysis.rates import BreakEven


@styled
def summary(
    runs: pd.DataFrame,
    windows: pd.DataFrame,
    break_even: Sequence[BreakEven],
    published: dict[str, float] | None = None,
) -> Figure:
    """Loss, tokens/s, MFU, and wall time with warm-up. For the arguments see the four plots."""
    figure, ((top_left, top_right), (bottom_left, bottom_right)) = new_figure((9, 6.4), 2, 2)
    ends = {
        top_left: draw_loss(top_left, runs, windows),
        bottom_left: draw_wall_with_warm_up(bottom_left, runs, windows, break_even),
    }
    draw_tokens_per_s(top_right, runs, windows, published)
    draw_mfu(bottom_right, runs)
    for axes, title in {
        top_left: "Loss", top_right: "Speed", bottom_left: "Wall time, warm-up included",
        bottom_right: "Model FLOPs utilisation",
    }.items():  # fmt: skip
        axes.set_title(title, loc="left", fontweight="bold")
    for axes, of_axes in ends.items():
        label_ends(axes, of_axes)
    return figure
