"""The answer in four panels, for the README."""

from matplotlib.figure import Figure

from analysis.comparison import Comparison
from analysis.plots.learning import loss
from analysis.plots.speed import mfu, tokens_per_s
from analysis.plots.style import panels
from analysis.plots.wall import lead


def summary(comparison: Comparison) -> Figure:
    """Loss, tokens/s, lead in wall time, and MFU; see the four plots."""
    runs, windows = comparison.frames.runs, comparison.frames.windows
    titles = {
        "Loss": lambda axes: loss.panel(axes, runs, windows),
        "Speed": lambda axes: tokens_per_s.panel(
            axes, runs, comparison.rates, comparison.published
        ),
        "Lead in wall time": lambda axes: lead.panel(axes, comparison),
        "Model FLOPs utilisation": lambda axes: mfu.panel(axes, runs),
    }
    return panels(titles, (9, 6.4), columns=2)
