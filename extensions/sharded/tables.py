"""Tables and figures of the notebook: what each rung sends, and whether it computes the same."""

import pandas as pd
from matplotlib.axes import Axes

from analysis.comparison import COMPILED, Comparison
from analysis.plots.bars import draw_bars, set_rows, tokens_per_second
from analysis.plots.style import NoData, Plot, finding, note, panels, plot, short_name
from analysis.table import proofs
from experiments.records.files import read_windows
from experiments.records.run import METRICS

COMPUTE = "tensorwise_fp8_compiled"
EACH, COMBINED = "tensorwise_fp8_allgather_amax_each", "tensorwise_fp8_allgather"
# Columns of the proof, and of the table.
SENT = {
    "sharded.gathered_bytes": "gathered",
    "sharded.gathered_bytes_expected": "closed_form",
    "sharded.reduced_bytes": "reduced",
    "sharded.all_reduces": "all_reduces",
    "sharded.nccl.seconds": "NCCL, ms",
    "sharded.nccl.exposed_seconds": "NCCL, exposed ms",
}
# Speed over bf16 of Llama 3 70B on 128 H100 (dev-discuss.pytorch.org/t/2359), which does not give
# batch and length.
PUBLISHED = {COMPILED: 1.0, COMPUTE: 1.40, EACH: 1.42, COMBINED: 1.50}


def ladder_bytes(comparison: Comparison) -> pd.DataFrame:
    """List what each rung of several ranks sends in a step: MB as recorded and by closed form.

    Adds the published speed over bf16, and on GPUs the milliseconds in which NCCL kernels ran, and
    in which no other kernel did.
    """
    sent = proofs(comparison).reindex(columns=SENT).rename(columns=SENT)
    sent[["gathered", "closed_form", "reduced"]] /= 1e6
    sent[["NCCL, ms", "NCCL, exposed ms"]] *= 1e3
    sent["published speed"] = pd.Series(PUBLISHED)
    known = sent.dropna(subset="gathered").dropna(axis=1, how="all")
    return known.astype({"all_reduces": int})


def same_numbers(comparison: Comparison) -> list[str]:
    """Say of each rung above the first in FP8 whether it computes the same numbers, bit for bit.

    With parameters in float32 it does not: a gather in bf16 rounds them first.
    """
    numbers = {}
    for run in comparison.study.runs:
        for window in read_windows(run.path / METRICS):
            numbers[run.recipe, run.seed, window.step] = window.loss, window.grad_norm
    table = pd.Series(numbers)
    lines = []
    for recipe in comparison.recipes:
        if recipe in (COMPILED, COMPUTE):
            continue
        own, compared = table[recipe].align(table[COMPUTE], "inner")
        equal = sum(own == compared)
        lines.append(f"{recipe}: equal to the last bit in {equal} of {len(own)} log windows.")
    return lines


def draw_ladder(comparison: Comparison) -> Plot:
    """Draw rung by rung the speed over bf16, and what a rank sends."""
    return panels([(tokens_per_second, comparison), (ladder_sizes, comparison)], (8, 3.8), 2)


@plot
def ladder_sizes(axes: Axes, comparison: Comparison) -> None:
    """Draw MB that are gathered and reduced in a step, one bar below the other."""
    found = ladder_bytes(comparison)
    if found.empty:
        raise NoData("no completed run of several ranks")
    draw_bars(axes, found["gathered"], y=-0.2, height=0.28)
    draw_bars(axes, found["reduced"], y=0.1, height=0.28, alpha=0.25)
    words = "{gathered:.1f} gathered\n{reduced:.1f} reduced\n{all_reduces} all-reduces"
    rows = [words.format_map(row) for row in found.to_dict("records")]
    set_rows(axes, [*map(short_name, found.index)], "MB a step", rows)
    share = found["gathered"].min() / found["gathered"].max()
    finding(axes, f"FP8 all-gather sends {share:.2f} of the weights' bytes")
    note(axes, "Upper bars: weights; lower bars: gradients, in float32.")
