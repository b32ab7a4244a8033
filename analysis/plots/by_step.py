"""Lines by step: the loss, its difference to the baseline's, and the lead in wall time."""

import math

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from analysis.comparison import OWN, Comparison, in_order
from analysis.load import final_from
from analysis.losses import LEVEL, TOLERANCE
from analysis.plots.style import (
    GREY,
    SMALL,
    NoData,
    finding,
    legend_beside,
    look,
    make_room,
    name,
    note,
    number,
    plot,
    short_name,
)
from analysis.rates import AHEAD, FROM
from analysis.table import short

POINTS = 400  # of a line: more than its pixels would only make pages large
FAR = 10  # margins: a loss that ends farther from the baseline's is off the axis of the others


def draw_runs(
    axes: Axes, runs: pd.DataFrame, curves: pd.DataFrame, groups: list[list[str]]
) -> None:
    """Draw completed runs of a group of recipes as their mean in a band, others as a dashed line.

    Args:
        curves: what to draw, a row a step, a column a run.
        groups: recipes that are drawn together.

    Raises:
        NoData: there is nothing to draw.
    """
    drawn = runs[runs["run"].isin(curves.dropna(axis="columns", how="all"))]
    if drawn.empty:
        raise NoData("no log window has it")
    done = drawn[drawn["status"] == "completed"]
    for recipes in groups:
        together = curves[done.loc[done["recipe"].isin(recipes), "run"]].dropna()
        if len(together):
            draw_band(axes, recipes, together.agg(["mean", "min", "max"], axis="columns"))
    for run in drawn.drop(done.index).itertuples():
        label, colour = f"{short_name(run.recipe)}\n({run.status})", look(run.recipe).colour
        axes.plot(thinned(curves[run.run].dropna()), "--", color=colour, linewidth=1, label=label)


