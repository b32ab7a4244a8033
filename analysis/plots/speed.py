"""How fast is it? Tokens per second, model FLOPs utilisation, and the time of a step."""

import pandas as pd
from matplotlib.axes import Axes

from analysis.plots.bars import completed_with, draw_row, number, set_rows, write_beside
from analysis.plots.series import Group, groups, thinned
from analysis.plots.style import GREY, NoData, look, note, plot
from analysis.rates import LEVEL, MIN_STEPS, Rate

_PEAKS = {
    "mfu_bf16_peak": ("{} % of bf16 peak", 0.6),
    "mfu_fp8_peak": ("{} % of FP8 peak", 0.4),
    "mfu_mixed_peak": ("{} % mixed", 0.22),
}


@plot
def tokens_per_s(
    axes: Axes,
    runs: pd.DataFrame,
    rates: dict[str, Rate],
    published: dict[str, float] | None = None,
) -> None:
    """Tokens per second of each recipe, over all devices, padding included.

    Bar: by the mean steady step of the recipe's completed runs; marks: each run; line: 95 %
    interval over several runs. Runs that are too short for a rate are shown by their median step.

    Args:
        rates: by recipe, see `analysis.rates.rate_of`.
        published: tokens/s by recipe to compare with, drawn as hollow grey diamonds on the rows
        that there are.
    """
    completed, published = completed_with(runs, "tokens_per_s"), published or {}
    for y, group in enumerate(completed):
        rate, text = rates[group.recipe], "{}"
        if group.recipe in published:
            axes.plot(
                published[group.recipe],
                y + 0.17,
                "d",
                markerfacecolor="white",
                markeredgecolor=GREY,
                zorder=3,
            )
            text += f"\n◇ published {number(published[group.recipe])}"
        if rate.runs:
            draw_row(axes, y, group, rate.by_run, text, length=rate.mean)
            axes.plot(
                [rate.low, rate.high], [y, y], color="black", linewidth=1.5, solid_capstyle="butt"
            )
        else:
            draw_row(axes, y, group, group.runs["tokens_per_s"], text)
    set_rows(axes, [group.label for group in completed], "tokens/s")
    axes.set_xlim(left=0)
    several = any(rate.runs > 1 for rate in rates.values())
    marks = (
        f" Marks: runs; black line: {LEVEL:.0%} interval over them."
        if several
        else " One run each: no interval."
    )
    note(axes, f"Bar: by the mean steady step.{marks}")


@plot
def mfu(axes: Axes, runs: pd.DataFrame) -> None:
    """Model FLOPs utilisation in percent of the bf16 peak, of the FP8 peak, and of the mixed one,
    as far as they apply.

    Bars: median over a recipe's completed runs; marks: each run.
    """
    completed = completed_with(runs, "mfu_bf16_peak")
    for y, group in enumerate(completed):
        known = {
            key: 100 * group.runs[key].dropna() for key in _PEAKS if group.runs[key].notna().any()
        }
        height = 0.8 / max(2, len(known))
        for index, (key, values) in enumerate(known.items()):
            text, alpha = _PEAKS[key]
            place = y + (index - (len(known) - 1) / 2) * height
            draw_row(axes, place, group, values, text, height=0.9 * height, alpha=alpha)
    source = (
        "measured"
        if runs["peak_source"].astype(str).str.startswith("measured").all()
        else "datasheet"
    )
    set_rows(axes, [group.label for group in completed], f"MFU (% of the {source} peak)")
    axes.set_xlim(left=0)
    words = ["Peak: " + "; ".join(dict.fromkeys(runs["peak_source"].dropna())) + "."]
    if any(group.runs["mfu_mixed_peak"].notna().any() for group in completed):
        words.append("Mixed: each FLOP against the peak of the precision it ran in.")
    note(axes, *words)


@plot
def step_time(axes: Axes, runs: pd.DataFrame, steps: pd.DataFrame) -> None:
    """Milliseconds of the steady steps: box of the quartiles, whiskers to 1.5 times their distance,
    outliers as marks.

    Args:
        steps: see `analysis.load.steps`.
    """
    steady = steps[steps["steady"]]
    completed = [group for group in groups(runs) if group.completed]
    rows = [
        (group, steady.loc[steady["run"].isin(group.runs["run"]), "seconds"] * 1000)
        for group in completed
    ]
    rows = [(group, milliseconds) for group, milliseconds in rows if len(milliseconds)]
    if not rows:
        raise NoData(f"no run has steady steps: train {MIN_STEPS} or more")
    for y, (group, milliseconds) in enumerate(rows):
        _draw_box(axes, y, group, milliseconds)
        write_beside(axes, y, f"{number(milliseconds.median())} ms")
    set_rows(axes, [group.label for group, _ in rows], "time of a steady step (ms)")
    counts = ", ".join(dict.fromkeys(f"{len(milliseconds):,}" for _, milliseconds in rows))
    note(axes, f"{counts} steps a row. The axis does not start at zero.")


def _draw_box(axes: Axes, y: int, group: Group, milliseconds: pd.Series) -> None:
    """Of many steps evenly spread quantiles, the extremes among them, stand for all."""
    colour, marker = look(group.recipe)
    line = {"color": colour, "linewidth": 1.1}
    axes.boxplot(
        thinned(milliseconds.sort_values()), positions=[y], orientation="horizontal", widths=0.5, manage_ticks=False,
        patch_artist=True, boxprops={"facecolor": colour, "edgecolor": colour, "alpha": 0.35},
        medianprops=line | {"linewidth": 2}, whiskerprops=line, capprops=line,
        flierprops={"marker": marker, "markersize": 3, "markerfacecolor": "none", "markeredgecolor": colour},
    )  # fmt: skip
