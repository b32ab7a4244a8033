"""The answer in four panels, for the README."""

from matplotlib.figure import Figure

from analysis.comparison import Comparison
from analysis.plots.learning import draw_loss
from analysis.plots.series import label_ends
from analysis.plots.speed import draw_mfu, draw_tokens_per_s
from analysis.plots.style import new_figure, styled
from analysis.plots.wall import draw_lead


@styled
def summary(comparison: Comparison) -> Figure:
    """Loss, tokens/s, lead in wall time, and MFU; see the four plots."""
    runs = comparison.frames.runs
    figure, ((top_left, top_right), (bottom_left, bottom_right)) = new_figure((9, 6.4), 2, 2)
    ends = {
        top_left: draw_loss(top_left, runs, comparison.frames.windows),
        bottom_left: draw_lead(bottom_left, comparison),
    }
    draw_tokens_per_s(top_right, runs, comparison.rates, comparison.published)
    draw_mfu(bottom_right, runs)
    for axes, title in {
        top_left: "Loss", top_right: "Speed", bottom_left: "Lead in wall time",
        bottom_right: "Model FLOPs utilisation",
    }.items():  # fmt: skip
        axes.set_title(title, loc="left", fontweight="bold")
    for axes, of_axes in ends.items():
        label_ends(axes, of_axes)
    return figure
