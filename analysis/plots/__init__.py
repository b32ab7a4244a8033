"""The figures: frames of `analysis.load` in, a matplotlib Figure out. Nothing here computes a
result or writes a file.

A recipe has the same colour and marker in every figure. Its completed runs are drawn together. A
run that is not completed has a dashed line of its own, labelled with its status, and no bar. A
figure without data says why.
"""
# ruff: noqa: F401  # what is imported is what the package offers

from analysis.plots.cost import memory, warm_up
from analysis.plots.gradients import gradient_sums
from analysis.plots.ladder import allgather_ladder
from analysis.plots.learning import loss, loss_difference
from analysis.plots.overview import summary
from analysis.plots.phases import trade
from analysis.plots.ranges import fp8_ranges
from analysis.plots.speed import mfu, step_time, tokens_per_s
from analysis.plots.style import to_png, to_svg
from analysis.plots.sweep import heat_map
from analysis.plots.wall import lead, wall_after_warm_up