def draw_band(axes: Axes, recipes: list[str], band: pd.DataFrame) -> None:
    """Draw a line in the look of the first recipe, in its band.

    Markers are a fifth further on for each line, so that equal curves show each other's.

    Args:
        band: by step the line and the ends of its band, which may be NaN.
    """
    _, colour, marker = look(recipes[0])
    band = thinned(band)
    line, low, high = band.to_numpy().T
    every = max(1, len(band) // 6)
    places = len(axes.lines) * every // 5 % every, every
    label = "\n".join(map(short_name, recipes))
    axes.plot(band.index, line, color=colour, label=label, marker=marker, markevery=places)
    axes.fill_between(band.index, low, high, color=colour, alpha=0.15, linewidth=0)


def thinned(values):
    """Choose at most `POINTS` rows evenly, the last among them."""
    count = min(len(values), POINTS)
    return values.iloc[np.linspace(0, len(values) - 1, count).round().astype(int)]


def finish(axes: Axes, y_label: str, end: str) -> None:
    """Write labels, and on the right, from top to bottom, each line's name and its end.

    A line that leaves the axis says so there.

    Args:
        end: format of a line's last value.
    """
    axes.set(xlabel="step", ylabel=y_label)
    axes.margins(x=0)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter("{x:,.10g}")
    lowest, highest = axes.get_ylim()
    lines = {line.get_label(): line for line in axes.get_legend_handles_labels()[0]}
    for label, line in lines.items():
        words = f"{label}\n{end.format(_last(line))}"
        if not lowest <= _last(line) <= highest:
            words += ", off the axis"
        line.set_label(words)
    handles = sorted(lines.values(), key=_last, reverse=True)
    make_room(axes, "\n".join(line.get_label() for line in handles).count("\n") + 1)
    legend_beside(axes, handles=handles)


def _last(line) -> float:
    return line.get_ydata()[-1]


# ---- loss ----


@plot
def loss(axes: Axes, comparison: Comparison) -> None:
    """Draw the training loss (nats per token) by step: means over a tenth of the steps.

    Recipes whose final losses coincide are one band. The axis ends at the loss of the beginning.
    """
    runs, windows = comparison.frames.runs, comparison.frames.windows
    done = runs[runs["status"] == "completed"]
    final = done.groupby("recipe")["final_loss"].mean().dropna().sort_values()
    # A group ends where the next loss is higher by more than the margin.
    group = (final.diff() > TOLERANCE * final).cumsum()
    groups = [in_order(recipes) for recipes in final.groupby(group).groups.values()]
    losses = windows.pivot(index="step", columns="run", values="loss").dropna(axis=1, how="all")
    smooth = losses.apply(_smoothed)
    draw_runs(axes, runs, smooth, groups)
    lowest, highest = smooth.min(axis=None), smooth.bfill().iloc[0].median()
    axes.set_ylim(0.98 * lowest, 1.02 * highest)
    finish(axes, "loss (nats per token)", "{:,.4g}")
    note(axes, "Mean over a tenth of the steps and over seeds; band: range of the runs.")
    if comparison.opponent in final and len(final) > 1:
        apart = final - final[comparison.opponent]
        far = apart.abs().idxmax()
        who = " and ".join(map(name, groups[group[far]]))
        _find_farthest(axes, comparison, who, apart[far])


def _smoothed(losses: pd.Series) -> pd.Series:
    """Average each tenth of a run's steps; a mean is in the middle of its steps."""
    logged = losses.dropna()
    tenth = logged.loc[final_from(logged.index[-1]) :]
    return logged.rolling(len(tenth), center=True).mean()


@plot
def loss_difference(axes: Axes, comparison: Comparison) -> None:
    """Draw the loss of each recipe minus the baseline's, in its interval, over the margin.

    A recipe that ends more than `FAR` margins away is off the axis, if another does not.
    """
    margin, baseline = comparison.margin, comparison.opponent
    ends = {recipe: of.difference for recipe, of in comparison.verdicts.items() if of.seeds}
    if not ends:
        raise NoData("it takes completed runs of the baseline and of another recipe, equal seeds")
    axes.axhline(0, color="black", linewidth=0.8)
    axes.axhspan(-margin, margin, color=GREY, alpha=0.15, linewidth=0, zorder=0)
    reach = []
    for recipe, end in ends.items():
        band = comparison.differences[recipe].set_index("step")[["difference", "low", "high"]]
        if abs(end) < FAR * margin:
            reach.append(band.abs().max(axis=None))
        else:
            band[["low", "high"]] = math.nan
        draw_band(axes, [recipe], band)
    if reach:
        most = max(*reach, 1.1 * margin)
        axes.set_ylim(-most, most)
    finish(axes, f"loss − loss of {name(baseline)}\n(nats per token)", "{:+z.4f}")
    note(
        axes,
        f"Same step and seed. Grey: margin ± {margin:.3g}, in which two losses count as the same. "
        f"Bands: {LEVEL:.0%} interval over several seeds.",
    )
    far, end = max(ends.items(), key=lambda item: abs(item[1]))
    _find_farthest(axes, comparison, name(far), end)


def _find_farthest(axes: Axes, comparison: Comparison, who: str, difference: float) -> None:
    """Write as the finding who ends farthest from the opponent's loss, or that nobody does."""
    margin, opponent = comparison.margin or math.inf, name(comparison.opponent)
    if abs(difference) < margin:
        most = math.ceil(1000 * abs(difference)) / 1000
        finding(axes, f"No final loss is more than {most:.3f} from that of {opponent}")
    else:
        apart = f"{abs(difference):.3g} {'above' if difference > 0 else 'below'} {opponent}"
        finding(axes, f"{who}: final loss {apart}, {number(abs(difference) / margin)} margins")


# ---- wall time ----


def fastest(comparison: Comparison) -> str:
    """Choose the recipe that findings are about: the fastest one in FP8, else the fastest."""
    recipes = comparison.fp8 or comparison.recipes
    return max(recipes, key=lambda recipe: comparison.completed[recipe].rate.mean)


def clock_start(runs: pd.DataFrame) -> str:
    """Say what wall time counts from: other programs' logs do not say when their process began."""
    return "the process" if (runs["source"] == OWN).all() else "training, not with the process"


@plot
def lead(axes: Axes, comparison: Comparison, warm_up: bool = True) -> None:
    """Draw the seconds that each recipe is ahead of the opponent.

    Above zero a recipe has taken less wall time; a mark shows where it gets or loses the lead.
    Each run is drawn against the mean of the opponent's.

    Args:
        warm_up: counts too; without it compilation costs nothing, as in the published study.
    """
    runs, done, opponent = comparison.frames.runs, comparison.completed, comparison.opponent
    if opponent not in done:
        raise NoData(f"there is no completed run of {name(opponent)} to be ahead of")
    elapsed = comparison.frames.windows.pivot(index="step", columns="run", values="elapsed_s")
    if not warm_up:
        elapsed -= runs.set_index("run")["warm_up_s"]
    reference = elapsed[done[opponent].runs["run"]].mean(axis="columns").dropna()
    taken = np.interp(elapsed.index, reference.index, reference, left=np.nan, right=np.nan)
    others = runs[runs["recipe"] != opponent]
    groups = [[recipe] for recipe in in_order(others["recipe"])]
    draw_runs(axes, others, -elapsed.sub(taken, axis="index"), groups)
    axes.axhline(0, color=look(opponent).colour, label=short_name(opponent))
    axes.margins(y=0.12)
    small = {"transform": axes.transAxes, "color": GREY, "fontsize": SMALL, "fontstyle": "italic"}
    axes.text(0.01, 0.98, "ahead", va="top", **small)
    axes.text(0.01, 0.02, "behind", va="bottom", **small)
    included = "included" if warm_up else "left out"
    finish(axes, f"lead over {name(opponent)} (s),\nfirst step (compile) {included}", "{:+,.0f} s")
    run = runs.iloc[0]
    note(
        axes,
        f"{short(run['parameters'])} parameters on {run['world_size']:.0f} {run['device']}. "
        f"The clock starts with {clock_start(runs)}.",
    )
    if warm_up:
        _mark_crossings(axes, comparison)
    else:
        recipe = fastest(comparison)
        left, right = (done[r].runs["wall_s_without_warm_up"].mean() for r in (recipe, opponent))
        side = "ahead" if left < right else "behind"
        text = f"Without the first step {name(recipe)} is {abs(left - right):,.0f} s {side}"
        finding(axes, text)


def _mark_crossings(axes: Axes, comparison: Comparison) -> None:
    """Mark the steps from or until which recipes are ahead; the first of them is the finding."""
    opponent = comparison.opponent
    against = [paid for (_, b), paid in comparison.break_evens.items() if b == opponent]
    for below, paid in enumerate(against, start=1):
        if paid.step and not paid.beyond:
            _, colour, marker = look(paid.a)
            edge = {"markeredgecolor": colour, "markeredgewidth": 1.5}
            axes.plot(paid.step, 0, marker, markersize=8, color="white", **edge, zorder=5)
            axes.annotate(f"step {paid.step:,}", (paid.step, 0), (5, -4 - 11 * below),
                          textcoords="offset points", color=colour, fontweight="bold")  # fmt: skip
    ahead = [paid for paid in against if paid.outcome in (AHEAD, FROM)]
    if not ahead:
        finding(axes, f"No FP8 recipe overtakes {name(opponent)}")
        return
    first = min(ahead, key=lambda paid: (paid.step, -comparison.completed[paid.a].rate.mean))
    be = "would be" if first.beyond else "is"
    finding(axes, f"{name(first.a)} {be} ahead of {name(opponent)} {first.word}")
