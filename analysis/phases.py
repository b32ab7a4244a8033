"""What steps in bf16 before and after FP8 cost: as measured, and by the speeds of the published
study's GPU."""

from pathlib import Path

import pandas as pd

from analysis.comparison import Comparison
from analysis.other_logs.published import TOKENS_PER_S
from analysis.rates import completed
from experiments.records.files import read
from experiments.records.run import TIMING, Timing

STUDY = "phases"


def costs(comparison: Comparison) -> pd.DataFrame:
    """One row a recipe, means over its completed runs; times as shares of the opponent's (see
    `Comparison.opponent`).

    Columns: share of the steps in FP8; wall time with and without warm-up; seconds that
    torch.compile took of the switching steps, which the wall time contains; time at the published
    steady tokens/s of one GH200, with each step at that of its precision (an estimate: it has
    neither warm-up nor switches).
    """
    runs, rows = comparison.frames.runs, {}
    for recipe in comparison.recipes:
        of_recipe = completed(runs, runs, recipe)
        share = float(of_recipe["fp8_share_of_steps"].mean())
        timings = [
            read(file, Timing) for path in of_recipe["path"] for file in _timings(Path(path))
        ]
        compiled = [switch.compile_s for timing in timings for switch in timing.switches.values()]
        rows[recipe] = {
            "steps in FP8": share,
            "wall time": of_recipe["wall_s"].mean(),
            "without warm-up": of_recipe["wall_s_without_warm_up"].mean(),
            "compiling at switches, s": sum(compiled) / len(of_recipe),
            "at GH200's published speeds": 1 - share * (1 - _GH200),
        }
    table = pd.DataFrame.from_dict(rows, orient="index")
    times = ["wall time", "without warm-up"]
    table[times] = table[times] / table.loc[comparison.opponent, times]
    return table


def _timings(run: Path) -> list[Path]:
    """Of all attempts at a run, as its wall time is."""
    return [run / TIMING, *run.glob(f"attempt*/{TIMING}")]


_GH200 = (
    TOKENS_PER_S["baseline_compiled"] / TOKENS_PER_S["tensorwise_fp8_compiled"]
)  # a step's time, of bf16's
