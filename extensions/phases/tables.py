"""What steps in bf16 before and after FP8 cost."""

import pandas as pd

from analysis.comparison import Comparison
from analysis.runs import Run

# A step's time over bf16's on one GH200, by tokens/s of published steps
# (github.com/mak2508/lsai-proj, output/data).
GH200 = 8777 / 10898


def phase_costs(comparison: Comparison) -> pd.DataFrame:
    """Average what completed runs cost; times are shares of the reference's.

    Columns: share of the steps in FP8; wall time with and without the first step; seconds that
    torch.compile took of the switching steps, over all attempts, which the wall time contains; time
    at the published steady tokens/s of one GH200, each step at the speed of its precision (an
    estimate without first step and switches).
    """
    rows = {recipe: pd.DataFrame(map(phase_cost, runs)).mean()
            for recipe, runs in comparison.study.completed.items()}  # fmt: skip
    table = pd.DataFrame(rows).T
    times = ["wall time", "without first step"]
    table[times] /= table.loc[comparison.reference, times]
    table["at GH200's published speeds"] = 1 - table["steps in FP8"] * (1 - GH200)
    return table


def phase_cost(run: Run) -> dict[str, float]:
    wall = run.steps["elapsed"].max()
    return {
        "steps in FP8": run.steps["in_fp8"].mean() * bool(run.proof.recipe_name),
        "wall time": wall,
        "without first step": wall - run.first_step_s,
        "compiling at switches, s": sum(of.compile_s for of in run.proof.stretches.values()),
    }
