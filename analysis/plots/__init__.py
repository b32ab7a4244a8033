"""The figures: frames of `analysis.load` in, a matplotlib Figure out. Nothing here computes a
result or writes a file.

A recipe has the same colour and marker in every figure. Its completed runs are drawn together. A
run that is not completed has a dashed line of its own, labelled with its status, and no bar. A
figure without data says why.
"""

from matplotlib.figure import Figure

from analysis.comparison import Comparison
from analysis.plots.bars import memory, mfu, step_time, tokens_per_s, warm_up
from analysis.plots.by_step import lead, loss, loss_difference, wall_after_warm_up
from analysis.plots.studies import allgather_ladder, fp8_ranges, gradient_sums, heat_map, trade
from analysis.plots.style import panels, to_png, to_svg

__all__ = [
    "allgather_ladder", "fp8_ranges", "gradient_sums", "heat_map", "lead", "loss",
    "loss_difference", "memory", "mfu", "step_time", "summary", "to_png", "to_svg", "tokens_per_s",
    "trade", "wall_after_warm_up", "warm_up",
]  # fmt: skip


def summary(comparison: Comparison) -> Figure:
    """Draw the answer in four panels, for the README."""
    runs = comparison.frames.runs
    draws = {
        "Loss": (loss, runs, comparison.frames.windows),
        "Speed": (tokens_per_s, comparison.rates, comparison.published),
        "Lead in wall time": (lead, comparison),
        "Model FLOPs utilisation": (mfu, runs),
    }
    return panels(draws, (9, 6.4), columns=2)
