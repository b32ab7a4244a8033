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
    rows = {}
    for recipe, runs in comparison.study.completed_by_recipe.items():
        rows[recipe] = pd.DataFrame(map(measure_run, runs)).mean()
    table = pd.DataFrame(rows).T
    times = ["wall time", "without first step"]
    table[times] /= table.loc[comparison.reference, times]
    table["at GH200's published speeds"] = 1 - table["steps in FP8"] * (1 - GH200)
    return table


def measure_run(run: Run) -> dict[str, float]:
    """Measure a row of `phase_costs` on one run, times in seconds."""
    wall_s = run.steps["wall_s"].max()
    proof = run.record.proof
    compile_s = sum(stretch.compile_s for stretch in proof.stretches.values())
    fp8_share = run.steps["in_fp8"].mean()
    if proof.recipe_name is None:
        fp8_share = 0.0
    return {
        "steps in FP8": fp8_share,
        "wall time": wall_s,
        "without first step": wall_s - run.first_step_s,
        "compiling at switches, s": compile_s,
    }
