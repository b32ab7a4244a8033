"""How fast is it? Tokens per second, model FLOPs utilisation, and the time of a step."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.cbook import boxplot_stats
from matplotlib.figure import Figure

from analysis.plots.bars import completed_with, draw_row, number, row_figure, set_rows, write_beside
from analysis.plots.series import Group, groups, thinned
from analysis.plots.style import GREY, NoData, note, panel, require, styled
from analysis.rates import LEVEL, MIN_STEPS, Rate

_PEAKS = {"mfu_bf16_peak": ("bf16 peak", 0.6), "mfu_fp8_peak": ("FP8 peak", 0.4), "mfu_mixed_peak": ("mixed", 0.22)}


@styled
def tokens_per_s(runs: pd.DataFrame, rates: dict[str, Rate], published: dict[str, float] | None = None) -> Figure:
    """Tokens per second of each recipe, over all devices, padding included.

    Bar: by the mean steady step of the recipe's completed runs; marks: each run; line: 95 % interval over several runs.
    Runs that are too short for a rate are shown by their median step.

    Args:
        rates: by recipe, see `analysis.rates.rate_of`.
        published: tokens/s by recipe to compare with, drawn as hollow grey diamonds on the rows that there are.
    """
    figure, axes = row_figure(runs)
    draw_tokens_per_s(axes, runs, rates, published)
    return figure


@panel
def draw_tokens_per_s(
    axes: Axes, runs: pd.DataFrame, rates: dict[str, Rate], published: dict[str, float] | None = None
) -> None:
    found = completed_with(runs, "tokens_per_s")
    for y, group in enumerate(found):
        rate = rates[group.recipe]
        if rate.runs:
            text = draw_row(axes, y, group, rate.by_run.to_numpy(float), length=rate.mean)
            axes.plot([rate.low, rate.high], [y, y], color="black", linewidth=1.5, solid_capstyle="butt")
        else:
            text = draw_row(axes, y, group, group.runs["tokens_per_s"].to_numpy(float))
        if group.recipe in (published or {}):
            axes.plot(published[group.recipe], y + 0.17, "d", markerfacecolor="white", markeredgecolor=GREY, zorder=3)
            text += f"\n◇ published {number(published[group.recipe])}"
        write_beside(axes, y, text)
    set_rows(axes, [group.label for group in found], "tokens/s")
    several = any(rate.runs > 1 for rate in rates.values())
    marks = f" Marks: runs; black line: {LEVEL:.0%} interval over them." if several else " One run each: no interval."
    note(axes, f"Bar: by the mean steady step.{marks}")


@styled
def mfu(runs: pd.DataFrame) -> Figure:
    """Model FLOPs utilisation in percent of the bf16 peak, of the FP8 peak, and of the mixed one, as far as they apply.

    Bars: median over a recipe's completed runs; marks: each run.
    """
    figure, axes = row_figure(runs)
    draw_mfu(axes, runs)
    return figure


@panel
def draw_mfu(axes: Axes, runs: pd.DataFrame) -> None:
    found, applied = completed_with(runs, "mfu_bf16_peak"), set()
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
    words = ["Peak: " + "; ".join(dict.fromkeys(runs["peak_source"].dropna())) + "."]
    if "mfu_mixed_peak" in applied:
        words.append("Mixed: each FLOP against the peak of the precision it ran in.")
    note(axes, *words)


@styled
def step_time(runs: pd.DataFrame, steps: pd.DataFrame) -> Figure:
    """Milliseconds of the steady steps: box of the quartiles, whiskers to 1.5 times their distance, outliers as marks.

    Args:
        steps: see `analysis.load.steps`.
    """
    figure, axes = row_figure(runs)
    draw_step_time(axes, runs, steps)
    return figure


@panel
def draw_step_time(axes: Axes, runs: pd.DataFrame, steps: pd.DataFrame) -> None:
    require(steps, "step", "run", "seconds", "steady")
    steady = steps[steps["steady"] & steps["seconds"].notna()]
    done = [group for group in groups(runs) if group.completed]
    found = [(group, steady.loc[steady["run"].isin(group.runs["run"]), "seconds"] * 1000) for group in done]
    found = [(group, milliseconds) for group, milliseconds in found if len(milliseconds)]
    if not found:
        raise NoData(f"no run has steady steps: train {MIN_STEPS} or more")
    for y, (group, milliseconds) in enumerate(found):
        _draw_box(axes, y, group, milliseconds.to_numpy(float))
        write_beside(axes, y, f"{number(milliseconds.median())} ms")
    axes.set_yticks(range(len(found)), [group.label for group, _ in found])
    axes.set(ylim=(len(found) - 0.5, -0.5), xlabel="time of a steady step (ms)")
    counts = ", ".join(dict.fromkeys(f"{len(milliseconds):,}" for _, milliseconds in found))
    note(axes, f"{counts} steps a row. The axis does not start at zero.")


def _draw_box(axes: Axes, y: int, group: Group, milliseconds: np.ndarray) -> None:
    colour, marker = group.look
    marks = {"marker": marker, "markersize": 3, "markerfacecolor": "none", "markeredgecolor": colour, "alpha": 0.7}
    line = {"color": colour, "linewidth": 1.1}
    (box,) = boxplot_stats(milliseconds)
    box["fliers"] = np.unique(thinned(pd.DataFrame(np.sort(box["fliers"]))).to_numpy())
    axes.bxp(
        [box], positions=[y], orientation="horizontal", widths=0.5, manage_ticks=False, patch_artist=True,
        boxprops={"facecolor": colour, "edgecolor": colour, "alpha": 0.35}, medianprops=line | {"linewidth": 2},
        whiskerprops=line, capprops=line, flierprops=marks,
    )  # fmt: skip
