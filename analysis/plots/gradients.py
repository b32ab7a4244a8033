"""How exactly gradients are added up, by the number of ranks."""

import pandas as pd
from matplotlib.axes import Axes

from analysis.gradients import WAYS
from analysis.plots.style import NoData, note, plot

_LOOKS = dict(
    zip(WAYS, ("#0072B2", "#56B4E9", "#444444", "#009E73", "#CC79A7", "#D55E00"), strict=True)
)


@plot
def gradient_sums(axes: Axes, sums: pd.DataFrame) -> None:
    """Signal to noise of the sum by the number of ranks, a line a way to add up; see
    `analysis.gradients.sums`."""
    if not len(sums):
        raise NoData("no sums were measured")
    for how, rows in sums.groupby("how", sort=False):
        marker, line = ("o", "-") if how in ("block", "tensor") else ("s", "--")
        axes.plot(
            rows["ranks"], rows["snr_db"], line, marker=marker, color=_LOOKS[how], label=WAYS[how]
        )
    ranks = sorted(set(sums["ranks"]))
    axes.set_xscale("log", base=2)
    axes.set_xticks(ranks, [str(count) for count in ranks])
    axes.set(xlabel="ranks", ylabel="signal to noise of the sum (dB)", ylim=(0, None))
    axes.legend(
        loc="upper left",
        bbox_to_anchor=(1, 1),
        labelcolor="linecolor",
        title="e4m3 gradients, added up",
    )
    note(axes, "20 dB: an error of a tenth, 40 dB: of a hundredth.")
