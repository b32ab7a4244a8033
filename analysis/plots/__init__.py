"""Draw the figures: a comparison in, a matplotlib Figure out.

Nothing here computes a result or writes a file. The title of a figure is its headline. A recipe has
the same name, colour and marker in every figure. Its completed runs are drawn together. A run that
is not completed has a dashed line of its own, labelled with its status, and no bar. A figure
without data says why.
"""

from analysis.comparison import Comparison
from analysis.plots.bars import (
    first_step,
    memory,
    mfu,
    time_after_first_step,
    tokens_per_second,
)
from analysis.plots.by_step import lead, loss, loss_difference
from analysis.plots.style import Plot, draw_panels, to_png, to_svg

__all__ = [
    "FIGURES", "draw_panels", "first_step", "lead", "loss",
    "loss_difference", "memory", "mfu", "summary", "to_png", "to_svg",
    "time_after_first_step", "tokens_per_second",
]  # fmt: skip

# Of a report, in the order in which they answer.
FIGURES = (lead, tokens_per_second, loss_difference, loss, first_step, memory)


def summary(comparison: Comparison) -> Plot:
    """Draw the answer in four panels, for the documentation."""
    draws = (loss_difference, tokens_per_second, lead, first_step)
    return draw_panels([(draw, comparison) for draw in draws], (10, 6.4), columns=2)
