"""The figure of a sweep: the speed-up of FP8, a line a cell."""

from matplotlib.axes import Axes

from analysis.plots.bars import set_rows
from analysis.plots.style import GREY, NoData, finding, look, plot
from extensions.sweep.report import SweepCell, word


@plot
def speed_ups(axes: Axes, cells: dict[str, SweepCell]) -> None:
    """Draw how many times as fast as bf16 FP8 is in each cell, with its interval and, on the right,
    its answer and scaling efficiency."""
    means, beside = [], []
    for place, cell in enumerate(cells.values()):
        share = f"\nefficiency {word(cell.efficiency)}" if cell.efficiency else ""
        beside.append(cell.answer + share)
        if cell.gain:
            _, colour, marker = look(cell.recipe)
            axes.hlines(place, cell.gain.low, cell.gain.high, colour)
            axes.plot(cell.gain.mean, place, marker, color=colour)
            means.append(cell.gain.mean)
    if not means:
        raise NoData("no cell has a speed of FP8 and of bf16")
    axes.axvline(1, color=GREY)
    names = [", ".join(map(str, cell.values.values())) for cell in cells.values()]
    set_rows(axes, names, "times the tokens/s of bf16", beside)
    finding(axes, f"FP8 has {min(means):.2f} to {max(means):.2f} times the tokens/s of bf16")
