"""The figures: frames of `analysis.load` in, a matplotlib Figure out. Nothing here computes a result or writes a file.

A recipe has the same colour and marker in every figure. Its completed runs are drawn together. A run that is not
completed has a dashed line of its own, labelled with its status, and no bar. A figure without data says why.
"""

from analysis.plots.cost import memory, warm_up
from analysis.plots.learning import loss, loss_difference
from analysis.plots.overview import summary
from analysis.plots.ranges import fp8_ranges
from analysis.plots.speed import mfu, step_time, tokens_per_s
from analysis.plots.style import to_png, to_svg
from analysis.plots.wall import lead, wall_after_warm_up

__all__ = [
    "fp8_ranges",
    "lead",
    "loss",
    "loss_difference",
    "memory",
    "mfu",
    "step_time",
    "summary",
    "to_png",
    "to_svg",
    "tokens_per_s",
    "wall_after_warm_up",
    "warm_up",
]
