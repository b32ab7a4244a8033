"""The heat map of a sweep: a field a cell."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, LogNorm, Normalize

from analysis.plots.bars import set_rows
from analysis.plots.style import SMALL, NoData, finding, name, plot
from extensions.sweep.cells import last
from extensions.sweep.report import Found

ACROSS = "training.seq_len"  # the axis that goes to the right, if there is one; the others go down
RATIO, EFFICIENCY = "over bf16", "efficiency"
PALE_RED, PALE_BLUE = "#F4A582", "#92C5DE"
FINDINGS = {
    RATIO: "{recipe} has {low:.2f} to {high:.2f} times the tokens/s of bf16",
    EFFICIENCY: "{recipe} reaches {low:.0%} to {high:.0%} of linear scaling",
}


@plot
def heat_map(axes: Axes, found: Found, quantity: str, recipe: str) -> None:
    """Draw a field a cell, with what the table says of it; grey where nothing was measured.

    Args:
        quantity: a key of `FINDINGS`. Speed-ups are blue where FP8 is faster, red where it is
            slower.
    """
    across = ACROSS if ACROSS in found.sweep.axes else list(found.sweep.axes)[-1]
    fields = {}
    for place, row in found.table.xs(recipe, level="recipe", drop_level=False).iterrows():
        values = dict(zip(found.sweep.axes, place, strict=False))
        x = values.pop(across)
        y = "\n".join(f"{last(key)} {value}" for key, value in values.items())
        text, number = row[quantity]
        if row["tokens/s"].number is None:
            text = row["answer"].text.split(",")[0]
        fields[y, x] = {"number": number, "text": text}
    table = pd.DataFrame.from_dict(fields, orient="index").unstack(sort=False)
    table = table[~(table["text"] == "-").all(axis="columns")]  # such as efficiencies of one GPU
    numbers, texts = table["number"].astype(float), table["text"]
    if numbers.isna().all(axis=None):
        raise NoData(f"no completed run of {recipe} has {quantity}")
    low, high = numbers.min(axis=None), numbers.max(axis=None)
    _colour(axes, numbers, quantity, max(1.1, high, 1 / low))
    for (y, x), text in np.ndenumerate(texts):
        lines = text.replace(" (", "\n(").replace(", ", "\n").replace("about ", "about\n")
        axes.text(x, y, lines, ha="center", va="center", fontsize=SMALL)
    set_rows(axes, numbers.index, last(across))
    axes.set_xticks(range(numbers.shape[1]), numbers.columns)
    axes.set_facecolor("#EEEEEE")
    axes.grid(visible=False)
    finding(axes, FINDINGS[quantity].format(low=low, high=high, recipe=name(recipe)))


def _colour(axes: Axes, numbers: pd.DataFrame, quantity: str, most: float) -> None:
    """Colour the fields so palely that black text can be read, and draw the scale.

    A ratio goes from red over white at 1 to blue, a share from white to blue.
    """
    scale, colours, ticks = Normalize(0, 1), ["white", PALE_BLUE], [0, 0.5, 1]
    if quantity == RATIO:
        scale, colours, ticks = LogNorm(1 / most, most), [PALE_RED, *colours], [1 / most, 1, most]
    colours = LinearSegmentedColormap.from_list("pale", colours)
    image = axes.imshow(numbers, colours, scale, aspect="auto")
    bar = axes.figure.colorbar(image, ax=axes, label=quantity, format="%.2f", ticks=ticks)
    bar.minorticks_off()
