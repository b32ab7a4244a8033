"""How fast is it? Tokens per second, model FLOPs utilisation, and the time of a step."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis import load, rates
from analysis.plots.bars import draw_row, number, row_figure, set_rows, write_beside
from analysis.plots.series import Group, groups
from analysis.plots.style import GREY, NoData, note, panel, require, styled

_PEAKS = {"mfu_bf16_peak": ("bf16 peak", 0.6), "mfu_fp8_peak": ("FP8 peak", 0.4), "mfu_mixed_peak": ("mixed", 0.22)}


@styled
def tokens_per_s(runs: pd.DataFrame, windows: pd.DataFrame, published: dict[str, float] | None = None) -> Figure:
    """Tokens per second of each recipe, over all devices, padding included.

    Bar: median over all steady steps of the recipe's completed runs; thin: quartiles; thick: the median's interval, see
    `analysis.rates.steady_rate`; marks: each run's median.

    Args:
        published: tokens/s by recipe to compare with, drawn as hollow grey diamonds on the rows that there are.
    """
    figure, axes = row_figure(runs, "recipe", "status")
    draw_tokens_per_s(axes, runs, windows, published)
    return figure


@panel
def draw_tokens_per_s(
    axes: Axes, runs: pd.DataFrame, windows: pd.DataFrame, published: dict[str, float] | None = None
) -> None:
    require(runs, "run", "tokens_per_s", "tokens_per_step")
    require(windows, "log window", "step_s", "not_steady")
    steps = load.steps(windows)
    found = [group for group in groups(runs) if group.runs["tokens_per_s"].notna().any()]
    for y, group in enumerate(found):
        medians = group.runs["tokens_per_s"].dropna().to_numpy(float)
        rate = rates.rate_of(runs, steps, group.recipe) if group.completed else None
        known = rate is not None and np.isfinite(rate.median)
        text = draw_row(axes, y, group, medians, rate.median if known else None)
        if known:
            _draw_intervals(axes, y - 0.18, rate)
        if group.recipe in (published or {}):
            axes.plot(published[group.recipe], y + 0.17, "d", markerfacecolor="white", markeredgecolor=GREY, zorder=3)
            text += f"\n◇ published {number(published[group.recipe])}"
        write_beside(axes, y, text)
    set_rows(axes, [group.label for group in found], "tokens/s")
    interval = f"{rates.LEVEL:.0%} interval of the median"
    note(axes, f"bar: median of steady steps; thin: quartiles; thick: {interval}; marks: runs")


def _draw_intervals(axes: Axes, y: float, rate: rates.Rate) -> None:
    quartiles = [[rate.median - rate.q1], [rate.q3 - rate.median]]
    axes.errorbar(rate.median, y, xerr=quartiles, color="black", capsize=2.5, elinewidth=0.9)
    axes.plot([rate.low, rate.high], [y, y], color="black", linewidth=3, solid_capstyle="butt")


@styled
def mfu(runs: pd.DataFrame) -> Figure:
    """Model FLOPs utilisation in percent of the bf16 peak, of the FP8 peak, and of the mixed one, as far as they apply.

    Bars: median over a recipe's completed runs; marks: each run.
    """
    figure, axes = row_figure(runs, "recipe", "status")
    draw_mfu(axes, runs)
    return figure


@panel
def draw_mfu(axes: Axes, runs: pd.DataFrame) -> None:
    require(runs, "run", "mfu_bf16_peak", "peak_source")
    found = [group for group in groups(runs) if group.runs["mfu_bf16_peak"].notna().any()]
    applied = set()
    for y, group in enumerate(found):
        known = {key: group.runs[key].dropna().to_numpy(float) * 100 for key in _PEAKS if key in group.runs}
        known = {key: values for key, values in known.items() if len(values)}
        applied |= set(known)
        height = 0.8 / max(2, len(known))
        for index, (key, values) in enumerate(known.items()):
            at = y + (index - (len(known) - 1) / 2) * height
            label, alpha = _PEAKS[key]
            text = draw_row(axes, at, group, values, height=height * 0.9, alpha=alpha)
            write_beside(axes, at, f"{text} % {label if label == 'mixed' else 'of ' + label}")
    source = "measured" if runs["peak_source"].astype(str).str.startswith("measured").all() else "datasheet"
    set_rows(axes, [group.label for group in found], f"MFU (% of the {source} peak)")
    told = ["peak: " + "; ".join(dict.fromkeys(runs["peak_source"].dropna()))]
    if "mfu_mixed_peak" in applied:
        told.append("mixed: each FLOP against the peak of the precision it ran in")
    note(axes, *told)


@styled
def step_time(runs: pd.DataFrame, steps: pd.DataFrame) -> Figure:
    """Milliseconds of the steady steps: box of the quartiles, whiskers to 1.5 times their distance, outliers as marks.

    Args:
        steps: see `analysis.load.steps`.
    """
    figure, axes = row_figure(runs, "recipe", "status")
    draw_step_time(axes, runs, steps)
    return figure


@panel
def draw_step_time(axes: Axes, runs: pd.DataFrame, steps: pd.DataFrame) -> None:
    require(steps, "step", "run", "seconds", "steady")
    steady = steps[steps["steady"] & steps["seconds"].notna()]
    found = [(group, steady.loc[steady["run"].isin(group.runs["run"]), "seconds"] * 1000) for group in groups(runs)]
    found = [(group, milliseconds) for group, milliseconds in found if len(milliseconds)]
    if not found:
        raise NoData("no run has steady steps: a run needs more than 11 for some")
    for y, (group, milliseconds) in enumerate(found):
        _draw_box(axes, y, group, milliseconds.to_numpy(float))
        write_beside(axes, y, f"{number(milliseconds.median())} ms" if group.completed else "")
    axes.set_yticks(range(len(found)), [group.label for group, _ in found])
    axes.set(ylim=(len(found) - 0.5, -0.5), xlabel="time of a steady step (ms)")
    counts = ", ".join(dict.fromkeys(f"{len(milliseconds):,}" for _, milliseconds in found))
    note(axes, f"{counts} steps a row; the axis does not start at zero")


def _draw_box(axes: Axes, y: int, group: Group, milliseconds: np.ndarray) -> None:
    colour, marker = group.look
    marks = {"marker": marker, "markersize": 3, "markerfacecolor": "none", "markeredgecolor": colour, "alpha": 0.7}
    if not group.completed:
        axes.plot(milliseconds, np.full(len(milliseconds), y), linestyle="none", **marks)
        return
    line = {"color": colour, "linewidth": 1.1}
    axes.boxplot(
        [milliseconds], positions=[y], orientation="horizontal", widths=0.5, manage_ticks=False, patch_artist=True,
        boxprops={"facecolor": colour, "edgecolor": colour, "alpha": 0.35}, medianprops=line | {"linewidth": 2},
        whiskerprops=line, capprops=line, flierprops=marks,
    )  # fmt: skip
