"""Tables of single studies: what a notebook shows beside the comparison that all studies share.

Each part names its study. A row is a recipe unless a docstring says otherwise.
"""

import numpy as np
import pandas as pd

from analysis.break_even import wall_times


def first_runs(comparison: Comparison) -> dict[str, Run]:
    """Choose each recipe's first completed run."""
    return {recipe: runs[0] for recipe, runs in comparison.completed.items()}


def proofs(comparison: Comparison) -> pd.DataFrame:
    """Put what each recipe's first run proved into a row; columns as `parameters.orphans`."""
    first = first_runs(comparison)
    rows = [run.proof.model_dump() for run in first.values()]
    return pd.json_normalize(rows, max_level=2).set_index(pd.Index([*first]))


def cost_by_steps(comparison: Comparison, lengths: list[int]) -> pd.DataFrame:
    """Average the wall hours of a run of each length (rows) by recipe (columns), the first step
    (compile) included: measured within the runs, and beyond them as the mean steady step."""
    hours = {recipe: wall_times(runs, np.array(lengths)).mean(axis=0) / 3600
             for recipe, runs in comparison.completed.items()}  # fmt: skip
    return pd.DataFrame(hours, index=pd.Index(lengths, name="steps"))
