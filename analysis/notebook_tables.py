"""Make the tables of notebooks alone."""

import numpy as np
import pandas as pd

from analysis.break_even import wall_times
from analysis.comparison import Comparison


def proofs(comparison: Comparison) -> pd.DataFrame:
    """List what each recipe's first run proved, a row a recipe; columns: `parameters.orphans`."""
    rows = [runs[0].proof.model_dump() for runs in comparison.study.completed.values()]
    return pd.json_normalize(rows, max_level=2).set_index(pd.Index([*comparison.study.completed]))


def cost_by_steps(comparison: Comparison, lengths: list[int]) -> pd.DataFrame:
    """Average the wall hours of a run, first step (compile) included: a row a length, a column a
    recipe. After the end of the runs each step is the mean steady step."""
    hours = {
        recipe: wall_times(runs, np.array(lengths)).mean(axis=0) / 3600
        for recipe, runs in comparison.study.completed.items()
    }
    return pd.DataFrame(hours, index=pd.Index(lengths, name="steps"))
